//! CQ-12: objects that were created for one thread at a time, and the thread in them.

use core::sync::atomic::{AtomicU32, Ordering};

use layer_tap::thread;

use crate::checks::protocol;
use crate::report::report;

/// The stay of a thread in an object for one thread at a time. Dropping the value ends the stay.
pub(crate) struct Occupied<'a>(Option<&'a AtomicU32>);

/// CQ-12: reports a second thread in an object that was created for one thread at a time. `user` is
/// the thread in the object; 0 for none.
pub(crate) fn enter<'a>(
    user: &'a AtomicU32,
    call: &str,
    object: impl Fn() -> String,
) -> Occupied<'a> {
    let me = thread();
    match user.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => Occupied(Some(user)),
        // A nested call of the same thread is allowed.
        Err(other) if other == me => Occupied(None),
        Err(other) => {
            report(call, object, [protocol::second_thread(other, me)], None);
            Occupied(None)
        }
    }
}

impl Drop for Occupied<'_> {
    fn drop(&mut self) {
        if let Some(user) = self.0 {
            user.store(0, Ordering::Release);
        }
    }
}
