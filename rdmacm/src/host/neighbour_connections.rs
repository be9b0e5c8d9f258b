//! Connections of other processes of this host with other hosts, as seen from arriving MADs.
//! The kernel's manager disconnects the connections of a killed process. Here one living process
//! does that: the process that answers for the host ([`crate::host::unclaimed`]).

use super::addressee::{PROCESS_BITS, process_of};
use crate::host::peer::Peer;
use ferroverbs_cm::Time;
use ferroverbs_cm::wire::{CommId, MAD_LEN, Mad, Message, Qpn};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The largest number of requests without an answer; the oldest are dropped.
const MOST_REQUESTS: usize = 1024;
/// The largest number of connections; further connections are not disconnected.
const MOST: usize = 16384;
/// The interval at which this process claims the host's role. The dead process may have held the
/// role, and the kernel closes sockets one after the other.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// The time after which this process gives up: another process has disconnected the connections by
/// then.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);

/// A connection of another process of this host, identified by that process's communication id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NeighbourConnection {
    pub(crate) name: CommId,
    pub(crate) peer: Peer,
    /// The peer's communication id, and the peer's queue pair.
    pub(crate) remote_name: CommId,
    pub(crate) remote_qpn: Qpn,
}

/// All recorded connections of other local processes.
#[derive(Debug, Default)]
pub(super) struct NeighbourConnections {
    /// Requests of peers: the peer, its communication id, its queue pair.
    requests: VecDeque<(Peer, CommId, Qpn)>,
    /// Connections by the communication id of the local process; the upper bits are the process.
    open: BTreeMap<u32, NeighbourConnection>,
    /// Ended processes, each with the time of its end.
    ended: Vec<(u32, Time)>,
    /// The next attempt to disconnect the connections of ended processes.
    next_attempt: Time,
}

/// All communication ids of a process.
const fn ids_of_process(process: u32) -> std::ops::RangeInclusive<u32> {
    let first = process << (32 - PROCESS_BITS);
    first..=first | (u32::MAX >> PROCESS_BITS)
}

impl NeighbourConnections {
    /// Records a MAD of another host for another local process. Returns the process that now has a
    /// connection, for the first MAD that shows the connection.
    pub(super) fn receive(&mut self, from: Peer, mad: &[u8; MAD_LEN]) -> Option<u32> {
        let Ok(Mad { message, .. }) = Mad::parse(mad) else { return None };
        let (name, remote_name, remote_qpn) = match message {
            Message::Request(request) => {
                self.requests.truncate(MOST_REQUESTS - 1);
                self.requests.push_front((from, request.local_id, request.qpn));
                return None;
            }
            Message::Reply(reply) => {
                // A reply for XRC has its number in the EE context field.
                let qpn = if reply.qpn == Qpn::new(0) { reply.eecn } else { reply.qpn };
                (reply.remote_id, reply.local_id, qpn)
            }
            Message::Ready(ready) => {
                let is_it = |(peer, name, _): &(Peer, CommId, Qpn)| {
                    *peer == from && *name == ready.local_id
                };
                let at = self.requests.iter().position(is_it)?;
                let (_, _, qpn) = self.requests.remove(at)?;
                (ready.remote_id, ready.local_id, qpn)
            }
            Message::Reject(reject) => return self.remove(from, reject.remote_id),
            Message::DisconnectRequest(request) if !request.ends() => return None,
            Message::DisconnectRequest(request) => return self.remove(from, request.remote_id),
            Message::DisconnectReply(reply) => return self.remove(from, reply.remote_id),
            _ => return None,
        };
        // The MAD is a repetition, or a forgery with a known communication id.
        if self.open.len() >= MOST || self.open.contains_key(&name.0) {
            return None;
        }
        self.open.insert(name.0, NeighbourConnection { name, peer: from, remote_name, remote_qpn });
        Some(process_of(name))
    }

    /// Removes a connection, if its own peer has ended it.
    fn remove(&mut self, from: Peer, name: CommId) -> Option<u32> {
        if self.open.get(&name.0).is_some_and(|connection| connection.peer == from) {
            self.open.remove(&name.0);
        }
        None
    }

    /// Records the end of a process.
    pub(super) fn ended(&mut self, now: Time, process: u32) {
        if self.open.range(ids_of_process(process)).next().is_some() {
            self.ended.push((process, now));
            self.next_attempt = now;
        }
    }

    /// The next time at which `due` has something to do.
    pub(super) fn next(&self) -> Option<Time> {
        (!self.ended.is_empty()).then_some(self.next_attempt)
    }

