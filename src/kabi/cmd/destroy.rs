//! The common part of the destroying commands: an ioctl with one handle, or a write command. For
//! objects that report events it waits until the application has acknowledged all events
//! (`ibv_get_async_event(3)`, `ibv_get_cq_event(3)`).

use super::status::Status;
use crate::front::command::IoctlOutcome;
use crate::front::command::buffer::Command;
use crate::front::command::bytes::PlainData;
use crate::front::command::write::Number;
use crate::front::context::Context;
use crate::front::disassociate;
use crate::front::op::Op;
use cface::Errno;
use cface::lock::Guard;

/// An ioctl that destroys an object, and the operation whose slot remembers kernel support.
#[derive(Clone, Copy, Debug)]
pub(super) struct Destroy {
    pub(super) op: Op,
    pub(super) object: u16,
    pub(super) method: u16,
    /// Attribute with the handle.
    pub(super) handle: u16,
}

impl Destroy {
    /// Destroys an object without events. `request` is the body of the write command.
    pub(super) fn run<Q: PlainData>(
        self,
        context: Context,
        handle: u32,
        number: Number,
        request: &Q,
    ) -> Result<Status, Errno> {
        let mut command = Command::new(self.object, self.method);
        command.object_in(self.handle, handle);
        let result = match command.run_or_fall_back(context, self.op) {
            Ok(IoctlOutcome::Done) => Ok(()),
            Ok(IoctlOutcome::Write | IoctlOutcome::WriteEx) => {
                command.write(context, number, request)
            }
            Err(error) => Err(error),
        };
        match destroy_result(result)? {
            DestroyResult::Destroyed | DestroyResult::DeviceGone => Ok(Status::DONE),
        }
    }
}

/// The result of a destroying command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DestroyResult {
    /// The kernel has destroyed the object and said how many events it reported.
    Destroyed,
    /// The device was unplugged and the object with it; nothing to wait for.
    DeviceGone,
}

/// The result of a destroying command. `EIO`, the answer of an unplugged device, counts as success
/// if `verbs_allow_disassociate_destroy` says so.
pub(super) fn destroy_result(result: Result<(), Errno>) -> Result<DestroyResult, Errno> {
    match result {
        Ok(()) => Ok(DestroyResult::Destroyed),
        Err(Errno::EIO) if disassociate::is_allowed() => Ok(DestroyResult::DeviceGone),
        Err(error) => Err(error),
    }
}

/// Waits until each counter has reached what the kernel reported.
///
/// # Safety
/// Mutex, condition and counters belong to one live object; the counters change only under the
/// mutex, with a signal on the condition.
pub(super) unsafe fn wait_for_acknowledgements<const N: usize>(
    mutex: *mut libc::pthread_mutex_t,
    cond: *mut libc::pthread_cond_t,
    counters: [(*const u32, u32); N],
) {
    // SAFETY: an initialised lock of a live object.
    let guard = unsafe { Guard::lock(mutex) };
    // SAFETY: counters of the live object, read under its lock.
    while !counters.iter().all(|&(counter, reported)| unsafe { counter.read() } == reported) {
        // SAFETY: locked by us; the condition belongs to the same object.
        unsafe { libc::pthread_cond_wait(cond, mutex) };
    }
    drop(guard);
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::Zeroed;
    use cface::lock;

    #[test]
    fn destruction_waits_for_the_last_acknowledgement() {
        let srq = Box::leak(Box::new(abi::ibv_srq::zeroed()));
        let srq: *mut abi::ibv_srq = srq;
        // SAFETY: a fresh object.
        unsafe { lock::init(&raw mut (*srq).mutex, &raw mut (*srq).cond) };
        let address = srq.expose_provenance();
        let acknowledger = std::thread::spawn(move || {
            let srq: *mut abi::ibv_srq = core::ptr::with_exposed_provenance_mut(address);
            for _ in 0..3 {
                // SAFETY: one live object.
                unsafe {
                    lock::acknowledge(
                        &raw mut (*srq).mutex,
                        &raw mut (*srq).cond,
                        &raw mut (*srq).events_completed,
                        1,
                    );
                }
            }
        });
        // SAFETY: one live object.
        unsafe {
            wait_for_acknowledgements(
                &raw mut (*srq).mutex,
                &raw mut (*srq).cond,
                [(&raw const (*srq).events_completed, 3)],
            );
        }
        assert!(acknowledger.join().is_ok());
        // SAFETY: nobody else uses it any more.
        assert_eq!(unsafe { (*srq).events_completed }, 3);
    }
}
