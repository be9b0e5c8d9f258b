//! The other processes of the host, as one pure state machine: which process a MAD is for, which
//! process answers for a process that does not exist, and what follows from the end of a process.
//!
//! Time, MADs and answers of the system ([`HostSystem`]) go in; [`HostAction`]s come out, which the
//! agent carries out. This floor makes no system call and reads no clock. Which processes exist is
//! known to the device alone (`ferroverbs_plugin_ext`).
//!
//! | file | rule |
//! |---|---|
//! | `addressee` | the receiver of a MAD |
//! | `unclaimed` | requests of peers without a listener on this host, and repeated requests |
//! | `unserved` | requests of this process that wait for a listener of this host |
//! | `unanswered` | requests of this process whose listener is gone |
//! | `neighbours` | connections with processes of this host, which may end |
//! | `neighbour_connections` | connections of those processes with other hosts |
//! | `probes` | other hosts without a process |

#![forbid(unsafe_code)]

mod addressee;
mod neighbour_connections;
mod neighbours;
pub(crate) mod peer;
mod probes;
#[cfg(test)]
mod tests;
mod unanswered;
mod unclaimed;
mod unserved;

pub(crate) use addressee::PROCESS_BITS;
pub(crate) use neighbour_connections::NeighbourConnection;
pub(crate) use unclaimed::HostNames;
pub(crate) use unserved::{OutgoingRequest, UnservedRequest};

use addressee::{Addressee, process_of};
use ferroverbs_cm::wire::{Destination, MAD_LEN, ServiceId};
use ferroverbs_cm::{Connection, Listener, Manager, Time};
use neighbour_connections::NeighbourConnections;
use neighbours::Neighbours;
use peer::Peer;
use probes::HostProbes;
use std::net::IpAddr;
use unanswered::UnansweredRequests;
use unclaimed::UnclaimedRequests;
use unserved::{UnservedRequests, Verdict};

/// How the end of a watched process becomes known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// [`HostSystem::ended`] reports the end.
    Reported,
    /// [`HostSystem::is_process`] must be asked from time to time.
    Unreported,
    /// The process has ended already.
    Ended,
}

/// What the system knows of the host's processes, and does for this floor.
pub(crate) trait HostSystem: HostNames {
    /// A sign to the other processes that this process still has requests for a service. Dropped,
    /// the sign ends.
    type Announcement;

    /// Whether a process has the number.
    fn is_process(&self, number: u32) -> bool;

    /// Watches a process for its end.
    fn watch(&mut self, number: u32) -> Watch;

    /// The watched processes that have ended since the last call. Each is reported once.
    fn ended(&mut self) -> Vec<u32>;

    /// Announces that this process has unanswered requests for a service to which it no longer
    /// listens. `None`: the system refuses, and a client that asks again may be rejected.
    fn announce(&mut self, service: ServiceId) -> Option<Self::Announcement>;

    /// Sends a probe to a host, and returns whether the host refused the last probe. `None`: the
    /// host cannot be probed.
    fn probe(&mut self, peer: Peer) -> Option<bool>;

    /// Ends the probes of a host.
    fn end_probes(&mut self, peer: Peer);
}

/// What the agent has to do. `I` names an id of this process.
#[derive(Debug)]
pub(crate) enum HostAction<I> {
    /// The manager receives a request without a process, and rejects it for the host.
    Answer(Peer, Box<[u8; MAD_LEN]>),
    /// The local process at the other end of this connection has ended.
    EndConnection(Connection),
    /// A local process has ended; its connection with another host ends.
    Disconnect(NeighbourConnection),
    /// No process exists on the peer's host.
    Absent(Peer),
    /// The request is sent: a listener exists, or the state cannot be determined.
    Send(UnservedRequest<I>),
    /// The request is refused: no listener exists.
    Refuse(UnservedRequest<I>),
}

/// The state of one device: the processes that share the device on this host. `I` names an id of
/// this process, `N` is the announcement of the system.
#[derive(Debug)]
pub(crate) struct HostProcesses<I, N> {
    /// The number of this process.
    process: u32,
    unclaimed: UnclaimedRequests,
    unserved: UnservedRequests<I>,
    unanswered: UnansweredRequests<N>,
    neighbours: Neighbours,
    neighbour_connections: NeighbourConnections,
    probes: HostProbes,
}

impl<I, N> HostProcesses<I, N> {
    /// The state of the process with the number, without requests and connections.
    pub(crate) fn new(process: u32) -> Self {
        Self {
            process,
            unclaimed: UnclaimedRequests::default(),
            unserved: UnservedRequests::default(),
            unanswered: UnansweredRequests::default(),
            neighbours: Neighbours::default(),
            neighbour_connections: NeighbourConnections::default(),
            probes: HostProbes::default(),
        }
    }

