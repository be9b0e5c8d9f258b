//! Sending ioctls, and what happens when the kernel does not know one.

use core::ffi::{c_int, c_uint};
use core::ptr::NonNull;

use abi::{
    CMD_FALLBACK_IOCTL_ONLY, CMD_FALLBACK_REQUIRE_EX, RDMA_VERBS_IOCTL, ibv_command_buffer,
    ibv_context,
};

use super::buffer::{Buffer, Chain, Command, TooLong};
use super::status::{Status, set};
use crate::ffi::{Errno, verb};
use crate::front::context::Context;
use crate::front::op::Op;

/// How a command was, or is to be, executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The ioctl succeeded.
    Done,
    /// Send the write command instead.
    Write,
    /// Send the extended write command instead.
    WriteEx,
}

impl From<TooLong> for Errno {
    fn from(_: TooLong) -> Self {
        set(Self::EINVAL)
    }
}

impl Command<'_> {
    /// The ioctl without fallback.
    ///
    /// # Errors
    /// What the kernel says; `EINVAL` with errno set when an attribute is too long for the format.
    pub(super) fn run(&mut self, context: Context) -> Result<(), Errno> {
        if self.is_too_long() {
            return Err(TooLong.into());
        }
        let cmd_fd = cmd_fd(context);
        self.send(context.private().driver_id, |message| {
            // SAFETY: the kernel reads and writes the message, whose length its header says, and what
            // the attributes name: the command has all of it borrowed.
            let result = unsafe { libc::ioctl(cmd_fd, RDMA_VERBS_IOCTL, message) };
            if result == 0 { Ok(()) } else { Err(Errno::last()) }
        })
    }

    /// The ioctl, unless the kernel refused it before. One answer is remembered for the operation
    /// (`EPROTONOSUPPORT`: no such method), one for all of them (`ENOTTY`: no ioctl at all).
    ///
    /// # Errors
    /// What the kernel says; `EOPNOTSUPP` with errno set when no write command can stand in.
    pub(super) fn run_or_fall_back(&mut self, context: Context, op: Op) -> Result<Way, Errno> {
        let private = context.private();
        if !private.is_ioctl_unsupported(op as usize) {
            match self.run(context) {
                Ok(()) => return Ok(Way::Done),
                Err(Errno::ENOTTY) => private.mark_all_ioctls_unsupported(),
                Err(Errno::EPROTONOSUPPORT) => private.mark_ioctl_unsupported(op as usize),
                Err(error) => return Err(error),
            }
        }
        let flags = self.all_flags();
        if self.has_driver_attributes() || flags & CMD_FALLBACK_IOCTL_ONLY != 0 {
            return Err(set(Errno::EOPNOTSUPP));
        }
        Ok(if flags & CMD_FALLBACK_REQUIRE_EX != 0 { Way::WriteEx } else { Way::Write })
    }
}

/// The descriptor that commands go to.
pub(super) fn cmd_fd(context: Context) -> c_int {
    // SAFETY: a live context by the contract of `Context::new`; the field is constant.
    unsafe { (*context.as_ptr()).cmd_fd }
}

/// The descriptor that delivers asynchronous events, -1 before there is one.
pub(super) fn async_fd(context: Context) -> c_int {
    // SAFETY: a live context by the contract of `Context::new`; the field is set while it is opened.
    unsafe { (*context.as_ptr()).async_fd }
}

/// Whether the context was made by `ibv_import_device(3)`: its objects must name the event descriptor.
pub(super) fn is_imported(context: Context) -> bool {
    context.private().imported.load(core::sync::atomic::Ordering::Relaxed)
}

verb! {
    /// `execute_ioctl`: sends a command that a provider built with inline code of rdma-core, together with
    /// the buffers chained to it. Attributes that the kernel filled are stored back.
    ///
    /// # Errors
    /// `EINVAL` with errno set when an attribute did not fit into the outermost buffer or the format;
    /// otherwise what the kernel says.
    ///
    /// # Safety
    /// `context` is live; `cmd` is a chain of command buffers whose attributes name memory that the
    /// kernel may use as they say.
    pub(crate) fn execute_ioctl(context: *mut ibv_context, cmd: *mut ibv_command_buffer) -> Status {
        // SAFETY: per the contract above.
        let context = unsafe { super::context_of(context)? };
        // SAFETY: per the contract above.
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

/// `__ioctl_final_num_attrs`: how many attributes a command with `num_attrs` of its own has together
/// with the chain `link`; inline code of rdma-core sizes its buffers with it.
///
/// # Safety
/// `link` is NULL or a chain of command buffers.
pub(crate) unsafe extern "C" fn final_num_attrs(
    num_attrs: c_uint,
    link: *mut ibv_command_buffer,
) -> c_uint {
    // SAFETY: per the contract above.
    let chain = unsafe { Chain::new(link) };
    num_attrs.saturating_add(c_uint::try_from(chain.attribute_count()).unwrap_or(c_uint::MAX))
}
