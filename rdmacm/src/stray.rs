//! Requests for services without a listener on this host, or whose process was killed.
//! One process answers them for the whole host: the first process that takes the name of the role,
//! and after its end the next process that needs the role.
//!
//! A server that stops listening with unanswered requests announces the requests by a name
//! ([`ports::owe`]) until they are answered.

use crate::agent::Peer;
use crate::ports::{self, Name};
use crate::processes;
use crate::sorting;
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
type Asked = (Peer, u32);

/// Requests for services that this process does not have.
#[derive(Debug, Default)]
pub(crate) struct Strays {
    /// The host-wide role of answering requests without a process, if this process holds the role.
    voice: Option<Name>,
    /// Local requests that arrived once. Their clients saw a listener before.
    local: VecDeque<Asked>,
    /// Requests that had no listener on arrival.
    doubted: VecDeque<Doubted>,
}

#[derive(Debug)]
struct Doubted {
    until: Time,
    service: ServiceId,
    to: IpAddr,
    asked: Asked,
    mad: [u8; MAD_LEN],
}

impl Strays {
    /// Whether this process answers for the host; claims the role if it is free.
    pub(crate) fn are_ours(&mut self) -> bool {
        if self.voice.is_none() {
            self.voice = processes::speak();
        }
        self.voice.is_some()
    }

    /// Records a request of another host for a service that this process does not have.
    pub(crate) fn take(
        &mut self,
        now: Time,
        from: Peer,
        target: (ServiceId, IpAddr),
        mad: &[u8; MAD_LEN],
    ) {
        self.doubt(now, BETWEEN_LISTENERS, from, target, mad);
    }

    fn doubt(
        &mut self,
        now: Time,
        patience: Duration,
        from: Peer,
        (service, to): (ServiceId, IpAddr),
        mad: &[u8; MAD_LEN],
    ) {
        let asked = (from, sorting::asker(mad));
        let is_known = self.doubted.iter().any(|doubted| doubted.asked == asked);
        if is_known || self.doubted.len() >= MOST || !self.are_ours() {
            return;
        }
        // If the state cannot be determined, the request is ignored, and the client sends it again.
        if ports::is_listened_to(service, to) == Ok(false) {
            let until = now.saturating_add(patience);
            self.doubted.push_back(Doubted { until, service, to, asked, mad: *mad });
        }
    }

    /// As [`Strays::take`], for a request of this host. The first copy of a request is only
    /// remembered, because its client saw a listener just before.
    pub(crate) fn take_local(
        &mut self,
        now: Time,
        from: Peer,
        target: (ServiceId, IpAddr),
        mad: &[u8; MAD_LEN],
    ) {
        let asked = (from, sorting::asker(mad));
        if self.local.contains(&asked) {
            return self.doubt(now, AFTER_A_LISTENER, from, target, mad);
        }
        self.local.truncate(MOST - 1);
        self.local.push_front(asked);
    }

    /// The next time at which `due` returns requests.
    pub(crate) fn next(&self) -> Option<Time> {
        self.doubted.iter().map(|doubted| doubted.until).min()
    }

    /// The requests whose time is over and that still have neither a listener nor an announcement.
    /// A client sends every other request again.
    pub(crate) fn due(&mut self, now: Time) -> Vec<(Peer, [u8; MAD_LEN])> {
        if self.next().is_none_or(|next| next > now) {
            return vec![];
        }
        let all = std::mem::take(&mut self.doubted);
        let (due, left): (VecDeque<_>, _) = all.into_iter().partition(|one| one.until <= now);
        self.doubted = left;
        let Ok(owed) = ports::owed() else { return vec![] };
        let is_nobodys = |one: &Doubted| {
            !owed.contains(&one.service) && ports::is_listened_to(one.service, one.to) == Ok(false)
        };
        due.iter().filter(|one| is_nobodys(one)).map(|one| (one.asked.0, one.mad)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Claim;

    #[test]
    fn who_asks_for_nobody_hears_it_later_and_who_asks_for_somebody_hears_nothing() {
        let mut strays = Strays::default();
        let nobodys = ServiceId(0xfeed_0001_0000_0000 | u64::from(std::process::id()));
        let somebodys = ServiceId(nobodys.0 + (1 << 32));
        let four = IpAddr::from([10, 0, 0, 1]);
        let listener = ports::listen(somebodys, Claim::of((four, 0).into(), true, false))
            .expect("nobody does");
        let from = Peer { remote: [1; 16], local: [2; 16] };
        let mad = |name: u8| {
            let mut mad = [0; MAD_LEN];
            mad[27] = name;
            mad
        };
        if !strays.are_ours() {
            // Another program of this machine holds the role; the test cannot go on.
            eprintln!("skipped: another process answers for this host");
            return;
        }
        let start = Time::ZERO;
        strays.take(start, from, (nobodys, four), &mad(1));
        strays.take(start, from, (nobodys, four), &mad(1));
        strays.take(start, from, (somebodys, four), &mad(2));
        assert_eq!((strays.next(), strays.due(start)), (Some(BETWEEN_LISTENERS), vec![]));
        assert_eq!(strays.due(BETWEEN_LISTENERS), [(from, mad(1))]);
        assert_eq!((strays.next(), strays.due(BETWEEN_LISTENERS)), (None, vec![]));

        // The listener goes, and its process still has the request.
        let owed = ports::owe(somebodys, 7).expect("a name is free");
        let another = ports::owe(somebodys, 7).expect("another one, too");
        drop((listener, another));
        strays.take(start, from, (somebodys, four), &mad(2));
        assert_eq!(strays.due(BETWEEN_LISTENERS), [], "somebody has it");
        // The process is killed.
        drop(owed);
        strays.take(start, from, (somebodys, four), &mad(2));
        assert_eq!(strays.due(BETWEEN_LISTENERS), [(from, mad(2))]);

        // A request of this host: its client saw a listener.
        strays.take_local(start, from, (nobodys, four), &mad(3));
        assert_eq!(strays.next(), None);
        strays.take_local(start, from, (nobodys, four), &mad(3));
        strays.take(start, from, (nobodys, four), &mad(4));
        assert_eq!(strays.next(), Some(BETWEEN_LISTENERS), "each has its time");
        assert_eq!(strays.due(BETWEEN_LISTENERS), [(from, mad(4))]);
        assert_eq!(strays.due(AFTER_A_LISTENER), [(from, mad(3))]);
    }
}
