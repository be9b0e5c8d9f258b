//! Copies of datagrams that cannot be sent when they are posted. `ud` copies a waiting datagram
//! here, and sends the copy later.
//!
//! By ibv_post_send(3) the memory belongs to the application again only after the completion. Some
//! applications rely on an adapter that reads a datagram microseconds after the post. UCX reuses a
//! buffer when its peer replies, or when a request of the peer makes the datagram needless
//! (openucx/ucx#6040, #8743). Here the first datagram to a busy process may wait for milliseconds.
//! Read late, it would contain another datagram for the wrong receiver.

use soft_memory::{Range, Ranges};
use std::collections::VecDeque;

/// Copies of waiting datagrams, by the number of their request.
#[derive(Debug, Default)]
pub(in crate::engine) struct WaitingDatagrams {
    copies: VecDeque<(u64, Vec<u8>)>,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
}

/// Number of buffers kept: enough for most waits.
const SPARE: usize = 16;

impl WaitingDatagrams {
    /// Copies request `n`, the newest. Unreadable memory is not copied; the request fails when it
    /// is issued.
    pub(in crate::engine) fn copy(&mut self, n: u64, ranges: &Ranges) {
        let mut buffer = self.spare.pop().unwrap_or_default();
        if ranges.gather_all(&mut buffer) {
            self.copies.push_back((n, buffer));
        }
    }

    /// The copy of request `n`. Drops earlier copies.
    #[inline]
    pub(in crate::engine) fn find(&mut self, n: u64) -> Option<Ranges> {
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
        // SAFETY: the copy stays until a later request is looked up, and no other code refers to
        // it.
        (*number == n).then(|| Ranges::of(unsafe { Range::new(buffer.as_mut_ptr(), buffer.len()) }))
    }

    /// Drops all copies.
    pub(in crate::engine) fn forget(&mut self) {
        *self = Self::default();
    }
}
