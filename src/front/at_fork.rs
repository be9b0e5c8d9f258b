//! Forking while other threads list devices or use a lock of ours (`pthread_atfork(3)`): the child
//! has only the forking thread, so locks of other threads would stay held for ever. The forking
//! thread therefore takes all locks of the front-end first, and both processes release them.

use core::cell::{Cell, RefCell};

use super::{ext, fork, layers, list, registry};
use crate::sys::log::notice;
use cface::lock::Guard;

/// The locks that a forking thread holds during the fork. The list's lock is the outermost one; the
/// others are innermost.
#[derive(Debug)]
struct HeldLocks {
    _chains: Guard,
    _ranges: Guard,
    _devices: Guard,
    _drivers: Guard,
    _list: Option<Guard>,
}

thread_local! {
    static HELD: RefCell<Option<HeldLocks>> = const { RefCell::new(None) };
    static LISTING: Cell<bool> = const { Cell::new(false) };
}

/// From now on forks wait for the front-end's locks. To be called once.
pub(crate) fn register() {
    // SAFETY: functions of this library; glibc removes them if the library is unloaded.
    let result =
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
    if result != 0 {
        // ENOMEM: as without it, only a fork at a bad moment is at risk.
        notice!(
            "Warning: pthread_atfork failed (error {result}): do not fork while other threads list devices"
        );
    }
}

/// Marks the calling thread as listing devices, until dropped. A plugin's constructor that forks
/// must not wait for a lock of its own thread.
#[derive(Debug)]
pub(crate) struct Listing(());

impl Listing {
    pub(crate) fn new() -> Self {
        LISTING.set(true);
        Self(())
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        LISTING.set(false);
    }
}

extern "C" fn before_fork() {
    let list = (!LISTING.get()).then(list::hold);
    let all = HeldLocks {
        _list: list,
        _drivers: registry::hold(),
        _devices: ext::hold(),
        _ranges: fork::hold(),
        _chains: layers::hold(),
    };
    // A forking thread whose thread-local storage is gone cannot keep the locks, so they are
    // released at once.
    let _ = HELD.try_with(|held| held.replace(Some(all)));
}

/// In the parent and in the child.
extern "C" fn after_fork() {
    let _ = HELD.try_with(RefCell::take);
}
