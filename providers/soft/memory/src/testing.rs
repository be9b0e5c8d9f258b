//! Helpers of tests that map and unmap memory. The unit tests of the guarded copies and of the page
//! checks use them.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use cface::mem::page_size;

/// `n` pages at addresses that the kernel never chooses, so that an unmapped part stays unmapped.
pub fn remote_pages(n: usize) -> *mut u8 {
    static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
    let at = NEXT.fetch_add((n + 1) * page_size(), Ordering::Relaxed);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: fresh anonymous memory that replaces no mapping.
    let got = unsafe { libc::mmap(at as *mut c_void, n * page_size(), protection, flags, -1, 0) };
    assert_eq!(got as usize, at);
    got.cast()
}
