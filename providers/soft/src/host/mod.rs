//! QPs whose other end is on another host: RoCE v2 by UDP.
//!
//! The transport is `ferroverbs_roce`, which knows neither memory nor queues, and the sockets are `ferroverbs_net`. Here
//! they meet the queues of a QP: what is posted becomes work of its [`Connection`], and what a packet asks for is done by
//! `engine::inbound`, as for a piece that came through a ring of this host.
//!
//! | file | |
//! |---|---|
//! | `connection` | the transport of one QP, made at RTR |
//! | `requests` | from a send queue to packets, and back to completions |
//! | `arrivals` | from a packet to a receive or to memory |
//! | `datagrams` | UD, where each request says where it goes |
//! | `groups` | multicast |
//! | `admission` | with whom this process talks at all |
//! | `claim` | which fabric has the port |
//! | `counts` | what is counted, for whoever wants to know |
//! | `asking`, `guests`, `question`, `elsewhere` | XRC: what is for a shared receive queue of another process: who asks, who serves, in which words, and what is open |
//! | `forward` | what came to the wrong process of those that share the port |
//! | `share` | what may be under way to one host, which has one socket for all that comes to it |
//! | `short` | shortcuts for packets that go alone |
//! | `ports` | the sockets, and packets on their way out |
//! | `waiting` | and had to wait there |
//! | `steer`, `astray`, `places` | which process the kernel gives a packet to, when that is looked at anew, and what each says of its sockets |
//! | `turns` | by which way messages of connection managers go |
//! | `timers` | when a QP is to be looked at though nothing came |
//! | `wire` | what a process has of it: who drives it, and which QP a packet is for |
//!
//! Whoever polls a completion queue of such a QP drives the wire; when nobody polls, the service thread does.
//!
//! Locks, outer first: the wire's inbox > a QP's `responder` > its `requester` > the wire's outbox, its timers; under the outbox that of a shortcut.

mod admission;
pub(crate) mod connection;
mod counters;
mod datagrams;
mod forward;
mod forward_queue;
mod multicast;
mod port_claim;
mod port_rotation;
mod receive;
mod send;
mod shortcut;
mod socket_positions;
mod sockets;
pub(crate) mod state;
mod steering;
mod steering_plan;
mod timers;
mod window_share;
mod wire;
mod xrc_messages;
mod xrc_pending;
mod xrc_requests;
mod xrc_serving;

pub(crate) use connection::{Connection, Far};
#[cfg(test)]
pub(crate) use forward::FRAME_KINDS;
pub(crate) use forward::take as take_forwarded;
pub(crate) use port_claim::Holder;
pub(crate) use wire::{active_mtu, is_forced};
pub(crate) use xrc_messages::{Question, Served};
#[cfg(test)]
pub(crate) use xrc_serving::ask as ask_guest;
pub(crate) use xrc_serving::serve as serve_guest;
