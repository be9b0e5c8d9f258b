//! Loom's atomics behind the interface that the protocols use, with orderings that a model may
//! weaken.
//!
//! Loom treats sequentially consistent accesses as acquire and release. Full fences around them,
//! which loom supports, restore their order.

pub(crate) use loom::sync::atomic::Ordering;
use loom::sync::atomic::{self, Ordering::*};
use std::cell::Cell;

/// The parts of the requested orderings that a model removes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Weakened {
    /// Release becomes Relaxed.
    pub(crate) release: bool,
    /// Acquire becomes Relaxed.
    pub(crate) acquire: bool,
    /// SeqCst becomes AcqRel, and full fences are omitted, including the barrier of both sides.
    pub(crate) total: bool,
    /// The number of the barrier of `notify_owner` to omit, from one.
    pub(crate) barrier: usize,
    /// Full fences are omitted, but the barrier is kept.
    pub(crate) fences: bool,
    /// The model's own weakening, described at the model.
    pub(crate) otherwise: bool,
}

impl Weakened {
    pub(crate) const NONE: Self = Self {
        release: false,
        acquire: false,
        total: false,
        barrier: 0,
        fences: false,
        otherwise: false,
    };
    pub(crate) const RELEASE: Self = Self { release: true, ..Self::NONE };
    pub(crate) const ACQUIRE: Self = Self { acquire: true, ..Self::NONE };
    pub(crate) const TOTAL: Self = Self { total: true, ..Self::NONE };
    pub(crate) const OTHERWISE: Self = Self { otherwise: true, ..Self::NONE };
}

thread_local! {
    // Loom runs all threads of a model in the exploring thread.
    static PRESENT: Cell<Weakened> = const { Cell::new(Weakened::NONE) };
}

pub(crate) fn weaken(how: Weakened) {
    PRESENT.set(how);
}

pub(crate) fn weakened() -> Weakened {
    PRESENT.get()
}

fn weaker(order: Ordering) -> Ordering {
    let how = weakened();
    match (order, how.acquire, how.release) {
        (SeqCst, ..) => AcqRel,
        (Acquire, true, _) | (Release, _, true) | (AcqRel, true, true) => Relaxed,
        (AcqRel, true, false) => Release,
        (AcqRel, false, true) => Acquire,
        (order, ..) => order,
    }
}

pub(crate) fn fence(order: Ordering) {
    let how = weakened();
    if !(order == SeqCst && (how.total || how.fences)) {
        atomic::fence(order);
    }
}

/// The barrier of both sides; see the crate's documentation.
pub(crate) fn barrier() {
    if !weakened().total {
        atomic::fence(SeqCst);
    }
}

fn around<R>(order: Ordering, access: impl FnOnce() -> R) -> R {
    if order != SeqCst {
        return access();
    }
    fence(SeqCst);
    let result = access();
    fence(SeqCst);
    result
}

macro_rules! wrap {
    ($($name:ident($of:ty)),+) => {$(
        #[derive(Debug)]
        pub(crate) struct $name(atomic::$name);

        #[allow(dead_code, reason = "as many of the methods as any type needs")]
        impl $name {
            pub(crate) fn new(value: $of) -> Self {
                Self(atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $of {
                let weaker = if order == SeqCst { Acquire } else { weaker(order) };
                around(order, || self.0.load(weaker))
            }

            pub(crate) fn store(&self, value: $of, order: Ordering) {
                let weaker = if order == SeqCst { Release } else { weaker(order) };
                around(order, || self.0.store(value, weaker));
            }

            pub(crate) fn swap(&self, value: $of, order: Ordering) -> $of {
                around(order, || self.0.swap(value, weaker(order)))
            }

            pub(crate) fn compare_exchange(
                &self,
                old: $of,
                new: $of,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$of, $of> {
                around(success, || {
                    self.0.compare_exchange(old, new, weaker(success), weaker(failure))
                })
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                old: $of,
                new: $of,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$of, $of> {
                self.compare_exchange(old, new, success, failure)
            }
        }
    )+};
}

wrap!(AtomicU8(u8), AtomicU32(u32), AtomicU64(u64), AtomicUsize(usize), AtomicBool(bool));

macro_rules! numbers {
    ($($name:ident($of:ty)),+) => {$(
        #[allow(dead_code, reason = "as many of the methods as any type needs")]
        impl $name {
            pub(crate) fn fetch_or(&self, bits: $of, order: Ordering) -> $of {
                around(order, || self.0.fetch_or(bits, weaker(order)))
            }

            pub(crate) fn fetch_add(&self, more: $of, order: Ordering) -> $of {
                around(order, || self.0.fetch_add(more, weaker(order)))
            }

            pub(crate) fn fetch_sub(&self, less: $of, order: Ordering) -> $of {
                around(order, || self.0.fetch_sub(less, weaker(order)))
            }
        }
    )+};
}

impl AtomicUsize {
    pub(crate) fn fetch_update(
        &self,
        success: Ordering,
        failure: Ordering,
        mut next: impl FnMut(usize) -> Option<usize>,
    ) -> Result<usize, usize> {
        let mut old = self.load(failure);
        while let Some(new) = next(old) {
            match self.compare_exchange(old, new, success, failure) {
                Ok(old) => return Ok(old),
                Err(now) => old = now,
            }
        }
        Err(old)
    }
}

numbers!(AtomicU32(u32), AtomicU64(u64), AtomicUsize(usize));

/// A mutex with the interface of `cface::sync::Mutex`.
#[derive(Debug)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().expect("a model that panics ends")
    }
}
