//! The bounce buffers of this process: which are free.
#![forbid(unsafe_code)]

use super::layout::CHUNKS;
use super::sync::Mutex;

/// Free list, last in first out: a buffer used a moment ago is still in the cache.
#[derive(Debug)]
pub struct Chunks {
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    returned: Vec<u32>,
    /// All from here on were never used: their pages do not exist yet.
    untouched: u32,
}

impl Default for Chunks {
    fn default() -> Self {
        Self::new()
    }
}

impl Chunks {
    /// All of them free.
    pub fn new() -> Self {
        Self { free: Mutex::new(Free { returned: Vec::with_capacity(CHUNKS), untouched: 0 }) }
    }

    /// A chunk for the caller alone, or `None` when all are in use.
    #[inline]
    pub fn take(&self) -> Option<u32> {
        let mut free = self.free.lock();
        if let Some(index) = free.returned.pop() {
            return Some(index);
        }
        let index = free.untouched;
        ((index as usize) < CHUNKS).then(|| {
            free.untouched += 1;
            index
        })
    }

    /// Whether more than half of all are free: who could do without shall leave the rest to those who cannot.
    #[inline]
    pub fn are_plenty(&self) -> bool {
        let free = self.free.lock();
        CHUNKS - free.untouched as usize + free.returned.len() > CHUNKS / 2
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
}
