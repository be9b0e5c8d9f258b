//! The connection manager of InfiniBand and RoCE without sockets (IBTA 1.7 12).
//! `librdmacm` drives it: its agent receives and sends the MADs.
//!
//! [`wire`] has the messages. [`Manager`] has the states of all connections of one adapter, as one
//! process sees them. The crate has no socket, clock, thread or source of random numbers: the
//! caller passes MADs, the time and random numbers, and takes MADs and events.
//!
//! | in | |
//! |---|---|
//! | [`listen`](Manager::listen) | accept requests for a service |
//! | [`connect`](Manager::connect), [`ready`](Manager::ready) | the active side: REQ, RTU |
//! | [`accept`](Manager::accept), [`reject`](Manager::reject) | the passive side: REP, REJ |
//! | [`establish`](Manager::establish) | data arrived before the RTU |
//! | [`disconnect`](Manager::disconnect) | DREQ |
//! | [`destroy`](Manager::destroy) | forget a connection |
//! | [`peer_process_died`](Manager::peer_process_died) | the peer process is dead |
//! | [`send_sidr_request`](Manager::send_sidr_request) | SIDR_REQ, for datagrams |
//! | [`answer`](Manager::answer) | SIDR_REP |
//! | [`receive`](Manager::receive) | a received MAD |
//! | [`handle_timeout`](Manager::handle_timeout) | the time of `poll_timeout` has come |
//!
//! | out | |
//! |---|---|
//! | [`poll_transmit`](Manager::poll_transmit) | a MAD to send, with its receiver |
//! | [`poll_event`](Manager::poll_event) | an event for the application |
//!
//! After each call of the first table, the caller polls `poll_transmit` and `poll_event` until both
//! are empty.
//!
//! # Losses
//!
//! A message that requires an answer is sent again until the answer arrives. A REQ announces a time
//! and a number of repetitions; the specification leaves the moments to the sender, and the kernel
//! waits six seconds each time. Here the first repetition comes after [`Config::first_resend`], and
//! the interval doubles with each repetition, until the remaining time is divided evenly among the
//! remaining repetitions. A sender thus sends no more messages than announced, and does not give up
//! earlier.
//!
//! A receiver answers a duplicate like the first copy. For a slow application, the manager sends
//! MRA to a peer that repeats a message after half of the time in which the peer expects an answer.
//!
//! # Trust
//!
//! Input may be any bytes. At most one MAD answers a MAD, of the same length, and no MAD answers a
//! REJ; a second REQ for an existing connection also triggers a DREQ. A connection accepts MADs
//! only from its peer's address. A peer's use of memory is bounded: pending requests by the
//! service's backlog and a limit for each peer, everything else by [`Config::connections`] and
//! [`Config::memories`]. Times from peers are limited to [`Config::longest_wait`]. Communication
//! ids are as unpredictable as the random numbers.

#![forbid(unsafe_code)]

pub mod datagram;
#[cfg(debug_assertions)]
pub mod fuzzing;
mod manager;
pub mod stream;
pub mod wire;

pub use manager::{
    Config, Connection, Counters, Event, Kind, Listener, Manager, Names, Refused, Rejection, Stage,
    Time,
};
