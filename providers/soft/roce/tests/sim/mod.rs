//! Hosts and switches on a virtual clock: links with queues that drop and mark, and receivers whose buffers are finite.
#![allow(dead_code, unreachable_pub, reason = "the test uses a part of what the example uses")]

mod conn;
mod fabric;
mod port;
#[path = "../support/random.rs"]
mod random;
pub mod scenarios;

pub use conn::Conn;
pub use fabric::{Fabric, Shape};
pub use port::Port;
pub use random::Random;
