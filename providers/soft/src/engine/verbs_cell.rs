//! Memory and locks that the callers of the verbs API share with this library. The rules of the API
//! order the accesses, so Rust's borrow checker sees none of them.

use cface::sync::RawMutex;
use lock_api::RawMutex as _;
use std::cell::UnsafeCell;

/// A value that callers of the verbs API use by address: a C object, or what several calls of one
/// thread fill. Every access is by the raw pointer of [`get`](Self::get), and states which rule of
/// the API makes it exclusive.
#[repr(transparent)]
#[derive(Debug, Default)]
pub(crate) struct VerbsCell<T>(UnsafeCell<T>);

// SAFETY: a shared cell gives away an address only. Who uses the address states why no other thread
// does so meanwhile.
unsafe impl<T> Sync for VerbsCell<T> {}

// SAFETY: the cells hold C objects, whose pointers are addresses of objects of the process, and
// plain values. Neither is bound to a thread.
unsafe impl<T> Send for VerbsCell<T> {}

impl<T> VerbsCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// The address of the value.
    #[inline]
    pub(crate) const fn get(&self) -> *mut T {
        self.0.get()
    }
}

/// A lock that one call of the application takes, and a later call releases.
pub(crate) struct CallLock(RawMutex);

impl CallLock {
    pub(crate) const fn new() -> Self {
        Self(RawMutex::INIT)
    }

    #[inline]
    pub(crate) fn lock(&self) {
        self.0.lock();
    }

    /// # Safety
    /// An earlier call took the lock, and no call released it since.
    #[inline]
    pub(crate) unsafe fn unlock(&self) {
        // SAFETY: the contract of this function.
        unsafe { self.0.unlock() };
    }
}
