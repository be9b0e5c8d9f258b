//! The locks of the two halves of a QP, and the list of locks that a deregistration must inspect.
//! The threads of the data path lock here: programs that post or poll, and the service thread. The
//! thread of a deregistration reads the list (`Registry::busy_qps`, for `Adapter::quiesce`).
//!
//! A thread that moves bytes of a memory region holds the lock of a half of a QP, and looked the
//! key up under that lock. A deregistration therefore revokes the key, then waits for the holders
//! of locks. A lock can be held only if it was taken since the last deregistration, or if that
//! deregistration found it held. Each lock enters itself in a list when it is first taken, so the
//! cost does not depend on the number of QPs.
//!
//! The order that this needs: the holder lists its lock, then reads the key; the deregistration
//! stores the revoked key, then reads the list. Each side has a sequentially consistent fence
//! between its two steps. So the deregistration finds the lock, or the holder finds the key
//! revoked.
#![forbid(unsafe_code)]

use cface::sync::{Mutex, MutexGuard};
use soft_local::shm::layout::QPS;
use soft_local::shm::protocol;
use soft_sys::membarrier;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Two bits for each QP.
const WORDS: usize = 2 * QPS / 64;

/// Number of locks above which a barrier on all processors is cheaper than taking each lock.
const BARRIER_ABOVE: usize = 64;

/// The lock of the requester or the responder of a QP.
#[derive(Debug)]
pub(crate) struct HalfLock<T> {
    lock: Mutex<T>,
    /// The list contains this lock. A deregistration that took the bit clears the flag, and sets it
    /// again if the lock is held.
    listed: AtomicBool,
    /// Number of the bit in the list.
    bit: usize,
    list: Arc<RecentLocks>,
}

impl<T> HalfLock<T> {
    /// The lock of the responder of the QP with this table index.
    pub(crate) fn receiving(list: &Arc<RecentLocks>, index: usize, half: T) -> Self {
        Self::new(list, 2 * index, half)
    }

    /// The lock of the requester of the QP with this table index.
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
        self.list_once();
        guard
    }

    #[inline]
    pub(crate) fn is_locked(&self) -> bool {
        self.lock.is_locked()
    }

    /// Lists the lock, which the caller holds.
    #[inline]
    fn list_once(&self) {
        // Relaxed: the flag is cleared under the lock, or before a barrier on all processors; the
        // lock is inspected after that barrier.
        if !self.listed.load(Ordering::Relaxed) {
            self.list_now();
        }
    }

    /// Lists the lock unconditionally.
    #[cold]
    pub(crate) fn list_now(&self) {
        // Store the flag first, then set the bit. The deregistration takes the bit first, then
        // clears the flag. In the other order a set flag could remain without a bit, and the lock
        // would never be listed again.
        self.listed.store(true, Ordering::Relaxed);
        self.list.set(self.bit);
        // Orders the bit before the caller's reads of keys; pairs with the fence of `each_held`.
        fence(Ordering::SeqCst);
    }
}

/// The steps of a deregistration on the lock of either half.
pub(crate) trait TrackedLock {
    /// Unlists the lock, whose bit was taken, if it is free. Returns false if it is held.
    fn unlist_if_free(&self) -> bool;
    /// Unlists the lock before a barrier. After the barrier, [`TrackedLock::is_held`] tells whether
    /// the lock was free.
    fn unlist(&self);
    /// Whether a thread holds the lock.
    fn is_held(&self) -> bool;
    /// Enters a held lock in the list again, so that the next deregistration inspects it, too.
    fn list_again(&self);
}

impl<T> TrackedLock for HalfLock<T> {
    fn unlist_if_free(&self) -> bool {
        let Some(_guard) = self.lock.try_lock() else { return false };
        self.unlist();
        true
    }

    fn unlist(&self) {
        self.listed.store(false, Ordering::Relaxed);
    }

    fn is_held(&self) -> bool {
        self.is_locked()
    }

    fn list_again(&self) {
        self.list_now();
    }
}

/// The locks taken since the last deregistration.
#[derive(Debug)]
pub(crate) struct RecentLocks {
    /// On the heap: an array of this size would pass through the stack of `ibv_open_device`.
    words: Box<[AtomicU64]>,
    /// A bit for each word that may be nonzero.
    summary: [AtomicU64; WORDS / 64],
    /// Serialises deregistrations, and holds a copy of the taken bits. Held locks are listed again,
    /// so that the next deregistration inspects them, too.
    looking: Mutex<Box<[u64]>>,
    /// Number of locks inspected.
    #[cfg(test)]
    looked_at: std::sync::atomic::AtomicUsize,
}

impl Default for RecentLocks {
    fn default() -> Self {
        Self {
            words: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            summary: [const { AtomicU64::new(0) }; WORDS / 64],
            looking: Mutex::new(vec![0; WORDS].into()),
            #[cfg(test)]
            looked_at: Default::default(),
        }
    }
}

impl RecentLocks {
    fn set(&self, bit: usize) {
        let word = bit / 64;
        if let (Some(bits), Some(summary)) = (self.words.get(word), self.summary.get(word / 64)) {
            protocol::set_arrival_flag(bits, bit % 64, summary, word % 64);
        }
    }

    /// Calls `held` with the table index of each QP with a lock that was taken before this call and
    /// may still be held; a QP may be reported twice. `half` returns the responder lock (false) or
    /// the requester lock (true) of a QP.
    pub(crate) fn each_held<'a>(
        &self,
        half: impl Fn(usize, bool) -> Option<&'a dyn TrackedLock>,
        mut held: impl FnMut(usize),
    ) {
        let half = |bit: usize| half(bit / 2, !bit.is_multiple_of(2));
        let mut taken = self.looking.lock();
        // Orders the caller's store of the revoked key before the reads of the list; pairs with the
        // fence of `list_now`.
        fence(Ordering::SeqCst);
        let count = self.take(&mut taken);
        #[cfg(test)]
        self.looked_at.fetch_add(count, Ordering::Relaxed);
        let with_barrier = count > BARRIER_ABOVE && membarrier::is_registered();
        if with_barrier {
            bits(&taken, |bit| half(bit).into_iter().for_each(TrackedLock::unlist));
            // A thread that takes the lock after the barrier finds the key revoked, and lists the
            // lock again. A thread that took the lock before the barrier is seen as a holder.
            membarrier::heavy();
        }
        bits(&taken, |bit| {
            let Some(half) = half(bit) else { return };
            let is_held = if with_barrier { half.is_held() } else { !half.unlist_if_free() };
            if is_held {
                half.list_again();
                held(bit / 2);
            }
        });
        taken.fill(0);
    }

    /// Moves all bits to `taken`. Returns their number.
    fn take(&self, taken: &mut [u64]) -> usize {
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

    /// Number of locks that deregistrations have inspected.
    #[cfg(test)]
    pub(crate) fn looked_at(&self) -> usize {
        self.looked_at.load(Ordering::Relaxed)
    }
}

/// Calls `f` with the number of each set bit.
fn bits(words: &[u64], mut f: impl FnMut(usize)) {
    for (at, word) in words.iter().enumerate() {
        let mut rest = *word;
        while rest != 0 {
            f(at * 64 + rest.trailing_zeros() as usize);
            rest &= rest - 1;
        }
    }
}
