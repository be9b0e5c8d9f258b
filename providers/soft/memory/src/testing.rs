//! What tests need of memory.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Pages where the kernel puts no other mapping, so that a part can be unmapped and nobody else gets it.
pub fn remote_pages(n: usize) -> *mut u8 {
    static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
    let at = NEXT.fetch_add((n + 1) * 4096, Ordering::Relaxed);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: fresh anonymous memory, in place of nothing.
    let got = unsafe { libc::mmap(at as *mut c_void, n * 4096, protection, flags, -1, 0) };
    assert_eq!(got as usize, at);
    got.cast()
}
