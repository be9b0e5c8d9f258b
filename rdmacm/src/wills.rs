//! Connections of other processes of this host with other hosts, as seen from arriving MADs.
//! The kernel's manager disconnects the connections of a killed process. Here one living process
//! does that: the process that answers for the host ([`crate::stray`]).

use crate::agent::Peer;
use crate::processes::OWNER_BITS;
use crate::sorting;
use ferroverbs_cm::Time;
use ferroverbs_cm::wire::{CommId, MAD_LEN, Mad, Message, Qpn};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The largest number of requests without an answer; the oldest are dropped.
const MOST_ASKED: usize = 1024;
/// The largest number of connections; further connections are not disconnected.
const MOST: usize = 16384;
/// The interval at which this process claims the host's role. The dead process may have held the
/// role, and the kernel closes sockets one after the other.
const AGAIN: Duration = Duration::from_millis(50);
/// The time after which this process gives up: another process has disconnected the connections by
/// then.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection of another process of this host, identified by that process's communication id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Will {
    pub(crate) name: CommId,
    pub(crate) peer: Peer,
    /// The peer's communication id, and the peer's queue pair.
    pub(crate) remote_name: CommId,
    pub(crate) remote_qpn: Qpn,
}

/// All recorded connections of other local processes.
#[derive(Debug, Default)]
pub(crate) struct Wills {
    /// Requests of peers: the peer, its communication id, its queue pair.
    asked: VecDeque<(Peer, CommId, Qpn)>,
    /// Connections by the communication id of the local process; the upper bits are the process.
    open: BTreeMap<u32, Will>,
    /// Ended processes, the time of the end, and the time of the next attempt.
    ended: Vec<(u32, Time)>,
    again: Time,
}

/// All communication ids of a process.
const fn names(owner: u32) -> std::ops::RangeInclusive<u32> {
    let first = owner << (32 - OWNER_BITS);
    first..=first | (u32::MAX >> OWNER_BITS)
}

impl Wills {
    /// Records a MAD of another host for another local process. Returns the process that now has a
    /// connection, for the first MAD that shows the connection.
    pub(crate) fn hear(&mut self, from: Peer, mad: &[u8; MAD_LEN]) -> Option<u32> {
        let Ok(Mad { message, .. }) = Mad::parse(mad) else { return None };
        let (name, remote_name, remote_qpn) = match message {
            Message::Request(request) => {
                self.asked.truncate(MOST_ASKED - 1);
                self.asked.push_front((from, request.local_id, request.qpn));
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
                let at = self.asked.iter().position(is_it)?;
                let (_, _, qpn) = self.asked.remove(at)?;
                (ready.remote_id, ready.local_id, qpn)
            }
            Message::Reject(reject) => return self.forget(from, reject.remote_id),
            Message::DisconnectRequest(request) if !request.ends() => return None,
            Message::DisconnectRequest(request) => return self.forget(from, request.remote_id),
            Message::DisconnectReply(reply) => return self.forget(from, reply.remote_id),
            _ => return None,
        };
        // The MAD is a repetition, or a forgery with a known communication id.
        if self.open.len() >= MOST || self.open.contains_key(&name.0) {
            return None;
        }
        self.open.insert(name.0, Will { name, peer: from, remote_name, remote_qpn });
        Some(sorting::owner(name))
    }

    /// Removes a connection, if its own peer has ended it.
    fn forget(&mut self, from: Peer, name: CommId) -> Option<u32> {
        if self.open.get(&name.0).is_some_and(|will| will.peer == from) {
            self.open.remove(&name.0);
        }
        None
    }

    /// Records the end of a process.
    pub(crate) fn ended(&mut self, now: Time, owner: u32) {
        if self.open.range(names(owner)).next().is_some() {
            self.ended.push((owner, now));
            self.again = now;
        }
    }

    /// The next time at which `due` has something to do.
    pub(crate) fn next(&self) -> Option<Time> {
        (!self.ended.is_empty()).then_some(self.again)
    }

