//! How the processes of a user on one host meet, share memory, wake each other and learn of deaths.
//!
//! Each process [joins](Fabric::join) a directory and gets a *slot* there, a small number that
//! other processes know it by. It publishes two segments: *tables*, which its peers may only read,
//! and *rings*, which they may write too. Whoever wants to talk to slot `n` asks for its
//! [`Peer`], and gets both segments mapped, a way to wake the other, and word of its death.
//!
//! | What | How |
//! |---|---|
//! | the slot | a record lock on byte `n` of the file `slots`, which the kernel drops at death (`fcntl(2)`) |
//! | meeting | a SOCK_SEQPACKET socket `<n>.sock`, user and process checked (`unix(7)` SO_PEERCRED) |
//! | segments | sealed memory files passed through the socket (`memfd_create(2)`): nothing in /dev/shm |
//! | waking | an event counter passed along (`eventfd(2)`) |
//! | death | a process descriptor becomes readable (`pidfd_open(2)`), or the slot's lock is gone, which is asked for when the connection ends; a broken connection alone is none |
//! | notes | what a process says to whoever comes, in a file `<n>.gids` |
//! | leftovers | removed by whoever joins or leaves next, under the lock on byte 0 |
//!
//! One thread per fabric, "fv-soft", answers others and calls the [`Handler`]; it sleeps while
//! nothing happens. Nothing that another process sends can do more than end its own connection.

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
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use self::{
    acceptor::{Acceptor, LISTENER_TOKEN},
    core::{Core, Event},
    directory::{Directory, unusable},
    handshake::{RINGS_SEALS, TABLES_SEALS},
    peer::{Parts, PeerTable, Rings},
    service::Service,
    slots::{Kind, Lease, Slots},
};
pub use soft_sys::dir::Stamp;

pub use self::{
    config::{DEFAULT_STEM, DIR_VARIABLE, FabricConfig, GROUP_VARIABLE},
    error::{FabricError, PeerError},
    hello::Refusal,
    peer::Peer,
};
use cface::cancel::Uncancelled;

pub use handshake::FRONT;
pub use hello::round_trip;
pub use slots::{RegistryHold, hold_registry};
use soft_memory::witness::Witness;
use soft_sys::{
    Errno, Mapping, dir,
    eventfd::EventFd,
    map::Access,
    memfd::{Memfd, Seals},
    poll::Epoll,
    process,
    thread::{end_called, spawn_quiet},
    unix::Socket,
};

/// What the user of a fabric does when something happens.
///
/// All calls come from the service thread, one at a time, with no lock of the fabric held. They
/// begin before [`Fabric::join`] returns and end before [`Fabric::leave`] does (unless a handler
/// itself leaves: then when it returns). A handler may use the fabric as any other thread may; if
/// it blocks, in [`Fabric::peer`] or elsewhere, other handlers wait meanwhile. A panic aborts the
/// process.
pub trait Handler: Send + Sync {
    /// Someone has kicked us, something has happened to a connection, or the time that the last
    /// call asked for has passed; possibly for no reason at all. Returns after which time to be
    /// called again at the latest; `None`: only when something happens.
    fn on_wake(&self) -> Option<Duration>;

    /// We have met a process, whoever asked for it. [`Fabric::peer`] may have returned the peer
    /// already.
    fn on_peer_joined(&self, peer: &Arc<Peer>);

    /// A process has died or left. Comes once for every peer, after `on_peer_joined`;
    /// [`Peer::is_dead`] is true by then.
    fn on_peer_death(&self, peer: &Arc<Peer>);

    /// A connection was refused because of what the other end, process `pid`, sent or is; worth at
    /// most a line of debugging output.
    fn on_refused(&self, why: Refusal, pid: libc::pid_t) {
        let _ = (why, pid);
    }
}

/// A process's place among the others; see the module.
pub struct Fabric {
    core: Arc<Core>,
    own: Arc<Peer>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The thread that meets somebody in the place of one that must not wait.
    meeting: Mutex<Option<JoinHandle<()>>>,
}

impl Fabric {
    /// Has the service thread call its handler while `fd` is readable.
    ///
    /// # Errors
    /// The kernel has no room for it.
    pub fn watch(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        self.core.epoll.add(fd, core::ELSEWHERE)
    }

