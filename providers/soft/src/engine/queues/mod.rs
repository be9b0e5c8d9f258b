//! The queues of verbs, each in a folder with its fields and its methods, and the rules for an
//! arriving request, which all wires use.
//!
//! | file | content |
//! |---|---|
//! | `qp` | queue pairs, and the send queue with its wires |
//! | `cq` | completion queues and polls |
//! | `srq`, `wq` | shared receive queues, work queues of frames |
//! | `channel` | event channels |
//! | `inbound`, `tagged` | an arriving request: matching, checks, placing, completing |
//! | `served_by` | who serves arrivals |

pub(crate) mod channel;
pub(crate) mod cq;
pub(crate) mod inbound;
pub(crate) mod qp;
pub(crate) mod served_by;
pub(crate) mod srq;
pub(crate) mod tagged;
pub(crate) mod wq;
