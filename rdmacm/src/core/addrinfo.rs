//! Address lists of `rdma_getaddrinfo(3)` that the library owns.
//! An id holds the result of `rdma_resolve_addrinfo(3)` until the program takes it.

use abi::rdma_addrinfo;
use cface::mem;

/// The resolved addresses of an id, which live as long as the id.
#[derive(Debug)]
pub(crate) struct ResolvedInfo(pub(crate) *mut rdma_addrinfo);

impl Drop for ResolvedInfo {
    fn drop(&mut self) {
        // SAFETY: `find` made the list, and the program does not have it.
        unsafe { free_list(self.0) };
    }
}

impl ResolvedInfo {
    /// Passes the list to the program, which frees it.
    pub(crate) fn give(self) -> *mut rdma_addrinfo {
        std::mem::ManuallyDrop::new(self).0
    }
}

/// Frees a list.
///
/// # Safety
/// `info` is NULL or from `rdma_getaddrinfo(3)`, and not used afterwards.
pub(crate) unsafe fn free_list(info: *mut rdma_addrinfo) {
    let mut at = info;
    // SAFETY: by the contract above; all members are from calloc(3), or NULL.
    unsafe {
        while !at.is_null() {
            let next = (*at).ai_next;
            mem::free((*at).ai_src_addr.cast());
            mem::free((*at).ai_dst_addr.cast());
            mem::free((*at).ai_src_canonname.cast());
            mem::free((*at).ai_dst_canonname.cast());
            mem::free((*at).ai_route);
            mem::free((*at).ai_connect);
            mem::free(at.cast());
            at = next;
        }
    }
}
