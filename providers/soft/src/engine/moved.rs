//! Waiting until nobody moves bytes by a key that was taken back.
//!
//! The memory behind the key may not be given up before that, however long it takes: a process that was stopped in the middle of an
//! operation goes on with it when it is continued. So there is no end to the wait but the end of the operation or of its process. Whoever
//! waits for long sleeps, and says for whom.

use super::in_flight::is_in_flight;
use super::objects::adapter::Adapter;
use soft_local::fabric::Peer;
use soft_local::shm::view::View;
use soft_sys::notice;
use std::fmt::Display;
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

/// Looks that are made at once: most operations are over by then.
const LOOKS: u32 = 100;
/// The first sleep between two looks, and the longest.
const NAP: Duration = Duration::from_micros(50);
const LONG_NAP: Duration = Duration::from_millis(20);
/// After so long a line says for whom.
const SILENCE: Duration = Duration::from_secs(2);

/// A wait for something that nobody announces.
#[derive(Debug, Default)]
struct Wait {
    looks: u32,
    nap: Duration,
    /// When it began to sleep; `None` again once it was told of.
    since: Option<Instant>,
}

impl Wait {
    /// Lets time pass before the next look; longer each time. Returns, once, whether it has become long.
    fn pause(&mut self) -> bool {
        self.looks = self.looks.saturating_add(1);
        if self.looks < LOOKS {
            yield_now();
            return false;
        }
        if self.looks == LOOKS {
            (self.nap, self.since) = (NAP, Some(Instant::now()));
        }
        sleep(self.nap);
        self.nap = (self.nap * 2).min(LONG_NAP);
        let long = self.since.is_some_and(|since| since.elapsed() >= SILENCE);
        if long {
            self.since = None;
        }
        long
    }
}

impl Adapter {
    /// Waits until nobody moves bytes by the key `rkey` of ours, which was taken back; `what` it belongs to, for people.
    pub(crate) fn await_in_flight(&self, rkey: u32, what: &dyn Display) {
        let own = self.fabric.slot();
        let mut wait = Wait::default();
        while is_in_flight(&self.view, own, rkey) {
            if wait.pause() {
                notice!(
                    "{what}: waits for another thread of this process, which is in the middle of an operation by rkey 0x{rkey:x}"
                );
            }
        }
        self.fabric.for_each_peer(|peer| {
            let mut wait = Wait::default();
            while moves(peer, own, rkey) {
                if wait.pause() {
                    notice!(
                        "{what}: waits for process {}, which is in the middle of an operation by rkey 0x{rkey:x}; is it stopped?",
                        peer.pid
                    );
                }
            }
        });
    }

    /// Whether anybody is at a one-sided operation by the key `rkey` of ours.
    pub(crate) fn is_moved(&self, rkey: u32) -> bool {
        let own = self.fabric.slot();
        let mut moved = is_in_flight(&self.view, own, rkey);
        self.fabric.for_each_peer(|peer| moved |= moves(peer, own, rkey));
        moved
    }
}

/// Whether a peer is at a one-sided operation by the key `rkey` of process `target`. The dead are at nothing.
fn moves(peer: &Peer, target: u16, rkey: u32) -> bool {
    // SAFETY: fabric segments have the lengths of shm::layout, and live as long as the borrowed peer.
    let view = unsafe { View::of(peer) };
    !peer.is_dead() && is_in_flight(&view, target, rkey)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_sleeps_longer_and_longer_and_is_told_of_once() {
        let mut wait = Wait::default();
        while wait.looks < LOOKS {
            assert!(!wait.pause(), "nothing is said of short ones");
        }
        assert!(wait.nap > NAP);
        wait.nap = LONG_NAP;
        wait.since = wait.since.and_then(|since| since.checked_sub(SILENCE));
        assert!(wait.pause());
        assert!(!wait.pause() && wait.nap == LONG_NAP);
    }
}
