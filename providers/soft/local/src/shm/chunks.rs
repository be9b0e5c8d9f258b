//! The bounce buffers of this process: which are free, and which of these have pages.
#![forbid(unsafe_code)]

use super::layout::CHUNKS;
use super::sync::Mutex;

/// Idle buffers that always keep their pages.
const KEPT: usize = 512;

/// Free list, last in first out: a buffer used a moment ago is still in the cache.
#[derive(Debug)]
pub struct Chunks {
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    returned: Vec<u32>,
    /// Free ones whose pages were given back.
    bare: Vec<u32>,
    /// All from here on were never used: their pages do not exist yet.
    untouched: u32,
    /// The most users since pages were last given back.
    most_users: usize,
}

impl Default for Chunks {
    fn default() -> Self {
        Self::new()
    }
}

impl Chunks {
    /// All of them free.
    pub fn new() -> Self {
        let returned = Vec::with_capacity(CHUNKS);
        let free = Free { returned, bare: Vec::new(), untouched: 0, most_users: 0 };
        Self { free: Mutex::new(free) }
    }

    /// A chunk for the caller alone, or `None` when all are in use.
    #[inline]
    pub fn take(&self) -> Option<u32> {
        let mut free = self.free.lock();
        if let Some(index) = free.returned.pop() {
            return Some(index);
        }
        if let Some(index) = free.bare.pop() {
            return Some(index);
        }
        let index = free.untouched;
        ((index as usize) < CHUNKS).then(|| {
            free.untouched += 1;
            index
        })
    }

    /// There are so many users now.
    pub fn note_users(&self, users: usize) {
        let mut free = self.free.lock();
        free.most_users = free.most_users.max(users);
    }

    /// When at most half of the users are left, calls `release`, which gives the pages of a chunk
    /// back, for each chunk that was idle for longest, but for some hundred that the users that are
    /// left may need.
    pub fn release_surplus(&self, users: usize, release: impl Fn(u32)) {
        let mut free = self.free.lock();
        if users * 2 > free.most_users {
            return;
        }
        free.most_users = users;
        // Without memory for the list nothing is given back.
        if free.returned.len() <= KEPT || free.bare.try_reserve_exact(CHUNKS).is_err() {
            return;
        }
        let mut surplus = free.returned.len() - KEPT;
        drop(free);
        while surplus > 0 {
            // Nobody else has these for the moment.
            let mut some = [0; 32];
            let mut free = self.free.lock();
            let count = free.returned.len().saturating_sub(KEPT).min(surplus).min(some.len());
            for (to, from) in some.iter_mut().zip(free.returned.drain(..count)) {
                *to = from;
            }
            drop(free);
            let some = &some[..count];
            some.iter().for_each(|index| release(*index));
            self.free.lock().bare.extend_from_slice(some);
            if count == 0 {
                return;
            }
            surplus -= count;
        }
    }

    /// Whether more than half of all are free: who could do without shall leave the rest to those
    /// who cannot.
    #[inline]
    pub fn are_plenty(&self) -> bool {
        let free = self.free.lock();
        CHUNKS - free.untouched as usize + free.returned.len() + free.bare.len() > CHUNKS / 2
    }

    /// Gives `index` back; it came from `take`.
    #[inline]
    pub fn give(&self, index: u32) {
        self.free.lock().returned.push(index);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_given_once_and_a_returned_one_first() {
        let chunks = Chunks::new();
        let all: Vec<u32> = std::iter::from_fn(|| chunks.take()).collect();
        assert_eq!(all.len(), CHUNKS);
        assert!(chunks.take().is_none());
        chunks.give(7);
        assert_eq!(chunks.take(), Some(7));
    }

    #[test]
    fn there_are_plenty_until_half_of_them_are_in_use() {
        let chunks = Chunks::new();
        let used: Vec<u32> = (1..CHUNKS / 2).filter_map(|_| chunks.take()).collect();
        assert!(chunks.are_plenty());
        let last = chunks.take().expect("another half");
        assert!(!chunks.are_plenty());
        chunks.give(last);
        assert!(chunks.are_plenty());
        used.into_iter().for_each(|index| chunks.give(index));
        assert!(chunks.are_plenty());
    }

    #[test]
    fn idle_chunks_give_their_pages_back_when_half_of_the_users_are_gone() {
        let chunks = Chunks::new();
        let released = std::cell::RefCell::new(vec![]);
        let release = |users| chunks.release_surplus(users, |at| released.borrow_mut().push(at));
        let all: Vec<u32> = (0..2000).filter_map(|_| chunks.take()).collect();
        chunks.note_users(100);
        all.iter().skip(500).for_each(|index| chunks.give(*index));
        release(51);
        assert!(released.borrow().is_empty(), "more than half of the users are there");
        release(50);
        let surplus: Vec<u32> = (500..2000 - KEPT as u32).collect();
        assert_eq!(*released.borrow(), surplus, "those idle for longest");
        release(26);
        assert_eq!(released.borrow().len(), surplus.len(), "half of fifty users are there");
        // Each of them is given once, and those with pages first.
        let again: Vec<u32> = (0..1600).filter_map(|_| chunks.take()).collect();
        assert!(again.iter().take(KEPT).all(|index| !surplus.contains(index)));
        let distinct: std::collections::BTreeSet<_> = again.iter().chain(&all[..500]).collect();
        assert_eq!(distinct.len(), 2100);
    }
}
