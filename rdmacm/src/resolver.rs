//! Ids that wait for their destination's next hop: a thread that is there as long as there are some looks what the kernel knows by now.

use crate::anew::Anew;
use crate::calls::resolve::{Way, resolved};
use crate::id::Id;
use crate::next_hop::{Hop, Known, Tables};
use cface::Errno;
use cface::sync::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Who waits.
#[derive(Debug)]
struct Waiting {
    id: Weak<Id>,
    way: Way,
    hop: Hop,
    /// When that has lasted long enough.
    until: Instant,
    /// When it is looked for next, and how long after that again.
    next: Instant,
    pause: Duration,
}

/// Who answers at once does so within a millisecond; who takes longer is looked for less and less often.
const FIRST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
struct List {
    waiting: Vec<Waiting>,
    /// There is a thread.
    served: bool,
}

#[derive(Debug, Default)]
struct Resolver {
    list: Mutex<List>,
    changed: Condvar,
}

/// A child begins anew: it has neither the thread nor the ids of its parent.
static RESOLVER: Anew<Resolver> = Anew::new();

/// Tells the id later: when the next hop of its way is there, has failed, or did not answer within `patience`.
///
/// # Errors
/// The system's: there is no thread.
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

/// What the thread does.
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

/// Looks for one, if it is time; `None`: it waits no more.
fn look(tables: Option<&Tables>, mut one: Waiting, now: Instant) -> Option<Waiting> {
    if one.next > now {
        return Some(one);
    }
    let id = one.id.upgrade()?;
    let found = match tables.and_then(|tables| tables.known(&one.hop)) {
        // Where the kernel does not say, who is asked later finds out.
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
