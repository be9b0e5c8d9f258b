//! Commands that providers build themselves, with inline code of rdma-core. `ibv_cmd_*` functions
//! do not exist for these: mostly methods and attributes of one driver.

use core::ffi::c_uint;
use core::ptr::NonNull;

use abi::{ibv_command_buffer, ibv_context};

use super::status::{Status, set};
use crate::front::command::buffer::{Buffer, Chain};
use cface::{Errno, verb};

verb! {
    /// `execute_ioctl`: sends a command that a provider built with inline code of rdma-core,
    /// together with the buffers chained to it. Attributes that the kernel filled are stored back.
    ///
    /// # Errors
    /// `EINVAL` with errno set when an attribute did not fit into the outermost buffer or the
    /// format; otherwise the kernel's errno.
    ///
    /// # Safety
    /// `context` is live; `cmd` is a chain of command buffers whose attributes name memory that the
    /// kernel may access accordingly.
    pub(crate) fn execute_ioctl(context: *mut ibv_context, cmd: *mut ibv_command_buffer) -> Status {
        // SAFETY: the provider's context is NULL, which is refused, or live during this call.
        let context = unsafe { super::context_of(context)? };
        // SAFETY: not NULL (checked), so the head of a chain that inline code of rdma-core built
        // and keeps meanwhile.
        let mut buffer = unsafe { Buffer::new(NonNull::new(cmd).ok_or(Errno::EINVAL)?) };
        if buffer.has_error() {
            return Err(set(Errno::EINVAL));
        }
        let mut command = buffer.to_command();
        command.run(context)?;
        buffer.update_from(&command);
        Ok(Status::DONE)
    }
}

/// `__ioctl_final_num_attrs`: how many attributes a command with `num_attrs` of its own has
/// together with the chain `link`; inline code of rdma-core sizes its buffers with it.
///
/// # Safety
/// `link` is NULL or a chain of command buffers.
pub(crate) unsafe extern "C" fn final_num_attrs(
    num_attrs: c_uint,
    link: *mut ibv_command_buffer,
) -> c_uint {
    // SAFETY: NULL or a chain that inline code of rdma-core built; it is only counted here.
    let chain = unsafe { Chain::new(link) };
    num_attrs.saturating_add(c_uint::try_from(chain.attribute_count()).unwrap_or(c_uint::MAX))
}
