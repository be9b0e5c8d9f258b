//! The program's descriptors that are rsockets.
//! Every socket function looks its descriptor up here.

use crate::choice::Choice;
use crate::interest::Uses;
use crate::{epoll, forking, rdma, real};
use cface::Errno;
use cface::lock::Guard;
use cface::shared::StaticMutex;
use libc::*;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// An rsocket, closed with its last descriptor.
#[derive(Debug)]
pub(crate) struct Rsocket {
    pub(crate) fd: c_int,
    pub(crate) domain: c_int,
    pub(crate) uses: Uses,
}

impl Rsocket {
    pub(crate) fn new(fd: c_int, domain: c_int) -> Self {
        Self { fd, domain, uses: Uses::default() }
    }

    /// Counts a read; remaining data may be a new event.
    pub(crate) fn read(self: &Arc<Self>) {
        self.uses.read();
        self.wake_edge_waiters();
    }

    /// Counts an incomplete write; new room is a new event.
    pub(crate) fn note_partial_write(self: &Arc<Self>) {
        self.uses.note_partial_write();
        self.wake_edge_waiters();
    }

    fn wake_edge_waiters(self: &Arc<Self>) {
        if self.uses.edges.load(Ordering::SeqCst) {
            let why = Errno::last();
            epoll::notify_edge_waiters(self);
            why.set();
        }
    }
}

impl Drop for Rsocket {
    fn drop(&mut self) {
        // SAFETY: this value owns the rsocket, which no thread uses any more. As with close(2),
        // errors of the peer are not reported.
        inside_librdmacm(|| unsafe { rdma::rclose(self.fd) });
    }
}

/// The lock is taken at fork(2) and released in both processes: a child looks here in each call.
static RSOCKETS: StaticMutex<Option<HashMap<c_int, Arc<Rsocket>>>> = StaticMutex::new(None);

thread_local!(static INSIDE: Cell<bool> = const { Cell::new(false) });

/// Runs `f`, a call into librdmacm, whose own socket calls go to libc.
pub(crate) fn inside_librdmacm<T>(f: impl FnOnce() -> T) -> T {
    let before = INSIDE.replace(true);
    let done = f();
    INSIDE.set(before);
    done
}

/// Whether this thread is inside a call into librdmacm.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// The rsocket of a descriptor of the program.
pub(crate) fn find(fd: c_int) -> Option<Arc<Rsocket>> {
    // librdmacm's own descriptors are not rsockets.
    if INSIDE.get() {
        return None;
    }
    RSOCKETS.lock().as_ref()?.get(&fd).cloned()
}

/// Records that a descriptor of the program is an rsocket.
pub(crate) fn enter(fd: c_int, rsocket: Arc<Rsocket>) {
    let before = RSOCKETS.lock().get_or_insert_default().insert(fd, rsocket);
    // The earlier entry is dropped without the lock.
    before.inspect(unwatch);
}

/// Removes the entry of a descriptor.
pub(crate) fn leave(fd: c_int) -> Option<Arc<Rsocket>> {
    if INSIDE.get() {
        return None;
    }
    // Most descriptors are no rsockets; for those, the exclusive lock is not taken.
    find(fd)?;
    let rsocket = RSOCKETS.lock().as_mut()?.remove(&fd);
    rsocket.inspect(unwatch)
}

/// Removes an rsocket from all sets when its last descriptor is closed.
fn unwatch(rsocket: &Arc<Rsocket>) {
    if !rsocket.uses.watched.load(Ordering::SeqCst) {
        return;
    }
    let is_left =
        |known: &HashMap<_, Arc<Rsocket>>| known.values().any(|one| Arc::ptr_eq(one, rsocket));
    if !RSOCKETS.lock().as_ref().is_some_and(is_left) {
        epoll::remove_rsocket(rsocket);
    }
}

/// A descriptor of the program that only reserves its number; -1 with errno.
pub(crate) fn placeholder(close_on_exec: bool) -> c_int {
    // SAFETY: eventfd has no requirements.
    unsafe { eventfd(0, if close_on_exec { EFD_CLOEXEC } else { 0 }) }
}

/// Whether a new socket of the program becomes an rsocket.
pub(crate) fn is_wanted(domain: c_int, kind: c_int, protocol: c_int) -> bool {
    static CHOICE: OnceLock<(Choice, String)> = OnceLock::new();
    let kind = kind & !(SOCK_CLOEXEC | SOCK_NONBLOCK);
    if INSIDE.get()
        || !matches!(domain, AF_INET | AF_INET6)
        || kind != SOCK_STREAM
        || !matches!(protocol, 0 | IPPROTO_TCP)
    {
        return false;
    }
    let (choice, program) = inside_librdmacm(|| {
        CHOICE.get_or_init(|| {
            let text = std::fs::read_to_string("/etc/rdma/rsocket/preload_config");
            let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
            (Choice::parse(&text.unwrap_or_default()), name.trim_end().to_owned())
        })
    });
    choice.takes(program, domain, kind, protocol)
}

/// Replaces an rsocket by an ordinary socket, with the same descriptor; -1 with errno.
pub(crate) fn make_ordinary(fd: c_int, rsocket: &Arc<Rsocket>) -> c_int {
    // SAFETY: descriptors and memory of this function only; the program's descriptor becomes a
    // socket at once.
    unsafe {
        let flags = rdma::rfcntl(rsocket.fd, F_GETFL);
        let new = real::socket(rsocket.domain, SOCK_STREAM, 0);
        if new < 0 {
            return -1;
        }
        for (level, option) in [
            (SOL_SOCKET, SO_REUSEADDR),
            (SOL_SOCKET, SO_KEEPALIVE),
            (SOL_SOCKET, SO_OOBINLINE),
            (IPPROTO_TCP, TCP_NODELAY),
            (IPPROTO_IPV6, IPV6_V6ONLY),
        ] {
            let mut value: c_int = 0;
            let mut len = size_of::<c_int>() as socklen_t;
            let at = (&raw mut value).cast::<c_void>();
            if rdma::rgetsockopt(rsocket.fd, level, option, at, &raw mut len) == 0 && value != 0 {
                real::setsockopt(new, level, option, at, len);
            }
        }
        if flags & O_NONBLOCK != 0 {
            let flags = real::fcntl(new, F_GETFL, 0);
            real::fcntl(new, F_SETFL, (flags | O_NONBLOCK).cast_unsigned() as usize);
        }
        let close_on_exec = real::fcntl(fd, F_GETFD, 0);
        let done = real::dup2(new, fd);
        epoll::became_ordinary(fd, rsocket);
        drop(leave(fd));
        real::close(new);
        if done >= 0 && close_on_exec & FD_CLOEXEC != 0 {
            real::fcntl(fd, F_SETFD, FD_CLOEXEC as usize);
        }
        done
    }
}

thread_local!(static HELD: RefCell<Option<[Guard; 3]>> = const { RefCell::new(None) });

extern "C" fn before_fork() {
    let guards = [RSOCKETS.hold(), forking::hold(), epoll::hold()];
    // A thread that forks during its exit has no thread-local storage; the locks are then released
    // at once.
    let _ = HELD.try_with(|held| held.replace(Some(guards)));
}

extern "C" fn in_child() {
    epoll::forked();
    after_fork();
}

extern "C" fn after_fork() {
    let _ = HELD.try_with(RefCell::take);
}

/// Registered when the library is loaded, before any thread uses the table.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    // SAFETY: the functions belong to this library, which is never unloaded. A failure only affects
    // children.
    unsafe { pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
}
