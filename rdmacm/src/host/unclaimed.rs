//! Requests for services without a listener on this host, or whose process was killed.
//! One process answers them for the whole host: the first process that takes the name of the role,
//! and after its end the next process that needs the role.
//!
//! A server that stops listening with unanswered requests announces the requests by a name
//! ([`ports::announce_unanswered`]) until they are answered.

use crate::host::peer::Peer;
use crate::host::ports::{self, Name};
use crate::host::processes;
use crate::host::sorting;
use ferroverbs_cm::Time;
use ferroverbs_cm::wire::{MAD_LEN, ServiceId};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

/// The time that a service may have no listener before its client is rejected: a server may close
/// its listener and open a new one.
pub(crate) const BETWEEN_LISTENERS: Duration = Duration::from_millis(200);
/// The same time for a client of this host, which saw a listener a moment before.
const AFTER_A_LISTENER: Duration = Duration::from_secs(1);
/// The largest number of waiting requests, and of remembered first requests.
const MOST: usize = 256;

/// The identity of a request: the peer, and the peer's communication id.
type RequestKey = (Peer, u32);

/// Requests for services that this process does not have.
#[derive(Debug, Default)]
pub(crate) struct UnclaimedRequests {
    /// The host-wide role of answering requests without a process, if this process holds the role.
    responder_role: Option<Name>,
    /// Local requests that arrived once. Their clients saw a listener before.
    local: VecDeque<RequestKey>,
    /// Requests that had no listener on arrival.
    waiting: VecDeque<WaitingRequest>,
}

#[derive(Debug)]
struct WaitingRequest {
    until: Time,
    service: ServiceId,
    to: IpAddr,
    key: RequestKey,
    mad: [u8; MAD_LEN],
}

impl UnclaimedRequests {
    /// Whether this process answers for the host; claims the role if it is free.
    pub(crate) fn is_responder(&mut self) -> bool {
        if self.responder_role.is_none() {
            self.responder_role = processes::claim_responder();
        }
        self.responder_role.is_some()
    }

    /// Records a request of another host for a service that this process does not have.
    pub(crate) fn receive_remote(
        &mut self,
        now: Time,
        from: Peer,
        target: (ServiceId, IpAddr),
        mad: &[u8; MAD_LEN],
    ) {
        self.recheck_later(now, BETWEEN_LISTENERS, from, target, mad);
    }

    fn recheck_later(
        &mut self,
        now: Time,
        wait: Duration,
        from: Peer,
        (service, to): (ServiceId, IpAddr),
        mad: &[u8; MAD_LEN],
    ) {
        let key = (from, sorting::sender_id(mad));
        let is_known = self.waiting.iter().any(|waiting| waiting.key == key);
        if is_known || self.waiting.len() >= MOST || !self.is_responder() {
            return;
        }
        // If the state cannot be determined, the request is ignored, and the client sends it again.
        if ports::is_listened_to(service, to) == Ok(false) {
            let until = now.saturating_add(wait);
            self.waiting.push_back(WaitingRequest { until, service, to, key, mad: *mad });
        }
    }

    /// As [`UnclaimedRequests::receive_remote`], for a request of this host. The first copy of a
    /// request is only remembered, because its client saw a listener just before.
    pub(crate) fn receive_local(
        &mut self,
        now: Time,
        from: Peer,
        target: (ServiceId, IpAddr),
        mad: &[u8; MAD_LEN],
    ) {
        let key = (from, sorting::sender_id(mad));
        if self.local.contains(&key) {
            return self.recheck_later(now, AFTER_A_LISTENER, from, target, mad);
        }
        self.local.truncate(MOST - 1);
        self.local.push_front(key);
    }

    /// The next time at which `due` returns requests.
    pub(crate) fn next(&self) -> Option<Time> {
        self.waiting.iter().map(|waiting| waiting.until).min()
    }

    /// The requests whose time is over and that still have neither a listener nor an announcement.
    /// A client sends every other request again.
    pub(crate) fn due(&mut self, now: Time) -> Vec<(Peer, [u8; MAD_LEN])> {
        if self.next().is_none_or(|next| next > now) {
            return vec![];
        }
        let all = std::mem::take(&mut self.waiting);
        let (due, left): (VecDeque<_>, _) = all.into_iter().partition(|one| one.until <= now);
        self.waiting = left;
        let Ok(unanswered) = ports::unanswered_services() else { return vec![] };
        let is_unclaimed = |one: &WaitingRequest| {
            !unanswered.contains(&one.service)
                && ports::is_listened_to(one.service, one.to) == Ok(false)
        };
        due.iter().filter(|one| is_unclaimed(one)).map(|one| (one.key.0, one.mad)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::ports::PortClaim;

    #[test]
    fn who_asks_for_nobody_hears_it_later_and_who_asks_for_somebody_hears_nothing() {
        let mut unclaimed = UnclaimedRequests::default();
        let unserved = ServiceId(0xfeed_0001_0000_0000 | u64::from(std::process::id()));
        let served = ServiceId(unserved.0 + (1 << 32));
        let four = IpAddr::from([10, 0, 0, 1]);
        let listener = ports::listen(served, PortClaim::of((four, 0).into(), true, false))
            .expect("nobody does");
        let from = Peer { remote: [1; 16], local: [2; 16] };
        let mad = |name: u8| {
            let mut mad = [0; MAD_LEN];
            mad[27] = name;
            mad
        };
        if !unclaimed.is_responder() {
            // Another program of this machine holds the role; the test cannot go on.
            eprintln!("skipped: another process answers for this host");
            return;
        }
        let start = Time::ZERO;
        unclaimed.receive_remote(start, from, (unserved, four), &mad(1));
        unclaimed.receive_remote(start, from, (unserved, four), &mad(1));
        unclaimed.receive_remote(start, from, (served, four), &mad(2));
        assert_eq!((unclaimed.next(), unclaimed.due(start)), (Some(BETWEEN_LISTENERS), vec![]));
        assert_eq!(unclaimed.due(BETWEEN_LISTENERS), [(from, mad(1))]);
        assert_eq!((unclaimed.next(), unclaimed.due(BETWEEN_LISTENERS)), (None, vec![]));

        // The listener goes, and its process still has the request.
        let unanswered = ports::announce_unanswered(served, 7).expect("a name is free");
        let another = ports::announce_unanswered(served, 7).expect("another one, too");
        drop((listener, another));
        unclaimed.receive_remote(start, from, (served, four), &mad(2));
        assert_eq!(unclaimed.due(BETWEEN_LISTENERS), [], "somebody has it");
        // The process is killed.
        drop(unanswered);
        unclaimed.receive_remote(start, from, (served, four), &mad(2));
        assert_eq!(unclaimed.due(BETWEEN_LISTENERS), [(from, mad(2))]);

        // A request of this host: its client saw a listener.
        unclaimed.receive_local(start, from, (unserved, four), &mad(3));
        assert_eq!(unclaimed.next(), None);
        unclaimed.receive_local(start, from, (unserved, four), &mad(3));
        unclaimed.receive_remote(start, from, (unserved, four), &mad(4));
        assert_eq!(unclaimed.next(), Some(BETWEEN_LISTENERS), "each has its time");
        assert_eq!(unclaimed.due(BETWEEN_LISTENERS), [(from, mad(4))]);
        assert_eq!(unclaimed.due(AFTER_A_LISTENER), [(from, mad(3))]);
    }
}
