//! What a process knows and its child made by fork(2) begins anew: the child has neither the threads nor the descriptors' meaning of its parent, and a thread
//! of the parent may have held any lock.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The number of this process.
pub(crate) fn process() -> i32 {
    // SAFETY: getpid has no requirements.
    unsafe { libc::getpid() }
}

/// What one process knows.
struct Of<T> {
    process: i32,
    what: T,
}

/// For statics: the value of this process, the default at first.
pub(crate) struct Anew<T>(AtomicPtr<Of<T>>, PhantomData<T>);

impl<T> fmt::Debug for Anew<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Anew").finish_non_exhaustive()
    }
}

impl<T: Default + Send + Sync> Anew<T> {
    /// Nobody knows anything.
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()), PhantomData)
    }

    /// What this process knows. It takes no lock.
    pub(crate) fn get(&'static self) -> &'static T {
        let own = process();
        // Until a child asks, what its parent knew. Stored with Release, as what it points to is new.
        let mut at = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: NULL, or from below and never given back.
            if let Some(known) = unsafe { at.as_ref() }.filter(|known| known.process == own) {
                return &known.what;
            }
            let new = Box::into_raw(Box::new(Of { process: own, what: T::default() }));
            match self.0.compare_exchange(at, new, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: made just before, and never given back.
                Ok(_) => return unsafe { &(*new).what },
                Err(other) => {
                    // SAFETY: made just before, and nobody else has it.
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
        static KNOWN: Anew<Mutex<Vec<u32>>> = Anew::new();
        KNOWN.get().lock().push(7);
        let held = KNOWN.get().lock();
        // SAFETY: the child calls what needs nothing of the other threads of this process, and _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mine = KNOWN.get().try_lock();
            let right = mine.is_some_and(|mine| mine.is_empty());
            // SAFETY: _exit has no requirements.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        assert_eq!(*held, [7]);
        let mut status = -1;
        // SAFETY: a child of ours, and `status` is writable.
        let got = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((got, status), (child, 0), "the child began anew");
    }
}