    /// Takes a slot, publishes two zeroed segments of `tables_len` and `rings_len` bytes (memory
    /// is used only where it is written), and starts the service thread. Processes meet only if
    /// their segments have the same sizes.
    ///
    /// # Errors
    /// The directory cannot be used, all slots are taken, or resources are missing: see
    /// [`FabricError::errno`] and its text, which is one line.
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
        let (tables_file, tables) = segment(c"ferroverbs-tables", tables_len, TABLES_SEALS)?;
        let (rings_file, rings) = segment(c"ferroverbs-rings", rings_len, RINGS_SEALS)?;
        let wake = Arc::new(EventFd::new().map_err(failed("an event counter (eventfd2)"))?);
        let epoll = Epoll::new().map_err(failed("a set of descriptors (epoll_create1)"))?;
        let nonce = process::random().map_err(failed("a random number (getrandom)"))?;
        let (lease, listener) = Lease::take(
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
        // Without one, bytes take the way through the rings.
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
            flights: Mutex::new(HashMap::new()),
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
            .map_err(|error| failed("a thread (clone)")(error.into()))?;
        Ok(Arc::new(Self {
            core,
            own,
            thread: Mutex::new(Some(thread)),
            meeting: Mutex::default(),
        }))
    }

    /// This process's slot, in `1..slots`.
    pub fn slot(&self) -> u16 {
        self.core.slot()
    }

    /// What peers know this process by: its [`Peer::identity`].
    pub fn identity(&self) -> u32 {
        self.own.identity()
    }

    /// Where this process has the [witness](soft_memory::witness) that peers name in front of ranges of its memory; 0: they cannot attach.
    pub fn witness_address(&self) -> u64 {
        self.core.witness.as_ref().map_or(0, Witness::address)
    }

    /// The settings it was joined with.
    pub fn config(&self) -> &FabricConfig {
        &self.core.config
    }

    /// The directory in which the processes of this host, or of this network namespace, meet.
    pub fn directory(&self) -> &Path {
        self.core.lease.directory().path()
    }

