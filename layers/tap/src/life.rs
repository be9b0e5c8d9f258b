//! The life of a process under a layer: it forks, it ends.
//!
//! The child of a fork has nobody but the thread that forked, so that a lock which another thread had would stay taken there. The forking thread therefore takes
//! all locks of the layer first, and both processes give them back: those within objects, then the statics, in the order in which everybody takes them.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use cface::lock::Guard;

use crate::spin::Spin;
use crate::table::Table;

/// What a layer does then.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// When the process ends by itself.
    pub at_exit: extern "C" fn(),
    /// Its objects with locks in them, those of the tap included: [`crate::objects`].
    pub objects: fn(&mut Objects),
    /// Takes its other locks. [`crate::hold`] has those of the tap.
    pub hold: fn() -> Vec<Guard>,
    /// In the child, when they are given back.
    pub in_child: fn(),
}

/// Of this shared object, which has one layer.
static LIFE: OnceLock<Life> = OnceLock::new();

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// An object with locks in it.
pub trait Inside: Send + Sync + 'static {
    /// Does something with each lock of this turn. One that others are taken under has an earlier turn than they.
    fn each(&self, turn: usize, act: &mut dyn FnMut(&dyn Lock));
}

/// Turns there are.
const TURNS: usize = 4;

/// A lock within an object, whatever it guards.
pub trait Lock {
    /// Waits for it and takes it.
    fn take(&self);

    /// Gives it back.
    ///
    /// # Safety
    /// It was taken by [`take`](Self::take), and nobody has given it back.
    unsafe fn give(&self);
}

impl<T> Lock for Spin<T> {
    fn take(&self) {
        core::mem::forget(self.lock());
    }

    unsafe fn give(&self) {
        // SAFETY: the caller's word.
        unsafe { self.unlock() };
    }
}

/// The objects of a layer.
#[derive(Default)]
pub struct Objects {
    all: Vec<Arc<dyn Inside>>,
    /// Counts of what came to the tables, and what they were before we looked.
    came: Vec<(&'static AtomicUsize, usize)>,
}

impl core::fmt::Debug for Objects {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Objects").field("count", &self.all.len()).finish_non_exhaustive()
    }
}

impl Objects {
    /// Those of a table.
    pub fn add<T: Inside>(&mut self, table: &'static Table<T>) {
        self.came.push((table.came(), table.came().load(Ordering::Relaxed)));
        self.all.extend(table.all().into_iter().map(|object| -> Arc<dyn Inside> { object }));
    }

    /// Whether none came since. To be asked with the tables held.
    fn are_all(&self) -> bool {
        self.came.iter().all(|(count, before)| count.load(Ordering::Relaxed) == *before)
    }
}

/// The locks of one turn in an object, given back when it is dropped.
struct Turn(Arc<dyn Inside>, usize);

impl Drop for Turn {
    fn drop(&mut self) {
        // SAFETY: all of them were taken when this was made.
        self.0.each(self.1, &mut |lock| unsafe { lock.give() });
    }
}

/// What a thread that forks holds meanwhile.
struct Held {
    _turns: Vec<Turn>,
    _statics: Vec<Guard>,
}

impl Held {
    fn take(life: &Life) -> Self {
        loop {
            let mut objects = Objects::default();
            (life.objects)(&mut objects);
            let mut turns = Vec::with_capacity(TURNS * objects.all.len());
            for turn in 0..TURNS {
                for object in &objects.all {
                    object.each(turn, &mut |lock| lock.take());
                    turns.push(Turn(object.clone(), turn));
                }
            }
            let held = Self { _turns: turns, _statics: (life.hold)() };
            // From now on none can come; the locks of one that came meanwhile may be taken.
            if objects.are_all() {
                return held;
            }
        }
    }
}

/// To be called by each `attach`; the first one counts. Whether this was it.
pub fn begin(life: Life) -> bool {
    let mut is_first = false;
    LIFE.get_or_init(|| {
        is_first = true;
        // SAFETY: functions of this library, which is never unloaded.
        unsafe {
            libc::atexit(life.at_exit);
            libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child));
        }
        life
    });
    is_first
}

extern "C" fn before_fork() {
    let Some(life) = LIFE.get() else { return };
    let all = Held::take(life);
    let _ = HELD.try_with(|held| *held.borrow_mut() = Some(all));
}

extern "C" fn in_parent() {
    let all = HELD.try_with(|held| held.borrow_mut().take());
    drop(all);
}

extern "C" fn in_child() {
    in_parent();
    if let Some(life) = LIFE.get() {
        (life.in_child)();
    }
}
