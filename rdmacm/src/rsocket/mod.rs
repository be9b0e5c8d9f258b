//! rsockets: sockets over queue pairs (rsocket(7)). What both ends say to each other is in `ferroverbs_cm::stream`.
//!
//! | | |
//! |---|---|
//! | `socket` | a socket, and how its callers wait |
//! | `endpoint` | its queue pair, completion queue and memory |
//! | `queue` | completion queues, and posting |
//! | `memory` | registered memory |
//! | `datagrams`, `datagram_endpoint` | sockets of datagrams, and the queue pair of each of their addresses |
//! | `connect` | `rsocket`, `rbind`, `rlisten`, `raccept`, `rconnect`, names |
//! | `transfer`, `vector` | sending and receiving |
//! | `mapping` | `riomap`, `riowrite` |
//! | `numbers` | which numbers are of what |
//! | `poll`, `set` | `rpoll`, `rselect`; `repoll_create` and its kin |
//! | `end` | `rshutdown`, `rclose` |
//! | `options` | `rsetsockopt`, `rgetsockopt`, `rfcntl` |
//! | `keep_alive` | `SO_KEEPALIVE` |
//! | `bell` | what wakes a thread that waits |
//! | `settings` | files of the administrator |
//!
//! There are no threads but that of sockets that are kept alive: whoever calls does what is due for the socket. Its descriptor is an epoll(7) descriptor over what may bring news, so that poll(2) wakes a thread when somebody should look.
//! The lock of a socket comes before those of ids and agents.

mod bell;
pub(crate) mod connect;
mod datagram_endpoint;
mod datagrams;
pub(crate) mod end;
mod endpoint;
mod keep_alive;
pub(crate) mod mapping;
mod memory;
mod numbers;
pub(crate) mod options;
pub(crate) mod poll;
mod queue;
pub(crate) mod set;
mod settings;
mod socket;
pub(crate) mod transfer;
mod vector;
