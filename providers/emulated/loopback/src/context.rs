//! The contexts of the process by command descriptor.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::os::fd::IntoRawFd;
use std::sync::{Arc, Mutex, PoisonError};

use abi::{ib_uverbs_ioctl_hdr, ibv_device};
use emulated_commands::kernel::Kernel;
use emulated_efa::Efa;
use emulated_memory::{SharedMemory, call};

use crate::carrier::Loopback;

/// One context.
pub(crate) struct Context {
    kernel: Kernel<Efa>,
    memory: SharedMemory,
    carrier: Loopback,
}

static CONTEXTS: Mutex<BTreeMap<c_int, Arc<Mutex<Context>>>> = Mutex::new(BTreeMap::new());

fn contexts<T>(with: impl FnOnce(&mut BTreeMap<c_int, Arc<Mutex<Context>>>) -> T) -> T {
    with(&mut CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Calls `with` on the context of a descriptor; `None` without one.
pub(crate) fn with<T>(cmd_fd: c_int, with: impl FnOnce(&mut Context) -> T) -> Option<T> {
    let context = contexts(|contexts| contexts.get(&cmd_fd).cloned())?;
    Some(with(&mut context.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// # Safety
/// None: the device is not used.
pub(crate) unsafe extern "C" fn open_device(_: *mut ibv_device) -> c_int {
    let open = || {
        let memory = SharedMemory::new(0)?;
        let cmd_fd = memory.descriptor()?.into_raw_fd();
        let carrier = Loopback::default();
        let context = Context { kernel: Kernel::new(Efa), memory, carrier };
        contexts(|contexts| contexts.insert(cmd_fd, Arc::new(Mutex::new(context))));
        Ok(cmd_fd)
    };
    open().unwrap_or_else(|error: std::io::Error| -error.raw_os_error().unwrap_or(libc::ENOMEM))
}

/// # Safety
/// `cmd_fd` came from `open_device`, and is used no more.
pub(crate) unsafe extern "C" fn close_device(cmd_fd: c_int) {
    drop(contexts(|contexts| contexts.remove(&cmd_fd)));
    // SAFETY: the plugin owns the descriptor, and the caller gives the descriptor back.
    unsafe { libc::close(cmd_fd) };
}

/// # Safety
/// As for [`call::answer`].
pub(crate) unsafe extern "C" fn command(cmd_fd: c_int, message: *mut ib_uverbs_ioctl_hdr) -> c_int {
    let answered = with(cmd_fd, |context| {
        let Context { kernel, memory, carrier } = context;
        // SAFETY: per the caller.
        let result = unsafe { call::answer(message, |sent| kernel.write(sent, memory, carrier)) };
        context.finish();
        result
    });
    answered.unwrap_or(libc::EBADF)
}

impl Context {
    /// Reads the doorbells of the QP whose provider's object is `user_handle`.
    pub(crate) fn ring(&mut self, user_handle: u64) {
        if let Some(qp) = self.kernel.qp_of(user_handle) {
            // The QP exists.
            let _ = self.kernel.ring(qp, &mut self.memory, &mut self.carrier);
            self.finish();
        }
    }

    /// Reads the arming doorbell of the CQ whose provider's object is `user_handle`.
    pub(crate) fn arm(&mut self, user_handle: u64) {
        if let Some(cq) = self.kernel.cq_of(user_handle) {
            // The CQ exists.
            let _ = self.kernel.arm(cq, &self.memory, &mut self.carrier);
        }
    }

    /// Writes the completion entries of what the carrier finished.
    fn finish(&mut self) {
        while let Some((qp, completion)) = self.carrier.next_completion() {
            // A QP that is destroyed has no completions.
            let _ = self.kernel.complete(qp, &completion, &mut self.memory, &mut self.carrier);
        }
    }
}
