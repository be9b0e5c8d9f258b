//! The formats of an mlx5 adapter: work queue entries, completion entries, doorbell records, and
//! the vendor data of commands.
//!
//! libmlx5 and programs that use mlx5dv write work queue entries to memory and read completion
//! entries from memory. This crate decodes the former to verbs requests and encodes verbs
//! completions as the latter. The verbs themselves (queues, checks, transports) belong to `soft`.
//!
//! All functions take bytes and return values. The crate opens no file, reads no clock, starts no
//! thread, and holds no reference to memory that a program can change: [`QueueBytes`] copies.
//! Layouts come from `<infiniband/mlx5dv.h>` (rdma-core 44) and `<rdma/mlx5-abi.h>` (Linux 6.1).
//!
//! # Vocabulary
//!
//! - Requests: [`sq`] takes entries from a send queue, [`wqe`] decodes and encodes one entry,
//!   [`segment`] one segment of an entry. [`rq`] and [`srq`] take posted receives.
//! - Completions: [`cqe`] encodes one entry, [`cq`] stores entries in a completion queue and
//!   decides when an event is due, [`syndrome`] lists the errors.
//! - Verbs: [`verbs`] converts requests to verbs and verbs completions to entries.
//! - The engine: [`adapter`] has [`Mlx5`], which serves libmlx5 over a data path.
//! - Commands: [`commands`] decodes vendor requests and encodes vendor answers, [`device`] has the
//!   models, [`clock`] the page of `mlx5dv_get_clock_info(3)`.
#![forbid(unsafe_code)]

pub mod adapter;
pub mod clock;
pub mod commands;
pub mod cq;
pub mod cqe;
pub mod device;
pub mod doorbell;
mod fields;
#[cfg(debug_assertions)]
pub mod fuzzing;
pub mod rq;
pub mod segment;
pub mod sq;
pub mod srq;
pub mod syndrome;
pub mod verbs;
pub mod wqe;

pub use adapter::Mlx5;
pub use fields::Fields;

/// The buffer of a queue. A program may change the bytes at any time, so they are copied.
pub trait QueueBytes {
    /// Copies `into.len()` bytes from `offset`. The caller stays within the length that the
    /// creation of the queue requires.
    fn read(&self, offset: usize, into: &mut [u8]);
}

impl QueueBytes for Vec<u8> {
    fn read(&self, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self[offset..offset + into.len()]);
    }
}
