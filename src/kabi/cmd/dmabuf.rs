//! DMA-BUFs: export of device memory (rdma-core 62; object `UVERBS_OBJECT_DMABUF` of
//! `<rdma/ib_user_ioctl_cmds.h>`), and memory from the kernel's heap that is shared with devices in
//! confidential virtual machines (rdma-core 64; `<linux/dma-heap.h>`).

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};

use abi::{
    UVERBS_ATTR_ALLOC_DMABUF_HANDLE, UVERBS_ATTR_ALLOC_DMABUF_PGOFF, UVERBS_METHOD_DMABUF_ALLOC,
    UVERBS_OBJECT_DMABUF, Zeroed, dma_heap_allocation_data, ibv_context, ibv_dmabuf_heap,
};

use crate::front::command::buffer::Command;
use crate::sys::fd;
use cface::{Errno, MinusOne, mem, verb};

verb! {
    /// `ibv_cmd_export_dmabuf_fd`: a DMA-BUF for the memory at a page offset of the device's
    /// mappings.
    ///
    /// # Errors
    /// -1 with errno as the kernel says.
    ///
    /// # Safety
    /// `context` is live.
    pub(crate) fn export_fd(context: *mut ibv_context, page_offset: libc::off_t) -> MinusOne {
        // SAFETY: the provider's context is NULL, which is refused, or live during this call.
        let context = unsafe { super::context_of(context)? };
        let mut command = Command::new(UVERBS_OBJECT_DMABUF, UVERBS_METHOD_DMABUF_ALLOC);
        let fd = command.fd_out(UVERBS_ATTR_ALLOC_DMABUF_HANDLE);
        command.u64_in(UVERBS_ATTR_ALLOC_DMABUF_PGOFF, page_offset.cast_unsigned());
        command.run(context)?;
        Ok(MinusOne(command.fd(fd)))
    }

    /// `ibv_dmabuf_heap_cc_shared_init`: opens the heap of memory that confidential virtual
    /// machines share with devices.
    ///
    /// # Errors
    /// NULL with errno of `open`: `ENOENT` when the kernel has no such heap.
    pub(crate) fn heap_cc_shared_init() -> *mut ibv_dmabuf_heap {
        let file = File::options().read(true).write(true).open(CC_SHARED_HEAP)?;
        let heap = mem::calloc::<ibv_dmabuf_heap>()?;
        // SAFETY: fresh memory of the right size.
        unsafe { (*heap.as_ptr()).heap_fd = file.into_raw_fd() };
        Ok(heap.as_ptr())
    }

    /// `ibv_dmabuf_heap_alloc`: memory of the heap, mapped for reading and writing; `dmabuf_fd`
    /// receives its descriptor.
    ///
    /// # Errors
    /// NULL with errno set.
    ///
    /// # Safety
    /// `heap` is NULL or live, `dmabuf_fd` NULL or writable.
    pub(crate) fn heap_alloc(heap: *mut ibv_dmabuf_heap, size: usize, dmabuf_fd: *mut c_int) -> *mut c_void {
        // SAFETY: `heap` is NULL, which is refused, or live; `dmabuf_fd` is not looked at yet.
        let (heap, out) = unsafe { (heap.as_ref().ok_or(Errno::EINVAL)?, NonNull::new(dmabuf_fd).ok_or(Errno::EINVAL)?) };
        let mut request = dma_heap_allocation_data::zeroed();
        request.len = size as u64;
        request.fd_flags = (libc::O_RDWR | libc::O_CLOEXEC).cast_unsigned();
        // SAFETY: the kernel reads and writes the structure, whose size the request number has.
        if unsafe { libc::ioctl(heap.heap_fd, abi::DMA_HEAP_IOCTL_ALLOC, &raw mut request) } < 0 {
            return Err(Errno::last());
        }
        // SAFETY: a new descriptor, ours.
        let buffer = unsafe { File::from_raw_fd(request.fd.cast_signed()) };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe {
            libc::mmap(core::ptr::null_mut(), size, protection, libc::MAP_SHARED, buffer.as_raw_fd(), 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        // SAFETY: not NULL (checked above), so the caller's to be written.
        unsafe { out.write(buffer.into_raw_fd()) };
        Ok(memory)
    }

    /// `ibv_dmabuf_heap_free`: gives memory of [`heap_alloc`] back.
    ///
    /// # Safety
    /// All three are from one call of [`heap_alloc`], used no more.
    pub(crate) fn heap_free(memory: *mut c_void, size: usize, dmabuf_fd: c_int) {
        // SAFETY: a mapping of that size, per the contract above.
        unsafe { libc::munmap(memory, size) };
        fd::close(dmabuf_fd);
        Ok(())
    }

    /// `ibv_dmabuf_heap_destroy`: closes a heap.
    ///
    /// # Safety
    /// `heap` is NULL or from [`heap_cc_shared_init`], used no more.
    pub(crate) fn heap_destroy(heap: *mut ibv_dmabuf_heap) {
        if !heap.is_null() {
            // SAFETY: not NULL (checked above), so a heap of `heap_cc_shared_init` that is not
            // freed yet.
            fd::close(unsafe { (*heap).heap_fd });
            // SAFETY: heap_cc_shared_init took it from calloc; the caller gives it back.
            unsafe { mem::free(heap.cast()) };
        }
        Ok(())
    }
}

const CC_SHARED_HEAP: &str = "/dev/dma_heap/system_cc_shared";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_heap_is_an_error_of_its_own() {
        if std::path::Path::new(CC_SHARED_HEAP).exists() {
            return;
        }
        // SAFETY: no requirements.
        assert!(unsafe { heap_cc_shared_init() }.is_null());
        assert_eq!(Errno::last(), Errno::ENOENT);
        let (heap, out) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: NULL is allowed.
        assert!(unsafe { heap_alloc(heap, 4096, out) }.is_null());
        assert_eq!(Errno::last(), Errno::EINVAL);
    }
}
