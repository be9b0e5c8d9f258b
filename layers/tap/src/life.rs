//! Fork and exit of a process under a layer. The layer registers [`ProcessHooks`] at its first
//! `attach`.
//!
//! The child of a fork has only the thread that forked. A lock that another thread held would stay
//! taken in the child. Therefore the forking thread takes all locks of the layer first, and parent
//! and child release them. The locks within objects come before the statics, as everywhere.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use cface::lock::Guard;

use crate::spin::Spin;
use crate::table::Table;

/// The functions of a layer at fork and exit.
#[derive(Clone, Copy, Debug)]
pub struct ProcessHooks {
    /// Runs when the process exits by itself.
    pub at_exit: extern "C" fn(),
    /// Adds the objects that contain locks, including the tap's: [`crate::objects`].
    pub objects: fn(&mut LockedObjects),
    /// Takes the locks in statics. [`crate::hold`] takes the tap's.
    pub hold: fn() -> Vec<Guard>,
    /// Runs in the child after the locks are released.
    pub in_child: fn(),
}

/// The functions of the one layer in this shared object.
static HOOKS: OnceLock<ProcessHooks> = OnceLock::new();

thread_local! {
    static HELD: RefCell<Option<ForkLocks>> = const { RefCell::new(None) };
}

/// An object that contains locks.
pub trait HasLocks: Send + Sync + 'static {
    /// Calls `act` for each lock of this turn. An outer lock has an earlier turn than its inner
    /// locks.
    fn each(&self, turn: usize, act: &mut dyn FnMut(&dyn Lock));
}

/// Number of turns.
const TURNS: usize = 4;

/// A lock within an object, independent of its content.
pub trait Lock {
    /// Waits for the lock and takes it.
    fn take(&self);

    /// Releases the lock.
    ///
    /// # Safety
    /// The lock was taken by [`take`](Self::take) and not yet released.
    unsafe fn release(&self);
}

impl<T> Lock for Spin<T> {
    fn take(&self) {
        core::mem::forget(self.lock());
    }

    unsafe fn release(&self) {
        // SAFETY: per the caller.
        unsafe { self.unlock() };
    }
}

/// The objects of a layer that contain locks.
#[derive(Default)]
pub struct LockedObjects {
    all: Vec<Arc<dyn HasLocks>>,
    /// The insertion count of each table, and its value before the table was read.
    insertions: Vec<(&'static AtomicUsize, usize)>,
}

impl core::fmt::Debug for LockedObjects {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Objects").field("count", &self.all.len()).finish_non_exhaustive()
    }
}

impl LockedObjects {
    /// Adds the objects of a table.
    pub fn add<T: HasLocks>(&mut self, table: &'static Table<T>) {
        self.insertions.push((table.insertions(), table.insertions().load(Ordering::Relaxed)));
        self.all.extend(table.all().into_iter().map(|object| -> Arc<dyn HasLocks> { object }));
    }

    /// Whether no object was inserted since. The caller holds the tables.
    fn are_all(&self) -> bool {
        self.insertions.iter().all(|(count, before)| count.load(Ordering::Relaxed) == *before)
    }
}

/// The locks of one turn in an object. Dropping the value releases them.
struct HeldTurn(Arc<dyn HasLocks>, usize);

impl Drop for HeldTurn {
    fn drop(&mut self) {
        // SAFETY: the locks were taken when this value was made.
        self.0.each(self.1, &mut |lock| unsafe { lock.release() });
    }
}

/// The locks that a forking thread holds.
struct ForkLocks {
    _turns: Vec<HeldTurn>,
    _statics: Vec<Guard>,
}

impl ForkLocks {
    fn take(life: &ProcessHooks) -> Self {
        loop {
            let mut objects = LockedObjects::default();
            (life.objects)(&mut objects);
            let mut turns = Vec::with_capacity(TURNS * objects.all.len());
            for turn in 0..TURNS {
                for object in &objects.all {
                    object.each(turn, &mut |lock| lock.take());
                    turns.push(HeldTurn(object.clone(), turn));
                }
            }
            let held = Self { _turns: turns, _statics: (life.hold)() };
            // No object can be inserted from now on. An object inserted meanwhile may have a taken
            // lock, so the loop starts again.
            if objects.are_all() {
                return held;
            }
        }
    }
}

/// Registers the functions; each `attach` calls it. Returns whether this call was the first, which
/// alone has an effect.
pub fn begin(life: ProcessHooks) -> bool {
    let mut is_first = false;
    HOOKS.get_or_init(|| {
        is_first = true;
        // SAFETY: the functions are in this library, which is never unloaded.
        unsafe {
            libc::atexit(life.at_exit);
            libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child));
        }
        life
    });
    is_first
}

extern "C" fn before_fork() {
    let Some(life) = HOOKS.get() else { return };
    let all = ForkLocks::take(life);
    let _ = HELD.try_with(|held| *held.borrow_mut() = Some(all));
}

extern "C" fn in_parent() {
    let all = HELD.try_with(|held| held.borrow_mut().take());
    drop(all);
}

extern "C" fn in_child() {
    in_parent();
    if let Some(life) = HOOKS.get() {
        (life.in_child)();
    }
}
