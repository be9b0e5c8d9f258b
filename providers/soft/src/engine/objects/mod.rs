//! What there is: the adapter of a process, its queues, its connections, as data.
//!
//! These structures know each other, so their definitions are together, and apart from what is done with them: methods are in the
//! files of `engine` and `remote` that they are about. A file of this folder imports none that knows these structures
//! (`tests/arrows.rs`).
//!
//! | file | |
//! |---|---|
//! | `adapter` | the adapter as one process has it, with what is published of steering rules and multicast groups |
//! | `qp`, `cq`, `srq`, `wq` | queue pairs, completion queues, shared receive queues, work queues |
//! | `connection` | a connection's two halves, and the way to its other end |
//! | `channel` | event channels |
//! | `xrc` | XRC domains, and who has which QP open |
//!
//! These eight know each other. The others know none of them, and hold what has no owner to name: `builder` and `iterator` the state
//! of calls that an application makes in several steps, `datagrams` the rings of datagrams, `half` the locks of QPs, `helping` shared long operations, `port` the port and
//! the orders for it, `maps` mapped regions of peers, `copying` and `elsewhere` measurements, `everybody` who has which addresses, `places` and `holder` who has a ring,
//! `plan` the rules of faults, `served_by` who serves.

pub(crate) mod adapter;
pub(crate) mod builder;
pub(crate) mod channel;
pub(crate) mod connection;
pub(crate) mod copying;
pub(crate) mod cq;
pub(crate) mod datagrams;
pub(crate) mod elsewhere;
pub(crate) mod everybody;
pub(crate) mod half;
pub(crate) mod helping;
pub(crate) mod holder;
pub(crate) mod iterator;
pub(crate) mod maps;
pub(crate) mod places;
pub(crate) mod plan;
pub(crate) mod port;
pub(crate) mod qp;
pub(crate) mod run_lists;
pub(crate) mod served_by;
pub(crate) mod srq;
pub(crate) mod wq;
pub(crate) mod xrc;
