//! Processes of this host with which this process has connections. A killed process sends no DREQ,
//! and no kernel manager sends one for it. Its local peers therefore watch its life
//! ([`processes::watch`]), and end its connections when the process ends. For peers on other hosts,
//! another local process sends the DREQ ([`crate::host::neighbour_connections`]).

use crate::host::peer::Peer;
use crate::host::processes;
use crate::sys::descriptors;
use cface::Errno;
use ferroverbs_cm::{Connection, Manager};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// The number of connections with a process from which on ended connections are removed from the
/// list.
const TIDY_THRESHOLD: usize = 16;
/// The interval at which the names of processes are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The watched processes, by number.
#[derive(Debug)]
pub(crate) struct Neighbours {
    /// The epoll set of all watch descriptors; readable when a process has ended.
    epoll: OwnedFd,
    watched: HashMap<u32, Neighbour>,
    /// The watched processes without a watch descriptor, because others hold too many. Any local
    /// user can cause this. Their names are checked from time to time.
    polled: Vec<u32>,
    checked: Instant,
    /// Processes that ended before the watch began, and connections with them.
    already_ended: Ended,
}

#[derive(Debug)]
struct Neighbour {
    /// `None`: the process is checked by its name.
    _life: Option<OwnedFd>,
    connections: Vec<Connection>,
    /// The number of connections at which ended connections are removed next.
    tidy_at: usize,
}

/// Ended processes and their connections.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// Connections of this process with ended processes.
    pub(crate) connections: Vec<Connection>,
    /// The numbers of the ended processes.
    pub(crate) processes: Vec<u32>,
}

impl Neighbours {
    /// An empty set.
    ///
    /// # Errors
    /// The errno of the system.
    pub(crate) fn new() -> Result<Self, Errno> {
        let epoll = descriptors::epoll()?;
        let (watched, already_ended) = (HashMap::new(), Ended::default());
        Ok(Self { epoll, watched, polled: vec![], checked: Instant::now(), already_ended })
    }

    /// Readable when a watched process has ended.
    pub(crate) fn fd(&self) -> i32 {
        self.epoll.as_raw_fd()
    }

    /// Records a connection with a process of this host, and watches the process.
    pub(crate) fn watch(&mut self, manager: &Manager<Peer>, process: u32, connection: Connection) {
        self.watch_process(process);
        if let Some(known) = self.watched.get_mut(&process) {
            if known.connections.len() >= known.tidy_at {
                known.connections.retain(|&one| manager.stage(one).is_ok());
                known.tidy_at = TIDY_THRESHOLD.max(2 * known.connections.len());
            }
            known.connections.push(connection);
        } else if self.already_ended.processes.contains(&process) {
            self.already_ended.connections.push(connection);
        }
    }

    /// Watches a process of this host. If the process has ended already, the end is reported next.
    pub(crate) fn watch_process(&mut self, process: u32) {
        if self.watched.contains_key(&process) {
            return;
        }
        let life = match processes::watch(process) {
            Ok(life) => life,
            // The process has ended since its last message.
            Err(why) if why.raw() == libc::ECONNREFUSED => {
                return self.already_ended.processes.push(process);
            }
            Err(_) => {
                let new = Neighbour { _life: None, connections: vec![], tidy_at: TIDY_THRESHOLD };
                self.watched.insert(process, new);
                return self.polled.push(process);
            }
        };
        // A hang-up is reported without a request.
        if descriptors::epoll_add(self.fd(), life.as_raw_fd(), 0, process.into()).is_ok() {
            let new = Neighbour { _life: Some(life), connections: vec![], tidy_at: TIDY_THRESHOLD };
            self.watched.insert(process, new);
        }
    }

    /// The time until the names must be checked again.
    pub(crate) fn next(&self) -> Option<Duration> {
        (!self.polled.is_empty()).then(|| CHECK_INTERVAL.saturating_sub(self.checked.elapsed()))
    }

    /// The processes that have ended since the last call.
    pub(crate) fn ended(&mut self) -> Ended {
        const MOST: usize = 16;
        let mut ended = std::mem::take(&mut self.already_ended);
        if self.next().is_some_and(|next| next.is_zero()) {
            self.checked = Instant::now();
            let already_ended: Vec<u32> =
                self.polled.extract_if(.., |process| !processes::is_alive(*process)).collect();
            for (process, already_ended) in already_ended
                .into_iter()
                .filter_map(|process| Some((process, self.watched.remove(&process)?)))
            {
                ended.connections.extend(already_ended.connections);
                ended.processes.push(process);
            }
        }
        loop {
            let ready = descriptors::epoll_ready::<MOST>(&self.epoll);
            let count = ready.len();
            for token in ready {
                let process = u32::try_from(token).unwrap_or(0);
                // Dropping the entry closes the descriptor.
                if let Some(already_ended) = self.watched.remove(&process) {
                    ended.connections.extend(already_ended.connections);
                    ended.processes.push(process);
                }
            }
            if count < MOST {
                return ended;
            }
        }
    }
}
