//! The emulated contexts of the process by command descriptor, and the thread of each context.
//!
//! Threads: the program's threads run commands, and read doorbells in the hook. The thread of a
//! context sleeps until a CQ of the adapter has an event, or a handshake is due, and writes
//! completion entries. So programs that poll memory make no call. Locks: that of `listing` is a
//! leaf; the lock of a context is outside of all locks of the adapter.

use super::carrier::SoftCarrier;
use super::listing;
use super::objects::{self, Device};
use abi::{ib_uverbs_ioctl_hdr, ibv_device};
use cface::sync::Mutex;
use emulated_commands::kernel::Kernel;
use emulated_efa::Efa;
use emulated_memory::{SharedMemory, call};
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

/// One context.
#[derive(Debug)]
pub(super) struct Context {
    kernel: Kernel<Efa>,
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
    // SAFETY: per the caller.
    let device = unsafe { Device::open(device)? };
    let of_system =
        |error: std::io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
    let memory = SharedMemory::new(0).map_err(of_system)?;
    let cmd_fd = memory.descriptor().map_err(of_system)?;
    let carrier = SoftCarrier::new(Arc::clone(&device));
    let shared = Arc::new(Shared {
        context: Mutex::new(Context { kernel: Kernel::new(Efa), memory, carrier, next_look: None }),
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
            let Context { kernel, memory, carrier, .. } = context;
            // SAFETY: per the caller.
            unsafe { call::answer(message, |request| kernel.write(request, memory, carrier)) }
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
    /// The GID of the device.
    pub(super) const fn gid(&self) -> [u8; 16] {
        self.carrier.gid()
    }

    /// The program closes a completion channel.
    pub(super) fn close_channel(&mut self, fd: c_int) {
        self.carrier.close_channel(fd);
    }

    /// Reads the doorbells of the QP whose provider's object is `user_handle`.
    pub(super) fn ring(&mut self, user_handle: u64) {
        if let Some(qp) = self.kernel.qp_of(user_handle) {
            // The QP exists.
            let _ = self.kernel.ring(qp, &mut self.memory, &mut self.carrier);
        }
    }

    /// Reads the arming doorbell of the CQ whose provider's object is `user_handle`.
    pub(super) fn arm(&mut self, user_handle: u64) {
        if let Some(cq) = self.kernel.cq_of(user_handle) {
            // The CQ exists.
            let _ = self.kernel.arm(cq, &self.memory, &mut self.carrier);
        }
    }

    /// Handles what the adapter has completed, and writes the completion entries. Returns the time
    /// of the next look.
    fn progress(&mut self) -> Option<Instant> {
        let next = self.carrier.progress();
        while let Some((qp, completion)) = self.carrier.next_completion() {
            // A QP that is destroyed has no completions.
            let _ = self.kernel.complete(qp, &completion, &mut self.memory, &mut self.carrier);
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
