//! Static data that all threads of a library share. The locks are pthread mutexes, so that a
//! `pthread_atfork(3)` child handler may unlock what the parent locked before the fork. The thread
//! sanitizer knows pthread mutexes.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use super::lock::Guard;

/// A value behind a lock, for statics only: the lock must not move after its first use. The lock is
/// not recursive.
#[derive(Debug)]
pub struct StaticMutex<T> {
    lock: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reachable under the lock.
unsafe impl<T: Send> Sync for StaticMutex<T> {}

impl<T> StaticMutex<T> {
    /// For the initial value of a static.
    pub const fn new(value: T) -> Self {
        let lock = UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER);
        Self { lock, value: UnsafeCell::new(value) }
    }

    /// Waits for the lock, and holds it until the result is dropped.
    pub fn lock(&'static self) -> SharedGuard<T> {
        SharedGuard { _lock: self.hold(), value: self.value.get() }
    }

    /// Holds the lock without access to the value, until the result is dropped. For fork
    /// handlers.
    pub fn hold(&'static self) -> Guard {
        // SAFETY: initialised statically, and a static lives for ever.
        unsafe { Guard::lock(self.lock.get()) }
    }
}

/// The value, while its lock is held.
#[derive(Debug)]
pub struct SharedGuard<T> {
    value: *mut T,
    _lock: Guard,
}

impl<T> Deref for SharedGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: points into a static; the held lock excludes other threads.
        unsafe { &*self.value }
    }
}

impl<T> DerefMut for SharedGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: points into a static; the held lock excludes other threads, and `self` is the
        // only access.
        unsafe { &mut *self.value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        static COUNT: StaticMutex<u64> = StaticMutex::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let mut count = COUNT.lock();
                        let before = *count;
                        std::hint::black_box(&mut count);
                        *count = before + 1;
                    }
                });
            }
        });
        assert_eq!(*COUNT.lock(), 4000);
    }
}
