//! The behaviour of the adapter: queues, connections, checks and the movement of bytes. `ops` (C
//! entry points) and `remote` (other hosts) stand above and beside it; `soft_local` has the shared
//! memory below.
//!
//! Reading order: `posting` and `fast_send` (a request is posted), `requester`, `issue` and `wire`
//! (it is issued), `responder`, `fast_receive` and `inbound` (it is served), `acks`, `polling` and
//! `cq` (it completes). `objects` has the data structures.

pub(crate) mod access;
mod acks;
pub(crate) mod alarm;
pub(crate) mod channel;
pub(crate) mod clock;
mod completions;
pub(crate) mod copying;
pub(crate) mod counters;
pub(crate) mod cq;
pub(crate) mod creating;
pub(crate) mod datagrams;
mod departing;
pub(crate) mod domains;
pub(crate) mod ethernet;
mod failing;
mod fast_receive;
pub(crate) mod fast_send;
pub(crate) mod faults;
mod footprint;
mod helper;
pub(crate) mod helping;
pub(crate) mod host_qp;
pub(crate) mod hot;
pub(crate) mod imported;
pub(crate) mod in_flight;
pub(crate) mod inbound;
mod inlets;
mod issue;
mod key_users;
pub(crate) mod life;
pub(crate) mod link;
mod listing;
pub(crate) mod mapped;
pub(crate) mod multicast;
pub(crate) mod objects;
pub(crate) mod onesided;
pub(crate) mod opened;
mod other_cqs;
mod polling;
mod posted_receives;
mod posting;
pub(crate) mod qp;
pub(crate) mod refused;
pub(crate) mod regions;
mod rendezvous;
pub(crate) mod requester;
pub(crate) mod responder;
mod role;
mod runs;
mod send_requests;
pub(crate) mod srq;
mod state_change;
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
mod xrc_tasks;

// A work request names at most as many ranges as `Ranges` hold.
const _: () = assert!(soft_memory::MAX_SGE == soft_semantics::receive::MAX_SGE);

#[cfg(test)]
mod tests;
