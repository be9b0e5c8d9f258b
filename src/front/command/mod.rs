//! Commands to the kernel: the ioctl of `<rdma/rdma_user_ioctl_cmds.h>` (objects, methods and
//! attributes of `<rdma/ib_user_ioctl_cmds.h>`), and the write commands of `<rdma/ib_user_verbs.h>`
//! for old kernels. The layers, inner first:
//!
//! - [`bytes`]: memory that the kernel reads or writes, with its lifetime;
//! - [`frame`]: commands in the memory of a provider, with the driver's data behind them;
//! - [`buffer`]: an ioctl under construction, and the chains of attributes that providers add;
//! - here: sending an ioctl, remembering refusals of the kernel, choosing the fallback;
//! - [`mod@write`]: write commands, plain or wrapped in an ioctl.

pub(crate) mod buffer;
pub(crate) mod bytes;
pub(crate) mod channel;
pub(crate) mod frame;
pub(crate) mod gid;
pub(crate) mod opening;
pub(crate) mod write;

use core::ffi::c_int;

use abi::{
    CMD_FALLBACK_IOCTL_ONLY, CMD_FALLBACK_REQUIRE_EX, RDMA_VERBS_IOCTL, ferroverbs_emulation,
};

use buffer::{Command, TooLong};

use super::context::Context;
use super::op::Op;
use cface::Errno;

/// The outcome of the ioctl of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoctlOutcome {
    /// The ioctl succeeded.
    Done,
    /// Send the write command instead.
    Write,
    /// Send the extended write command instead.
    WriteEx,
}

impl From<TooLong> for Errno {
    fn from(_: TooLong) -> Self {
        with_errno(Self::EINVAL)
    }
}

impl Command<'_> {
    /// The ioctl without fallback.
    ///
    /// # Errors
    /// The kernel's errno; `EINVAL` with errno set: an attribute is too long for the format.
    pub(crate) fn run(&mut self, context: Context) -> Result<(), Errno> {
        let private = context.private();
        self.run_by(cmd_fd(context), private.driver_id, private.emulation)
    }

    /// The same by the descriptor and the driver of a context that is not made yet.
    fn run_by(
        &mut self,
        cmd_fd: c_int,
        driver_id: u32,
        emulation: Option<&ferroverbs_emulation>,
    ) -> Result<(), Errno> {
        if self.is_too_long() {
            return Err(TooLong.into());
        }
        self.send(driver_id, |message| {
            if let Some(emulation) = emulation {
                let command = emulation.command.ok_or_else(|| with_errno(Errno::ENOTTY))?;
                // SAFETY: as for the kernel below; the descriptor is of a context of the plugin.
                let error = unsafe { command(cmd_fd, message) };
                return if error == 0 { Ok(()) } else { Err(with_errno(Errno::from_raw(error))) };
            }
            // SAFETY: the kernel accesses the message, whose header holds its length, and the
            // memory of the attributes; the command borrows both.
            let result = unsafe { libc::ioctl(cmd_fd, RDMA_VERBS_IOCTL, message) };
            if result == 0 { Ok(()) } else { Err(Errno::last()) }
        })
    }

    /// The ioctl, unless the kernel refused the ioctl before. `EPROTONOSUPPORT` (no such method) is
    /// remembered for the operation, `ENOTTY` (no ioctl at all) for all operations.
    ///
    /// # Errors
    /// The kernel's errno; `EOPNOTSUPP` with errno set: no write command can replace the ioctl.
    pub(crate) fn run_or_fall_back(
        &mut self,
        context: Context,
        op: Op,
    ) -> Result<IoctlOutcome, Errno> {
        let private = context.private();
        if !private.is_ioctl_unsupported(op as usize) {
            match self.run(context) {
                Ok(()) => return Ok(IoctlOutcome::Done),
                Err(Errno::ENOTTY) => private.mark_all_ioctls_unsupported(),
                Err(Errno::EPROTONOSUPPORT) => private.mark_ioctl_unsupported(op as usize),
                Err(error) => return Err(error),
            }
        }
        let flags = self.all_flags();
        if self.has_driver_attributes() || flags & CMD_FALLBACK_IOCTL_ONLY != 0 {
            return Err(with_errno(Errno::EOPNOTSUPP));
        }
        Ok(if flags & CMD_FALLBACK_REQUIRE_EX != 0 {
            IoctlOutcome::WriteEx
        } else {
            IoctlOutcome::Write
        })
    }
}

/// The descriptor that commands go to.
pub(crate) fn cmd_fd(context: Context) -> c_int {
    // SAFETY: a live context by the contract of `Context::new`; the field is constant.
    unsafe { (*context.as_ptr()).cmd_fd }
}

/// The descriptor that delivers asynchronous events; -1 before its creation.
pub(crate) fn async_fd(context: Context) -> c_int {
    // SAFETY: a live context by the contract of `Context::new`; the field is set while it is
    // opened.
    unsafe { (*context.as_ptr()).async_fd }
}

/// Whether the context was made by `ibv_import_device(3)`: its objects must name the event
/// descriptor.
pub(crate) fn is_imported(context: Context) -> bool {
    context.private().imported.load(core::sync::atomic::Ordering::Relaxed)
}

/// Sets errno, for the few checks whose failure must do so.
pub(crate) fn with_errno(error: Errno) -> Errno {
    error.set();
    error
}
