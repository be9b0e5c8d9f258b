//! Requests of other hosts for services that nobody of this host has. One process answers them for all: who took the name for it first, and after
//! its end whoever needs it next.

use crate::agent::Peer;
use crate::ports::{self, Name};
use crate::sorting;
use ferroverbs_cm::Time;
use ferroverbs_cm::wire::{MAD_LEN, ServiceId};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

/// How long a service may have no listener before its client hears that: a server that has its client may be about to listen anew.
pub(crate) const BETWEEN_LISTENERS: Duration = Duration::from_millis(200);
/// Requests at most that wait for a listener, and that are remembered to have one.
const MOST: usize = 256;

/// A request: who asks, and what he calls it.
type Asked = (Peer, u32);

/// Requests that are not our own process's.
#[derive(Debug, Default)]
pub(crate) struct Strays {
    /// We answer for all.
    voice: Option<Name>,
    /// Had a listener when they came: what became of it is that process's affair.
    others: VecDeque<Asked>,
    /// Had none; the earliest first.
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
    /// Whether it is us who answers for those that do not.
    pub(crate) fn are_ours(&mut self) -> bool {
        if self.voice.is_none() {
            self.voice = ports::speak();
        }
        self.voice.is_some()
    }

    /// A request came, for a service that this process does not have.
    pub(crate) fn take(
        &mut self,
        now: Time,
        from: Peer,
        (service, to): (ServiceId, IpAddr),
        mad: &[u8; MAD_LEN],
    ) {
        let asked = (from, sorting::asker(mad));
        let is_known = self.others.contains(&asked)
            || self.doubted.iter().any(|doubted| doubted.asked == asked);
        if is_known || !self.are_ours() {
            return;
        }
        match ports::is_listened_to(service, to) {
            Ok(true) => {
                self.others.truncate(MOST - 1);
                self.others.push_front(asked);
            }
            Ok(false) if self.doubted.len() < MOST => {
                let until = now.saturating_add(BETWEEN_LISTENERS);
                self.doubted.push_back(Doubted { until, service, to, asked, mad: *mad });
            }
            // It comes again.
            Ok(false) | Err(_) => {}
        }
    }

    /// When `due` has something to say.
    pub(crate) fn next(&self) -> Option<Time> {
        self.doubted.front().map(|doubted| doubted.until)
    }

    /// A request whose time has come, and that still has no listener. One that has, or of which that cannot be seen, comes again.
    pub(crate) fn due(&mut self, now: Time) -> Option<(Peer, [u8; MAD_LEN])> {
        while self.next().is_some_and(|until| until <= now) {
            let doubted = self.doubted.pop_front()?;
            if ports::is_listened_to(doubted.service, doubted.to) == Ok(false) {
                return Some((doubted.asked.0, doubted.mad));
            }
        }
        None
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
            // A program on this machine has the voice; the rest is its own business.
            eprintln!("skipped: another process answers for this host");
            return;
        }
        let start = Time::ZERO;
        strays.take(start, from, (nobodys, four), &mad(1));
        strays.take(start, from, (nobodys, four), &mad(1));
        strays.take(start, from, (somebodys, four), &mad(2));
        // Its listener goes; what it took is not ours for that.
        drop(listener);
        strays.take(start, from, (somebodys, four), &mad(2));
        assert_eq!((strays.next(), strays.due(start)), (Some(BETWEEN_LISTENERS), None));
        assert_eq!(strays.due(BETWEEN_LISTENERS), Some((from, mad(1))));
        assert_eq!((strays.next(), strays.due(BETWEEN_LISTENERS)), (None, None));
    }
}
