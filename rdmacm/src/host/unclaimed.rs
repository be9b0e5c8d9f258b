//! Requests for services without a listener on this host, or whose process was killed.
//! One process answers them for the whole host: the first process that takes the name of the role,
//! and after its end the next process that needs the role.
//!
//! A server that stops listening with unanswered requests announces the requests by a name
//! ([`crate::host::HostSystem::announce`]) until they are answered.
//!
//! The rules are a state machine: time, MADs and the published names of the host go in, requests to
//! answer come out. [`HostNames`] is the host, or a host of a test.

use crate::host::peer::Peer;
use cface::Errno;
use ferroverbs_cm::Time;
use ferroverbs_cm::wire::{CommId, MAD_LEN, ServiceId, requester_id};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

/// The time that a service may have no listener before its client is rejected: a server may close
/// its listener and open a new one.
pub(super) const BETWEEN_LISTENERS: Duration = Duration::from_millis(200);
/// The same time for a client of this host, which saw a listener a moment before.
const AFTER_A_LISTENER: Duration = Duration::from_secs(1);
/// The largest number of waiting requests, and of remembered first requests.
const MOST: usize = 256;

/// The identity of a request: the peer, and the peer's communication id.
type RequestKey = (Peer, CommId);

/// What the processes of a host have published.
pub(crate) trait HostNames {
    /// Whether this process has the host-wide role of answering requests without a process; claims
    /// the role if it is free.
    fn is_responder(&mut self) -> bool;

    /// Whether a process listens to a service at an address.
    ///
    /// # Errors
    /// The errno of the system: the state cannot be determined.
    fn is_listened_to(&self, service: ServiceId, to: IpAddr) -> Result<bool, Errno>;

    /// The services with requests that a process has announced to answer.
    ///
    /// # Errors
    /// The errno of the system: the state cannot be determined.
    fn unanswered_services(&self) -> Result<Vec<ServiceId>, Errno>;
}

/// Requests for services that this process does not have.
#[derive(Debug, Default)]
pub(super) struct UnclaimedRequests {
    /// Local requests that arrived once. Their clients saw a listener before.
    local: VecDeque<RequestKey>,
    /// Requests that had no listener on arrival.
    waiting: VecDeque<WaitingRequest>,
}

#[derive(Debug)]
struct WaitingRequest {
    deadline: Time,
    service: ServiceId,
    destination: IpAddr,
    key: RequestKey,
    mad: [u8; MAD_LEN],
}

impl UnclaimedRequests {
    /// Records a request of another host for a service that this process does not have.
    pub(super) fn receive_remote(
        &mut self,
        host: &mut impl HostNames,
        now: Time,
        from: Peer,
        target: (ServiceId, IpAddr),
        mad: &[u8; MAD_LEN],
    ) {
        self.recheck_later(host, (now, BETWEEN_LISTENERS), from, target, mad);
    }

    /// Records a request without a listener, which `due` returns after `wait` if no listener has
    /// come. Only the process that answers for the host records requests.
    fn recheck_later(
        &mut self,
        host: &mut impl HostNames,
        (now, wait): (Time, Duration),
        from: Peer,
        (service, to): (ServiceId, IpAddr),
        mad: &[u8; MAD_LEN],
    ) {
        let key = (from, requester_id(mad));
        let is_known = self.waiting.iter().any(|waiting| waiting.key == key);
        if is_known || self.waiting.len() >= MOST || !host.is_responder() {
            return;
        }
        // If the state cannot be determined, the request is ignored, and the client sends it again.
        if host.is_listened_to(service, to) == Ok(false) {
            let until = now.saturating_add(wait);
            self.waiting.push_back(WaitingRequest {
                deadline: until,
                service,
                destination: to,
                key,
                mad: *mad,
            });
        }
    }

    /// Records a request of this host. The first copy of a request is only remembered, because its
    /// client saw a listener just before.
    pub(super) fn receive_local(
        &mut self,
        host: &mut impl HostNames,
        now: Time,
        from: Peer,
        target: (ServiceId, IpAddr),
        mad: &[u8; MAD_LEN],
    ) {
        let key = (from, requester_id(mad));
        if self.local.contains(&key) {
            return self.recheck_later(host, (now, AFTER_A_LISTENER), from, target, mad);
        }
        self.local.truncate(MOST - 1);
        self.local.push_front(key);
    }

    /// The next time at which `due` returns requests.
    pub(super) fn next(&self) -> Option<Time> {
        self.waiting.iter().map(|waiting| waiting.deadline).min()
    }

