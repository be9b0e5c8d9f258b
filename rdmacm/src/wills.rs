//! What other processes of this host are connected with on other hosts, as far as we have heard what came for them. The kernel's manager ends the connections of a
//! process that was killed; here the processes that are left do it, and one of them for all: the one who answers for those that are gone ([`crate::stray`]).

use crate::agent::Peer;
use crate::processes::OWNER_BITS;
use crate::sorting;
use ferroverbs_cm::Time;
use ferroverbs_cm::wire::{CommId, MAD_LEN, Mad, Message, Qpn};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Requests at most that were not answered yet; the oldest are forgotten.
const MOST_ASKED: usize = 1024;
/// Connections at most; what is beyond it is not ended by us.
const MOST: usize = 16384;
/// How soon it is tried again to become the one who speaks: who has died may have been that, and the kernel closes one socket after the other.
const AGAIN: Duration = Duration::from_millis(50);
/// How long. By then another one has spoken.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection of another process of this host, named by its own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Will {
    pub(crate) name: CommId,
    pub(crate) peer: Peer,
    /// What the peer calls it, and the peer's queue pair.
    pub(crate) remote_name: CommId,
    pub(crate) remote_qpn: Qpn,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Wills {
    /// Peers' requests: who asks, his name for it, his queue pair.
    asked: VecDeque<(Peer, CommId, Qpn)>,
    /// By the names that our neighbours gave, whose upper bits are the neighbours.
    open: BTreeMap<u32, Will>,
    /// Neighbours that have ended, since when, and when they are looked at again.
    ended: Vec<(u32, Time)>,
    again: Time,
}

/// All names of a process.
const fn names(owner: u32) -> std::ops::RangeInclusive<u32> {
    let first = owner << (32 - OWNER_BITS);
    first..=first | (u32::MAX >> OWNER_BITS)
}

impl Wills {
    /// A message of another host came, for another process of this one. Whose connection there is from now on.
    pub(crate) fn hear(&mut self, from: Peer, mad: &[u8; MAD_LEN]) -> Option<u32> {
        let Ok(Mad { message, .. }) = Mad::parse(mad) else { return None };
        let (name, remote_name, remote_qpn) = match message {
            Message::Request(request) => {
                self.asked.truncate(MOST_ASKED - 1);
                self.asked.push_front((from, request.local_id, request.qpn));
                return None;
            }
            Message::Reply(reply) => {
                // XRC has its number elsewhere.
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
        // A repetition, or somebody who says another's name.
        if self.open.len() >= MOST || self.open.contains_key(&name.0) {
            return None;
        }
        self.open.insert(name.0, Will { name, peer: from, remote_name, remote_qpn });
        Some(sorting::owner(name))
    }

    /// It is over, if it is its peer who says that.
    fn forget(&mut self, from: Peer, name: CommId) -> Option<u32> {
        if self.open.get(&name.0).is_some_and(|will| will.peer == from) {
            self.open.remove(&name.0);
        }
        None
    }

    /// A process has ended.
    pub(crate) fn ended(&mut self, now: Time, owner: u32) {
        if self.open.range(names(owner)).next().is_some() {
            self.ended.push((owner, now));
            self.again = now;
        }
    }

    /// When `due` has something to do.
    pub(crate) fn next(&self) -> Option<Time> {
        (!self.ended.is_empty()).then_some(self.again)
    }

    /// What is to be ended now, if it is us who speaks.
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
    /// Of process 5.
    const OURS: CommId = CommId(0x0050_0001);
    const THEIRS: CommId = CommId(0x7700_0001);

    /// The peer asks whether the connection is still there.
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
            // Another process ends; it has nothing.
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