    /// Records a received MAD. Returns whether the MAD is for this process. `is_local`: the sender
    /// is on this host. `is_taken`: this process listens to the service at the address, or knows
    /// the request.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        system: &mut impl HostSystem,
        (from, is_local): (Peer, bool),
        mad: &[u8; MAD_LEN],
        is_taken: impl FnOnce(ServiceId, IpAddr) -> bool,
    ) -> bool {
        self.probes.answer_received(system, from);
        let is_ours = match Addressee::of(mad) {
            Addressee::Service(service, to) => {
                let is_taken = is_taken(service, to);
                if !is_taken && is_local {
                    self.unclaimed.receive_local(system, now, from, (service, to), mad);
                } else if !is_taken {
                    self.unclaimed.receive_remote(system, now, from, (service, to), mad);
                }
                is_taken
            }
            other => other.is_accepted_by(self.process, system),
        };
        if !is_ours
            && !is_local
            && let Some(owner) = self.neighbour_connections.receive(from, mad)
            && !self.neighbours.watch(now, system, owner)
        {
            self.neighbour_connections.ended(now, owner);
        }
        is_ours
    }

    /// Records a sent MAD to another host.
    pub(crate) fn sent(&mut self, now: Time, peer: Peer, mad: &[u8; MAD_LEN]) {
        if Destination::of(mad).is_service() {
            self.probes.request_sent(now, peer);
        }
    }

    /// Records that a connection with a peer on this host exists, and watches the process at the
    /// other end. Returns the connections that end, perhaps this connection.
    pub(crate) fn connected(
        &mut self,
        now: Time,
        system: &mut impl HostSystem,
        manager: &Manager<Peer>,
        connection: Connection,
    ) -> Vec<Connection> {
        let Ok(Some(id)) = manager.remote_name(connection) else { return vec![] };
        let process = process_of(id);
        if process == 0 || process == self.process {
            return vec![];
        }
        // An earlier process may have had the same number.
        let mut lost = self.take_ended(now, system);
        if self.neighbours.watch(now, system, process) {
            self.neighbours.connected(manager, process, connection);
        } else {
            self.neighbour_connections.ended(now, process);
            lost.push(connection);
        }
        lost
    }

    /// Lets a request to a service without a listener on this host wait for a listener.
    pub(crate) fn wait_for_listener(
        &mut self,
        now: Time,
        id: I,
        peer: Peer,
        to: IpAddr,
        request: OutgoingRequest,
    ) {
        self.unserved.push(now, id, peer, to, request);
    }

    /// Removes the waiting requests of the id for which `is_it` is true.
    pub(crate) fn remove_where(&mut self, is_it: impl Fn(&I) -> bool) {
        self.unserved.remove_where(is_it);
    }

    /// Keeps the requests of a listener that is about to go.
    pub(crate) fn keep_unanswered(
        &mut self,
        system: &mut impl HostSystem<Announcement = N>,
        manager: &Manager<Peer>,
        (listener, service): (Listener, ServiceId),
    ) {
        let requests = manager.unanswered_requests(listener);
        if !requests.is_empty()
            && let Some(announcement) = system.announce(service)
        {
            self.unanswered.push(announcement, requests);
        }
    }

    /// The next time to call [`HostProcesses::due`], without an arrival or an end before.
    pub(crate) fn next(&self) -> Option<Time> {
        let nexts = [
            self.unclaimed.next(),
            self.unserved.next(),
            self.neighbours.next(),
            self.neighbour_connections.next(),
            self.probes.next(),
        ];
        nexts.into_iter().flatten().min()
    }

    /// Withdraws the announcements of services whose last request has an answer or has timed out in
    /// the manager.
    pub(crate) fn drop_answered(&mut self, manager: &Manager<Peer>) {
        self.unanswered.drop_answered(manager);
    }

    /// The actions that are due at `now`.
    pub(crate) fn due(
        &mut self,
        now: Time,
        system: &mut impl HostSystem<Announcement = N>,
        manager: &Manager<Peer>,
    ) -> Vec<HostAction<I>> {
        let mut actions = vec![];
        let unclaimed = self.unclaimed.due(system, now).into_iter();
        actions.extend(unclaimed.map(|(from, mad)| HostAction::Answer(from, Box::new(mad))));
        let absent = self.probes.due(now, system, |peer| manager.awaits(peer)).into_iter();
        actions.extend(absent.map(HostAction::Absent));
        actions.extend(self.take_ended(now, system).into_iter().map(HostAction::EndConnection));
        let closed = self.neighbour_connections.due(now, || system.is_responder()).into_iter();
        actions.extend(closed.map(HostAction::Disconnect));
        let verdicts = self.unserved.due(now, |service, to| system.is_listened_to(service, to));
        actions.extend(verdicts.into_iter().map(|verdict| match verdict {
            Verdict::Send(request) => HostAction::Send(request),
            Verdict::Refuse(request) => HostAction::Refuse(request),
        }));
        actions
    }

    /// The connections of this process that end because their local process has ended.
    fn take_ended(&mut self, now: Time, system: &mut impl HostSystem) -> Vec<Connection> {
        let ended = self.neighbours.ended(now, system);
        for process in ended.processes {
            self.neighbour_connections.ended(now, process);
        }
        ended.connections
    }
}