    /// The requests whose time is over and that still have neither a listener nor an announcement.
    /// A client sends every other request again.
    pub(super) fn due(&mut self, host: &impl HostNames, now: Time) -> Vec<(Peer, [u8; MAD_LEN])> {
        if self.next().is_none_or(|next| next > now) {
            return vec![];
        }
        let all = std::mem::take(&mut self.waiting);
        let (due, left): (VecDeque<_>, _) = all.into_iter().partition(|one| one.deadline <= now);
        self.waiting = left;
        let Ok(unanswered) = host.unanswered_services() else { return vec![] };
        let is_unclaimed = |one: &WaitingRequest| {
            !unanswered.contains(&one.service)
                && host.is_listened_to(one.service, one.destination) == Ok(false)
        };
        due.iter().filter(|one| is_unclaimed(one)).map(|one| (one.key.0, one.mad)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host of a test: its listeners, its announcements, and whether the role is free.
    #[derive(Default)]
    struct TestHost {
        listeners: Vec<ServiceId>,
        unanswered: Vec<ServiceId>,
        role_is_taken: bool,
        is_unreadable: bool,
    }

    impl HostNames for TestHost {
        fn is_responder(&mut self) -> bool {
            !self.role_is_taken
        }

        fn is_listened_to(&self, service: ServiceId, _: IpAddr) -> Result<bool, Errno> {
            if self.is_unreadable { Err(Errno::EIO) } else { Ok(self.listeners.contains(&service)) }
        }

        fn unanswered_services(&self) -> Result<Vec<ServiceId>, Errno> {
            if self.is_unreadable { Err(Errno::EIO) } else { Ok(self.unanswered.clone()) }
        }
    }

    const FROM: Peer = Peer { remote: [1; 16], local: [2; 16] };
    const SERVICE: ServiceId = ServiceId(0x0106_1bb3);

    fn target() -> (ServiceId, IpAddr) {
        (SERVICE, IpAddr::from([10, 0, 0, 1]))
    }

    fn mad(name: u8) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        mad[27] = name;
        mad
    }

    #[test]
    fn a_request_without_a_listener_is_answered_once_and_after_a_while() {
        let (mut host, mut unclaimed) = (TestHost::default(), UnclaimedRequests::default());
        unclaimed.receive_remote(&mut host, Time::ZERO, FROM, target(), &mad(1));
        // A repetition does not begin the time anew.
        let later = BETWEEN_LISTENERS / 2;
        unclaimed.receive_remote(&mut host, later, FROM, target(), &mad(1));
        assert_eq!(unclaimed.next(), Some(BETWEEN_LISTENERS));
        assert_eq!(unclaimed.due(&host, later), []);
        assert_eq!(unclaimed.due(&host, BETWEEN_LISTENERS), [(FROM, mad(1))]);
        assert_eq!((unclaimed.next(), unclaimed.due(&host, BETWEEN_LISTENERS)), (None, vec![]));
    }

    #[test]
    fn a_request_whose_service_has_a_process_is_left_to_that_process() {
        let mut host = TestHost { listeners: vec![SERVICE], ..TestHost::default() };
        let mut unclaimed = UnclaimedRequests::default();
        unclaimed.receive_remote(&mut host, Time::ZERO, FROM, target(), &mad(1));
        assert_eq!(unclaimed.next(), None);
        // A listener that comes in time gets the repetition.
        host.listeners.clear();
        unclaimed.receive_remote(&mut host, Time::ZERO, FROM, target(), &mad(1));
        host.listeners.push(SERVICE);
        assert_eq!(unclaimed.due(&host, BETWEEN_LISTENERS), []);
    }

    #[test]
    fn announced_requests_are_left_until_their_process_ends() {
        let mut host = TestHost { unanswered: vec![SERVICE], ..TestHost::default() };
        let mut unclaimed = UnclaimedRequests::default();
        unclaimed.receive_remote(&mut host, Time::ZERO, FROM, target(), &mad(1));
        assert_eq!(unclaimed.due(&host, BETWEEN_LISTENERS), [], "a process has the request");
        // The process is killed, and the client asks again.
        host.unanswered.clear();
        unclaimed.receive_remote(&mut host, BETWEEN_LISTENERS, FROM, target(), &mad(1));
        assert_eq!(unclaimed.due(&host, 2 * BETWEEN_LISTENERS), [(FROM, mad(1))]);
    }

    #[test]
    fn the_first_copy_of_a_request_of_this_host_waits_for_the_second() {
        let (mut host, mut unclaimed) = (TestHost::default(), UnclaimedRequests::default());
        unclaimed.receive_local(&mut host, Time::ZERO, FROM, target(), &mad(3));
        assert_eq!(unclaimed.next(), None);
        unclaimed.receive_local(&mut host, Time::ZERO, FROM, target(), &mad(3));
        unclaimed.receive_remote(&mut host, Time::ZERO, FROM, target(), &mad(4));
        assert_eq!(unclaimed.next(), Some(BETWEEN_LISTENERS), "each has its time");
        assert_eq!(unclaimed.due(&host, BETWEEN_LISTENERS), [(FROM, mad(4))]);
        assert_eq!(unclaimed.due(&host, AFTER_A_LISTENER), [(FROM, mad(3))]);
    }

    #[test]
    fn one_process_answers_for_a_host_and_none_answers_without_certainty() {
        let mut unclaimed = UnclaimedRequests::default();
        for (role_is_taken, is_unreadable) in [(true, false), (false, true)] {
            let mut host = TestHost { role_is_taken, is_unreadable, ..TestHost::default() };
            unclaimed.receive_remote(&mut host, Time::ZERO, FROM, target(), &mad(1));
            assert_eq!(unclaimed.next(), None);
        }
        // Uncertain only when the time is over: the client asks again.
        let mut host = TestHost::default();
        unclaimed.receive_remote(&mut host, Time::ZERO, FROM, target(), &mad(1));
        host.is_unreadable = true;
        assert_eq!(unclaimed.due(&host, BETWEEN_LISTENERS), []);
    }

    #[test]
    fn any_number_of_requests_takes_a_limited_memory() {
        let (mut host, mut unclaimed) = (TestHost::default(), UnclaimedRequests::default());
        for name in 0..=u16::MAX {
            let mut mad = mad(0);
            (mad[26], mad[27]) = ((name >> 8) as u8, name as u8);
            unclaimed.receive_remote(&mut host, Time::ZERO, FROM, target(), &mad);
            unclaimed.receive_local(&mut host, Time::ZERO, FROM, target(), &mad);
        }
        assert!(unclaimed.local.len() <= MOST);
        assert_eq!(unclaimed.due(&host, AFTER_A_LISTENER).len(), MOST);
    }
}
