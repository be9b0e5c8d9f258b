//! The wire `faults`: wires around another wire, which lose, delay or fail requests on demand.
//! Orders come from `port.rs`; the rules are `soft_semantics::faults`.
//!
//! | file | content |
//! |---|---|
//! | `injected` | requests that a fault rule strikes |
//! | `plan` | the rules of an adapter, and those of a send queue |
//! | `plugging` | rules and port state of a QP |
//! | `port_down` | a port that is down |
//! | `strict` | refusals that adapters make between hosts |
#![forbid(unsafe_code)]

mod injected;
pub(crate) mod plan;
mod plugging;
mod port_down;
pub(crate) mod strict;
