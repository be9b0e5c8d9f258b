//! The emulated contexts of the process by command descriptor, under the lock that a forking thread
//! holds. `ops/context.rs` takes the lock before a fork, and contexts use `ops/context.rs`. This
//! file therefore knows contexts as `Any` only.
#![forbid(unsafe_code)]

use cface::sync::{Mutex, MutexGuard};
use soft_sys::process;
use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;

/// A context, and the process that opened the context.
#[derive(Debug)]
pub(in crate::ops) struct Entry {
    context: Arc<dyn Any + Send + Sync>,
    process: libc::pid_t,
}

/// The held lock.
pub(in crate::ops) type Hold = MutexGuard<'static, BTreeMap<c_int, Entry>>;

/// A leaf lock, held for a look-up.
static CONTEXTS: Mutex<BTreeMap<c_int, Entry>> = Mutex::new(BTreeMap::new());

/// Waits for the lock.
pub(in crate::ops) fn hold() -> Hold {
    CONTEXTS.lock()
}

/// Enters a context of this process.
pub(super) fn add<T: Any + Send + Sync>(cmd_fd: c_int, context: &Arc<T>) {
    let context = Arc::<T>::clone(context);
    hold().insert(cmd_fd, Entry { context, process: process::id() });
}

/// The context of a descriptor. None without one, and in a forked child for contexts of the parent:
/// a thread of the parent may have held their locks.
pub(super) fn find<T: Any + Send + Sync>(cmd_fd: c_int) -> Option<Arc<T>> {
    let listed = hold();
    let entry = listed.get(&cmd_fd).filter(|entry| entry.process == process::id())?;
    let context = Arc::clone(&entry.context);
    drop(listed);
    context.downcast().ok()
}

/// Takes the context of a descriptor out of the list. None as for [`find`]; the objects of the
/// parent's context are then the parent's, and this function leaves them alone.
pub(super) fn remove<T: Any + Send + Sync>(cmd_fd: c_int) -> Option<Arc<T>> {
    let Entry { context, process } = hold().remove(&cmd_fd)?;
    if process == process::id() {
        context.downcast().ok()
    } else {
        std::mem::forget(context);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_of_another_process_is_not_found_and_not_dropped() {
        let (own, foreign) = (Arc::new(1_u8), Arc::new(2_u8));
        add(-7, &own);
        add(-8, &foreign);
        hold().get_mut(&-8).expect("entered").process += 1;
        assert_eq!(find::<u8>(-7).as_deref(), Some(&1));
        assert_eq!(find::<u8>(-8), None);
        assert_eq!(remove::<u8>(-7).as_deref(), Some(&1));
        assert_eq!(remove::<u8>(-8), None);
        assert_eq!((find::<u8>(-7), find::<u8>(-8)), (None, None));
        assert_eq!((Arc::strong_count(&own), Arc::strong_count(&foreign)), (1, 2));
    }
}
