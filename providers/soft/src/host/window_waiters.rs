//! QPs that wait for send window: too many bytes are in flight to their host.
//! Filled by `send`; the driver (`wire`) resumes them after packets have arrived.
#![forbid(unsafe_code)]

use cface::sync::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

/// Table indices of QPs that wait for send window, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct WindowWaiters {
    indices: Mutex<VecDeque<usize>>,
    /// Mirrors whether `indices` has an entry; written under the lock.
    has_any: AtomicBool,
}

/// `resume` stops after this many QPs without room: the hosts of the remaining QPs rarely differ.
const MAX_STILL_BLOCKED: usize = 8;

impl WindowWaiters {
    /// Whether a QP waits.
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Relaxed)
    }

    /// Adds a QP at the end.
    pub(super) fn push(&self, index: usize) {
        let mut indices = self.indices.lock();
        indices.push_back(index);
        self.has_any.store(true, Ordering::Relaxed);
    }

    /// Calls `resume` for the waiting QPs in order. `resume` sends what fits, and returns whether
    /// the QP waits again.
    #[cold]
    pub(super) fn resume(&self, mut resume: impl FnMut(usize) -> bool) {
        let mut waiting = std::mem::take(&mut *self.indices.lock()).into_iter();
        let mut still_blocked = vec![];
        while still_blocked.len() < MAX_STILL_BLOCKED
            && let Some(index) = waiting.next()
        {
            if resume(index) {
                // The QP keeps its position at the front of the queue.
                let mut indices = self.indices.lock();
                if indices.back() == Some(&index) {
                    indices.pop_back();
                }
                drop(indices);
                still_blocked.push(index);
            }
        }
        let mut indices = self.indices.lock();
        for index in still_blocked.into_iter().chain(waiting).rev() {
            indices.push_front(index);
        }
        self.has_any.store(!indices.is_empty(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qps_without_room_keep_their_order_and_end_the_round() {
        let waiters = WindowWaiters::default();
        (0..20).for_each(|index| waiters.push(index));
        let mut asked = vec![];
        waiters.resume(|index| {
            asked.push(index);
            let has_room = index % 2 == 0;
            if !has_room {
                waiters.push(index);
            }
            !has_room
        });
        let most = 2 * MAX_STILL_BLOCKED;
        assert_eq!(asked, (0..most).collect::<Vec<_>>());
        asked.clear();
        waiters.resume(|index| {
            asked.push(index);
            false
        });
        let odd = (0..most).filter(|index| index % 2 == 1);
        assert_eq!(asked, odd.chain(most..20).collect::<Vec<_>>());
        assert!(!waiters.has_any());
    }
}
