//! `librspreload.so`: TCP programs over rsockets, unmodified (rsocket(7)). It stands before libc's calls of sockets.
//!
//! | | |
//! |---|---|
//! | `calls` | what stands before libc's functions |
//! | `waiting` | poll(2) and select(2) |
//! | `epoll`, `interest` | epoll(7) |
//! | `forking` | servers that fork after they accepted |
//! | `table` | which descriptors are rsockets |
//! | `choice` | for which sockets of which programs: `/etc/rdma/rsocket/preload_config` |
//! | `real` | libc's own functions |
//! | `rdma` | what is used of librdmacm.so.1 |
//!
//! A socket that a program makes is a placeholder, an eventfd(2), and beside it there is an rsocket. Where no rsocket can do what is asked for, an ordinary socket takes the placeholder's
//! number, and nothing of this library is left before it.

#[cfg(not(test))]
pub mod calls;
#[cfg(not(test))]
pub mod epoll;
#[cfg(not(test))]
mod forking;
#[cfg(not(test))]
mod rdma;
#[cfg(not(test))]
mod real;
#[cfg(not(test))]
mod table;
#[cfg(not(test))]
pub mod waiting;

pub mod choice;
pub mod interest;
