//! Queries whether pages of application memory are mapped (`msync(2)`), and provides the bytes of
//! regions without memory (`mmap(2)`).

use std::ffi::c_void;

use cface::mem::page_size;
use soft_sys::Errno;

/// Whether all of a range is mapped, with any permission. Costs one system call: `msync(2)` with
/// `MS_ASYNC` is by far the cheapest query, for any number of pages.
pub fn is_mapped(addr: u64, len: usize) -> bool {
    let start = addr & !(page_size() as u64 - 1);
    let Some(len) = (addr - start).checked_add(len as u64) else { return false };
    // SAFETY: msync(2) changes nothing here, and checks the range, which it rounds up to pages.
    let result =
        unsafe { libc::msync(start as usize as *mut c_void, len as usize, libc::MS_ASYNC) };
    result == 0 || Errno::last() != Errno::ENOMEM
}

/// Memory that reads as zeros, and memory whose content is discarded: the storage of a region
/// without memory.
#[derive(Debug)]
pub struct ZeroMemory {
    zeros: *mut u8,
    sink: *mut u8,
}

// SAFETY: two addresses of mappings that are never unmapped; the content of the second is
// irrelevant.
unsafe impl Send for ZeroMemory {}
// SAFETY: a shared `ZeroMemory` only exposes the two addresses, which never change; zeros are not
// written, and the content of the sink is irrelevant.
unsafe impl Sync for ZeroMemory {}

/// Bytes of each half of a [`ZeroMemory`]: the longest message.
const HALF_BYTES: usize = 1 << 31;
/// Bytes of the sink that may keep their pages between uses.
const KEPT_SINK_BYTES: usize = 1 << 20;

impl ZeroMemory {
    /// Reserves two address ranges without memory, which exist until the process ends.
    ///
    /// # Errors
    /// `ENOMEM`: the address space is exhausted.
    pub fn new() -> Result<Self, Errno> {
        let map = |protection| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a NULL address without MAP_FIXED never replaces a mapping.
            let at =
                unsafe { libc::mmap(std::ptr::null_mut(), HALF_BYTES, protection, flags, -1, 0) };
            if at == libc::MAP_FAILED {
                return Err(Errno::last());
            }
            // SAFETY: our own mapping; the advice only makes core dumps smaller.
            unsafe { libc::madvise(at, HALF_BYTES, libc::MADV_DONTDUMP) };
            Ok(at.cast::<u8>())
        };
        let zeros = map(libc::PROT_READ)?;
        Ok(Self { zeros, sink: map(libc::PROT_READ | libc::PROT_WRITE)? })
    }

    /// The address of zeros to read.
    pub fn zeros(&self) -> u64 {
        self.zeros as u64
    }

    /// The address of `len` bytes whose content is discarded.
    pub fn sink(&self, len: usize) -> u64 {
        if len > KEPT_SINK_BYTES {
            // SAFETY: our own mapping, whose content is irrelevant.
            unsafe { libc::madvise(self.sink.cast(), HALF_BYTES, libc::MADV_DONTNEED) };
        }
        self.sink as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::remote_pages;

    #[test]
    fn a_hole_is_found() {
        let (at, page) = (remote_pages(3) as u64, page_size());
        let next = at + page as u64;
        // SAFETY: the second of three pages of our own.
        assert_eq!(unsafe { libc::munmap(next as *mut c_void, page) }, 0);
        assert!(is_mapped(at, page) && is_mapped(next - 1, 1));
        assert!(is_mapped(next + page as u64, page));
        assert!(!is_mapped(at, page + 1) && !is_mapped(next, 1));
        assert!(!is_mapped(next + page as u64 - 192, 300));
        // SAFETY: the first page of our own.
        assert_eq!(unsafe { libc::mprotect(at as *mut c_void, page, libc::PROT_NONE) }, 0);
        assert!(is_mapped(at, page), "with any permission");
        assert!(!is_mapped(u64::MAX - 10, 100) && is_mapped(at, 0));
    }

    #[test]
    fn memory_without_content_reads_as_zero() {
        let memory = ZeroMemory::new().expect("address space");
        let sink = memory.sink(KEPT_SINK_BYTES + 1) as *mut u8;
        // SAFETY: inside both halves.
        unsafe {
            sink.add(HALF_BYTES - 1).write(1);
            assert_eq!((memory.zeros() as *const u8).add(HALF_BYTES - 1).read(), 0);
        }
    }
}
