//! Ids that wait for neighbour discovery of their destination.
//! A thread, which runs while ids wait, polls the kernel's table and reports to `calls::resolve`.

use crate::anew::Anew;
use crate::calls::resolve::{Way, resolved};
use crate::id::Id;
use crate::next_hop::{Hop, Known, Tables};
use cface::Errno;
use cface::sync::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// An id that waits.
#[derive(Debug)]
struct Waiting {
    id: Weak<Id>,
    way: Way,
    hop: Hop,
    /// The deadline.
    until: Instant,
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
    waiting: Vec<Waiting>,
    /// Whether a thread serves the list.
    served: bool,
}

#[derive(Debug, Default)]
struct Resolver {
    list: Mutex<List>,
    changed: Condvar,
}

/// A child of fork(2) gets a new value: it has neither the thread nor the ids of its parent.
static RESOLVER: Anew<Resolver> = Anew::new();

/// Reports to the id later: when the next hop is reachable, has failed, or has not answered within
/// `patience`.
///
/// # Errors
/// The errno of the system: the thread cannot start.
pub(crate) fn wait_for(id: &Arc<Id>, way: Way, hop: Hop, patience: Duration) -> Result<(), Errno> {
    let resolver = RESOLVER.get();
    let mut list = resolver.list.lock();
    if !list.served {
        crate::agent::spawn("fv-resolver", serve)?;
        list.served = true;
    }
    let now = Instant::now();
    let (until, next) = (now + patience, now + FIRST.min(patience));
    list.waiting.push(Waiting { id: Arc::downgrade(id), way, hop, until, next, pause: FIRST });
    resolver.changed.notify_all();
    Ok(())
}

/// The body of the thread.
fn serve() {
    let resolver = RESOLVER.get();
    let tables = Tables::open();
    let mut list = resolver.list.lock();
    loop {
        let now = Instant::now();
        let Some(next) = list.waiting.iter().map(|one| one.next).min() else {
            list.served = false;
            return;
        };
        if next > now {
            resolver.changed.wait_for(&mut list, next - now);
            continue;
        }
        let all = std::mem::take(&mut list.waiting);
        drop(list);
        let left: Vec<_> =
            all.into_iter().filter_map(|one| look(tables.as_ref(), one, now)).collect();
        list = resolver.list.lock();
        list.waiting.extend(left);
    }
}

/// Checks an id whose time has come; `None`: its wait is over.
fn look(tables: Option<&Tables>, mut one: Waiting, now: Instant) -> Option<Waiting> {
    if one.next > now {
        return Some(one);
    }
    let id = one.id.upgrade()?;
    let found = match tables.and_then(|tables| tables.known(&one.hop)) {
        // Without an answer of the kernel, the address counts as resolved; connecting then finds
        // the error.
        Some(Known::There) | None => Ok(one.way),
        Some(Known::Failed) => Err(Errno::from_raw(libc::EHOSTUNREACH)),
        Some(Known::Nothing) if now >= one.until => Err(Errno::from_raw(libc::ETIMEDOUT)),
        Some(Known::Nothing) => {
            one.pause = (one.pause * 2).min(LONGEST);
            one.next = (now + one.pause).min(one.until);
            return Some(one);
        }
    };
    resolved(&id, found);
    None
}
