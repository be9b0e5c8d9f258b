//! Regions of files of memory (ibv_reg_dmabuf_mr(3)): DMA-BUFs whose exporter lets a process map
//! them, such as udmabuf, and memory files. The region has a mapping of its own.

use super::mr::{Backing, Mr};
use super::object;
use super::pd::Pd;
use crate::engine::keys::regions::{Extent, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use abi::*;
use soft_memory::populate::populate;
use soft_sys::Errno;
use soft_sys::map::Access;
use soft_sys::memory_file::MemoryFile;
use std::ffi::c_int;

/// The access flags of the kernel's call, besides the optional range.
const RIGHTS: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;

/// ibv_reg_dmabuf_mr(3).
///
/// # Errors
/// `EOPNOTSUPP` a negative descriptor, a file of another kind, or a DMA-BUF that processes cannot
/// map or read; `EBADF` the descriptor is not open; `EINVAL` no bytes, a byte beyond the end of the
/// file, unsupported access flags, remote writing without local writing, or an `iova` with another
/// offset in its page; `EACCES` or `EPERM` the descriptor or a seal forbids writing; `ENOMEM` the
/// table of regions or the memory is full.
///
/// # Safety
/// `pd` is a live protection domain of this provider.
pub(super) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    object(|| {
        // Programs look for support of graphics cards by a descriptor of -1. NCCL takes EOPNOTSUPP
        // for no, and any other errno for yes; UCX takes EBADF for yes.
        if fd < 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let rights = access as u32 & !IBV_ACCESS_OPTIONAL_RANGE;
        let writes = rights & LOCAL_WRITE != 0;
        if rights & !RIGHTS != 0 || (rights & (REMOTE_WRITE | REMOTE_ATOMIC) != 0 && !writes) {
            return Err(Errno::EINVAL);
        }
        let page = cface::mem::page_size() as u64;
        let len = length as u64;
        if !(offset ^ iova).is_multiple_of(page) || iova.checked_add(len).is_none() {
            return Err(Errno::EINVAL);
        }
        let file = MemoryFile::of(fd)?;
        let access = if writes { Access::ReadWrite } else { Access::ReadOnly };
        let (map, first) = file.map(offset, len, access)?;
        let va = first as u64;
        populate(va, length, writes).map_err(|errno| match errno {
            // Pages of a device, which only the process that maps them can read.
            Errno::EFAULT if file.is_dma_buf() => Errno::EOPNOTSUPP,
            errno => errno,
        })?;
        // SAFETY: `pd` is a live domain of this provider: the application does not deallocate a
        // domain while it registers memory in it.
        let domain = unsafe { Pd::of(pd) };
        let extent = Extent { pd: domain.number, va, iova, len, access: rights };
        // SAFETY: `pd` is live during the call; the region holds it afterwards, and the mapping.
        unsafe {
            Mr::create(pd, extent, IBV_MR_TYPE_DMABUF_MR, rights as c_int, Backing::File(map))
        }
    })
}
