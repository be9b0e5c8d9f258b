//! `SO_KEEPALIVE` (rsocket(7)): a thread, which is there as long as a socket has the option, asks for each of them every `TCP_KEEPIDLE` seconds whether the peer is still there. It does so by an
//! empty RDMA WRITE that the peer's adapter answers and the peer does not see, as upstream's (`tcp_svc_send_keepalive` in rdma-core's `librdmacm/rsocket.c`).

use super::socket::{Phase, Socket};
use crate::anew::Anew;
use cface::Errno;
use cface::sync::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often it is looked whether the adapter has an answer.
const LOOK: Duration = Duration::from_millis(500);

/// A socket with the option.
#[derive(Debug)]
struct Kept {
    socket: Weak<Socket>,
    /// When the peer is asked for next, and when the socket is looked at.
    due: Instant,
    next: Instant,
}

#[derive(Debug, Default)]
struct List {
    kept: Vec<Kept>,
    /// There is a thread.
    served: bool,
    /// Some are to be looked at, whatever their time is.
    changed: bool,
}

#[derive(Debug, Default)]
struct Service {
    list: Mutex<List>,
    changed: Condvar,
}

/// A child begins anew: it has neither the thread nor the sockets of its parent.
static SERVICE: Anew<Service> = Anew::new();

/// Begins to ask, `idle` from now on; what was begun before is forgotten.
///
/// # Errors
/// The system's: there is no thread.
pub(super) fn keep(socket: &Arc<Socket>, idle: Duration) -> Result<(), Errno> {
    let service = SERVICE.get();
    let mut list = service.list.lock();
    if !list.served {
        crate::agent::spawn("fv-keepalive", serve)?;
        list.served = true;
    }
    let due = Instant::now() + idle;
    let kept = Kept { socket: Arc::downgrade(socket), due, next: due };
    list.kept.retain(|other| !other.is_same(&kept));
    list.kept.push(kept);
    service.changed.notify_all();
    Ok(())
}

/// A socket may have the option no more.
pub(super) fn look_again() {
    let service = SERVICE.get();
    let mut list = service.list.lock();
    list.changed = list.served;
    service.changed.notify_all();
}

/// What the thread does.
fn serve() {
    let service = SERVICE.get();
    let mut list = service.list.lock();
    loop {
        let now = Instant::now();
        let Some(next) = list.kept.iter().map(|one| one.next).min() else {
            list.served = false;
            return;
        };
        if next > now && !list.changed {
            service.changed.wait_for(&mut list, next - now);
            continue;
        }
        list.changed = false;
        let all = std::mem::take(&mut list.kept);
        // Sockets' locks come first.
        drop(list);
        let left: Vec<_> = all.into_iter().filter_map(|one| one.look(now)).collect();
        list = service.list.lock();
        // Some may have been told anew meanwhile.
        for one in left {
            if !list.kept.iter().any(|other| other.is_same(&one)) {
                list.kept.push(one);
            }
        }
    }
}

impl Kept {
    fn is_same(&self, other: &Self) -> bool {
        Weak::ptr_eq(&self.socket, &other.socket)
    }

    /// Does what is due; `None`: it is kept alive no more.
    fn look(mut self, now: Instant) -> Option<Self> {
        let socket = self.socket.upgrade()?;
        let mut state = socket.lock();
        let is_over = matches!(state.phase, Phase::Failed | Phase::Closed);
        if is_over || !state.options.keep_alive {
            return None;
        }
        if now < self.next {
            return Some(self);
        }
        state.look();
        if state.stream.as_ref().is_some_and(|stream| !stream.is_open()) {
            return None;
        }
        if now >= self.due {
            state.probe();
            self.due = now + state.options.idle();
        }
        self.next = if state.awaits_answers() { self.due.min(now + LOOK) } else { self.due };
        Some(self)
    }
}
