//! The emulated contexts of the process by command descriptor, and the thread of each context.
//!
//! Threads: the program's threads run commands, and read doorbells in the hook. The thread of a
//! context sleeps until a CQ of the adapter has an event, or a handshake is due, and writes
//! completion entries. So programs that poll memory make no call. Locks: that of `listing` is a
//! leaf; the lock of a context is outside of all locks of the adapter.

use super::carrier::SoftCarrier;
use super::listing;
use super::objects::{self, Device};
use crate::config;
use abi::{ib_uverbs_ioctl_hdr, ibv_device, ibv_gid_entry};
use cface::sync::Mutex;
use emulated_commands::kernel::Kernel;
use emulated_efa::Efa;
use emulated_memory::{SharedMemory, call};
use emulated_mlx5::Mlx5;
use emulated_mlx5::device::CONNECTX_6_DX;
use soft_semantics::emulated::EmulatedDevice;
use soft_sys::eventfd::EventFd;
use soft_sys::thread::{Thread, end_called, spawn_quiet};
use soft_sys::{Errno, notice, poll};
use std::ffi::c_int;
use std::os::fd::{AsFd, IntoRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const STACK: usize = 256 << 10;

/// A context as its thread and the program's threads share it.
#[derive(Debug)]
struct Shared {
    context: Mutex<Context>,
    /// The adapter's context, whose events wake the thread.
    device: Arc<Device>,
    /// Wakes the thread, to look again or to end.
    wake: EventFd,
    ends: AtomicBool,
    /// The thread, until the context is closed.
    thread: Mutex<Option<Thread>>,
}

/// The kernel's state, by the vendor.
#[derive(Debug)]
enum VendorKernel {
    Efa(Kernel<Efa>),
    Mlx5(Kernel<Mlx5>),
}

/// Evaluates an expression with the kernel of any vendor.
macro_rules! with_kernel {
    ($of:expr, $kernel:ident => $use:expr) => {
        match $of {
            VendorKernel::Efa($kernel) => $use,
            VendorKernel::Mlx5($kernel) => $use,
        }
    };
}

/// One context.
#[derive(Debug)]
pub(super) struct Context {
    kernel: VendorKernel,
    memory: SharedMemory,
    carrier: SoftCarrier,
    /// When the thread looks again without being woken.
    next_look: Option<Instant>,
}

/// Calls `with` on the context of a descriptor, and then handles what the adapter has completed.
/// None without such a context.
pub(super) fn with<T>(cmd_fd: c_int, with: impl FnOnce(&mut Context) -> T) -> Option<T> {
    let shared: Arc<Shared> = listing::find(cmd_fd)?;
    let mut context = shared.context.lock();
    let result = with(&mut context);
    let next = context.progress();
    let is_earlier = is_earlier(next, context.next_look);
    if is_earlier {
        context.next_look = next;
    }
    drop(context);
    // The thread sleeps until its next look. A later one needs no call.
    if is_earlier {
        shared.wake.notify();
    }
    Some(result)
}

/// Whether a time is before another. `None` is never.
fn is_earlier(time: Option<Instant>, than: Option<Instant>) -> bool {
    time.is_some_and(|time| than.is_none_or(|than| time < than))
}

/// Opens the adapter and makes the file that the provider maps. Returns its descriptor, or -errno.
///
/// # Safety
/// `device` is a live device of libibverbs that the adapter announced.
pub(super) unsafe extern "C" fn open_device(device: *mut ibv_device) -> c_int {
    // SAFETY: per the caller.
    let open = || unsafe { open(device) };
    match std::panic::catch_unwind(open) {
        Ok(Ok(cmd_fd)) => cmd_fd,
        Ok(Err(errno)) => -errno.raw(),
        Err(_) => -libc::EIO,
    }
}

/// # Safety
/// As [`open_device`].
unsafe fn open(device: *mut ibv_device) -> Result<c_int, Errno> {
    let emulated = config::emulated_device().ok_or(Errno::ENODEV)?;
    // SAFETY: per the caller.
    let device = unsafe { Device::open(device, emulated)? };
    let of_system =
        |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
    let (kernel, first) = match emulated {
        EmulatedDevice::Efa => (VendorKernel::Efa(Kernel::new(Efa)), 0),
        EmulatedDevice::Mlx5 => {
            let adapter = Mlx5::new(CONNECTX_6_DX);
            (VendorKernel::Mlx5(Kernel::new(adapter)), emulated_mlx5::adapter::FIRST_OFFSET)
        }
    };
    let memory = SharedMemory::new(first).map_err(of_system)?;
    let cmd_fd = memory.descriptor().map_err(of_system)?;
    let carrier = SoftCarrier::new(Arc::clone(&device));
    let shared = Arc::new(Shared {
        context: Mutex::new(Context { kernel, memory, carrier, next_look: None }),
        device,
        wake: EventFd::new()?,
        ends: AtomicBool::new(false),
        thread: Mutex::new(None),
    });
    let of_thread = Arc::clone(&shared);
    let thread =
        spawn_quiet("fv-emulated", STACK, move || of_thread.run()).inspect_err(|errno| {
            notice!("cannot start the thread of an emulated device: {errno}");
        })?;
    let cmd_fd = cmd_fd.into_raw_fd();
    *shared.thread.lock() = Some(thread);
    listing::add(cmd_fd, &shared);
    Ok(cmd_fd)
}

/// # Safety
/// `cmd_fd` came from libibverbs, which gives it up: the descriptor of an emulated context, or of
/// the adapter's context behind one.
pub(super) unsafe extern "C" fn close_device(cmd_fd: c_int) {
    if let Some(shared) = listing::remove::<Shared>(cmd_fd) {
        shared.ends.store(true, Ordering::Release);
        let thread = shared.thread.lock().take();
        if let Some(thread) = thread {
            end_called(thread, || shared.wake.notify());
        }
    }
    objects::close(cmd_fd);
}

/// # Safety
/// As for [`call::answer`].
pub(super) unsafe extern "C" fn command(cmd_fd: c_int, message: *mut ib_uverbs_ioctl_hdr) -> c_int {
    let run = || {
        with(cmd_fd, |context| {
            // Before the command, which may destroy a QP: libmlx5 frees the entries of an SRQ by
            // the completions of the QP.
            let _ = context.progress();
            let Context { kernel, memory, carrier, .. } = context;
            let run = |request: &call::Request<'_>| match request {
                call::Request::Write(sent) => {
                    let answer =
                        with_kernel!(kernel, kernel => kernel.write(sent, memory, carrier));
                    answer.map(call::Response::Write)
                }
                call::Request::Method { object, method } => {
                    let answer = with_kernel!(kernel, kernel => kernel.method(*object, *method));
                    answer.map(call::Response::Method)
                }
            };
            // SAFETY: per the caller.
            unsafe { call::answer(message, run) }
        })
    };
    let answered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    answered.map_or(libc::EIO, |answered| answered.unwrap_or(libc::ENODEV))
}

