//! Buffers for the device (ibv_alloc_buf(3)): sealed memory files that peers can map. A peer that
//! often uses a region of such a buffer maps it (`engine::ring::mapped`).

use super::dm::memory;
use super::object;
use abi::*;
use soft_sys::Errno;
use soft_sys::map::Mapping;
use soft_sys::memfd::Memfd;
use std::ffi::c_void;

/// A buffer of the application. The C object comes first.
#[repr(C)]
#[derive(Debug)]
struct Buf {
    verbs: ibv_buf,
    #[allow(dead_code, reason = "held until it is dropped")]
    map: Mapping,
    /// Peers find the memory by the descriptor of its owner.
    #[allow(dead_code, reason = "held until it is dropped")]
    file: Memfd,
}

/// ibv_alloc_buf(3): whole pages of zeros, shared with forked children.
///
/// # Errors
/// `ENOMEM` the memory is exhausted.
///
/// # Safety
/// `pd` is live; `out` is writable.
pub(super) unsafe extern "C" fn alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    out: *mut *mut ibv_buf,
) -> *mut c_void {
    object(|| {
        let bytes =
            size.max(1).checked_next_multiple_of(cface::mem::page_size()).ok_or(Errno::ENOMEM)?;
        // A size that exceeds the limit of files counts as exhausted memory.
        let (map, file) = memory(c"ferroverbs-buf", bytes).map_err(|_| Errno::ENOMEM)?;
        let addr: *mut c_void = map.base().cast();
        let buf = Box::new(Buf { verbs: ibv_buf { addr, size, pd, dmabuf_fd: -1 }, map, file });
        // SAFETY: `out` belongs to the caller and is writable during the call; only a pointer is
        // written.
        unsafe { out.write(Box::into_raw(buf).cast()) };
        Ok(addr)
    })
}

/// ibv_free_buf(3).
///
/// # Safety
/// `buf` was made by `alloc_buf`, has no regions left, and is not used any more.
pub(super) unsafe extern "C" fn free_buf(buf: *mut ibv_buf) {
    // SAFETY: alloc_buf made it from a box, and the C object is the first member.
    drop(unsafe { Box::from_raw(buf.cast::<Buf>()) });
}
