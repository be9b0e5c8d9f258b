//! Sets of epoll(7) with rsockets.
//! Programs enter by epoll_create(2), epoll_ctl(2) and epoll_wait(2).
//!
//! The kernel's set has the other descriptors, and a list beside it has the rsockets. A thread
//! waits by rpoll(3) for the rsockets and the kernel's set together. Other threads may change a set
//! meanwhile, so each waiting thread registers an eventfd.
//!
//! Map of this file: `Member`, `Set` and `Sets` with their lock; fork(2); `WakeFd`, the eventfd of
//! a waiting thread; descriptors that are duplicated, closed or replaced; epoll_create and
//! epoll_ctl; waiting. Threads: any. Lock: `SETS` is a leaf, and no thread waits under it.
//! `ANY_SET` becomes true with the first set, and stays true.

use crate::forking::{self, Use};
use crate::interest::Interest;
use crate::table::{self, Rsocket, find, inside_librdmacm};
use crate::{rdma, real};
use cface::Errno;
use cface::lock::Guard;
use cface::shared::StaticMutex;
use libc::*;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// An rsocket in a set.
#[derive(Debug)]
struct Member {
    fd: c_int,
    rsocket: Weak<Rsocket>,
    interest: Interest,
}

impl Member {
    fn holds(&self, rsocket: &Arc<Rsocket>) -> bool {
        self.rsocket.as_ptr() == Arc::as_ptr(rsocket)
    }
}

/// The rsockets of a kernel set.
#[derive(Debug, Default)]
struct Set {
    members: Vec<Member>,
    /// The eventfds of waiting threads.
    waiting: Vec<Arc<WakeFd>>,
    /// Rotation of the results, for a small buffer: whether the kernel's descriptors come first,
    /// and the first rsocket.
    kernel_first: bool,
    first: usize,
}

impl Set {
    /// Wakes the waiting threads.
    fn ring(&mut self) {
        self.waiting.drain(..).for_each(|wake_fd| wake_fd.ring());
    }
}

/// All sets by descriptor; a set may have several descriptors.
#[derive(Debug, Default)]
struct Sets {
    numbers: HashMap<c_int, u64>,
    sets: HashMap<u64, Set>,
    last: u64,
}

impl Sets {
    fn get(&mut self, epoll: c_int) -> Option<&mut Set> {
        self.sets.get_mut(self.numbers.get(&epoll)?)
    }

    /// The set of a descriptor, created if unknown.
    fn get_or_create(&mut self, epoll: c_int) -> &mut Set {
        let last = &mut self.last;
        let id = self.numbers.entry(epoll).or_insert_with(|| {
            *last += 1;
            *last
        });
        self.sets.entry(*id).or_default()
    }

    fn remove(&mut self, epoll: c_int) {
        let Some(id) = self.numbers.remove(&epoll) else { return };
        if !self.numbers.values().any(|&other| other == id)
            && let Some(mut set) = self.sets.remove(&id)
        {
            set.ring();
        }
    }
}

/// The lock is taken at fork(2), after the lock of the table.
static SETS: StaticMutex<Option<Sets>> = StaticMutex::new(None);
/// Whether any set has ever existed: most calls of most programs need no lookup.
static ANY_SET: AtomicBool = AtomicBool::new(false);

/// Calls `f` with the sets, if there are any.
fn with_sets<T>(f: impl FnOnce(&mut Sets) -> T) -> Option<T> {
    if !ANY_SET.load(Ordering::Acquire) || table::is_inside() {
        return None;
    }
    SETS.lock().as_mut().map(f)
}

/// Takes the lock for fork(2).
pub(crate) fn hold() -> Guard {
    SETS.hold()
}

/// The number of forks that led to this process. In a child, an eventfd of the parent would wake
/// the parent.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Called in a child of fork(2).
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The eventfd(2) that wakes a waiting thread.
#[derive(Debug)]
struct WakeFd {
    fd: c_int,
    forks: u32,
}

