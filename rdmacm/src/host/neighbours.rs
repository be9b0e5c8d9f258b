//! Processes of this host with which this process has connections. A killed process sends no DREQ,
//! and no kernel manager sends one for it. Its local peers therefore watch the process
//! ([`HostSystem::watch`]), and end its connections when the process ends. For peers on other
//! hosts, another local process sends the DREQ ([`crate::host::neighbour_connections`]).

use super::{HostSystem, Watch};
use crate::host::peer::Peer;
use ferroverbs_cm::{Connection, Manager, Time};
use std::collections::HashMap;
use std::time::Duration;

/// The number of connections with a process from which on ended connections are removed from the
/// list.
const TIDY_THRESHOLD: usize = 16;
/// The interval at which processes are checked whose end is not reported.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The interval at which processes are checked whose end is reported. The report does not come when
/// a process replaces its program by exec(3), which ends its connections, too.
pub(super) const EXEC_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The watched processes, by number.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    watched: HashMap<u32, Neighbour>,
    /// The next check of all processes; None: no process.
    next_check: Option<Time>,
}

#[derive(Debug, Default)]
struct Neighbour {
    /// Whether the system reports the end.
    is_reported: bool,
    connections: Vec<Connection>,
    /// The number of connections at which ended connections are removed next.
    tidy_at: usize,
}

/// Ended processes and their connections.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ended {
    /// Connections of this process with ended processes.
    pub(super) connections: Vec<Connection>,
    /// The numbers of the ended processes.
    pub(super) processes: Vec<u32>,
}

impl Neighbours {
    /// Watches a process of this host. Returns false if the process has ended already.
    pub(super) fn watch(&mut self, now: Time, system: &mut impl HostSystem, process: u32) -> bool {
        if self.watched.contains_key(&process) {
            return true;
        }
        let is_reported = match system.watch(process) {
            Watch::Ended => return false,
            Watch::Reported => true,
            Watch::Unreported => false,
        };
        let check = now.saturating_add(interval(is_reported));
        self.next_check = Some(self.next_check.map_or(check, |next| next.min(check)));
        let tidy_at = TIDY_THRESHOLD;
        self.watched.insert(process, Neighbour { is_reported, connections: vec![], tidy_at });
        true
    }

    /// Records a connection with a watched process.
    pub(super) fn connected(
        &mut self,
        manager: &Manager<Peer>,
        process: u32,
        connection: Connection,
    ) {
        let Some(known) = self.watched.get_mut(&process) else { return };
        if known.connections.len() >= known.tidy_at {
            known.connections.retain(|&one| manager.stage(one).is_ok());
            known.tidy_at = TIDY_THRESHOLD.max(2 * known.connections.len());
        }
        known.connections.push(connection);
    }

    /// The next time at which processes must be checked.
    pub(super) const fn next(&self) -> Option<Time> {
        self.next_check
    }

    /// The watched processes that have ended since the last call.
    pub(super) fn ended(&mut self, now: Time, system: &mut impl HostSystem) -> Ended {
        let mut processes = system.ended();
        let is_check_due = self.next_check.is_some_and(|next| next <= now);
        if is_check_due {
            let all = self.watched.keys().copied();
            processes.extend(all.filter(|process| !system.is_process(*process)));
        }
        let mut ended = Ended::default();
        for process in processes {
            if let Some(known) = self.watched.remove(&process) {
                ended.connections.extend(known.connections);
                ended.processes.push(process);
            }
        }
        if is_check_due {
            let intervals = self.watched.values().map(|known| interval(known.is_reported));
            self.next_check = intervals.min().map(|interval| now.saturating_add(interval));
        }
        ended
    }
}

const fn interval(is_reported: bool) -> Duration {
    if is_reported { EXEC_CHECK_INTERVAL } else { CHECK_INTERVAL }
}
