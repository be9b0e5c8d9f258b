//! `librdmacm.so.1`: connections between queue pairs by IP addresses (rdma_cm(7)).
//! The library stands between the program and libibverbs, and needs no connection manager in the
//! kernel.
//!
//! | floor | |
//! |---|---|
//! | `sys` | system calls, the kernel's tables, libibverbs, C structures |
//! | `host` | the processes of a host: ports, process numbers, the receivers of MADs |
//! | `core` | ids, event channels, devices, agents |
//! | `kernel` | ids on kernel devices, by the kernel's connection manager |
//! | `calls` | entry points of the program |
//! | `rsocket` | sockets over queue pairs |
//! | `layers`, `export` | shared objects between the program and the library; the exported names |
//!
//! The crate `ferroverbs-cm` interprets the messages. Lock order, outer first: agent, id, queue of
//! a channel.

mod calls;
mod core;
mod export;
mod host;
mod kernel;
mod layers;
mod rsocket;
mod sys;