impl WakeFd {
    /// The eventfd of this thread; `None` with errno.
    fn of_this_thread() -> Option<Arc<Self>> {
        thread_local!(static WAKE_FD: RefCell<Option<Arc<WakeFd>>> = const { RefCell::new(None) });
        let forks = FORKS.load(Ordering::Relaxed);
        let known = WAKE_FD.try_with(|cached| cached.borrow().clone()).ok().flatten();
        if let Some(wake_fd) = known.filter(|wake_fd| wake_fd.forks == forks) {
            return Some(wake_fd);
        }
        // SAFETY: eventfd has no requirements.
        let fd = unsafe { eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
        let wake_fd = (fd >= 0).then(|| Arc::new(Self { fd, forks }))?;
        let _ = WAKE_FD.try_with(|cached| cached.replace(Some(Arc::clone(&wake_fd))));
        Some(wake_fd)
    }

    fn ring(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes are read; the descriptor is non-blocking.
        unsafe { real::write(self.fd, (&raw const one).cast(), 8) };
    }

    fn reset(&self) {
        let mut count = 0_u64;
        // SAFETY: eight bytes are writable; the descriptor is non-blocking.
        unsafe { real::read(self.fd, (&raw mut count).cast(), 8) };
    }
}

impl Drop for WakeFd {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor, and closes it once.
        unsafe { real::close(self.fd) };
    }
}

/// Records that `to` is now a duplicate of `from`, which may be a set.
pub(crate) fn duplicated(from: c_int, to: c_int) {
    with_sets(|sets| {
        sets.remove(to);
        if let Some(&id) = sets.numbers.get(&from) {
            sets.numbers.insert(to, id);
        }
    });
}

/// Records that the program closes a descriptor.
pub(crate) fn closed(fd: c_int) {
    with_sets(|sets| sets.remove(fd));
}

/// Removes an rsocket without descriptors from all sets.
pub(crate) fn remove_rsocket(rsocket: &Arc<Rsocket>) {
    with_sets(|sets| {
        for set in sets.sets.values_mut() {
            let before = set.members.len();
            set.members.retain(|member| !member.holds(rsocket));
            if set.members.len() != before {
                // A waiting thread still holds the rsocket; once awake, the thread releases it.
                set.ring();
            }
        }
    });
}

/// Wakes edge-triggered waiters of an rsocket, which may have a new event.
pub(crate) fn notify_edge_waiters(rsocket: &Arc<Rsocket>) {
    with_sets(|sets| {
        let waits = |set: &&mut Set| !set.waiting.is_empty();
        for set in sets.sets.values_mut().filter(waits) {
            if set.members.iter().any(|member| member.holds(rsocket)) {
                set.ring();
            }
        }
    });
}

/// Adds an ordinary socket to the kernel's sets, after it has taken the descriptor of an rsocket.
pub(crate) fn became_ordinary(fd: c_int, rsocket: &Arc<Rsocket>) {
    with_sets(|sets| {
        for (epoll, id) in &sets.numbers {
            let Some(set) = sets.sets.get_mut(id) else { continue };
            let Some(at) = set.members.iter().position(|one| one.fd == fd && one.holds(rsocket))
            else {
                continue;
            };
            let member = set.members.swap_remove(at);
            let mut event = member.interest.event();
            // SAFETY: the event is readable.
            unsafe { real::epoll_ctl(*epoll, EPOLL_CTL_ADD, fd, &raw mut event) };
            set.ring();
        }
    });
}

/// Records a new set of the kernel, so that a thread that waits for an empty set is notified of its
/// first rsocket.
fn record_set(fd: c_int) -> c_int {
    if fd >= 0 && !table::is_inside() {
        ANY_SET.store(true, Ordering::Release);
        let mut sets = SETS.lock();
        let sets = sets.get_or_insert_default();
        sets.remove(fd);
        sets.get_or_create(fd);
    }
    fd
}

/// `epoll_create(2)`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: no memory is involved.
    record_set(unsafe { real::epoll_create(size) })
}

/// `epoll_create1(2)`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: no memory is involved.
    record_set(unsafe { real::epoll_create1(flags) })
}

/// `epoll_ctl(2)`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // The rsocket must exist now: a connected TCP socket would otherwise enter the kernel's set,
    // and is closed later.
    forking::begin(fd, Use::Transfer);
    let Some(rsocket) = find(fd) else {
        // SAFETY: the event is valid by the caller's contract.
        return unsafe { real::epoll_ctl(epoll, operation, fd, event) };
    };
    // SAFETY: the event is valid by the caller's contract.
    let done = unsafe { change(epoll, operation, fd, &rsocket, event) };
    done.map_or_else(
        |why| {
            why.set();
            -1
        },
        |()| 0,
    )
}

