//! The lock that a thread takes around each use of the list of emulated contexts, and that a
//! forking thread holds. The list is in `context`, which this file does not need.
#![forbid(unsafe_code)]

use cface::sync::{Mutex, MutexGuard};

/// A leaf lock.
static LISTING: Mutex<()> = Mutex::new(());

/// The held lock.
pub(in crate::ops) type Hold = MutexGuard<'static, ()>;

/// Waits for the lock.
pub(in crate::ops) fn hold() -> Hold {
    LISTING.lock()
}
