//! Processes of this host that we are connected with. One that is killed says nothing, and there is no kernel's manager that says it for it; so its
//! peers watch its life ([`processes::watch`]), and take its connections for ended when it ends. Peers on other hosts do not see that; who does tells
//! them ([`crate::wills`]).

use crate::agent::Peer;
use crate::processes;
use cface::Errno;
use ferroverbs_cm::{Connection, Manager};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How many connections with a process there may be before those that are over are looked for.
const FEW: usize = 16;
/// How often names are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Those that are watched, by the numbers of their processes.
#[derive(Debug)]
pub(crate) struct Neighbours {
    /// All of their descriptors; readable when one has hung up.
    epoll: OwnedFd,
    watched: HashMap<u32, Neighbour>,
    /// Of these, those whose names are looked at from time to time, since too many others watch them. Anybody can do that.
    unseen: Vec<u32>,
    looked: Instant,
    /// Connections with those that had ended before they could be watched.
    gone: Ended,
}

#[derive(Debug)]
struct Neighbour {
    /// `None`: it is one of those whose names are looked at.
    _life: Option<OwnedFd>,
    connections: Vec<Connection>,
    /// At so many connections those that are over are taken out.
    tidy_at: usize,
}

/// What is over.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// Our connections.
    pub(crate) connections: Vec<Connection>,
    /// The processes.
    pub(crate) owners: Vec<u32>,
}

impl Neighbours {
    /// None yet.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new() -> Result<Self, Errno> {
        // SAFETY: epoll_create1 has no requirements; what it made is ours.
        let epoll = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(Errno::last());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let (watched, gone) = (HashMap::new(), Ended::default());
        Ok(Self { epoll, watched, unseen: vec![], looked: Instant::now(), gone })
    }

    /// Readable when one of them has ended.
    pub(crate) fn fd(&self) -> i32 {
        self.epoll.as_raw_fd()
    }

    /// A connection with a process of this host is there.
    pub(crate) fn watch(&mut self, manager: &Manager<Peer>, owner: u32, connection: Connection) {
        self.follow(owner);
        if let Some(known) = self.watched.get_mut(&owner) {
            if known.connections.len() >= known.tidy_at {
                known.connections.retain(|&one| manager.stage(one).is_ok());
                known.tidy_at = FEW.max(2 * known.connections.len());
            }
            known.connections.push(connection);
        } else if self.gone.owners.contains(&owner) {
            self.gone.connections.push(connection);
        }
    }

    /// The end of a process of this host is to be seen, or was already.
    pub(crate) fn follow(&mut self, owner: u32) {
        if self.watched.contains_key(&owner) {
            return;
        }
        let life = match processes::watch(owner) {
            Ok(life) => life,
            // It has ended since it spoke, or was spoken to.
            Err(why) if why.raw() == libc::ECONNREFUSED => return self.gone.owners.push(owner),
            Err(_) => {
                let new = Neighbour { _life: None, connections: vec![], tidy_at: FEW };
                self.watched.insert(owner, new);
                return self.unseen.push(owner);
            }
        };
        let mut event = libc::epoll_event { events: 0, u64: u64::from(owner) };
        let (epoll, fd) = (self.fd(), life.as_raw_fd());
        // SAFETY: both descriptors are ours, and `event` is readable.
        if unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) } == 0 {
            let new = Neighbour { _life: Some(life), connections: vec![], tidy_at: FEW };
            self.watched.insert(owner, new);
        }
    }

    /// How soon to ask again at the latest.
    pub(crate) fn next(&self) -> Option<Duration> {
        (!self.unseen.is_empty()).then(|| LOOK.saturating_sub(self.looked.elapsed()))
    }

    /// Who has ended since this was asked last.
    pub(crate) fn ended(&mut self) -> Ended {
        const MOST: usize = 16;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST];
        let mut ended = std::mem::take(&mut self.gone);
        if self.next().is_some_and(|next| next.is_zero()) {
            self.looked = Instant::now();
            let gone: Vec<u32> =
                self.unseen.extract_if(.., |owner| !processes::lives(*owner)).collect();
            for (owner, gone) in
                gone.into_iter().filter_map(|owner| Some((owner, self.watched.remove(&owner)?)))
            {
                ended.connections.extend(gone.connections);
                ended.owners.push(owner);
            }
        }
        loop {
            // SAFETY: `events` has as many entries.
            let count = unsafe { libc::epoll_wait(self.fd(), events.as_mut_ptr(), MOST as i32, 0) };
            let count = usize::try_from(count).unwrap_or(0);
            for event in events.iter().take(count) {
                let owner = u32::try_from(event.u64).unwrap_or(0);
                // Its descriptor goes with it.
                if let Some(gone) = self.watched.remove(&owner) {
                    ended.connections.extend(gone.connections);
                    ended.owners.push(owner);
                }
            }
            if count < MOST {
                return ended;
            }
        }
    }
}
