//! Tables of sockets and sets by descriptor.
//! Every call finds its socket here. fork(2) takes the locks of the tables and releases them in
//! both processes (`pthread_atfork(3)`). A child thus finds its own entries, and recognises those
//! of its parent, whose contents a thread of the parent may have been changing.

use crate::core::device;
use crate::sys::descriptors;
use cface::Errno;
use cface::lock::Guard;
use cface::shared::StaticMutex;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// The id of this process, cached: getpid(2) would cost more than a lookup.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// The id of this process.
pub(super) fn process() -> i32 {
    PROCESS.load(Ordering::Relaxed)
}

/// A table of sockets or sets.
#[derive(Debug)]
pub(super) struct Numbers<T: 'static>(StaticMutex<Option<HashMap<c_int, Entry<T>>>>);

#[derive(Debug)]
struct Entry<T> {
    process: i32,
    value: Arc<T>,
}

/// The result of closing a descriptor of a parent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Inherited {
    /// The entry belonged to a parent: the descriptor of this process is closed.
    Closed,
    NotInherited,
}

impl<T> Numbers<T> {
    pub(super) const fn new() -> Self {
        Self(StaticMutex::new(None))
    }

    pub(super) fn enter(&'static self, fd: c_int, value: Arc<T>) {
        let process = process();
        let before = self.0.lock().get_or_insert_default().insert(fd, Entry { process, value });
        // A parent's entry with a descriptor that was closed directly: its contents are leaked,
        // because they belong to the parent.
        if let Some(before) = before.filter(|before| before.process != process) {
            std::mem::forget(before);
        }
    }

    /// The entry of a descriptor.
    ///
    /// # Errors
    /// `EBADF` no entry exists; `ENODEV` the entry belongs to a parent.
    pub(super) fn find(&'static self, fd: c_int) -> Result<Arc<T>, Errno> {
        let known = self.0.lock();
        let found = known.as_ref().and_then(|known| known.get(&fd)).ok_or(Errno::EBADF)?;
        if found.process == process() {
            return Ok(Arc::clone(&found.value));
        }
        let of = found.process;
        drop(known);
        device::refuse_inherited(of)?;
        Err(Errno::ENODEV)
    }

    /// Removes an entry; `None`: the entry is gone already.
    pub(super) fn remove(&'static self, fd: c_int) -> Option<Arc<T>> {
        Some(self.0.lock().as_mut()?.remove(&fd)?.value)
    }

    /// Closes the descriptor of a parent's entry, as close(2) in a child; the parent's socket
    /// stays.
    pub(super) fn close_inherited(&'static self, fd: c_int) -> Inherited {
        let mut known = self.0.lock();
        let own = process();
        let entry = known.as_mut().and_then(|known| match known.get(&fd) {
            Some(entry) if entry.process != own => known.remove(&fd),
            _ => None,
        });
        drop(known);
        let Some(entry) = entry else { return Inherited::NotInherited };
        // The contents are leaked: dropping them would end the parent's connection, and take locks
        // that a thread of the parent may have held.
        std::mem::forget(entry);
        descriptors::close_inherited(fd);
        Inherited::Closed
    }
}

thread_local!(static FORK_GUARDS: RefCell<Option<[Guard; 2]>> = const { RefCell::new(None) });

extern "C" fn before_fork() {
    let both = [super::set::SETS.0.hold(), super::socket::SOCKETS.0.hold()];
    // A thread that forks during its exit has no thread-local storage; the locks are then released
    // at once.
    let _ = FORK_GUARDS.try_with(|held| held.replace(Some(both)));
}

extern "C" fn in_parent() {
    let _ = FORK_GUARDS.try_with(RefCell::take);
}

extern "C" fn in_child() {
    PROCESS.store(crate::sys::process::process(), Ordering::Relaxed);
    in_parent();
}

/// Registered when the library is loaded: a registration during a concurrent fork might miss that
/// fork.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    PROCESS.store(crate::sys::process::process(), Ordering::Relaxed);
    crate::sys::process::at_fork(before_fork, in_parent, in_child);
}
