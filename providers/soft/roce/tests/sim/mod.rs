//! Hosts and switches on a virtual clock: links with queues that drop and mark, and receivers whose buffers are finite.
#![allow(dead_code, unreachable_pub, reason = "the test uses a part of what the example uses")]

mod conn;
mod fabric;
mod port;
pub mod scenarios;

pub use conn::Conn;
pub use fabric::{Fabric, Shape};
pub use port::Port;

/// Random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}
