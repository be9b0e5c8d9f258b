//! One-sided memory barriers: who rarely needs order pays for it, so that who needs it always does not (`membarrier(2)`,
//! Linux 4.16).

use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Execute a barrier on every running thread of every registered process.
const GLOBAL_EXPEDITED: libc::c_long = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_long = 1 << 2;

static REGISTERED: AtomicBool = AtomicBool::new(false);

fn membarrier(command: libc::c_long) -> bool {
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Has other processes' [`heavy`] barriers reach this process's threads. `false`: the kernel, or a filter, does not
/// offer that.
pub fn register() -> bool {
    let registered = membarrier(REGISTER_GLOBAL_EXPEDITED);
    REGISTERED.store(registered, Ordering::Relaxed);
    registered
}

/// Whether [`register`] succeeded.
#[inline]
pub fn is_registered() -> bool {
    REGISTERED.load(Ordering::Relaxed)
}

/// A full fence here, and in every running thread of every registered process: whatever those stored before is visible
/// afterwards, and whatever we stored before is seen by their later loads.
pub fn heavy() {
    fence(Ordering::SeqCst);
    // Where it is not offered, nobody relies on it: see `register`.
    membarrier(GLOBAL_EXPEDITED);
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_is_allowed_once_registered() {
        if register() {
            assert!(membarrier(GLOBAL_EXPEDITED));
        }
        heavy();
    }
}
