//! The uverbs ioctl, as far as opening a context needs it.

use core::ffi::c_int;

use abi::{
    IB_USER_VERBS_CMD_QUERY_DEVICE, RDMA_VERBS_IOCTL, UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE,
    UVERBS_ATTR_F_MANDATORY, UVERBS_ATTR_WRITE_CMD, UVERBS_METHOD_ASYNC_EVENT_ALLOC,
    UVERBS_METHOD_INVOKE_WRITE, UVERBS_OBJECT_ASYNC_EVENT, UVERBS_OBJECT_DEVICE, Zeroed,
    ib_uverbs_attr, ib_uverbs_ioctl_hdr,
};

use cface::Errno;

/// An ioctl with a single attribute.
#[repr(C)]
struct OneAttr {
    hdr: ib_uverbs_ioctl_hdr,
    attr: ib_uverbs_attr,
}

impl OneAttr {
    fn new(object: u16, method: u16, driver_id: u32, attr_id: u16) -> Self {
        let mut this = Self { hdr: ib_uverbs_ioctl_hdr::zeroed(), attr: ib_uverbs_attr::zeroed() };
        this.hdr.length = size_of::<Self>() as u16;
        this.hdr.object_id = object;
        this.hdr.method_id = method;
        this.hdr.num_attrs = 1;
        this.hdr.driver_id = driver_id;
        this.attr.attr_id = attr_id;
        this.attr.flags = UVERBS_ATTR_F_MANDATORY;
        this
    }

    fn run(&mut self, cmd_fd: c_int) -> Result<(), Errno> {
        // SAFETY: the kernel reads and writes the whole structure, whose length the header tells.
        let result = unsafe { libc::ioctl(cmd_fd, RDMA_VERBS_IOCTL, core::ptr::from_mut(self)) };
        if result == 0 { Ok(()) } else { Err(Errno::last()) }
    }
}

/// Whether the kernel behind `cmd_fd` takes write commands wrapped in an ioctl: it is asked for one with
/// too little room, and only "no such ioctl" or "no such method" mean no.
pub(crate) fn takes_wrapped_writes(cmd_fd: c_int, driver_id: u32) -> bool {
    if cmd_fd < 0 {
        // What the kernel would answer (EBADF) is not a no either.
        return true;
    }
    let mut probe = OneAttr::new(
        UVERBS_OBJECT_DEVICE,
        UVERBS_METHOD_INVOKE_WRITE,
        driver_id,
        UVERBS_ATTR_WRITE_CMD,
    );
    probe.attr.len = size_of::<u64>() as u16;
    probe.attr.data = u64::from(IB_USER_VERBS_CMD_QUERY_DEVICE);
    !matches!(probe.run(cmd_fd), Err(Errno::EPROTONOSUPPORT | Errno::ENOTTY))
}

/// A descriptor that delivers the asynchronous events of the context behind `cmd_fd`.
pub(crate) fn alloc_async_fd(cmd_fd: c_int, driver_id: u32) -> Result<c_int, Errno> {
    let mut alloc = OneAttr::new(
        UVERBS_OBJECT_ASYNC_EVENT,
        UVERBS_METHOD_ASYNC_EVENT_ALLOC,
        driver_id,
        UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE,
    );
    alloc.run(cmd_fd)?;
    // The kernel stored a descriptor in the low half.
    Ok(alloc.attr.data as c_int)
}
