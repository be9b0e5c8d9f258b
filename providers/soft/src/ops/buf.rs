//! Buffers that suit the device (ibv_alloc_buf(3)): memory files that cannot shrink, so that a peer that uses a region of one often
//! can map it (`engine::mapped`).

use super::dm::memory;
use super::object;
use abi::*;
use soft_sys::Errno;
use soft_sys::map::Mapping;
use soft_sys::memfd::Memfd;
use std::ffi::c_void;

const PAGE: usize = 4096;

/// A buffer as the application holds it. The C object comes first.
#[repr(C)]
#[derive(Debug)]
struct Buf {
    verbs: ibv_buf,
    #[allow(dead_code, reason = "held until it is dropped")]
    map: Mapping,
    /// Peers find the memory by its owner's descriptor.
    #[allow(dead_code, reason = "held until it is dropped")]
    file: Memfd,
}

/// ibv_alloc_buf(3): whole pages of zeroes, which a forked child shares.
///
/// # Errors
/// `ENOMEM` more than there is.
///
/// # Safety
/// `pd` is live; `out` is writable.
pub(super) unsafe extern "C" fn alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    out: *mut *mut ibv_buf,
) -> *mut c_void {
    object(|| {
        let bytes = size.max(1).checked_next_multiple_of(PAGE).ok_or(Errno::ENOMEM)?;
        // A size that no file can have is more than there is, too.
        let (map, file) = memory(c"ferroverbs-buf", bytes).map_err(|_| Errno::ENOMEM)?;
        let addr: *mut c_void = map.base().cast();
        let buf = Box::new(Buf { verbs: ibv_buf { addr, size, pd, dmabuf_fd: -1 }, map, file });
        // SAFETY: `out` is the caller's, writable until this call returns; only a pointer is written.
        unsafe { out.write(Box::into_raw(buf).cast()) };
        Ok(addr)
    })
}

/// ibv_free_buf(3).
///
/// # Safety
/// `buf` is from `alloc_buf`, no region is left of it, and it is not used any more.
pub(super) unsafe extern "C" fn free_buf(buf: *mut ibv_buf) {
    // SAFETY: alloc_buf made it from a box, and the C object is the first member.
    drop(unsafe { Box::from_raw(buf.cast::<Buf>()) });
}
