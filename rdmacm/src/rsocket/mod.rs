//! rsockets: sockets over queue pairs (rsocket(7)).
//! Programs and librspreload call these entry points; `ferroverbs_cm::stream` has the protocol.
//!
//! | | |
//! |---|---|
//! | `entry` | the entry points with pointers |
//! | `socket` | a socket, and how callers wait |
//! | `endpoint` | the queue pair, completion queue and memory of a stream |
//! | `queue` | the queue pair of an endpoint, and its completion queue |
//! | `datagrams`, `datagram_endpoint` | datagram sockets, and the queue pair of each local address
//! |
//! | `connect` | sockets and their connections, names |
//! | `transfer`, `vector` | sending and receiving |
//! | `mapping` | mapped buffers |
//! | `numbers` | tables of sockets and sets by descriptor |
//! | `poll`, `set` | `rpoll`, `rselect`; `repoll_create` and its kin |
//! | `end` | `rshutdown`, `rclose` |
//! | `options` | `rsetsockopt`, `rgetsockopt`, `rfcntl` |
//! | `keep_alive` | `SO_KEEPALIVE` |
//! | `wake_fd` | the eventfd of a waiting thread |
//! | `settings` | default settings of the administrator |
//!
//! Only `keep_alive` has a thread; otherwise the calling thread does the work of a socket. The
//! socket's descriptor is an epoll(7) set of all event sources, so poll(2) returns when a call is
//! needed. Lock order, outer first: socket, id, agent.

pub(crate) mod connect;
mod datagram_endpoint;
mod datagrams;
pub(crate) mod end;
mod endpoint;
pub(crate) mod entry;
mod keep_alive;
mod mapping;
mod numbers;
pub(crate) mod options;
mod poll;
mod queue;
pub(crate) mod set;
mod settings;
mod socket;
mod transfer;
mod vector;
mod wake_fd;
