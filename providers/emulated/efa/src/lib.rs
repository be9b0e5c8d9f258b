//! An EFA adapter over bytes. The adapter answers libefa's commands, reads the queues and doorbells
//! that libefa writes, and writes completion entries. The data path is a
//! [`Carrier`](emulated_commands::carrier::Carrier).
//!
//! - [`entries`]: work queue entries and completion entries.
//! - [`queues`]: rings, doorbells, and the phase of a CQ.
//! - [`adapter`]: [`Efa`], the engine.
//! - [`fuzzing`]: memory and a data path for tests, and a fuzz target.
//!
//! Facts come from the kernel's `<rdma/efa-abi.h>`, and from the structures that libefa writes and
//! reads. All integers are little endian.
#![forbid(unsafe_code)]

pub mod adapter;
pub mod entries;
#[cfg(debug_assertions)]
pub mod fuzzing;
pub mod queues;

pub use adapter::Efa;
