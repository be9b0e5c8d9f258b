//! The fabric: the processes of one host meet, share memory, wake each other and learn of deaths.
//!
//! Each process [joins](Fabric::join) a directory and takes a *slot*, a small number by which other
//! processes address it. The process publishes two segments: peers may only read *tables*, and may
//! also write *rings*. A process that wants slot `n` asks for its [`Peer`]: both segments are
//! mapped, the other process can be woken, and its death is reported.
//!
//! - Slot: a record lock on byte `n` of the file `slots`, which the kernel drops at death
//!   (`fcntl(2)`).
//! - Meeting: a SOCK_SEQPACKET socket `<n>.sock`, with user and process checked (`unix(7)`
//!   SO_PEERCRED).
//! - Segments: sealed memory files passed through the socket (`memfd_create(2)`). /dev/shm is not
//!   used.
//! - Waking: an event counter passed through the socket (`eventfd(2)`).
//! - Death: a process descriptor becomes readable (`pidfd_open(2)`), or the slot's lock is free.
//!   The lock is examined when the connection ends; a broken connection alone is no death.
//! - Notes: a text that a process publishes in a file `<n>.gids`.
//! - Leftovers: the next process to join or leave removes them, under the lock on byte 0.
//!
//! # Threads, locks and flags
//!
//! - The service thread "fv-soft" runs `Service::run`: it answers other processes and calls the
//!   [`Handler`]. It sleeps while nothing happens.
//! - Any thread may call [`Fabric::peer`]. The thread "fv-meet" runs for
//!   [`Fabric::peer_nonblocking`].
//! - Lock order: see `Core`. The registry of slot files (`slots`) is outside all of these locks.
//! - `Core::stop` is set once by [`Fabric::leave`]. `Peer::is_dead` is set once by the service
//!   thread, or by a thread that meets the slot's next owner.
//!
//! A message from another process can at most end that process's own connection.
//!
//! Map of this file: `Handler`, which the adapter implements; `Fabric`: joining, the own process,
//! peers, marks, leaving; helpers. Threads: any; the service thread (`service.rs`) calls the
//! handler. Locks: docs/design/locking-soft.md.

mod acceptor;
mod config;
mod connect;
mod core;
mod directory;
mod error;
mod handshake;
mod hello;
mod notes;
mod peer;
mod service;
mod slots;

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use self::{
    acceptor::{Acceptor, LISTENER_TOKEN},
    core::{Core, Event},
    directory::{Directory, unusable},
    handshake::{RINGS_SEALS, TABLES_SEALS},
    peer::{Parts, PeerTable, Rings},
    service::Service,
    slots::{Lease, MemberFile, Slots},
};
use crate::names;
pub use soft_sys::dir::Stamp;

pub use self::{
    config::{DEFAULT_STEM, DIR_VARIABLE, FabricConfig, GROUP_VARIABLE},
    error::{FabricError, PeerError},
    hello::Refusal,
    peer::Peer,
};
use cface::cancel::Uncancelled;
#[cfg(test)]
use std::thread;

pub use handshake::FRONT;
pub use hello::round_trip;
pub use slots::{RegistryHold, hold_registry};
use soft_memory::witness::Witness;
use soft_sys::{
    Errno, Mapping,
    closing::wait_for_closers,
    dir,
    eventfd::EventFd,
    map::Access,
    memfd::{Memfd, Seals},
    poll::Epoll,
    process,
    thread::{Id as ThreadId, Thread, end_called, spawn_quiet},
    unix::Socket,
};

/// The callbacks of a fabric.
///
/// The service thread makes all calls, one at a time, with no lock of the fabric held. Calls begin
/// before [`Fabric::join`] returns and end before [`Fabric::leave`] returns. If a handler itself
/// calls `leave`, calls end when that handler returns. A handler may use the fabric as any other
/// thread may. While a handler blocks, in [`Fabric::peer`] or elsewhere, other handlers wait. A
/// panic aborts the process.
pub trait Handler: Send + Sync {
    /// Called after a kick, a change of a connection, or the time that the last call returned;
    /// spurious calls happen. Returns the time after which to call again at the latest; `None`:
    /// only after an event.
    fn on_wake(&self) -> Option<Duration>;

