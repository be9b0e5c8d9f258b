//! XRC: what one connection has asked of another process of this host, and what came meanwhile. Who asks is `asking`.
#![forbid(unsafe_code)]

use ferroverbs_roce::wire::Psn;
use std::collections::VecDeque;

/// What one connection asks of other processes.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere {
    pub(super) asked: Option<Asked>,
    /// Packets that came since then, oldest first.
    pub(super) later: VecDeque<Box<[u8]>>,
}

/// A question without an answer.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) number: u64,
    pub(super) slot: u16,
    /// Of the packet that it is about.
    pub(super) psn: Psn,
    /// A READ: its name, and the queue.
    pub(super) read: Option<(u64, u32)>,
    /// As it was asked.
    pub(super) frame: Vec<u8>,
}