/// # Safety
/// As `epoll_ctl`.
unsafe fn change(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    rsocket: &Arc<Rsocket>,
    event: *mut epoll_event,
) -> Result<(), Errno> {
    // The kernel checks that `epoll` is a set. The placeholder of the rsocket is in no set of the
    // kernel.
    // SAFETY: no memory is involved.
    unsafe { real::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    let why = Errno::last();
    if why.raw() != ENOENT {
        return Err(why);
    }
    if event.is_null() && operation != EPOLL_CTL_DEL {
        return Err(Errno::EFAULT);
    }
    let interest = if operation == EPOLL_CTL_DEL {
        Interest::new(0, 0)
    } else {
        // SAFETY: the event is valid by the caller's contract; it may be unaligned.
        let event = unsafe { event.read_unaligned() };
        Interest::new(event.events, event.u64)
    };
    rsocket.uses.watched.store(true, Ordering::SeqCst);
    rsocket.uses.edges.fetch_or(interest.by_edges(), Ordering::SeqCst);
    ANY_SET.store(true, Ordering::Release);
    let mut sets = SETS.lock();
    let set = sets.get_or_insert_default().get_or_create(epoll);
    let at = set.members.iter().position(|one| one.fd == fd && one.holds(rsocket));
    match (operation, at) {
        (EPOLL_CTL_ADD, None) => {
            set.members.push(Member { fd, rsocket: Arc::downgrade(rsocket), interest });
        }
        (EPOLL_CTL_ADD, Some(_)) => return Err(Errno::EEXIST),
        (EPOLL_CTL_MOD, Some(at)) => set.members[at].interest = interest,
        (EPOLL_CTL_DEL, Some(at)) => drop(set.members.swap_remove(at)),
        (EPOLL_CTL_MOD | EPOLL_CTL_DEL, None) => return Err(Errno::ENOENT),
        _ => return Err(Errno::EINVAL),
    }
    set.ring();
    Ok(())
}

/// The descriptors that a thread waits for.
struct WaitEntries {
    wake_fd: Arc<WakeFd>,
    /// The kernel's set, the eventfd, and the rsockets.
    entries: Vec<pollfd>,
    rsockets: Vec<Arc<Rsocket>>,
}

const SET: usize = 0;
const RSOCKETS: usize = 2;

/// Registers a thread with a set; `None`: the set has no list of rsockets.
fn register_wait(epoll: c_int, wake_fd: &Arc<WakeFd>) -> Option<WaitEntries> {
    with_sets(|sets| {
        let set = sets.get(epoll)?;
        let entry = |fd, events| pollfd { fd, events, revents: 0 };
        let mut entries = vec![entry(epoll, POLLIN), entry(wake_fd.fd, POLLIN)];
        let mut rsockets = Vec::new();
        for member in &mut set.members {
            let Some(rsocket) = member.rsocket.upgrade() else { continue };
            if let Some(events) = member.interest.events_to_poll(&rsocket.uses) {
                entries.push(entry(rsocket.fd, events));
                rsockets.push(rsocket);
            }
        }
        set.waiting.push(Arc::clone(wake_fd));
        Some(WaitEntries { wake_fd: Arc::clone(wake_fd), entries, rsockets })
    })
    .flatten()
}

impl WaitEntries {
    /// Sleeps until an event may have happened; negative with errno.
    ///
    /// # Safety
    /// `mask` is NULL or readable.
    unsafe fn sleep(&mut self, left: Option<Duration>, mask: *const sigset_t) -> c_int {
        let count = self.entries.len() as nfds_t;
        let time = left.map(|left| timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(time_t::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        if self.rsockets.is_empty() {
            let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: the array has `count` entries; the other pointers are NULL or readable.
            return unsafe { ppoll(self.entries.as_mut_ptr(), count, time, mask) };
        }
        let limit = left.map_or(-1, |left| {
            c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
        });
        // SAFETY: the array has `count` entries; the masks are local or the caller's.
        unsafe {
            let mut before = std::mem::zeroed();
            if !mask.is_null() {
                pthread_sigmask(SIG_SETMASK, mask, &raw mut before);
            }
            let done = inside_librdmacm(|| rdma::rpoll(self.entries.as_mut_ptr(), count, limit));
            if !mask.is_null() {
                let why = Errno::last();
                pthread_sigmask(SIG_SETMASK, &raw const before, std::ptr::null_mut());
                why.set();
            }
            done
        }
    }

    /// The events of rsockets that are ready, at most `most`.
    fn ready_events(&self, epoll: c_int, most: usize) -> Vec<epoll_event> {
        let found = self.entries[RSOCKETS..].iter().zip(&self.rsockets);
        let found: HashMap<_, _> = found
            .filter(|(entry, _)| entry.revents != 0)
            .map(|(entry, rsocket)| (Arc::as_ptr(rsocket), entry.revents))
            .collect();
        if found.is_empty() {
            return Vec::new();
        }
        let reported = with_sets(|sets| {
            let Some(set) = sets.get(epoll) else { return Vec::new() };
            let mut reported = Vec::new();
            let count = set.members.len();
            let first = set.first;
            for at in (0..count).map(|n| (first + n) % count) {
                if reported.len() == most {
                    break;
                }
                let member = &mut set.members[at];
                let revents = found.get(&member.rsocket.as_ptr()).copied().unwrap_or(0);
                if let Some(events) = member.interest.report(revents) {
                    reported.push(epoll_event { events, u64: member.interest.data });
                    set.first = at + 1;
                }
            }
            reported
        });
        reported.unwrap_or_default()
    }

    /// Unregisters the thread. Returns whether the kernel's descriptors come first this time.
    fn unregister(&self, epoll: c_int) -> bool {
        let first = with_sets(|sets| {
            let set = sets.get(epoll)?;
            set.waiting.retain(|wake_fd| !Arc::ptr_eq(wake_fd, &self.wake_fd));
            set.kernel_first = !set.kernel_first;
            Some(set.kernel_first)
        });
        self.wake_fd.reset();
        first.flatten().unwrap_or(true)
    }
}

/// epoll_pwait2(2) with a Rust duration; `None`: no time limit.
///
/// # Safety
/// As libc's.
unsafe fn wait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> c_int {
    let begun = Instant::now();
    let alone = with_sets(|sets| sets.get(epoll).is_none_or(|set| set.members.is_empty()));
    if alone != Some(false) || most <= 0 {
        // First the kernel's events without a wait; this call also checks the arguments.
        // SAFETY: the arguments are valid by the caller's contract.
        let there = unsafe { real::epoll_wait(epoll, events, most, 0) };
        if there != 0 || limit == Some(Duration::ZERO) {
            return there;
        }
    }
    if events.is_null() {
        Errno::EFAULT.set();
        return -1;
    }
    let room = usize::try_from(most).unwrap_or(0);
    let Some(wake_fd) = WakeFd::of_this_thread() else { return -1 };
    loop {
        let Some(mut registered) = register_wait(epoll, &wake_fd) else {
            Errno::EBADF.set();
            return -1;
        };
        let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
        // SAFETY: the mask is valid by the caller's contract.
        let found = unsafe { registered.sleep(left, mask) };
        let why = Errno::last();
        let kernel_first = registered.unregister(epoll);
        if found < 0 {
            why.set();
            return -1;
        }
        let mut have = 0;
        let kernels = |have: &mut usize| {
            if registered.entries[SET].revents != 0 && *have < room {
                // SAFETY: the array has room for `most` entries, of which `have` are filled.
                let more = unsafe {
                    real::epoll_wait(epoll, events.add(*have), (room - *have) as c_int, 0)
                };
                *have += usize::try_from(more).unwrap_or(0);
            }
        };
        if kernel_first {
            kernels(&mut have);
        }
        for event in registered.ready_events(epoll, room - have) {
            // SAFETY: as above; entries of the program may be unaligned.
            unsafe { events.add(have).write_unaligned(event) };
            have += 1;
        }
        if !kernel_first {
            kernels(&mut have);
        }
        if have > 0 || left == Some(Duration::ZERO) {
            return have as c_int;
        }
    }
}

/// Whether a set may contain rsockets.
fn is_own(epoll: c_int) -> bool {
    with_sets(|sets| sets.get(epoll).is_some()).unwrap_or(false)
}

fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// `epoll_wait(2)`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the arguments are valid by the caller's contract.
    unsafe {
        if is_own(epoll) {
            return wait(epoll, events, most, milliseconds(timeout), std::ptr::null());
        }
        real::epoll_wait(epoll, events, most, timeout)
    }
}

/// `epoll_pwait(2)`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the arguments are valid by the caller's contract.
    unsafe {
        if is_own(epoll) {
            return wait(epoll, events, most, milliseconds(timeout), mask);
        }
        real::epoll_pwait(epoll, events, most, timeout, mask)
    }
}

/// `epoll_pwait2(2)`.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the arguments are valid by the caller's contract.
    unsafe {
        if is_own(epoll) {
            let limit = timeout.as_ref().map(|time| {
                let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
                Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
            });
            return wait(epoll, events, most, limit, mask);
        }
        real::epoll_pwait2(epoll, events, most, timeout, mask)
    }
}
