//! Datagrams that have to wait are copied when they are posted.
//!
//! Their memory is the application's again when they complete (ibv_post_send(3)), but there are applications that cannot tell the
//! difference on an adapter, which has read a datagram microseconds after it was posted: UCX uses a buffer again as soon as its peer
//! answers, or sends a request that makes its own needless (openucx/ucx#6040, #8743). Here a datagram waits for milliseconds when it is the
//! first one to a process that is busy. Read then, it would be another datagram, to the wrong receiver.

use soft_memory::{Range, Ranges};
use std::collections::VecDeque;

/// Copies of datagrams that wait, by the numbers of their requests.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    copies: VecDeque<(u64, Vec<u8>)>,
    /// Memory for the next ones.
    spare: Vec<Vec<u8>>,
}

/// Copies whose memory is kept: as many as wait in most cases.
const SPARE: usize = 16;

impl Waiting {
    /// Request `n`, the last one so far, waits. What cannot be read is not copied: that is told when its turn comes.
    pub(super) fn copy(&mut self, n: u64, ranges: &Ranges) {
        let mut buffer = self.spare.pop().unwrap_or_default();
        if ranges.gather_all(&mut buffer) {
            self.copies.push_back((n, buffer));
        }
    }

    /// The copy of request `n`, and none of those before.
    #[inline]
    pub(super) fn find(&mut self, n: u64) -> Option<Ranges> {
        if self.copies.is_empty() { None } else { self.find_among(n) }
    }

    #[cold]
    fn find_among(&mut self, n: u64) -> Option<Ranges> {
        while self.copies.front().is_some_and(|(number, _)| *number < n) {
            let gone = self.copies.pop_front();
            if self.spare.len() < SPARE {
                self.spare.extend(gone.map(|(_, buffer)| buffer));
            }
        }
        let (number, buffer) = self.copies.front_mut()?;
        // SAFETY: the copy stays until the request after it is looked for, and nobody else has it.
        (*number == n).then(|| Ranges::of(unsafe { Range::new(buffer.as_mut_ptr(), buffer.len()) }))
    }

    /// Nothing waits any more.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}
