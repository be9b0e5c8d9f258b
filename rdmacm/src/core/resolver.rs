//! Ids that wait for neighbour discovery of their destination.
//! A thread, which runs while ids wait, polls the kernel's table and completes their resolution.

use crate::core::id::Id;
use crate::core::route::{Route, complete_resolution};
use crate::sys::neighbour_table::{Hop, Reachability, Tables};
use crate::sys::process::PerProcess;
use cface::Errno;
use cface::sync::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// An id that waits.
#[derive(Debug)]
struct WaitingId {
    id: Weak<Id>,
    route: Route,
    hop: Hop,
    /// The deadline.
    deadline: Instant,
    /// The time of the next check, and the interval after that.
    next: Instant,
    pause: Duration,
}

/// The first interval: a reachable neighbour answers within a millisecond. Intervals double up to
/// the longest.
const FIRST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
struct List {
    waiting: Vec<WaitingId>,
    /// Whether a thread serves the list.
    has_thread: bool,
}

#[derive(Debug, Default)]
struct Resolver {
    list: Mutex<List>,
    changed: Condvar,
}

/// A child of fork(2) gets a new value: it has neither the thread nor the ids of its parent.
static RESOLVER: PerProcess<Resolver> = PerProcess::new();

/// Reports to the id later: when the next hop is reachable, has failed, or has not answered within
/// `timeout`.
///
/// # Errors
/// The errno of the system: the thread cannot start.
pub(crate) fn wait_for(
    id: &Arc<Id>,
    route: Route,
    hop: Hop,
    timeout: Duration,
) -> Result<(), Errno> {
    let resolver = RESOLVER.get();
    let mut list = resolver.list.lock();
    if !list.has_thread {
        crate::sys::process::spawn("fv-resolver", resolver_thread)?;
        list.has_thread = true;
    }
    let now = Instant::now();
    let (until, next) = (now + timeout, now + FIRST.min(timeout));
    list.waiting.push(WaitingId {
        id: Arc::downgrade(id),
        route,
        hop,
        deadline: until,
        next,
        pause: FIRST,
    });
    resolver.changed.notify_all();
    Ok(())
}

/// The body of the thread.
fn resolver_thread() {
    let resolver = RESOLVER.get();
    let tables = Tables::open();
    let mut list = resolver.list.lock();
    loop {
        let now = Instant::now();
        let Some(next) = list.waiting.iter().map(|waiting_id| waiting_id.next).min() else {
            list.has_thread = false;
            return;
        };
        if next > now {
            resolver.changed.wait_for(&mut list, next - now);
            continue;
        }
        let all = std::mem::take(&mut list.waiting);
        drop(list);
        let left: Vec<_> = all
            .into_iter()
            .filter_map(|waiting_id| check(tables.as_ref(), waiting_id, now))
            .collect();
        list = resolver.list.lock();
        list.waiting.extend(left);
    }
}

/// Checks an id whose time has come; `None`: its wait is over.
fn check(tables: Option<&Tables>, mut waiting_id: WaitingId, now: Instant) -> Option<WaitingId> {
    if waiting_id.next > now {
        return Some(waiting_id);
    }
    let id = waiting_id.id.upgrade()?;
    let found = match tables.and_then(|tables| tables.neighbour_state(&waiting_id.hop)) {
        // Without an answer of the kernel, the address counts as resolved; connecting then finds
        // the error.
        Some(Reachability::Reachable) | None => Ok(waiting_id.route),
        Some(Reachability::Failed) => Err(Errno::from_raw(libc::EHOSTUNREACH)),
        Some(Reachability::Unknown) if now >= waiting_id.deadline => {
            Err(Errno::from_raw(libc::ETIMEDOUT))
        }
        Some(Reachability::Unknown) => {
            waiting_id.pause = (waiting_id.pause * 2).min(LONGEST);
            waiting_id.next = (now + waiting_id.pause).min(waiting_id.deadline);
            return Some(waiting_id);
        }
    };
    complete_resolution(&id, found);
    None
}
