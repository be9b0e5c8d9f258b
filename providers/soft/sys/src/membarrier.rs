//! One-sided memory barriers (`membarrier(2)`, Linux 4.16).
//!
//! The side that rarely needs order executes [`heavy`], so that the frequent side needs no fence.

use rustix::thread::{MembarrierCommand, membarrier};
use std::sync::atomic::{AtomicBool, Ordering, fence};

static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Makes other processes' [`heavy`] barriers reach this process's threads. Returns false if the
/// kernel or a filter does not support that.
pub fn register() -> bool {
    let registered = membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
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
    let _ = membarrier(MembarrierCommand::GlobalExpedited);
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_is_allowed_once_registered() {
        if register() {
            assert!(membarrier(MembarrierCommand::GlobalExpedited).is_ok());
        }
        heavy();
    }
}