    /// The connections to disconnect now, if this process answers for the host (`is_responder`).
    pub(super) fn due(
        &mut self,
        now: Time,
        is_responder: impl FnOnce() -> bool,
    ) -> Vec<NeighbourConnection> {
        if self.next().is_none_or(|next| next > now) {
            return vec![];
        }
        let is_responder = is_responder();
        self.next_attempt = now.saturating_add(RETRY_AFTER);
        let mut due = vec![];
        for (process, since) in std::mem::take(&mut self.ended) {
            let over = is_responder || since.saturating_add(GIVE_UP_AFTER) <= now;
            if !over {
                self.ended.push((process, since));
                continue;
            }
            let names: Vec<u32> =
                self.open.range(ids_of_process(process)).map(|(name, _)| *name).collect();
            let connections = names.iter().filter_map(|name| self.open.remove(name));
            due.extend(connections.filter(|_| is_responder));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroverbs_cm::wire::{DisconnectReply, DisconnectRequest, Ready, Reply, Request};

    const PEER: Peer = Peer { remote: [1; 16], local: [2; 16] };
    const OTHER: Peer = Peer { remote: [3; 16], local: [2; 16] };
    /// A communication id of process 5.
    const LOCAL_ID: CommId = CommId(0x0050_0001);
    const REMOTE_ID: CommId = CommId(0x7700_0001);

    /// A DREQ by which the peer asks whether the connection still exists.
    fn question() -> [u8; MAD_LEN] {
        mad(Message::DisconnectRequest(DisconnectRequest {
            local_id: REMOTE_ID,
            remote_id: LOCAL_ID,
            remote_qpn: DisconnectRequest::NO_QPN,
            ..DisconnectRequest::default()
        }))
    }

    fn mad(message: Message) -> [u8; MAD_LEN] {
        Mad { transaction: 1, message }.emit()
    }

    fn request() -> [u8; MAD_LEN] {
        let qpn = Qpn::new(0x123);
        mad(Message::Request(Box::new(Request { local_id: REMOTE_ID, qpn, ..Request::default() })))
    }

    fn ready() -> [u8; MAD_LEN] {
        mad(Message::Ready(Ready { local_id: REMOTE_ID, remote_id: LOCAL_ID, ..Ready::default() }))
    }

    fn reply(qpn: u32, eecn: u32) -> [u8; MAD_LEN] {
        let (qpn, eecn) = (Qpn::new(qpn), Qpn::new(eecn));
        let reply =
            Reply { local_id: REMOTE_ID, remote_id: LOCAL_ID, qpn, eecn, ..Reply::default() };
        mad(Message::Reply(Box::new(reply)))
    }

    fn connection(qpn: u32) -> NeighbourConnection {
        NeighbourConnection {
            name: LOCAL_ID,
            peer: PEER,
            remote_name: REMOTE_ID,
            remote_qpn: Qpn::new(qpn),
        }
    }

    #[test]
    fn a_connection_is_known_from_either_side_and_ended_once() {
        let passive = [request(), ready()];
        let active = [reply(0x123, 0)];
        let extended = [reply(0, 0x123)];
        for heard in [&passive[..], &active, &extended] {
            let mut connections = NeighbourConnections::default();
            let owners: Vec<_> =
                heard.iter().filter_map(|mad| connections.receive(PEER, mad)).collect();
            assert_eq!(owners, [5]);
            // Another process ends, without connections.
            connections.ended(Time::ZERO, 6);
            assert_eq!(connections.next(), None);
            connections.ended(Time::ZERO, 5);
            assert_eq!(connections.due(Time::ZERO, || true), [connection(0x123)]);
            assert_eq!(
                (connections.next(), connections.due(GIVE_UP_AFTER, || true)),
                (None, vec![])
            );
        }
    }

    #[test]
    fn what_its_peer_has_ended_is_not_ended_again() {
        let over =
            DisconnectReply { local_id: REMOTE_ID, remote_id: LOCAL_ID, ..Default::default() };
        let over = mad(Message::DisconnectReply(over));
        let mut connections = NeighbourConnections::default();
        assert_eq!(connections.receive(PEER, &reply(1, 0)), Some(5));
        connections.receive(OTHER, &over);
        connections.receive(PEER, &question());
        connections.ended(Time::ZERO, 5);
        assert_eq!(connections.next(), Some(Time::ZERO), "who is not its peer has no say");
        connections.receive(PEER, &over);
        assert_eq!(connections.due(Time::ZERO, || true), []);
    }

    #[test]
    fn a_process_without_the_role_tries_again_and_gives_up_after_a_while() {
        let mut connections = NeighbourConnections::default();
        connections.receive(PEER, &reply(1, 0));
        connections.ended(Time::ZERO, 5);
        assert_eq!(
            (connections.due(Time::ZERO, || false), connections.next()),
            (vec![], Some(RETRY_AFTER))
        );
        assert_eq!(connections.due(RETRY_AFTER / 2, || unreachable!("too early")), []);
        assert_eq!(connections.due(RETRY_AFTER, || true), [connection(1)]);
        connections.receive(PEER, &reply(1, 0));
        connections.ended(Time::ZERO, 5);
        assert_eq!((connections.due(GIVE_UP_AFTER, || false), connections.next()), (vec![], None));
        assert!(connections.open.is_empty());
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let mut connections = NeighbourConnections::default();
        for n in 0..MOST as u32 + 10 {
            let (local_id, remote_id) = (REMOTE_ID, CommId(n));
            let reply = Reply { local_id, remote_id, qpn: Qpn::new(1), ..Reply::default() };
            connections.receive(PEER, &mad(Message::Reply(Box::new(reply))));
            connections.receive(PEER, &request());
        }
        assert_eq!((connections.open.len(), connections.requests.len()), (MOST, MOST_REQUESTS));
    }
}