    /// This process has met another process, on either one's initiative. [`Fabric::peer`] may
    /// already have returned the peer.
    fn on_peer_joined(&self, peer: &Arc<Peer>);

    /// A process has died or left. Called once for every peer, after `on_peer_joined`.
    /// [`Peer::is_dead`] is already true.
    fn on_peer_death(&self, peer: &Arc<Peer>);

    /// A connection was refused for what process `pid` sent or is. The event deserves at most a
    /// line of debugging output.
    fn on_refused(&self, why: Refusal, pid: libc::pid_t) {
        let _ = (why, pid);
    }
}

/// The membership of this process in a fabric; see the module.
pub struct Fabric {
    core: Arc<Core>,
    own_peer: Arc<Peer>,
    thread: Mutex<Option<Thread>>,
    /// The thread that meets a peer for a caller that must not wait.
    meeting: Mutex<Option<Thread>>,
}

impl Fabric {
    /// Makes the service thread call its handler while `fd` is readable.
    ///
    /// # Errors
    /// The kernel's errno of epoll_ctl(2), for example `ENOMEM` or `ENOSPC`.
    pub fn watch(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        self.core.epoll.add(fd, core::FOREIGN_TOKEN)
    }

    /// Takes a slot, publishes two zeroed segments of `tables_len` and `rings_len` bytes, and
    /// starts the service thread. Memory is used only where it is written. Processes meet only if
    /// their segments have equal sizes.
    ///
    /// # Errors
    /// The directory cannot be used, all slots are taken, or resources are missing. See
    /// [`FabricError::errno`] and the error's text of one line.
    pub fn join(
        config: FabricConfig,
        tables_len: usize,
        rings_len: usize,
        handler: Arc<dyn Handler>,
    ) -> Result<Arc<Self>, FabricError> {
        if config.slots < 2 {
            let cause = format!("{} fabric slots", config.slots);
            return Err(FabricError::setting(Errno::EINVAL, cause, "at least 2 are needed"));
        }
        let failed = |what: &'static str| {
            move |errno: Errno| FabricError::refused(errno, format_args!("fabric: {what}"))
        };
        let segment = |name, len: usize, seals| {
            segment(name, len, seals).map_err(|errno| {
                let mib = len.div_ceil(1 << 20);
                let what = format!("fabric: a shared segment of {mib} MiB (memfd_create, mmap)");
                FabricError::refused(errno, what)
            })
        };
        let (tables_file, tables) = segment(names::TABLES, tables_len, TABLES_SEALS)?;
        let (rings_file, rings) = segment(names::RINGS, rings_len, RINGS_SEALS)?;
        let wake = Arc::new(EventFd::new().map_err(failed("an event counter (eventfd2)"))?);
        let epoll = Epoll::new().map_err(failed("a set of descriptors (epoll_create1)"))?;
        let nonce = process::random().map_err(failed("a random number (getrandom)"))?;
        let (lease, listener) = Lease::acquire(
            || Directory::open(&config),
            Slots { count: config.slots, first: config.first_slot },
            config.join_timeout,
            publish_socket,
        )?;
        epoll
            .add(listener.as_fd(), LISTENER_TOKEN)
            .map_err(failed("an entry of a set of descriptors (epoll_ctl)"))?;
        if config.cma {
            process::allow_attach();
        }
        // Without a witness, bytes travel through the rings.
        let witness = config.cma.then(|| Witness::new(nonce).ok()).flatten();
        let core = Arc::new(Core {
            peers: PeerTable::new(config.slots),
            config,
            lease,
            nonce,
            witness,
            tables_file,
            rings_file,
            tables,
            rings,
            wake,
            epoll,
            acceptor: Mutex::new(Acceptor::new(listener)),
            attempts: Mutex::new(HashMap::new()),
            inbox: Mutex::new(VecDeque::new()),
            stop: AtomicBool::new(false),
            last_id: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            pid: process::id(),
        });
        let own = Peer::new(Parts {
            slot: core.slot(),
            pid: core.pid,
            is_self: true,
            nonce,
            tables: Arc::clone(&core.tables),
            rings: Rings::Whole(Arc::clone(&core.rings)),
            wake: Arc::clone(&core.wake),
            can_attach: core.config.cma,
            memory: None,
            attaches_to_us: core.config.cma,
        });
        let service = Service::new(Arc::clone(&core), handler);
        let thread = spawn_quiet("fv-soft", STACK_BYTES, move || service.run())
            .map_err(|error| failed("a thread (clone)")(error))?;
        Ok(Arc::new(Self {
            core,
            own_peer: own,
            thread: Mutex::new(Some(thread)),
            meeting: Mutex::default(),
        }))
    }

    /// This process's slot, in `1..slots`.
    pub fn slot(&self) -> u16 {
        self.core.slot()
    }

    /// The [`Peer::identity`] by which peers know this process.
    pub fn identity(&self) -> u32 {
        self.own_peer.identity()
    }

    /// The address of this process's [witness](soft_memory::witness), which peers name before
    /// ranges of its memory; 0: peers cannot attach.
    pub fn witness_address(&self) -> u64 {
        self.core.witness.as_ref().map_or(0, Witness::address)
    }

    /// The settings of this fabric.
    pub fn config(&self) -> &FabricConfig {
        &self.core.config
    }

    /// The directory in which the processes of this host, or of this network namespace, meet.
    pub fn directory(&self) -> &Path {
        self.core.lease.directory().path()
    }

    /// Publishes `text` of at most 4096 bytes instead of the previous text. Other processes read
    /// the text from a file, without meeting this process.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn publish_note(&self, text: &[u8]) -> Result<(), FabricError> {
        self.core.lease.publish_note(text)
    }

    /// The text that the owner of `slot` published. The text of a dead owner stays until another
    /// process removes it. No process has to answer.
    pub fn note_of(&self, slot: u16) -> Option<Vec<u8>> {
        self.core.lease.note_of(slot)
    }

    /// When a process last joined, left or published a text. A death changes nothing. `None`: the
    /// change is so recent that another change may have the same time.
    pub fn last_change(&self) -> Option<Stamp> {
        self.core.lease.last_change()
    }

    /// Directories in which other processes may meet: of other hosts, network namespaces and users.
    pub fn other_directories(&self) -> Vec<PathBuf> {
        self.core.lease.directory().other_directories()
    }

    /// The segment that peers may read.
    pub fn tables(&self) -> &Mapping {
        &self.core.tables
    }

    /// The segment that peers may read and write.
    pub fn rings(&self) -> &Mapping {
        &self.core.rings
    }

    /// The process with this slot. Connects if the two processes have not met, which takes as long
    /// as the other process needs to answer, at most [`FabricConfig::connect_timeout`]. Our own
    /// slot is a peer too, but no handler is called for it.
    ///
    /// The other process learns of this process at the latest when `on_wake` runs there for a kick
    /// sent now. Its threads that read shared memory may see our writes earlier.
    ///
    /// Any thread may call this function, with any of its own locks held. The waiting thread drives
    /// the acceptor for the service thread, so two processes that connect to each other always
    /// meet.
    ///
    /// # Errors
    /// [`PeerError`], for example `TimedOut` if the other process does not answer.
    pub fn peer(&self, slot: u16) -> Result<Arc<Peer>, PeerError> {
        if slot == self.slot() {
            return Ok(Arc::clone(&self.own_peer));
        }
        let _whole = Uncancelled::begin();
        self.core.find_peer(slot)
    }

    /// As [`peer`](Self::peer), but repeats the attempt for `patience` while a process owns the
    /// slot and does not answer. That process may be stopped, or may wait for a processor.
    ///
    /// # Errors
    /// As [`peer`](Self::peer).
    pub fn peer_with_patience(
        &self,
        slot: u16,
        patience: Duration,
    ) -> Result<Arc<Peer>, PeerError> {
        let end = Instant::now() + patience;
        loop {
            match self.peer(slot) {
                Err(PeerError::TimedOut) if Instant::now() < end => {}
                other => return other,
            }
        }
    }

    /// As [`peer`](Self::peer), but never waits for the other process. Returns `None` until another
    /// thread has met the peer. That thread meets one process at a time, so the caller repeats the
    /// call.
    ///
    /// # Errors
    /// As [`peer`](Self::peer).
    pub fn peer_nonblocking(&self, slot: u16) -> Result<Option<Arc<Peer>>, PeerError> {
        if let Some(peer) = self.known_peer(slot) {
            return Ok(Some(peer));
        }
        if self.is_foreign() || self.core.is_stopped() {
            return Err(PeerError::Left);
        }
        if !self.is_occupied(slot) {
            return Err(self.core.missing_peer_error(slot));
        }
        let mut meeting = lock(&self.meeting);
        if meeting.as_ref().is_none_or(Thread::is_finished) {
            let core = Arc::clone(&self.core);
            let meet = move || drop(core.find_peer(slot));
            *meeting = Some(spawn_quiet("fv-meet", STACK_BYTES, meet)?);
        }
        Ok(None)
    }

    /// The living process with this slot if the two processes have met; never blocks.
    pub fn known_peer(&self, slot: u16) -> Option<Arc<Peer>> {
        if slot == self.slot() {
            Some(Arc::clone(&self.own_peer))
        } else {
            self.core.known_peer(slot)
        }
    }

    /// Whether any process owns this slot now. Takes a system call, and detects a death before the
    /// service thread does.
    pub fn is_occupied(&self, slot: u16) -> bool {
        slot == self.slot() || self.core.lease.owner(slot).is_some()
    }

    /// Whether a process may own this slot now: false only if the kernel says that none does.
    pub fn may_be_occupied(&self, slot: u16) -> bool {
        slot == self.slot() || self.core.lease.examine_owner(slot) != Ok(None)
    }

    /// Whether the process in this slot is stopped and answers nothing. False if the state is
    /// unknown, as in another pid namespace.
    pub fn is_stopped(&self, slot: u16) -> bool {
        let owner = self.core.lease.owner(slot).filter(|pid| *pid > 0);
        slot != self.slot() && owner.is_some_and(process::is_stopped)
    }

    /// A descriptor that is readable from the end of the process in this slot on. The two processes
    /// need not have met.
    ///
    /// # Errors
    /// `ESRCH`: no process owns the slot; `EOPNOTSUPP`: its process is not visible in our pid
    /// namespace; else the errno of pidfd_open(2), for example `EMFILE`, or `ENOSYS` before Linux
    /// 5.3.
    pub fn watch_process(&self, slot: u16) -> Result<OwnedFd, Errno> {
        let owner = || self.core.lease.examine_owner(slot)?.ok_or(Errno::ESRCH);
        let pid = owner()?;
        if pid <= 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let process = process::pidfd(pid)?;
        // The process still owns the slot, so the descriptor is not that of a later process.
        if owner()? == pid { Ok(process) } else { Err(Errno::ESRCH) }
    }

    /// The slots that processes own now, including our own.
    pub fn occupied(&self) -> Vec<u16> {
        self.core.lease.owned(self.core.config.slots)
    }

    /// Calls `visit` for every living peer, except this process itself.
    pub fn for_each_peer(&self, mut visit: impl FnMut(&Arc<Peer>)) {
        // Iterate over a copy, so that `visit` may call any function of the fabric.
        self.core.peers.living().iter().filter(|peer| !peer.is_dead()).for_each(&mut visit);
    }

    /// Handles the handshakes of all processes that have connected so far. A process that has met
    /// us before this call is a peer when the call returns.
    pub fn accept_pending_peers(&self) {
        if !self.is_foreign() {
            self.core.drive_acceptor();
        }
    }

    /// Marks a 32-bit number that processes share as used by this process. `rule` learns whether
    /// another process has marked the number, and decides. One process at a time takes marks. The
    /// kernel drops all marks of a process that dies.
    ///
    /// # Errors
    /// The error of `rule`; `EBUSY`: another process keeps the lock of the marks.
    pub fn take_mark(
        &self,
        mark: u64,
        rule: impl FnOnce(bool) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.core.lease.take_mark(mark, rule)
    }

    /// Gives back a mark of [`Fabric::take_mark`].
    pub fn drop_mark(&self, mark: u64) {
        self.core.lease.drop_mark(mark);
    }

    /// Makes the service thread call [`Handler::on_wake`] soon.
    pub fn wake_self(&self) {
        self.core.wake.notify();
    }

    /// How many connections were refused for what the other end sent or is.
    pub fn refused(&self) -> u64 {
        self.core.refused.load(Relaxed)
    }

    /// Whether this is a forked copy of another process's fabric. The copy has no service thread
    /// and no slot, and dropping the copy does not change the original. [`peer`](Self::peer) fails.
    /// Functions that look at known peers may hang, if another thread changed the peers during the
    /// fork.
    pub fn is_foreign(&self) -> bool {
        self.core.is_foreign()
    }

    /// Leaves: ends the service thread and all connections, and gives the slot back. The last
    /// process to leave removes the directory. Peers see a death. A second call does nothing.
    pub fn leave(&self) {
        if self.is_foreign() || self.core.stop.swap(true, Relaxed) {
            return;
        }
        // If the caller is the service thread, the thread ends at its next turn.
        self.wake_self();
        if let Some(thread) = lock(&self.thread).take()
            && thread.id() != ThreadId::own()
        {
            // Wake repeatedly: every peer has the event counter and could drain it.
            end_called(thread, || self.wake_self());
        }
        // The meeting thread stops waiting once `stop` is set.
        if let Some(thread) = lock(&self.meeting).take() {
            thread.join();
        }
        self.core.close_acceptor();
        let left_over = std::mem::take(&mut *lock(&self.core.inbox));
        for event in left_over {
            if let Event::Established(link) = event {
                self.core.close(link.socket);
            }
        }
        self.core.peers.clear();
        self.core.lease.release();
        wait_for_closers(CLOSING_TIME);
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if self.is_foreign() {
            // The forked process has no such threads to join.
            let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(thread.take());
            let meeting = self.meeting.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(meeting.take());
        } else {
            self.leave();
        }
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric")
            .field("slot", &self.slot())
            .field("directory", &self.directory())
            .finish_non_exhaustive()
    }
}

