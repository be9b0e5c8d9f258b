//! The connection manager of InfiniBand and RoCE without sockets (IBTA vol 1, chapter 12).
//!
//! [`wire`] has the messages. [`Manager`] has the states of all connections of one adapter, as seen by one process. There is no
//! socket here, no clock, no thread and no source of random numbers: the caller brings MADs, the time and random numbers, and
//! takes MADs and events away.
//!
//! | in | |
//! |---|---|
//! | [`listen`](Manager::listen) | requests for a service are wanted |
//! | [`connect`](Manager::connect), [`ready`](Manager::ready) | the active side: REQ, RTU |
//! | [`accept`](Manager::accept), [`reject`](Manager::reject) | the passive side: REP, REJ |
//! | [`establish`](Manager::establish) | data came before the RTU |
//! | [`disconnect`](Manager::disconnect), [`destroy`](Manager::destroy) | DREQ; and no more interest |
//! | [`lost`](Manager::lost) | the peer's process is known to be gone |
//! | [`ask`](Manager::ask), [`answer`](Manager::answer) | datagrams: SIDR_REQ, SIDR_REP |
//! | [`receive`](Manager::receive) | a MAD that came |
//! | [`handle_timeout`](Manager::handle_timeout) | it is now as late as [`poll_timeout`](Manager::poll_timeout) said |
//!
//! | out | |
//! |---|---|
//! | [`poll_transmit`](Manager::poll_transmit) | a MAD to send, and to whom |
//! | [`poll_event`](Manager::poll_event) | what applications are to know |
//!
//! After each call in, the caller asks `poll_transmit` and `poll_event` until both have nothing.
//!
//! # Losses
//!
//! Messages that want an answer are sent again. The specification leaves the moments to the sender, within the time and the
//! number that a REQ announces, and the kernel waits six seconds each time. Here the first repetition comes after
//! [`Config::first_resend`], and each following one after twice the time, until what is left of the time is shared out
//! evenly among what is left of the number: there are never more messages than announced, and the end is never sooner.
//! Duplicates are legal for any peer: it answers them as the first. An application that is slow is covered by MRA, which is sent to a
//! peer that repeats itself after half of the time in which it expects an answer.
//!
//! # Trust
//!
//! Any bytes may come in. At most one MAD answers a MAD, of the same length, and none answers a REJ; only who asks anew for what is
//! connected already is also asked to end that. A connection only hears its own peer's address. What a peer can make this side remember is bounded: requests that nobody has taken yet by the backlog of
//! the service and per peer, everything by [`Config::connections`] and [`Config::memories`]. Times that a peer asks for are
//! cut to [`Config::longest_wait`]. Names of connections cannot be predicted as long as the random numbers cannot.

#![forbid(unsafe_code)]

pub mod datagram;
pub mod fuzzing;
mod manager;
pub mod stream;
pub mod wire;

pub use manager::{
    Config, Connection, Counters, Event, Kind, Listener, Manager, Names, Refused, Rejection, Stage,
    Time,
};
