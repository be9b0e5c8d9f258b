//! Copies to application memory that may be unmapped.
//!
//! An adapter pins registered memory. A program may unmap such memory before it deregisters it, or
//! before it destroys the queue with its receives. Messages that arrive in between land in pages
//! that the program never reads; UCX does this at each exit. In `soft`, a copy to unmapped memory
//! faults, and [`guard`] ends the copy, unless the program has replaced the signal handlers since.
//! Hence the library's own threads, and calls that end objects, ask the kernel first
//! (`pages::is_mapped`): there memory is most often gone, and time matters least. An application
//! thread that polls copies directly.
//!
//! Callers pass `careful` down, because reading a thread-local variable in a plugin takes longer
//! than receiving a message. For messages of many packets the kernel is asked once per datagram
//! ([`MappedRange`]). Asking for each packet took a seventh of the time of a READ response.

use crate::guard::{self, UnmappedSide};
use crate::pages::is_mapped;

/// Copies `len` bytes to the application memory at `to`, unless a part of it is unmapped. Returns
/// false if `from` is unmapped.
///
/// # Safety
/// `from` is readable for `len` bytes, or application memory that is unmapped. `to` is writable for
/// `len` bytes, or partly unmapped.
#[cold]
pub unsafe fn copy_out(to: *mut u8, from: *const u8, len: usize) -> bool {
    // SAFETY: the caller keeps the contract. Unmapped memory loses its bytes.
    !is_mapped(to as u64, len) || unsafe { guard::copy(from, to, len) } != Err(UnmappedSide::Source)
}

/// A range that was mapped at the last query. The owner must reset it whenever it releases the lock
/// of the query: the application may then unmap deregistered memory and map other memory there.
#[derive(Debug, Default)]
pub struct MappedRange {
    start: u64,
    end: u64,
}

impl MappedRange {
    /// Bytes to query ahead: one datagram, which is sent or received within ten microseconds.
    const AHEAD: usize = 64 << 10;
    /// The smallest length of a packet that belongs to a message of many packets.
    const OF_MANY: usize = 256;

    /// As [`is_mapped`], or within the range of an earlier query.
    #[inline]
    pub fn is_mapped(&mut self, addr: u64, len: usize) -> bool {
        let Some(end) = addr.checked_add(len as u64) else { return false };
        (self.start <= addr && end <= self.end) || self.query(addr, len)
    }

    fn query(&mut self, addr: u64, len: usize) -> bool {
        // Short messages have a packet of their own, so no packet follows. The memory ahead may be
        // a hole.
        let ahead = (len >= Self::OF_MANY).then(|| len.max(Self::AHEAD));
        let reach = ahead.into_iter().chain([len]).find(|&reach| is_mapped(addr, reach));
        if let Some(reach) = reach {
            *self = Self { start: addr, end: addr.saturating_add(reach as u64) };
        }
        reach.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::remote_pages;
    use cface::mem::page_size;

    #[test]
    fn memory_ahead_is_remembered_until_the_reset() {
        let first = remote_pages(40) as u64;
        let size = page_size();
        let at = |page: usize| first + (page * size) as u64;
        let unmap = |page: usize| {
            // SAFETY: a page of our own.
            assert_eq!(unsafe { libc::munmap(at(page) as *mut _, size) }, 0);
        };
        unmap(30);
        let mut mapped = MappedRange::default();
        // A query of one page covers 64 KiB with pages of 4 KiB, and one page of 64 KiB.
        assert!(mapped.is_mapped(at(0), size) && mapped.is_mapped(at(0), 6 * size));
        assert!(!mapped.is_mapped(at(30), size), "no query has covered page 30");
        unmap(5);
        assert!(mapped.is_mapped(at(5), size), "the earlier query covered page 5");
        assert!(!MappedRange::default().is_mapped(at(5), size), "a fresh value asks the kernel");
        let mut mapped = MappedRange::default();
        assert!(mapped.is_mapped(at(29), size), "page 29 is mapped, and page 30 is a hole");
        assert!(!mapped.is_mapped(at(29), size + 1));
        assert!(mapped.is_mapped(at(1), 8));
        assert!(!mapped.is_mapped(at(1), 5 * size), "a query of 8 bytes covers no other page");
        assert!(!mapped.is_mapped(u64::MAX - 10, 100));
    }

    #[test]
    fn a_copy_skips_unmapped_memory() {
        let (at, size) = (remote_pages(3), page_size());
        // SAFETY: the second of three pages of our own.
        assert_eq!(unsafe { libc::munmap(at.add(size).cast(), size) }, 0);
        let bytes: Vec<u8> = (0..3 * size).map(|i| (i % 251) as u8).collect();
        // SAFETY: the first of the pages.
        let left = unsafe { std::slice::from_raw_parts(at, size) };
        // SAFETY: as many bytes as three pages have, with a hole in them.
        unsafe {
            assert!(copy_out(at, bytes.as_ptr(), size));
            assert!(left == &bytes[..size]);
            assert!(copy_out(at, bytes.as_ptr().add(1), size + 1));
            assert!(copy_out(at.add(size), bytes.as_ptr(), 1));
            assert!(left == &bytes[..size], "all or nothing");
            assert!(copy_out(at, bytes.as_ptr().add(1), size));
            assert!(left == &bytes[1..=size]);
        }
    }
}
