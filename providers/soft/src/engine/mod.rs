//! The behaviour of the adapter: queues, connections, checks and the movement of bytes. `ops` (C
//! entry points) and `host` (other hosts) stand above and beside it; `soft_local` has the shared
//! memory below.
//!
//! Reading order: `queues::qp::posting` and `ring::fast_send` (a request is posted),
//! `queues::qp::wire`, `ring::requester` and `ring::issue` (it is issued), `ring::responder`,
//! `ring::fast_receive` and `queues::inbound` (it is served), `ring::acks`, `queues::cq` (it
//! completes).
//!
//! | folder | content |
//! |---|---|
//! | `adapter` | the adapter of a process: its tables, its service thread's work, its port |
//! | `queues` | QPs, CQs, SRQs, work queues and event channels; the rules for an arriving request |
//! | `keys` | memory regions, memory windows, protection domains |
//! | `ring` | the wire between connected QPs of one host |
//! | `xrc` | the wire of XRC on one host |
//! | `datagram` | the wire of UD and multicast on one host |
//! | `frames` | the wire of Ethernet frames |
//! | `faults` | wires around another wire: faults on demand, a port that is down, strict mode |
//! | `host_qp` | QPs on the wire to other hosts (`crate::host`) |
//!
//! The folder of an object, or of a wire, has the fields in `mod.rs` and the methods in the other
//! files. The fields of the objects refer to each other in a circle; no file of methods is in that
//! circle (`tests/arrows.rs`).

pub(crate) mod adapter;
pub(crate) mod clock;
pub(crate) mod datagram;
pub(crate) mod faults;
pub(crate) mod frames;
pub(crate) mod host_qp;
pub(crate) mod keys;
pub(crate) mod queues;
pub(crate) mod refused;
pub(crate) mod ring;
pub(crate) mod verbs_cell;
pub(crate) mod xrc;

// A work request names at most as many ranges as `Ranges` hold.
const _: () = assert!(soft_memory::MAX_SGE == soft_semantics::receive::MAX_SGE);

#[cfg(test)]
mod tests;
