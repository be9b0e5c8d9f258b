//! A spin lock for the record of one queue. A thread holds it for some tens of nanoseconds, or
//! while it writes a message about a request. No call to the provider runs under the lock, except
//! functions that read a completion (docs/design/locking.md).

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// A value behind a spin lock.
#[derive(Debug)]
pub struct Spin<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: a reference to the value exists only while its holder has the lock.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    /// Makes an unlocked value.
    pub const fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock and takes it. Dropping the result releases the lock.
    #[inline]
    pub fn lock(&self) -> SpinGuard<'_, T> {
        let mut tries = 0_u32;
        while self.taken.swap(true, Ordering::Acquire) {
            while self.taken.load(Ordering::Relaxed) {
                tries += 1;
                if tries.is_multiple_of(64) {
                    // The holder may be waiting for this processor.
                    std::thread::yield_now();
                } else {
                    core::hint::spin_loop();
                }
            }
        }
        SpinGuard(self)
    }

    /// Releases the lock.
    ///
    /// # Safety
    /// The caller holds the lock, and has forgotten the result of [`lock`](Self::lock).
    pub(crate) unsafe fn unlock(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

/// The locked value.
#[derive(Debug)]
pub struct SpinGuard<'a, T>(&'a Spin<T>);

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock, and `self` is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}
