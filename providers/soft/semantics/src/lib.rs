//! Verbs semantics as values and functions: states of queue pairs, queues, keys, tags, frames and
//! faults.
//!
//! Functions read no clock, draw no random number, take no lock, start no thread, and touch no
//! memory that others change, no file and no environment. Time and randomness are arguments. Hence
//! all of it is tested without a fabric and without waiting.
//!
//! # Vocabulary
//!
//! - Requests: [`request`] holds the send queue and its requests, [`receive`] the receive queues,
//!   [`completion`] the completion queues.
//! - Queue pairs: [`state`] defines states and kinds, [`modify`] the transitions, [`failure_state`]
//!   the failure of a send queue.
//! - Memory: [`keys`] checks accesses, [`windows`] bindings.
//! - Messages: [`inbound`] holds the responder's results, [`tags`] tag matching, [`frames`]
//!   Ethernet, [`xrc`] shared receive queues of XRC.
//! - Testing aids: [`faults`] and [`impairment`] inject errors and packet loss, [`strict`] adds
//!   checks.
//!
//! ```
//! use soft_semantics::state::QpType;
//!
//! assert!(QpType::Rc.is_reliable() && QpType::Rc.is_connected());
//! assert!(!QpType::Ud.is_connected());
//! ```
#![forbid(unsafe_code)]

pub mod completion;
pub mod devices;
pub mod emulated;
pub mod failure_state;
pub mod faults;
pub mod frames;
pub mod gid_order;
pub mod impairment;
pub mod inbound;
pub mod keys;
pub mod modify;
pub mod receive;
mod refused;
pub mod request;
pub mod state;
mod storage;
pub mod strict;
pub mod tags;
mod time;
pub mod windows;
pub mod xrc;

pub use refused::Refused;
pub use time::{Clock, Time};
