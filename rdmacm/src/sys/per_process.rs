//! Process-wide values that the child of fork(2) creates again.
//! A child has neither the threads nor usable descriptors of its parent, and a thread of the parent
//! may have held any lock at the fork.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The id of this process.
pub(crate) fn process() -> i32 {
    // SAFETY: getpid has no requirements.
    unsafe { libc::getpid() }
}

/// The value of one process.
struct ProcessValue<T> {
    process: i32,
    value: T,
}

/// A static with one value for each process, at first the default.
pub(crate) struct PerProcess<T>(AtomicPtr<ProcessValue<T>>, PhantomData<T>);

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Anew").finish_non_exhaustive()
    }
}

impl<T: Default + Send + Sync> PerProcess<T> {
    /// A static without a value.
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()), PhantomData)
    }

    /// The value of this process. Takes no lock.
    pub(crate) fn get(&'static self) -> &'static T {
        let own = process();
        // Before the first call in a child, the pointer is to the parent's value. Acquire pairs
        // with the AcqRel exchange below, which publishes the new value.
        let mut at = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: NULL, or from below and never freed.
            if let Some(known) = unsafe { at.as_ref() }.filter(|known| known.process == own) {
                return &known.value;
            }
            let new = Box::into_raw(Box::new(ProcessValue { process: own, value: T::default() }));
            match self.0.compare_exchange(at, new, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: made just before, and never freed.
                Ok(_) => return unsafe { &(*new).value },
                Err(other) => {
                    // SAFETY: made just before, and not shared.
                    drop(unsafe { Box::from_raw(new) });
                    at = other;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cface::sync::Mutex;

    #[test]
    fn a_child_does_not_wait_for_its_parents_threads() {
        static KNOWN: PerProcess<Mutex<Vec<u32>>> = PerProcess::new();
        KNOWN.get().lock().push(7);
        let held = KNOWN.get().lock();
        // SAFETY: the child calls only functions that need no other thread of this process, and
        // _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mine = KNOWN.get().try_lock();
            let right = mine.is_some_and(|mine| mine.is_empty());
            // SAFETY: _exit has no requirements.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        assert_eq!(*held, [7]);
        let mut status = -1;
        // SAFETY: a child of this process; `status` is writable.
        let got = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((got, status), (child, 0), "the child began anew");
    }
}
