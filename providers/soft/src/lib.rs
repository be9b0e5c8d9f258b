//! `soft`: a software RDMA adapter in user space, a provider plugin of libibverbs.
//!
//! See `docs/design/soft.md`. `ops` has the entry points for libibverbs and applications, `engine`
//! the behaviour of the adapter, `remote` the wire between hosts. The crate `soft_local` has the
//! wire of one host: how processes meet, and their shared memory. `soft_memory` accesses the memory
//! of an application, and `soft_sys` wraps system calls.

mod adapter;
mod attention;
mod config;
mod control;
mod engine;
#[cfg(debug_assertions)]
#[doc(hidden)]
pub mod fuzzing;
mod gid_indices;
mod guid;
mod host;
mod identity;
mod interfaces;
mod limits;
mod member_addresses;
mod net;
mod ops;
mod packet_sink;
mod port;
mod probes;
mod rounds;
mod table;
mod unreachable;