    /// The connections to disconnect now, if this process answers for the host (`speaks`).
    pub(crate) fn due(&mut self, now: Time, speaks: impl FnOnce() -> bool) -> Vec<Will> {
        if self.next().is_none_or(|next| next > now) {
            return vec![];
        }
        let speaks = speaks();
        self.again = now.saturating_add(AGAIN);
        let mut due = vec![];
        for (owner, since) in std::mem::take(&mut self.ended) {
            let over = speaks || since.saturating_add(PATIENCE) <= now;
            if !over {
                self.ended.push((owner, since));
                continue;
            }
            let names: Vec<u32> = self.open.range(names(owner)).map(|(name, _)| *name).collect();
            let wills = names.iter().filter_map(|name| self.open.remove(name));
            due.extend(wills.filter(|_| speaks));
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
    const OURS: CommId = CommId(0x0050_0001);
    const THEIRS: CommId = CommId(0x7700_0001);

    /// A DREQ by which the peer asks whether the connection still exists.
    fn question() -> [u8; MAD_LEN] {
        mad(Message::DisconnectRequest(DisconnectRequest {
            local_id: THEIRS,
            remote_id: OURS,
            remote_qpn: DisconnectRequest::NO_QPN,
            ..DisconnectRequest::default()
        }))
    }

    fn mad(message: Message) -> [u8; MAD_LEN] {
        Mad { transaction: 1, message }.emit()
    }

    fn request() -> [u8; MAD_LEN] {
        let qpn = Qpn::new(0x123);
        mad(Message::Request(Box::new(Request { local_id: THEIRS, qpn, ..Request::default() })))
    }

    fn ready() -> [u8; MAD_LEN] {
        mad(Message::Ready(Ready { local_id: THEIRS, remote_id: OURS, ..Ready::default() }))
    }

    fn reply(qpn: u32, eecn: u32) -> [u8; MAD_LEN] {
        let (qpn, eecn) = (Qpn::new(qpn), Qpn::new(eecn));
        let reply = Reply { local_id: THEIRS, remote_id: OURS, qpn, eecn, ..Reply::default() };
        mad(Message::Reply(Box::new(reply)))
    }

    fn will(qpn: u32) -> Will {
        Will { name: OURS, peer: PEER, remote_name: THEIRS, remote_qpn: Qpn::new(qpn) }
    }

    #[test]
    fn a_connection_is_known_from_either_side_and_ended_once() {
        let passive = [request(), ready()];
        let active = [reply(0x123, 0)];
        let extended = [reply(0, 0x123)];
        for heard in [&passive[..], &active, &extended] {
            let mut wills = Wills::default();
            let owners: Vec<_> = heard.iter().filter_map(|mad| wills.hear(PEER, mad)).collect();
            assert_eq!(owners, [5]);
            // Another process ends, without connections.
            wills.ended(Time::ZERO, 6);
            assert_eq!(wills.next(), None);
            wills.ended(Time::ZERO, 5);
            assert_eq!(wills.due(Time::ZERO, || true), [will(0x123)]);
            assert_eq!((wills.next(), wills.due(PATIENCE, || true)), (None, vec![]));
        }
    }

    #[test]
    fn what_its_peer_has_ended_is_not_ended_again() {
        let over = DisconnectReply { local_id: THEIRS, remote_id: OURS, ..Default::default() };
        let over = mad(Message::DisconnectReply(over));
        let mut wills = Wills::default();
        assert_eq!(wills.hear(PEER, &reply(1, 0)), Some(5));
        wills.hear(OTHER, &over);
        wills.hear(PEER, &question());
        wills.ended(Time::ZERO, 5);
        assert_eq!(wills.next(), Some(Time::ZERO), "who is not its peer has no say");
        wills.hear(PEER, &over);
        assert_eq!(wills.due(Time::ZERO, || true), []);
    }

    #[test]
    fn who_does_not_speak_tries_again_and_then_leaves_it_to_others() {
        let mut wills = Wills::default();
        wills.hear(PEER, &reply(1, 0));
        wills.ended(Time::ZERO, 5);
        assert_eq!((wills.due(Time::ZERO, || false), wills.next()), (vec![], Some(AGAIN)));
        assert_eq!(wills.due(AGAIN / 2, || unreachable!("too early")), []);
        assert_eq!(wills.due(AGAIN, || true), [will(1)]);
        wills.hear(PEER, &reply(1, 0));
        wills.ended(Time::ZERO, 5);
        assert_eq!((wills.due(PATIENCE, || false), wills.next()), (vec![], None));
        assert!(wills.open.is_empty());
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let mut wills = Wills::default();
        for n in 0..MOST as u32 + 10 {
            let (local_id, remote_id) = (THEIRS, CommId(n));
            let reply = Reply { local_id, remote_id, qpn: Qpn::new(1), ..Reply::default() };
            wills.hear(PEER, &mad(Message::Reply(Box::new(reply))));
            wills.hear(PEER, &request());
        }
        assert_eq!((wills.open.len(), wills.asked.len()), (MOST, MOST_ASKED));
    }
}