fn segment(
    name: &std::ffi::CStr,
    len: usize,
    seals: Seals,
) -> Result<(Memfd, Arc<Mapping>), Errno> {
    let file = Memfd::create(name, len)?;
    // Map before sealing: no process can map the tables for writing afterwards.
    let mapping = Mapping::new(file.as_fd(), len, Access::ReadWrite)?;
    file.seal(seals)?;
    Ok((file, Arc::new(mapping)))
}

fn publish_socket(directory: &Directory, slot: u16) -> Result<Socket, FabricError> {
    let name = MemberFile::Socket.path_for(slot);
    let path = directory.path().join(&name);
    let listen = || {
        // An existing socket belongs to a dead process, because this process owns the slot.
        let _ = directory.dir().unlink(&name);
        let socket = Socket::listen(directory.dir(), &path, &name, BACKLOG)?;
        dir::set_path_mode(&path, directory.file_mode(), directory.group())?;
        Ok(socket)
    };
    listen().map_err(|errno| unusable(&path, errno, "cannot listen there"))
}

/// Locks a mutex, and ignores poisoning: no critical section leaves partial state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many processes may wait to be accepted; net.core.somaxconn limits it too.
const BACKLOG: libc::c_int = 1024;

/// Address space of the service thread's stack; memory is used only where it is written.
const STACK_BYTES: usize = 512 << 10;

/// How long [`Fabric::leave`] waits for closing threads. Usually they take some microseconds; a
/// member that passes a descriptor whose close lingers makes the process wait for all of it.
const CLOSING_TIME: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
