//! `SO_KEEPALIVE` (rsocket(7)): a thread probes the peer of each such socket every `TCP_KEEPIDLE`
//! seconds.
//! The thread runs while a socket has the option.
//!
//! A probe is an empty RDMA WRITE, which the peer's adapter acknowledges and the peer does not
//! notice, as upstream's (`tcp_svc_send_keepalive` in rdma-core's `librdmacm/rsocket.c`).

use super::socket::{Phase, Socket};
use crate::sys::process::PerProcess;
use cface::Errno;
use cface::sync::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The interval at which a pending acknowledgement is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A socket with the option.
#[derive(Debug)]
struct KeptSocket {
    socket: Weak<Socket>,
    /// The times of the next probe, and of the next check of the socket.
    due: Instant,
    next: Instant,
}

#[derive(Debug, Default)]
struct List {
    sockets: Vec<KeptSocket>,
    /// Whether a thread serves the list.
    has_thread: bool,
    /// True: check all sockets now.
    changed: bool,
}

#[derive(Debug, Default)]
struct Service {
    list: Mutex<List>,
    changed: Condvar,
}

/// A child of fork(2) gets a new value: it has neither the thread nor the sockets of its parent.
static SERVICE: PerProcess<Service> = PerProcess::new();

/// Starts to probe `idle` from now, in place of an earlier schedule.
///
/// # Errors
/// The errno of the system: the thread cannot start.
pub(super) fn schedule_probes(socket: &Arc<Socket>, idle: Duration) -> Result<(), Errno> {
    let service = SERVICE.get();
    let mut list = service.list.lock();
    if !list.has_thread {
        crate::sys::process::spawn("fv-keepalive", keep_alive_thread)?;
        list.has_thread = true;
    }
    let due = Instant::now() + idle;
    let kept = KeptSocket { socket: Arc::downgrade(socket), due, next: due };
    list.sockets.retain(|other| !other.is_same(&kept));
    list.sockets.push(kept);
    service.changed.notify_all();
    Ok(())
}

/// Reports that a socket may have lost the option.
pub(super) fn recheck() {
    let service = SERVICE.get();
    let mut list = service.list.lock();
    list.changed = list.has_thread;
    service.changed.notify_all();
}

/// The body of the thread.
fn keep_alive_thread() {
    let service = SERVICE.get();
    let mut list = service.list.lock();
    loop {
        let now = Instant::now();
        let Some(next) = list.sockets.iter().map(|one| one.next).min() else {
            list.has_thread = false;
            return;
        };
        if next > now && !list.changed {
            service.changed.wait_for(&mut list, next - now);
            continue;
        }
        list.changed = false;
        let all = std::mem::take(&mut list.sockets);
        // The list is unlocked: the lock of a socket comes before the lock of the list.
        drop(list);
        let left: Vec<_> = all.into_iter().filter_map(|one| one.service(now)).collect();
        list = service.list.lock();
        // A socket may have been entered again meanwhile.
        for one in left {
            if !list.sockets.iter().any(|other| other.is_same(&one)) {
                list.sockets.push(one);
            }
        }
    }
}

impl KeptSocket {
    fn is_same(&self, other: &Self) -> bool {
        Weak::ptr_eq(&self.socket, &other.socket)
    }

    /// Performs the work that is due; `None`: the socket is not kept alive any more.
    fn service(mut self, now: Instant) -> Option<Self> {
        let socket = self.socket.upgrade()?;
        let mut state = socket.lock();
        let is_over = matches!(state.phase, Phase::Failed | Phase::Closed);
        if is_over || !state.options.keep_alive {
            return None;
        }
        if now < self.next {
            return Some(self);
        }
        state.check_completions();
        if state.stream.as_ref().is_some_and(|stream| !stream.is_open()) {
            return None;
        }
        if now >= self.due {
            state.probe();
            self.due = now + state.options.idle();
        }
        self.next =
            if state.awaits_answers() { self.due.min(now + CHECK_INTERVAL) } else { self.due };
        Some(self)
    }
}
