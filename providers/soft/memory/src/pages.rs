//! Populates and queries pages of application memory, and provides memory without content
//! (`madvise(2)`, `msync(2)`, `mmap(2)`).

use std::ffi::{c_int, c_void};

use soft_sys::Errno;

/// Linux 5.14; the libc crate lacks it for some targets.
const MADV_POPULATE_READ: c_int = 22;
const MADV_POPULATE_WRITE: c_int = 23;

/// Populates the pages of a range as reading or writing would. An unmapped or read-only page is
/// thus found at registration, and not by a fault when a message arrives.
///
/// # Errors
/// `EFAULT`: a part of the range is unmapped, or lacks the permission. `EINVAL`: the range wraps
/// around.
pub fn populate(addr: u64, len: usize, write: bool) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    let start = addr & !4095;
    let end = addr.checked_add(len as u64).ok_or(Errno::EINVAL)?;
    let len = (end - start).checked_next_multiple_of(4096).ok_or(Errno::EINVAL)? as usize;
    let advice = if write { MADV_POPULATE_WRITE } else { MADV_POPULATE_READ };
    let start = start as usize as *mut c_void;
    // SAFETY: madvise(2) changes no contents and checks the range.
    if unsafe { libc::madvise(start, len, advice) } == 0 {
        return Ok(());
    }
    match Errno::last() {
        // The advice needs Linux 5.14. Older kernels only tell whether the range is mapped.
        // SAFETY: madvise(2) with length 0 checks the address and the advice, and changes nothing.
        Errno::EINVAL if unsafe { libc::madvise(start, 0, advice) } != 0 => {
            if is_mapped(start as u64, len) { Ok(()) } else { Err(Errno::EFAULT) }
        }
        // Unmapped, or without the permission: the errno of the kernel's own registration.
        Errno::ENOMEM | Errno::EINVAL => Err(Errno::EFAULT),
        other => Err(other),
    }
}

/// Whether all of a range is mapped, with any permission. Costs one system call: `msync(2)` with
/// `MS_ASYNC` is by far the cheapest query, for any number of pages.
pub fn is_mapped(addr: u64, len: usize) -> bool {
    let start = addr & !4095;
    let Some(len) = (addr - start).checked_add(len as u64) else { return false };
    // SAFETY: msync(2) changes nothing here, and checks the range, which it rounds up to pages.
    let told = unsafe { libc::msync(start as usize as *mut c_void, len as usize, libc::MS_ASYNC) };
    told == 0 || Errno::last() != Errno::ENOMEM
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
const VOID_LEN: usize = 1 << 31;
/// Bytes of the sink that may keep their pages between uses.
const KEPT: usize = 1 << 20;

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
                unsafe { libc::mmap(std::ptr::null_mut(), VOID_LEN, protection, flags, -1, 0) };
            if at == libc::MAP_FAILED {
                return Err(Errno::last());
            }
            // SAFETY: our own mapping; the advice only makes core dumps smaller.
            unsafe { libc::madvise(at, VOID_LEN, libc::MADV_DONTDUMP) };
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
        if len > KEPT {
            // SAFETY: our own mapping, whose content is irrelevant.
            unsafe { libc::madvise(self.sink.cast(), VOID_LEN, libc::MADV_DONTNEED) };
        }
        self.sink as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::remote_pages;

    /// Two pages, of which the second has `protection`.
    fn pages(protection: c_int) -> *mut c_void {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: fresh anonymous memory, whose second half gets another protection.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                8192,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(at.byte_add(4096), 4096, protection), 0);
            at
        }
    }

    #[test]
    fn memory_that_cannot_be_used_as_asked_is_refused() {
        let read_only = pages(libc::PROT_READ) as u64;
        assert_eq!(populate(read_only, 4096, true), Ok(()));
        assert_eq!(populate(read_only, 8192, false), Ok(()));
        assert_eq!(populate(read_only, 4097, true), Err(Errno::EFAULT));
        assert_eq!(populate(pages(libc::PROT_NONE) as u64, 8192, false), Err(Errno::EFAULT));
        assert_eq!(populate(u64::MAX - 10, 100, false), Err(Errno::EINVAL));
        assert_eq!(populate(u64::MAX - 10, 10, false), Err(Errno::EFAULT));
        assert_eq!(populate(0, 0, true), Ok(()));
    }

    #[test]
    fn a_hole_is_found() {
        let at = remote_pages(3) as u64;
        // SAFETY: the second of three pages of our own.
        assert_eq!(unsafe { libc::munmap((at + 4096) as *mut c_void, 4096) }, 0);
        assert!(is_mapped(at, 4096) && is_mapped(at + 4095, 1) && is_mapped(at + 8192, 4096));
        assert!(!is_mapped(at, 4097) && !is_mapped(at + 4096, 1) && !is_mapped(at + 8000, 300));
        assert!(is_mapped(pages(libc::PROT_NONE) as u64, 8192), "whatever may be done with it");
        assert!(!is_mapped(u64::MAX - 10, 100) && is_mapped(at, 0));
    }

    #[test]
    fn memory_without_content_reads_as_zero() {
        let void = ZeroMemory::new().expect("address space");
        let sink = void.sink(KEPT + 1) as *mut u8;
        // SAFETY: inside both halves.
        unsafe {
            sink.add(VOID_LEN - 1).write(1);
            assert_eq!((void.zeros() as *const u8).add(VOID_LEN - 1).read(), 0);
        }
    }
}
