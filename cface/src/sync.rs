//! Sleeping locks with the interface of `lock_api`, usable after fork(2).
//!
//! The locks have no state except their own words and the kernel's queues of these words
//! (`futex(2)`). Hence a child that creates new locks is independent of its parent's locks at the
//! fork. A library with a process-wide table of sleepers (`parking_lot`) does not suffice: the
//! table's locks may be held during a fork, and the child then hangs at its first contended lock.

use lock_api::{GuardNoSend, RawMutex as _};
use std::hint::spin_loop;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// A mutex, which a panic of its holder releases.
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
/// The guard of a held [`Mutex`].
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;

/// The word of a [`Mutex`].
#[derive(Debug)]
pub struct RawMutex(AtomicU32);

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and a thread may sleep until the release.
const AWAITED: u32 = 2;

/// Number of attempts of a waiting thread: first after growing pauses, then after yielding; then it
/// sleeps.
const PAUSES: u32 = 3;
const ROUNDS: u32 = 10;

// SAFETY: `lock` and `try_lock` succeed for one thread only between two calls of `unlock`: the
// exchanges from FREE to a taken value are the only entry. The exchanges acquire the stores that
// `unlock` released.
unsafe impl lock_api::RawMutex for RawMutex {
    const INIT: Self = Self(AtomicU32::new(FREE));
    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if self.0.compare_exchange_weak(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            self.lock_by(None);
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == AWAITED {
            wake(&self.0, 1);
        }
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.0.load(Ordering::Relaxed) != FREE
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawMutexTimed for RawMutex {
    type Duration = Duration;
    type Instant = Instant;

    fn try_lock_for(&self, patience: Duration) -> bool {
        self.try_lock_until(Instant::now() + patience)
    }

    fn try_lock_until(&self, end: Instant) -> bool {
        self.try_lock() || self.lock_by(Some(end))
    }
}

impl RawMutex {
    /// Waits for the lock, until `end` at most. Returns whether the lock was taken.
    #[cold]
    fn lock_by(&self, end: Option<Instant>) -> bool {
        for round in 0..ROUNDS {
            match self.0.load(Ordering::Relaxed) {
                FREE if self.try_lock() => return true,
                // Other threads sleep already, so this thread sleeps too.
                AWAITED => break,
                _ if round < PAUSES => (0..2 << round).for_each(|_| spin_loop()),
                _ => yield_now(),
            }
        }
        // A woken thread does not know whether others still sleep, so it sets AWAITED.
        while self.0.swap(AWAITED, Ordering::Acquire) != FREE {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            sleep(&self.0, AWAITED, left);
        }
        true
    }
}

/// A condition variable: threads that hold a [`Mutex`] wait for changes of the guarded data.
#[derive(Debug, Default)]
pub struct Condvar(AtomicU32);

impl Condvar {
    /// Nobody waits.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Lets go of the mutex until somebody notifies, or for no reason.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        // Read under the mutex: a later change of the guarded data is followed by a change of this
        // number, so the sleep ends.
        let before = self.0.load(Ordering::Relaxed);
        MutexGuard::unlocked(guard, || sleep(&self.0, before, None));
    }

    /// As `wait`, for `patience` at most. Returns whether the time passed without a notification.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        // As in `wait`.
        let before = self.0.load(Ordering::Relaxed);
        MutexGuard::unlocked(guard, || sleep(&self.0, before, Some(patience)));
        Instant::now() >= end
    }

    /// Wakes all waiting threads. The caller changed the guarded data under the mutex.
    pub fn notify_all(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        wake(&self.0, i32::MAX);
    }
}

/// The standard library's, of which a panic under it does not take the value away.
#[derive(Debug, Default)]
pub struct RwLock<T>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// An unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(std::sync::RwLock::new(value))
    }

    /// Locks for reading, shared with other readers.
    #[inline]
    pub fn read(&self) -> std::sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks for writing, exclusively.
    #[inline]
    pub fn write(&self) -> std::sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sleeps while `word` is `value`, until woken, for `patience` at most, or shorter for no reason.
fn sleep(word: &AtomicU32, value: u32, patience: Option<Duration>) {
    let time = patience.map(|patience| libc::timespec {
        tv_sec: patience.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: patience.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word and the time outlive the call, which writes neither. However it ends, the
    // caller looks at the word again.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value,
            time,
        )
    };
}

/// Wakes `most` threads that sleep at `word`.
#[cold]
fn wake(word: &AtomicU32, most: i32) {
    // SAFETY: the kernel only uses the address; if another object has the address by now, its
    // sleepers check their word again.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            most,
        )
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        let count = Mutex::new(0_u64);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for i in 0..2000 {
                        let mut count = count.lock();
                        let before = *count;
                        if i % 500 == 0 {
                            // Long enough for the other threads to fall asleep.
                            thread::sleep(Duration::from_millis(2));
                        }
                        *count = before + 1;
                    }
                });
            }
        });
        assert_eq!(*count.lock(), 8000);
    }

    #[test]
    fn a_held_lock_is_visible_and_cannot_be_taken() {
        let value = Mutex::new(1);
        let guard = value.lock();
        assert!(value.is_locked() && value.try_lock().is_none());
        assert!(value.try_lock_for(Duration::from_millis(5)).is_none());
        drop(guard);
        assert!(!value.is_locked());
        assert_eq!(value.try_lock_for(Duration::ZERO).as_deref(), Some(&1));
    }

    #[test]
    fn a_waiter_that_gives_up_does_not_block_the_others() {
        let value = Arc::new(Mutex::new(()));
        let guard = value.lock();
        let other = thread::spawn({
            let value = Arc::clone(&value);
            move || drop(value.lock())
        });
        assert!(value.try_lock_for(Duration::from_millis(20)).is_none());
        drop(guard);
        other.join().unwrap();
    }

    #[test]
    fn a_waiting_thread_is_notified() {
        let (count, changed) = (Mutex::new(0), Condvar::new());
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut count = count.lock();
                    while *count < 100 {
                        changed.wait(&mut count);
                    }
                });
            }
            for _ in 0..100 {
                *count.lock() += 1;
                changed.notify_all();
            }
        });
    }

    #[test]
    fn a_thread_without_notification_wakes_at_its_timeout() {
        let (value, changed) = (Mutex::new(0), Condvar::new());
        let mut value = value.lock();
        // Sleepers may wake for no reason.
        while !changed.wait_for(&mut value, Duration::from_millis(5)) {}
        *value += 1;
    }

    #[test]
    fn a_panic_leaves_the_lock_usable() {
        let (one, two) = (Mutex::new(1), RwLock::new(2));
        let panicked = thread::scope(|scope| {
            scope
                .spawn(|| {
                    let _both = (one.lock(), two.write());
                    panic!("on purpose");
                })
                .join()
        });
        assert!(panicked.is_err());
        assert_eq!((*one.lock(), *two.read()), (1, 2));
    }
}
