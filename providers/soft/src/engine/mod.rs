//! What the adapter does: queues, connections, checks and the movement of bytes.

pub(crate) mod access;
mod acks;
pub(crate) mod alarm;
pub(crate) mod channel;
pub(crate) mod clock;
pub(crate) mod copying;
pub(crate) mod counters;
pub(crate) mod cq;
pub(crate) mod datagrams;
mod departing;
pub(crate) mod domains;
pub(crate) mod ethernet;
mod fast_receive;
pub(crate) mod fast_send;
mod faulty;
mod footprint;
mod helper;
pub(crate) mod helping;
pub(crate) mod hot;
pub(crate) mod imported;
pub(crate) mod in_flight;
pub(crate) mod inbound;
mod issue;
pub(crate) mod life;
pub(crate) mod link;
pub(crate) mod mapped;
mod moved;
pub(crate) mod multicast;
pub(crate) mod objects;
pub(crate) mod onesided;
pub(crate) mod opened;
mod other_cqs;
mod polling;
mod posting;
pub(crate) mod qp;
pub(crate) mod refused;
pub(crate) mod regions;
mod rendezvous;
pub(crate) mod requester;
pub(crate) mod responder;
mod role;
mod runs;
pub(crate) mod srq;
mod strict;
mod tagged;
pub(crate) mod tagging;
pub(crate) mod tso;
pub(crate) mod ud;
mod waiting;
pub(crate) mod windows;
mod wire;
pub(crate) mod wq;
pub(crate) mod xrc;
mod xrc_rings;
mod xrc_senders;

// As many ranges of memory as a work request may name.
const _: () = assert!(soft_memory::MAX_SGE == receive::MAX_SGE);

pub(crate) use soft_semantics::{completion, receive, request, state, tags};

#[cfg(test)]
mod tests;
