//! The objects of a process: the adapter, its queues and its connections. All code of `engine`
//! works on these structures.
//!
//! The structures refer to each other, so their definitions are in one folder. Questions that the
//! fields alone answer are beside them. The other methods are in the files of `engine` named after
//! the task. A file of this folder calls no function of such a file (`tests/arrows.rs`).
//!
//! | file | content |
//! |---|---|
//! | `adapter` | the adapter of a process, its steering rules and multicast groups |
//! | `registry` | numbers and tables of an adapter |
//! | `service` | the work of the service thread |
//! | `qp`, `cq`, `srq`, `wq` | queue pairs, completion queues, shared receive queues, work queues |
//! | `connection` | the two halves of a connection, and the link to the remote QP |
//! | `channel` | event channels |
//! | `xrc` | XRC domains, and the QPs opened by several processes |
//!
//! These ten files refer to each other. The remaining files refer to none of them: `builder` and
//! `iterator` (calls of an application in several steps), `datagrams` (datagram rings), `half`
//! (locks of QPs), `helping` (shared long operations), `port` (the port and its orders), `maps`
//! (mapped regions of peers), `copying` and `other_cqs` (measurements), `published_addresses`
//! (addresses of other namespaces), `hot_slots` and `holder` (rings), `served_by` (the serving
//! thread), `send_requests` (the requests of a send queue), `datagram_sender` (the sending half of
//! a QP without a connection), `ring_acks` (acknowledgements on this host), `list_marks` (the lists
//! that contain a QP).

pub(crate) mod adapter;
pub(crate) mod builder;
pub(crate) mod channel;
pub(crate) mod connection;
pub(crate) mod copying;
pub(crate) mod cq;
pub(crate) mod datagram_sender;
pub(crate) mod datagrams;
pub(crate) mod half;
pub(crate) mod helping;
pub(crate) mod holder;
pub(crate) mod hot_slots;
pub(crate) mod iterator;
pub(crate) mod list_marks;
pub(crate) mod maps;
pub(crate) mod other_cqs;
pub(crate) mod port;
pub(crate) mod published_addresses;
pub(crate) mod qp;
pub(crate) mod registry;
pub(crate) mod ring_acks;
pub(crate) mod run_lists;
pub(crate) mod send_requests;
pub(crate) mod served_by;
pub(crate) mod service;
pub(crate) mod srq;
pub(crate) mod wq;
pub(crate) mod xrc;
