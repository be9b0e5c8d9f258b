//! Copying to memory of the application that may be gone.
//!
//! An adapter pins registered memory: a program may unmap it before it deregisters it, or destroys the queue with receives in it, and
//! messages that come in between land in pages that nobody sees. UCX does so whenever it ends. Here, a thread of ours that copied to
//! such a place would be the end of the program. A copy that faults is ended by [`guard`], for which the program must not have taken the
//! signals away since. So our own threads, and what the application calls to end things, ask the kernel first whether something is
//! there (`memory::is_mapped`): there memory is gone more often than anywhere else, and time matters less. An application that polls copies at once.
//!
//! Who copies is passed down as `careful`: a plugin takes longer to read a variable of the thread than to take a message. A message of
//! many packets is asked for by the datagram ([`Seen`]): for each packet it was a seventh of the time in which a READ is answered.

use crate::guard::{self, Gone};
use crate::pages::is_mapped;

/// Copies `len` bytes to `to`, memory of the application, unless some of it is not mapped any more. `false`: `from` is gone.
///
/// # Safety
/// `from` is readable for `len` bytes, or memory of the application that is gone. `to` is writable for as many, or partly unmapped.
#[cold]
pub unsafe fn put(to: *mut u8, from: *const u8, len: usize) -> bool {
    // SAFETY: the contract is the caller's. What is unmapped right now loses its bytes.
    !is_mapped(to as u64, len) || unsafe { guard::copy(from, to, len) } != Err(Gone::Source)
}

/// Memory that was mapped when the kernel was last asked. It is to be forgotten whenever the lock is given back under which it was asked: what
/// the application deregisters then it may unmap, and have something else there.
#[derive(Debug, Default)]
pub struct Seen {
    from: u64,
    to: u64,
}

impl Seen {
    /// How far it is asked ahead, in bytes: a datagram, which is made or taken within some ten microseconds.
    const AHEAD: usize = 64 << 10;
    /// As long as the data of a packet of many is at least, in bytes.
    const OF_MANY: usize = 256;

    /// As [`is_mapped`], or within what that said of the packets before.
    #[inline]
    pub fn is_mapped(&mut self, addr: u64, len: usize) -> bool {
        let Some(end) = addr.checked_add(len as u64) else { return false };
        (self.from <= addr && end <= self.to) || self.ask(addr, len)
    }

    fn ask(&mut self, addr: u64, len: usize) -> bool {
        // Short messages are packets of their own, with nothing behind them; and what is ahead may be a hole.
        let ahead = (len >= Self::OF_MANY).then(|| len.max(Self::AHEAD));
        let reach = ahead.into_iter().chain([len]).find(|&reach| is_mapped(addr, reach));
        if let Some(reach) = reach {
            *self = Self { from: addr, to: addr.saturating_add(reach as u64) };
        }
        reach.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::remote_pages;

    #[test]
    fn what_lies_ahead_is_known_until_it_is_forgotten() {
        let pages = 40;
        let at = remote_pages(pages) as u64;
        let unmap = |page: u64| {
            // SAFETY: a page of our own.
            assert_eq!(unsafe { libc::munmap((at + page * 4096) as *mut _, 4096) }, 0);
        };
        unmap(30);
        let mut seen = Seen::default();
        assert!(seen.is_mapped(at, 4096));
        assert!(!seen.is_mapped(at + 30 * 4096, 4096), "it was not asked about");
        unmap(5);
        assert!(seen.is_mapped(at + 5 * 4096, 4096), "as was said of it before");
        assert!(!Seen::default().is_mapped(at + 5 * 4096, 4096), "nobody has asked before");
        let mut seen = Seen::default();
        let before_the_hole = at + 29 * 4096;
        assert!(
            seen.is_mapped(before_the_hole, 4096),
            "what is ahead is a hole, and this is there"
        );
        assert!(!seen.is_mapped(before_the_hole, 4097));
        assert!(seen.is_mapped(at + 4096, 8));
        assert!(!seen.is_mapped(at + 4096, 5 * 4096), "a short one says nothing of what is ahead");
        assert!(!seen.is_mapped(u64::MAX - 10, 100));
    }

    #[test]
    fn what_is_unmapped_is_left_out() {
        let at = remote_pages(3);
        // SAFETY: the second of three pages of our own.
        assert_eq!(unsafe { libc::munmap(at.add(4096).cast(), 4096) }, 0);
        let bytes: Vec<u8> = (0..12288).map(|i| (i % 251) as u8).collect();
        // SAFETY: the first of the pages.
        let left = unsafe { std::slice::from_raw_parts(at, 4096) };
        // SAFETY: as many bytes as there are in three pages, and a hole in them.
        unsafe {
            assert!(put(at, bytes.as_ptr(), 4096));
            assert!(left == &bytes[..4096]);
            assert!(put(at, bytes.as_ptr().add(1), 4097));
            assert!(put(at.add(4096), bytes.as_ptr(), 1));
            assert!(left == &bytes[..4096], "all or nothing");
            assert!(put(at, bytes.as_ptr().add(1), 4096));
            assert!(left == &bytes[1..4097]);
        }
    }
}