    /// Says `text` to whoever comes, instead of what was said before: at most 4096 bytes, in a file that others read without meeting us.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn note(&self, text: &[u8]) -> Result<(), FabricError> {
        self.core.lease.note(text)
    }

    /// What the process with this slot says to whoever comes, or the one that had it before, as long as nobody has removed that; nobody is met, and nobody has to answer.
    pub fn noted(&self, slot: u16) -> Option<Vec<u8>> {
        self.core.lease.noted(slot)
    }

    /// When a process joined or left last, or said something new. A death changes nothing. `None`: so short a time ago that another change may have the same time.
    pub fn last_change(&self) -> Option<Stamp> {
        self.core.lease.last_change()
    }

    /// Directories beside that one in which other processes may meet: of other hosts, network namespaces and users.
    pub fn others(&self) -> Vec<PathBuf> {
        self.core.lease.directory().others()
    }

    /// The segment that peers may read.
    pub fn tables(&self) -> &Mapping {
        &self.core.tables
    }

    /// The segment that peers may read and write.
    pub fn rings(&self) -> &Mapping {
        &self.core.rings
    }

    /// The process with this slot; connects to it if we have not met, which takes as long as the
    /// other needs to answer and [`FabricConfig::connect_timeout`] at most. Our own slot is a peer
    /// too, of which no handler is told.
    ///
    /// The other learns of us no later than its `on_wake` runs for a kick that we send now. Threads
    /// of it that look at shared memory on their own may see what we write there before that.
    ///
    /// Any thread may call this, with any of its own locks held: meanwhile it answers for the
    /// service thread, so that two processes that look for each other always meet.
    pub fn peer(&self, slot: u16) -> Result<Arc<Peer>, PeerError> {
        if slot == self.slot() {
            return Ok(Arc::clone(&self.own));
        }
        let _whole = Uncancelled::begin();
        self.core.find(slot)
    }

    /// As [`peer`](Self::peer), but calls again, for `patience`, where a process is there and does not answer: it may be
    /// stopped, or wait for its turn where many others compute.
    pub fn peer_patiently(&self, slot: u16, patience: Duration) -> Result<Arc<Peer>, PeerError> {
        let end = Instant::now() + patience;
        loop {
            match self.peer(slot) {
                Err(PeerError::TimedOut) if Instant::now() < end => {}
                other => return other,
            }
        }
    }

    /// As [`peer`](Self::peer), but never waits for the other: `None` while we have not met, which another thread sees to. It meets one process at a time,
    /// so whoever still wants the peer later calls again.
    pub fn peer_soon(&self, slot: u16) -> Result<Option<Arc<Peer>>, PeerError> {
        if let Some(peer) = self.known_peer(slot) {
            return Ok(Some(peer));
        }
        if self.is_foreign() || self.core.is_stopped() {
            return Err(PeerError::Left);
        }
        if !self.is_occupied(slot) {
            return Err(self.core.missing(slot));
        }
        let mut meeting = lock(&self.meeting);
        if meeting.as_ref().is_none_or(JoinHandle::is_finished) {
            let core = Arc::clone(&self.core);
            let meet = move || drop(core.find(slot));
            *meeting = Some(spawn_quiet("fv-meet", STACK_BYTES, meet).map_err(Errno::from)?);
        }
        Ok(None)
    }

    /// The living process with this slot, if we have met; never blocks.
    pub fn known_peer(&self, slot: u16) -> Option<Arc<Peer>> {
        if slot == self.slot() { Some(Arc::clone(&self.own)) } else { self.core.known(slot) }
    }

    /// Whether a process has this slot right now, whoever it is. A system call, which finds out about a death before the
    /// service thread does.
    pub fn is_occupied(&self, slot: u16) -> bool {
        slot == self.slot() || self.core.lease.owner(slot).is_some()
    }

    /// The slots that processes have right now, whoever they are; ours among them.
    pub fn occupied(&self) -> Vec<u16> {
        self.core.lease.owned(self.core.config.slots)
    }

    /// Every living process that we have met; not ourselves.
    pub fn for_each_peer(&self, mut visit: impl FnMut(&Arc<Peer>)) {
        // On a copy, so that `visit` may do as it likes.
        self.core.peers.living().iter().filter(|peer| !peer.is_dead()).for_each(&mut visit);
    }

    /// Reads what was said so far by those who look for us. Whoever has found us before this is a peer of ours when it returns.
    pub fn hear_callers(&self) {
        if !self.is_foreign() {
            self.core.drive_acceptor();
        }
    }

    /// Marks something that processes share by number, above all 32-bit ones, as used by this process; `rule` hears whether
    /// another one has it marked. One process at a time does so; a death gives all marks back.
    pub fn take_mark(
        &self,
        mark: u64,
        rule: impl FnOnce(bool) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.core.lease.take_mark(mark, rule)
    }

    /// Undoes [`Fabric::take_mark`].
    pub fn drop_mark(&self, mark: u64) {
        self.core.lease.drop_mark(mark);
    }

    /// Makes the service thread call [`Handler::on_wake`] soon.
    pub fn wake_self(&self) {
        self.core.wake.notify();
    }

    /// How many connections were refused because of what the other end sent or is.
    pub fn refused(&self) -> u64 {
        self.core.refused.load(Relaxed)
    }

    /// Whether this is a forked copy of a fabric that another process joined: it has no service
    /// thread and no slot, and all that can be done with it is to drop it, which does nothing to
    /// the original. (Looking for a [`peer`](Self::peer) fails; functions that look at the peers
    /// already met might hang, if another thread was changing them during the fork.)
    pub fn is_foreign(&self) -> bool {
        self.core.is_foreign()
    }

    /// Leaves: ends the service thread and all connections, gives the slot back and, as the last
    /// one, removes the directory. Peers see a death. A second call does nothing.
    pub fn leave(&self) {
        if self.is_foreign() || self.core.stop.swap(true, Relaxed) {
            return;
        }
        // Also where this is the service thread: it then ends at its next turn.
        self.wake_self();
        if let Some(thread) = lock(&self.thread).take()
            && thread.thread().id() != thread::current().id()
        {
            // All peers have the counter, and any of them could read it.
            end_called(thread, || self.wake_self());
        }
        // It waits for nobody once we leave.
        if let Some(thread) = lock(&self.meeting).take() {
            let _ = thread.join();
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
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if self.is_foreign() {
            // There is no such thread in this process.
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
    // Mapped before it is sealed: afterwards nobody can map the tables to write them.
    let mapping = Mapping::new(file.as_fd(), len, Access::ReadWrite)?;
    file.seal(seals)?;
    Ok((file, Arc::new(mapping)))
}

fn publish_socket(directory: &Directory, slot: u16) -> Result<Socket, FabricError> {
    let name = Kind::Socket.of(slot);
    let path = directory.path().join(&name);
    let listen = || {
        // What is there is a dead process's, as the slot is ours.
        let _ = directory.dir().unlink(&name);
        let socket = Socket::listen(directory.dir(), &path, &name, BACKLOG)?;
        dir::set_path_mode(&path, directory.file_mode(), directory.group())?;
        Ok(socket)
    };
    listen().map_err(|errno| unusable(&path, errno, "cannot listen there"))
}

/// Locks, whatever happened to the thread that held it: nothing here is left half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many processes may knock at once; the kernel's limit (net.core.somaxconn) applies too.
const BACKLOG: libc::c_int = 1024;

/// Address space for the service thread; memory is used only where it is written.
const STACK_BYTES: usize = 512 << 10;

#[cfg(test)]
mod tests;
