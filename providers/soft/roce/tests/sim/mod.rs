//! A simulation of hosts and switches on a virtual clock: links with queues that drop and mark, and
//! receivers with finite buffers.

mod conn;
mod fabric;
mod port;
#[path = "../support/random.rs"]
mod random;
pub(crate) mod scenarios;

pub(crate) use conn::Conn;
pub(crate) use fabric::{Fabric, Shape};
pub(crate) use port::Port;
pub(crate) use random::Random;
