//! One-sided memory barriers (`membarrier(2)`, Linux 4.16).
//!
//! The side that rarely needs order executes [`heavy`], so that the frequent side needs no fence.

use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Executes a barrier on every running thread of every registered process.
const GLOBAL_EXPEDITED: libc::c_long = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_long = 1 << 2;

static REGISTERED: AtomicBool = AtomicBool::new(false);

fn membarrier(command: libc::c_long) -> bool {
    // SAFETY: takes integers only.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Makes other processes' [`heavy`] barriers reach this process's threads. Returns false if the
/// kernel or a filter does not support that.
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

/// A full fence in this thread and in every running thread of every registered process. Their
/// earlier stores are visible to this thread afterwards, and their later loads see this thread's
/// earlier stores.
pub fn heavy() {
    fence(Ordering::SeqCst);
    // Where unsupported, no process relies on it: see `register`.
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
