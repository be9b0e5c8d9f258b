//! Copying to memory of the application that may be gone.
//!
//! An adapter pins registered memory: a program may unmap it before it deregisters it, or destroys the queue with receives in it, and
//! messages that come in between land in pages that nobody sees. UCX does so whenever it ends. Here, a thread of ours that copied to
//! such a place would be the end of the program. So our own threads, and what the application calls to end things, ask the kernel
//! first whether something is there (`memory::is_mapped`). Letting the kernel copy would leave no moment in between, but takes several times as
//! long, in which whoever polls waits for a lock. An application that polls copies plainly: it knows what it unmapped.
//!
//! Who copies is passed down as `careful`: a plugin takes longer to read a variable of the thread than to take a message.

use crate::pages::is_mapped;

/// Copies `len` bytes to `to`, memory of the application, unless some of it is not mapped any more.
///
/// # Safety
/// `from` is readable for `len` bytes. `to` is writable for as many, or partly unmapped.
#[cold]
pub unsafe fn put(to: *mut u8, from: *const u8, len: usize) {
    if is_mapped(to as u64, len) {
        // SAFETY: mapped, and the rest by contract; memmove, as the application may send to itself.
        unsafe { std::ptr::copy(from, to, len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::remote_pages;

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
            put(at, bytes.as_ptr(), 4096);
            assert!(left == &bytes[..4096]);
            put(at, bytes.as_ptr().add(1), 4097);
            put(at.add(4096), bytes.as_ptr(), 1);
            assert!(left == &bytes[..4096], "all or nothing");
            put(at, bytes.as_ptr().add(1), 4096);
            assert!(left == &bytes[1..4097]);
        }
    }
}
