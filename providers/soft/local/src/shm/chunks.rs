//! The bounce buffers (chunks) of this process: which are free, and which free ones have pages.
//!
//! Senders take chunks for bytes of longer messages; the receiver's acknowledgement frees them.
#![forbid(unsafe_code)]

use super::layout::CHUNKS;
use super::sync::Mutex;

/// How many idle buffers keep their pages.
const RESIDENT_CHUNKS: usize = 512;

/// A last-in first-out free list: a recently used buffer is still in the cache.
#[derive(Debug)]
pub struct Chunks {
    free: Mutex<FreeLists>,
}

#[derive(Debug)]
struct FreeLists {
    returned: Vec<u32>,
    /// FreeLists buffers whose pages were returned to the kernel.
    bare: Vec<u32>,
    /// Buffers from this index on were never used and have no pages.
    untouched: u32,
    /// The largest number of users since pages were last returned.
    most_users: usize,
}

impl Default for Chunks {
    fn default() -> Self {
        Self::new()
    }
}

impl Chunks {
    /// A list in which all chunks are free.
    pub fn new() -> Self {
        let returned = Vec::with_capacity(CHUNKS);
        let free = FreeLists { returned, bare: Vec::new(), untouched: 0, most_users: 0 };
        Self { free: Mutex::new(free) }
    }

    /// Takes a chunk for the caller alone; `None`: all chunks are in use.
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

    /// Records the current number of users.
    pub fn note_users(&self, users: usize) {
        let mut free = self.free.lock();
        free.most_users = free.most_users.max(users);
    }

    /// Returns pages of idle chunks once at most half of the users are left. Calls `release`, which
    /// returns a chunk's pages, for the chunks that were idle longest. Keeps `RESIDENT_CHUNKS`
    /// chunks for the remaining users.
    pub fn release_surplus(&self, users: usize, release: impl Fn(u32)) {
        let mut free = self.free.lock();
        if users * 2 > free.most_users {
            return;
        }
        free.most_users = users;
        // If the list cannot grow, keep the pages.
        if free.returned.len() <= RESIDENT_CHUNKS || free.bare.try_reserve_exact(CHUNKS).is_err() {
            return;
        }
        let mut surplus = free.returned.len() - RESIDENT_CHUNKS;
        drop(free);
        while surplus > 0 {
            // These chunks are on no list, so this thread owns them meanwhile.
            let mut some = [0; 32];
            let mut free = self.free.lock();
            let count =
                free.returned.len().saturating_sub(RESIDENT_CHUNKS).min(surplus).min(some.len());
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

    /// Whether more than half of the chunks are free. A sender that has another way should leave
    /// the rest to senders that have none.
    #[inline]
    pub fn are_mostly_free(&self) -> bool {
        let free = self.free.lock();
        CHUNKS - free.untouched as usize + free.returned.len() + free.bare.len() > CHUNKS / 2
    }

    /// Returns chunk `index`, which came from `take`.
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
    fn chunks_are_mostly_free_until_half_are_in_use() {
        let chunks = Chunks::new();
        let used: Vec<u32> = (1..CHUNKS / 2).filter_map(|_| chunks.take()).collect();
        assert!(chunks.are_mostly_free());
        let last = chunks.take().expect("another half");
        assert!(!chunks.are_mostly_free());
        chunks.give(last);
        assert!(chunks.are_mostly_free());
        used.into_iter().for_each(|index| chunks.give(index));
        assert!(chunks.are_mostly_free());
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
        let surplus: Vec<u32> = (500..2000 - RESIDENT_CHUNKS as u32).collect();
        assert_eq!(*released.borrow(), surplus, "those idle for longest");
        release(26);
        assert_eq!(released.borrow().len(), surplus.len(), "half of fifty users are there");
        // Each chunk is given once, and chunks with pages come first.
        let again: Vec<u32> = (0..1600).filter_map(|_| chunks.take()).collect();
        assert!(again.iter().take(RESIDENT_CHUNKS).all(|index| !surplus.contains(index)));
        let distinct: std::collections::BTreeSet<_> = again.iter().chain(&all[..500]).collect();
        assert_eq!(distinct.len(), 2100);
    }
}
