//! Copies of datagrams that cannot be sent when they are posted. `ud` copies a waiting datagram
//! here, and sends the copy later.
//!
//! By ibv_post_send(3) the memory belongs to the application again only after the completion. Some
//! applications rely on an adapter that reads a datagram microseconds after the post. UCX reuses a
//! buffer when its peer replies, or when a request of the peer makes the datagram needless
//! (openucx/ucx#6040, #8743). Here the first datagram to a busy process may wait for milliseconds.
//! Read late, it would contain another datagram for the wrong receiver.

use soft_memory::Ranges;
use std::cmp::Ordering::{Equal, Greater, Less};
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

    /// Moves the copy of request `n` to `buffer`; false: none. Drops earlier copies.
    #[inline]
    pub(in crate::engine) fn take(&mut self, n: u64, buffer: &mut Vec<u8>) -> bool {
        !self.copies.is_empty() && self.take_among(n, buffer)
    }

    #[cold]
    fn take_among(&mut self, n: u64, buffer: &mut Vec<u8>) -> bool {
        while let Some((number, copy)) = self.copies.pop_front() {
            match number.cmp(&n) {
                Less => self.reuse(copy),
                Equal => {
                    *buffer = copy;
                    return true;
                }
                Greater => {
                    self.copies.push_front((number, copy));
                    break;
                }
            }
        }
        false
    }

    /// Keeps the bytes of request `n`, the oldest, which waits again. An empty buffer without
    /// memory is no copy.
    #[cold]
    pub(in crate::engine) fn put_back(&mut self, n: u64, copy: Vec<u8>) {
        if copy.capacity() > 0 {
            self.copies.push_front((n, copy));
        }
    }

    /// Keeps the memory of a copy that is not needed any more.
    #[inline]
    pub(in crate::engine) fn reuse(&mut self, copy: Vec<u8>) {
        if copy.capacity() > 0 && self.spare.len() < SPARE {
            self.spare.push(copy);
        }
    }

    /// Drops all copies.
    pub(in crate::engine) fn clear(&mut self) {
        *self = Self::default();
    }
}
