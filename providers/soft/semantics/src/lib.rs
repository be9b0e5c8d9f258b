//! What verbs mean: the states of queue pairs, queues, keys, tags, frames and faults, as values and functions.
//!
//! Nothing here reads a clock, draws a random number, takes a lock, starts a thread, or touches memory that somebody else can change, a file or
//! the environment: time and randomness are arguments. So everything here is tested without a fabric and without waiting.
#![forbid(unsafe_code)]

pub mod completion;
pub mod devices;
pub mod fate;
pub mod faults;
pub mod frames;
pub mod gid_order;
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
pub mod weather;
pub mod windows;
pub mod xrc;

pub use refused::Refused;
pub use time::{Clock, Time};
