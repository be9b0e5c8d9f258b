//! Makes the kernel provide the pages of application memory at registration (`madvise(2)`).

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use cface::mem::page_size;
use soft_sys::Errno;

use crate::guard;
use crate::pages::is_mapped;

/// Since Linux 5.14; not in the libc crate for every target.
const MADV_POPULATE_READ: c_int = 22;
const MADV_POPULATE_WRITE: c_int = 23;

/// Brings the pages of a range into memory as a read or a write would. A page that is not mapped,
/// or lacks the right, is found now and not when a message arrives.
///
/// # Errors
/// `EFAULT` a page is not mapped, or lacks the right; `EINVAL` the range wraps around.
pub fn populate(addr: u64, len: usize, write: bool) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    let (start, len) = whole_pages(addr, len, page_size() as u64).ok_or(Errno::EINVAL)?;
    if !refuses_unknown_advice() {
        return access_each_page(start, len, write);
    }
    let advice = if write { MADV_POPULATE_WRITE } else { MADV_POPULATE_READ };
    let Err(errno) = advise(start, len, advice) else { return Ok(()) };
    match errno {
        Errno::ENOMEM => Err(Errno::EFAULT),
        _ if !is_known(advice) => access_each_page(start, len, write),
        // The range maps the memory of a device. A kernel driver refuses its registration with
        // EFAULT, too.
        Errno::EINVAL => Err(Errno::EFAULT),
        other => Err(other),
    }
}

/// The whole pages that hold a range of at least one byte: address and length. `None` if they wrap
/// around.
const fn whole_pages(addr: u64, len: usize, page: u64) -> Option<(u64, usize)> {
    let start = addr & !(page - 1);
    match (addr - start).checked_add(len as u64) {
        Some(len) => match len.checked_next_multiple_of(page) {
            Some(len) if start.checked_add(len - 1).is_some() => Some((start, len as usize)),
            _ => None,
        },
        None => None,
    }
}

fn advise(start: u64, len: usize, advice: c_int) -> Result<(), Errno> {
    // SAFETY: the advices of this file change no contents, and madvise(2) checks the range.
    match unsafe { libc::madvise(start as usize as *mut c_void, len, advice) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// Whether the kernel accepts the advice for a page of this process. Linux before 5.14, gVisor and
/// filters of seccomp(2) refuse the advice for any range, and some accept only an empty range.
/// [`refuses_unknown_advice`] finds systems that accept everything.
fn is_known(advice: c_int) -> bool {
    // A page of the stack can be read and written, so only an unknown advice fails.
    let on_stack = 0_u8;
    let page = page_size();
    advise((&raw const on_stack) as u64 & !(page as u64 - 1), page, advice).is_ok()
}

/// Whether the kernel refuses an advice that does not exist. qemu-user before 8.0 accepts any
/// advice and does nothing, so its success says nothing about the pages.
fn refuses_unknown_advice() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| !is_known(c_int::MAX))
}

/// As [`populate`], for a system whose advice is absent or has no effect: reads a word of each
/// page, or writes the word back.
fn access_each_page(start: u64, len: usize, write: bool) -> Result<(), Errno> {
    // Check first that all pages are mapped: an access to another page raises SIGSEGV, for which
    // the program may have a handler.
    if !is_mapped(start, len) {
        return Err(Errno::EFAULT);
    }
    guard::arm();
    let mut pages = (start..=start + (len as u64 - 1)).step_by(page_size());
    let has_right = |page: u64| {
        let word = page as usize as *mut u64;
        // SAFETY: memory of the application, or unmapped; no reference to the word exists.
        unsafe { if write { guard::is_writable(word) } else { guard::is_readable(word.cast(), 1) } }
    };
    if pages.all(has_right) { Ok(()) } else { Err(Errno::EFAULT) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::remote_pages;

    /// Two pages, the second of them with `protection`.
    fn pages(protection: c_int) -> *mut c_void {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: fresh anonymous memory, of which we change the second half's protection.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                2 * page_size(),
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(at.byte_add(page_size()), page_size(), protection), 0);
            at
        }
    }

    #[test]
    fn memory_that_cannot_be_used_as_asked_is_refused() {
        let (read_only, page) = (pages(libc::PROT_READ) as u64, page_size());
        assert_eq!(populate(read_only, page, true), Ok(()));
        assert_eq!(populate(read_only, 2 * page, false), Ok(()));
        assert_eq!(populate(read_only, page + 1, true), Err(Errno::EFAULT));
        assert_eq!(populate(pages(libc::PROT_NONE) as u64, 2 * page, false), Err(Errno::EFAULT));
        assert_eq!(populate(u64::MAX - 10, 100, false), Err(Errno::EINVAL));
        assert_eq!(populate(u64::MAX - 10, 10, false), Err(Errno::EFAULT));
        assert_eq!(populate(0, 0, true), Ok(()));
    }

    #[test]
    fn a_range_is_rounded_to_pages_of_any_size() {
        for page in [4096, 16384, 65536] {
            assert_eq!(whole_pages(page, 1, page), Some((page, page as usize)));
            assert_eq!(whole_pages(2 * page - 1, 2, page), Some((page, 2 * page as usize)));
            assert_eq!(whole_pages(u64::MAX - 10, 11, page).map(|(_, len)| len as u64), Some(page));
            assert_eq!(whole_pages(u64::MAX - 10, 12, page), None);
        }
    }

    #[test]
    fn a_kernel_without_the_advice_gives_the_same_answers() {
        let (read_only, page) = (pages(libc::PROT_READ), page_size());
        // SAFETY: the first word of two pages of our own, which is writable.
        unsafe { read_only.cast::<u64>().write(0x55) };
        let at = read_only as u64;
        assert_eq!(access_each_page(at, page, true), Ok(()));
        assert_eq!(access_each_page(at, 2 * page, false), Ok(()));
        assert_eq!(access_each_page(at, 2 * page, true), Err(Errno::EFAULT));
        // SAFETY: as above.
        assert_eq!(unsafe { read_only.cast::<u64>().read() }, 0x55);
        assert_eq!(
            access_each_page(pages(libc::PROT_NONE) as u64, 2 * page, false),
            Err(Errno::EFAULT)
        );
        let hole = remote_pages(3) as u64;
        // SAFETY: the second of three pages of our own.
        assert_eq!(unsafe { libc::munmap((hole + page as u64) as *mut c_void, page) }, 0);
        assert_eq!(access_each_page(hole, 3 * page, true), Err(Errno::EFAULT));
        assert!(is_known(MADV_POPULATE_READ) == is_known(MADV_POPULATE_WRITE));
    }
}
