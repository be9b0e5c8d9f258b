//! A lock of a few instructions for what belongs to one queue. It is held for some tens of nanoseconds, or while a message about a request is
//! written, and across no call to the provider but its functions that read a completion (docs/design/locking.md).

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// A value behind such a lock.
#[derive(Debug)]
pub struct Spin<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: whoever reaches the value holds the lock.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    /// For this value.
    pub const fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock; it is held until the result is dropped.
    #[inline]
    pub fn lock(&self) -> Held<'_, T> {
        let mut tries = 0_u32;
        while self.taken.swap(true, Ordering::Acquire) {
            while self.taken.load(Ordering::Relaxed) {
                tries += 1;
                if tries.is_multiple_of(64) {
                    // Its owner may be waiting for this very processor.
                    std::thread::yield_now();
                } else {
                    core::hint::spin_loop();
                }
            }
        }
        Held(self)
    }

    /// Gives it back.
    ///
    /// # Safety
    /// Whoever took it has forgotten the result of [`lock`](Self::lock).
    pub(crate) unsafe fn unlock(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

/// The value, while it is locked.
#[derive(Debug)]
pub struct Held<'a, T>(&'a Spin<T>);

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: we hold the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: we hold the lock, and `self` is borrowed for as long.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}