impl Shared {
    /// The thread of the context.
    fn run(&self) {
        let mut next: Option<Instant> = None;
        loop {
            let timeout = next.map(|at| at.saturating_duration_since(Instant::now()));
            let woken = poll::wait([self.wake.as_fd(), self.device.events()], timeout);
            if self.ends.load(Ordering::Acquire) {
                return;
            }
            if woken.is_ok_and(|[wake, _]| wake) {
                self.wake.drain();
            }
            let mut context = self.context.lock();
            context.carrier.take_events();
            next = context.progress();
            context.next_look = next;
        }
    }
}

impl Context {
    /// An entry of the GID table.
    ///
    /// # Errors
    /// `EINVAL` beyond the table; `ENODATA` an empty entry.
    pub(super) fn query_gid(&self, port: u32, index: u32) -> Result<ibv_gid_entry, Errno> {
        self.carrier.query_gid(port, index)
    }

    /// The program closes a completion channel.
    pub(super) fn close_channel(&mut self, fd: c_int) {
        self.carrier.close_channel(fd);
    }

    /// Reads the doorbells of the QP whose provider's object is `user_handle`.
    pub(super) fn ring(&mut self, user_handle: u64) {
        let Self { kernel, memory, carrier, .. } = self;
        with_kernel!(kernel, kernel => if let Some(qp) = kernel.qp_of(user_handle) {
            // The QP exists.
            let _ = kernel.ring(qp, memory, carrier);
        });
    }

    /// Reads the doorbell of the SRQ whose provider's object is `user_handle`.
    pub(super) fn ring_srq(&mut self, user_handle: u64) {
        let Self { kernel, memory, carrier, .. } = self;
        with_kernel!(kernel, kernel => if let Some(srq) = kernel.srq_of(user_handle) {
            // The SRQ exists.
            let _ = kernel.ring_srq(srq, memory, carrier);
        });
    }

    /// Reads the arming doorbell of the CQ whose provider's object is `user_handle`.
    pub(super) fn arm(&mut self, user_handle: u64) {
        let Self { kernel, memory, carrier, .. } = self;
        with_kernel!(kernel, kernel => if let Some(cq) = kernel.cq_of(user_handle) {
            // The CQ exists.
            let _ = kernel.arm(cq, memory, carrier);
        });
    }

    /// Handles what the adapter has completed, and writes the completion entries. Returns the time
    /// of the next look.
    fn progress(&mut self) -> Option<Instant> {
        let Self { kernel, memory, carrier, .. } = self;
        let next = carrier.progress();
        while let Some((qp, completion)) = carrier.next_completion() {
            // A QP that is destroyed has no completions.
            let _ = with_kernel!(&mut *kernel, kernel => {
                kernel.complete(qp, &completion, memory, carrier)
            });
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_an_earlier_look_wakes_the_thread() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        assert!(is_earlier(Some(now), None) && is_earlier(Some(now), Some(later)));
        assert!(!is_earlier(Some(now), Some(now)) && !is_earlier(Some(later), Some(now)));
        assert!(!is_earlier(None, None) && !is_earlier(None, Some(now)));
    }
}
