//! `soft`: a software RDMA adapter in user space, as a provider plugin of libibverbs.
//!
//! See `docs/design/soft.md`. From the outside in: `ops` are the entry points that libibverbs and applications call; `engine`
//! is what the adapter does. The crate `soft_local` has the wire of one host: how processes meet and the memory that they share;
//! `soft_memory` what touches memory of an application; `soft_sys` the system calls.

mod adapter;
mod addresses;
mod attention;
mod config;
mod control;
mod engine;
#[doc(hidden)]
pub mod fuzzing;
mod gid_places;
mod guid;
#[cfg(test)]
mod hostile;
mod interfaces;
mod limits;
mod net;
mod ops;
mod port;
mod remote;
mod table;
mod told;
mod unreachable;
