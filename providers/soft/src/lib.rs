//! `soft`: a software RDMA adapter in user space, as a provider plugin of libibverbs.
//!
//! See `docs/soft-provider.md`. From the outside in: `ops` are the entry points that libibverbs and applications call; `engine`
//! is what the adapter does; `shm` the memory that processes share; `fabric` how they meet. The crate `soft_sys` has the system calls,
//! `soft_memory` what touches memory of an application.

mod adapter;
mod addresses;
mod attention;
mod config;
mod control;
mod engine;
#[allow(dead_code, unreachable_pub, reason = "the fabric is a library of its own within the crate")]
mod fabric;
#[doc(hidden)]
pub mod fuzzing;
mod guid;
#[cfg(test)]
mod hostile;
mod net;
mod ops;
mod port;
mod shm;
mod strangers;
mod table;
