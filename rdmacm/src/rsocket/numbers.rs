//! Which numbers are of sockets, and which of sets. Their locks are taken by who forks and given back in both processes (`pthread_atfork(3)`), so that a child finds
//! its own, and is told which were its parent's: what these have within, another thread may have been changing.

use crate::device;
use cface::Errno;
use cface::lock::Guard;
use cface::shared::Shared;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// The number of this process, as a call for it at each look would cost more than the look.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// The number of this process.
pub(super) fn process() -> i32 {
    PROCESS.load(Ordering::Relaxed)
}

/// What has numbers.
#[derive(Debug)]
pub(super) struct Numbers<T: 'static>(Shared<Option<HashMap<c_int, Entry<T>>>>);

#[derive(Debug)]
struct Entry<T> {
    process: i32,
    what: Arc<T>,
}

/// Whether the end of what has a number is done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parents {
    /// It was a parent's: this process has closed what it had of it.
    Closed,
    Not,
}

impl<T> Numbers<T> {
    pub(super) const fn new() -> Self {
        Self(Shared::new(None))
    }

    pub(super) fn enter(&'static self, fd: c_int, what: Arc<T>) {
        let process = process();
        let before = self.0.lock().get_or_insert_default().insert(fd, Entry { process, what });
        // A parent's, whose number is free in this process as somebody closed it: what is in it is not ours to end.
        if let Some(before) = before.filter(|before| before.process != process) {
            std::mem::forget(before);
        }
    }

    /// What has a number.
    ///
    /// # Errors
    /// `EBADF` nothing has; `ENODEV` a parent's has.
    pub(super) fn find(&'static self, fd: c_int) -> Result<Arc<T>, Errno> {
        let known = self.0.lock();
        let found = known.as_ref().and_then(|known| known.get(&fd)).ok_or(Errno::EBADF)?;
        if found.process == process() {
            return Ok(Arc::clone(&found.what));
        }
        let of = found.process;
        drop(known);
        device::refuse_parents(of)?;
        Err(Errno::ENODEV)
    }

    /// No call finds it any more; `None`: it is gone already.
    pub(super) fn forget(&'static self, fd: c_int) -> Option<Arc<T>> {
        Some(self.0.lock().as_mut()?.remove(&fd)?.what)
    }

    /// Closes the descriptor of a parent's, as close(2) does in a child: its parent goes on with it.
    pub(super) fn close_parents(&'static self, fd: c_int) -> Parents {
        let mut known = self.0.lock();
        let own = process();
        let entry = known.as_mut().and_then(|known| match known.get(&fd) {
            Some(entry) if entry.process != own => known.remove(&fd),
            _ => None,
        });
        drop(known);
        let Some(entry) = entry else { return Parents::Not };
        // Its end would be that of the connection, by locks that another thread may have had.
        std::mem::forget(entry);
        // SAFETY: close has no requirements; nothing else of this process has the descriptor.
        unsafe { libc::close(fd) };
        Parents::Closed
    }
}

thread_local!(static HELD: RefCell<Option<[Guard; 2]>> = const { RefCell::new(None) });

extern "C" fn before_fork() {
    let both = [super::set::SETS.0.hold(), super::socket::SOCKETS.0.hold()];
    // A thread that forks while it ends has no place for them any more: they are given back at once.
    let _ = HELD.try_with(|held| held.replace(Some(both)));
}

extern "C" fn in_parent() {
    let _ = HELD.try_with(RefCell::take);
}

extern "C" fn in_child() {
    PROCESS.store(crate::anew::process(), Ordering::Relaxed);
    in_parent();
}

/// When the library is loaded, as a thread that forks while another one did so might not be told.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    PROCESS.store(crate::anew::process(), Ordering::Relaxed);
    // SAFETY: functions of this library; glibc forgets them should it be unloaded. Without memory for them a child is at risk, and nothing else.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
}
