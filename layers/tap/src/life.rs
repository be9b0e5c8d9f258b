//! The life of a process under a layer: it forks, it ends.

use std::cell::RefCell;
use std::sync::OnceLock;

use cface::lock::Guard;

/// What a layer does then.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// When the process ends by itself.
    pub at_exit: extern "C" fn(),
    /// Takes all locks of the layer: the child of a fork has nobody else who could give them back. [`crate::hold`] has those of the tap.
    pub hold: fn() -> Vec<Guard>,
    /// In the child, when they are given back.
    pub in_child: fn(),
}

/// Of this shared object, which has one layer.
static LIFE: OnceLock<Life> = OnceLock::new();

thread_local! {
    static HELD: RefCell<Vec<Guard>> = const { RefCell::new(Vec::new()) };
}

/// To be called by each `attach`; the first one counts. Whether this was it.
pub fn begin(life: Life) -> bool {
    let mut is_first = false;
    LIFE.get_or_init(|| {
        is_first = true;
        // SAFETY: functions of this library, which is never unloaded.
        unsafe {
            libc::atexit(life.at_exit);
            libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child));
        }
        life
    });
    is_first
}

extern "C" fn before_fork() {
    let Some(life) = LIFE.get() else { return };
    let all = (life.hold)();
    let _ = HELD.try_with(|held| *held.borrow_mut() = all);
}

extern "C" fn in_parent() {
    let _ = HELD.try_with(|held| held.borrow_mut().clear());
}

extern "C" fn in_child() {
    in_parent();
    if let Some(life) = LIFE.get() {
        (life.in_child)();
    }
}
