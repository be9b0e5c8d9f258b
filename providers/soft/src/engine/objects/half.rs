//! The locks of queue pairs, and which of them a deregistration must look at.
//!
//! Whoever moves bytes of a memory region holds the lock of one half of a QP, and looked the key up
//! under it. So a deregistration takes the key back, then waits for those who hold a lock. Only
//! locks that were taken since the last deregistration can be held unknown to it: each lock enters
//! itself in a list when it is first taken. The cost therefore does not depend on the number of
//! QPs.
#![forbid(unsafe_code)]

use cface::sync::{Mutex, MutexGuard};
use soft_local::shm::layout::QPS;
use soft_local::shm::protocol;
use soft_sys::membarrier;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Two halves for each QP.
const WORDS: usize = 2 * QPS / 64;

/// Above so many locks, one barrier of all processors is cheaper than taking each lock.
const MANY: usize = 64;

/// The lock of the sending or the receiving half of a QP.
#[derive(Debug)]
pub(crate) struct HalfLock<T> {
    lock: Mutex<T>,
    /// The list has it. Clear only when the lock was found free after the bit was taken.
    listed: AtomicBool,
    /// Which bit of the list.
    bit: usize,
    list: Arc<RecentLocks>,
}

impl<T> HalfLock<T> {
    /// The receiving half of the QP with this table index.
    pub(crate) fn receiving(list: &Arc<RecentLocks>, index: usize, half: T) -> Self {
        Self::new(list, 2 * index, half)
    }

    /// The sending half of the QP with this table index.
    pub(crate) fn sending(list: &Arc<RecentLocks>, index: usize, half: T) -> Self {
        Self::new(list, 2 * index + 1, half)
    }

    fn new(list: &Arc<RecentLocks>, bit: usize, half: T) -> Self {
        let (lock, listed) = (Mutex::new(half), AtomicBool::new(false));
        Self { lock, listed, bit, list: Arc::clone(list) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let guard = self.lock.lock();
        self.note();
        guard
    }

    #[inline]
    pub(crate) fn is_locked(&self) -> bool {
        self.lock.is_locked()
    }

    /// Enters the lock, which is held, in the list.
    #[inline]
    fn note(&self) {
        // Relaxed: cleared either under the lock, or before a barrier of all processors after which
        // the lock is looked at.
        if !self.listed.load(Ordering::Relaxed) {
            self.enter();
        }
    }

    /// Enters the lock in the list, whether or not it seems to be there.
    #[cold]
    pub(crate) fn enter(&self) {
        // In this order: whoever takes the bit clears the flag after that.
        self.listed.store(true, Ordering::Relaxed);
        self.list.set(self.bit);
    }
}

/// What a deregistration does with the lock of either half.
pub(crate) trait Half {
    /// Takes the lock off the list, of which the bit was taken; `false`: it is held.
    fn leave_if_free(&self) -> bool;
    /// Takes the lock off the list before a barrier, after which [`Half::is_held`] tells whether it
    /// was free.
    fn leave(&self);
    fn is_held(&self) -> bool;
    fn enter_again(&self);
}

impl<T> Half for HalfLock<T> {
    fn leave_if_free(&self) -> bool {
        let Some(_guard) = self.lock.try_lock() else { return false };
        self.leave();
        true
    }

    fn leave(&self) {
        self.listed.store(false, Ordering::Relaxed);
    }

    fn is_held(&self) -> bool {
        self.is_locked()
    }

    fn enter_again(&self) {
        self.enter();
    }
}

/// The locks that were taken since the last deregistration looked.
#[derive(Debug)]
pub(crate) struct RecentLocks {
    words: [AtomicU64; WORDS],
    /// Which words may be non-zero.
    summary: [AtomicU64; WORDS / 64],
    /// One deregistration looks at a time, with a copy of the bits that it took. Whoever comes next
    /// finds those that were held.
    looking: Mutex<[u64; WORDS]>,
    /// Locks looked at so far.
    #[cfg(test)]
    looked_at: std::sync::atomic::AtomicUsize,
}

impl Default for RecentLocks {
    fn default() -> Self {
        Self {
            words: [const { AtomicU64::new(0) }; WORDS],
            summary: [const { AtomicU64::new(0) }; WORDS / 64],
            looking: Mutex::new([0; WORDS]),
            #[cfg(test)]
            looked_at: Default::default(),
        }
    }
}

impl RecentLocks {
    fn set(&self, bit: usize) {
        let word = bit / 64;
        if let (Some(bits), Some(summary)) = (self.words.get(word), self.summary.get(word / 64)) {
            protocol::ring_bell(bits, bit % 64, summary, word % 64);
        }
    }

    /// Calls `held` with the table index of each QP of which a lock was taken before this call and may still be held; one QP may come twice.
    /// `half` finds the receiving half (`false`) or the sending half of a QP.
    pub(crate) fn each_held<'a>(
        &self,
        half: impl Fn(usize, bool) -> Option<&'a dyn Half>,
        mut held: impl FnMut(usize),
    ) {
        let half = |bit: usize| half(bit / 2, !bit.is_multiple_of(2));
        let mut taken = self.looking.lock();
        let count = self.take(&mut taken);
        #[cfg(test)]
        self.looked_at.fetch_add(count, Ordering::Relaxed);
        let with_barrier = count > MANY && membarrier::is_registered();
        if with_barrier {
            bits(&*taken, |bit| half(bit).into_iter().for_each(Half::leave));
            // Whoever takes a lock after the barrier finds the key gone, and enters the lock;
            // whoever did before is seen to hold it.
            membarrier::heavy();
        }
        bits(&*taken, |bit| {
            let Some(half) = half(bit) else { return };
            let is_held = if with_barrier { half.is_held() } else { !half.leave_if_free() };
            if is_held {
                half.enter_again();
                held(bit / 2);
            }
        });
        taken.fill(0);
    }

    /// Moves all bits to `taken`; how many there are.
    fn take(&self, taken: &mut [u64; WORDS]) -> usize {
        let mut count = 0;
        for (at, summary) in self.summary.iter().enumerate() {
            protocol::take_bits(summary, |bit| {
                let word = at * 64 + bit;
                if let (Some(from), Some(to)) = (self.words.get(word), taken.get_mut(word)) {
                    *to = from.swap(0, Ordering::AcqRel);
                    count += to.count_ones() as usize;
                }
            });
        }
        count
    }

    /// How many locks deregistrations have looked at.
    #[cfg(test)]
    pub(crate) fn looked_at(&self) -> usize {
        self.looked_at.load(Ordering::Relaxed)
    }
}

/// Calls `f` with the number of each bit that is set.
fn bits(words: &[u64], mut f: impl FnMut(usize)) {
    for (at, word) in words.iter().enumerate() {
        let mut rest = *word;
        while rest != 0 {
            f(at * 64 + rest.trailing_zeros() as usize);
            rest &= rest - 1;
        }
    }
}
