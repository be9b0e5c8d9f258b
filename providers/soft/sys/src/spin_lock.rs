//! A lock that its holder keeps for some tens of instructions.
//!
//! Use a spin lock only for data that every message needs several times. The holder copies at most
//! one short message, and never waits. All other data needs a mutex, because a spin lock is unfair:
//! a thread can wait while others take the lock again and again.
//!
//! The reason for the type is the price of a release. A mutex whose waiting threads sleep needs a
//! locked instruction to learn whether a thread sleeps. Here a release is a plain store, and each
//! waiting thread retries. One exception sends a delayed event under the lock
//! (docs/design/locking-soft.md).

use lock_api::{GuardSend, RawMutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The attempt from which a waiting thread yields its processor after each attempt.
const YIELDS_FROM: u32 = 100;
/// The attempt from which a waiting thread sleeps after each attempt.
const SLEEPS_FROM: u32 = 120;
/// The pause of a sleeping thread. The thread sleeps, because the holder may have a lower priority
/// and need this processor.
const SLEEP: Duration = Duration::from_micros(50);

/// The raw lock; see the module.
#[derive(Debug)]
pub struct RawSpinLock(AtomicBool);

/// A mutex that is held briefly.
pub type SpinLock<T> = lock_api::Mutex<RawSpinLock, T>;
/// The guard of a held [`SpinLock`].
pub type SpinLockGuard<'a, T> = lock_api::MutexGuard<'a, RawSpinLock, T>;

// SAFETY: between two calls of `unlock`, `lock` and `try_lock` succeed for one thread only: the
// swap from false to true is the only entry, and acquires the stores that `unlock` released.
unsafe impl RawMutex for RawSpinLock {
    const INIT: Self = Self(AtomicBool::new(false));
    type GuardMarker = GuardSend;

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.wait();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        !self.0.swap(true, Ordering::Acquire)
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl RawSpinLock {
    #[cold]
    fn wait(&self) {
        let mut round = 0;
        loop {
            if !self.is_locked() && self.try_lock() {
                return;
            }
            match round {
                0..YIELDS_FROM => std::hint::spin_loop(),
                YIELDS_FROM..SLEEPS_FROM => std::thread::yield_now(),
                _ => std::thread::sleep(SLEEP),
            }
            round += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::testing::ThreadHandle;
    use std::sync::Arc;
    use std::time::Instant;

    #[test]
    fn additions_of_many_threads_are_not_lost() {
        let sum = Arc::new(SpinLock::new(0u64));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let sum = Arc::clone(&sum);
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        // Two steps, so that two threads inside the lock would lose an increment.
                        let mut guard = sum.lock();
                        let before = *guard;
                        std::hint::black_box(&before);
                        *guard = before + 1;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert_eq!(*sum.lock(), 160_000);
    }

    #[test]
    fn a_waiter_sleeps_while_the_holder_does_not_run_and_gets_the_lock() {
        let lock = Arc::new(SpinLock::new(()));
        let held = lock.lock();
        assert!(lock.is_locked() && lock.try_lock().is_none());
        let other = Arc::clone(&lock);
        let (sender, receiver) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            sender.send(ThreadHandle::current()).expect("the test holds the receiver");
            drop(other.lock());
        });
        let (waiter_thread, end) =
            (receiver.recv().expect("the waiter runs"), Instant::now() + Duration::from_secs(20));
        while !waiter_thread.sleeps() {
            assert!(!waiter.is_finished() && Instant::now() < end, "the waiter does not sleep");
        }
        drop(held);
        waiter.join().expect("no panic");
        assert!(!lock.is_locked());
    }
}
