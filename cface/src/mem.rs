//! C memory: objects that cross the C interface are freed by `free(3)`, so they come from libc's
//! allocator.

use core::ffi::c_void;
use core::ptr::NonNull;

use super::Errno;

/// Zeroed memory for one `T`.
pub fn calloc<T: abi::Zeroed>() -> Result<NonNull<T>, Errno> {
    calloc_bytes(size_of::<T>()).map(NonNull::cast)
}

/// `bytes` of zeroed memory, at least one.
pub fn calloc_bytes(bytes: usize) -> Result<NonNull<c_void>, Errno> {
    // SAFETY: calloc has no requirements.
    NonNull::new(unsafe { libc::calloc(1, bytes.max(1)) }).ok_or(Errno::ENOMEM)
}

/// Page-aligned memory, uninitialised.
pub fn alloc_pages(bytes: usize) -> Result<NonNull<c_void>, Errno> {
    let mut memory = core::ptr::null_mut();
    // SAFETY: `memory` receives one pointer; the page size is a power of two.
    let error = unsafe { libc::posix_memalign(&raw mut memory, page_size(), bytes) };
    if error != 0 {
        return Err(Errno::from_raw(error));
    }
    NonNull::new(memory).ok_or(Errno::ENOMEM)
}

/// `free(3)`; NULL is fine.
///
/// # Safety
/// `memory` is NULL, or an unused block of libc's allocator.
pub unsafe fn free(memory: *mut c_void) {
    // SAFETY: by the contract above.
    unsafe { libc::free(memory) };
}

/// Bytes of a page.
pub fn page_size() -> usize {
    // SAFETY: sysconf has no requirements.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
