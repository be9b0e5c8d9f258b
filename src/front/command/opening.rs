//! Commands for opening a context, before the context exists: by descriptor and driver. They need
//! no [`Context`](crate::front::context::Context), unlike the other commands.

use core::ffi::c_int;

use abi::{
    IB_USER_VERBS_CMD_QUERY_DEVICE, UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, UVERBS_ATTR_WRITE_CMD,
    UVERBS_METHOD_ASYNC_EVENT_ALLOC, UVERBS_METHOD_INVOKE_WRITE, UVERBS_OBJECT_ASYNC_EVENT,
    UVERBS_OBJECT_DEVICE, ferroverbs_emulation,
};
use cface::Errno;

use super::buffer::Command;

/// Whether the kernel behind `cmd_fd` takes write commands wrapped in an ioctl: a probe has too
/// little room, and only "no such ioctl" or "no such method" mean no.
pub(crate) fn takes_wrapped_writes(cmd_fd: c_int, driver_id: u32) -> bool {
    if cmd_fd < 0 {
        // The kernel's answer would be EBADF, which does not mean no either.
        return true;
    }
    let mut probe = Command::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
    probe.u64_in(UVERBS_ATTR_WRITE_CMD, u64::from(IB_USER_VERBS_CMD_QUERY_DEVICE));
    !matches!(probe.run_by(cmd_fd, driver_id, None), Err(Errno::EPROTONOSUPPORT | Errno::ENOTTY))
}

/// A descriptor that delivers the asynchronous events of the context behind `cmd_fd`, from the
/// kernel or from `emulation`.
///
/// # Errors
/// The kernel's errno.
pub(crate) fn alloc_async_fd(
    cmd_fd: c_int,
    driver_id: u32,
    emulation: Option<&ferroverbs_emulation>,
) -> Result<c_int, Errno> {
    let mut alloc = Command::new(UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC);
    let fd = alloc.fd_out(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE);
    alloc.run_by(cmd_fd, driver_id, emulation)?;
    Ok(alloc.fd(fd))
}
