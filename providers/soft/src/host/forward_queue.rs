//! Packets for other processes of this host that had no room for them when they came.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What became of a packet for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passed {
    Yes,
    /// There is no room at present.
    NotYet,
    /// Nobody is there.
    Never,
}

/// Packets that could not be passed on when they came, oldest first.
#[derive(Debug, Default)]
pub(super) struct Waiting(VecDeque<Late>);

#[derive(Debug)]
struct Late {
    slot: u16,
    since: Instant,
    /// What stands before the packet, and the packet.
    frame: Box<[u8]>,
}

/// So many wait at most; what comes then is lost, as in a socket that is full.
const MOST: usize = 256;
/// So long: then whoever sent it has long sent it again.
const KEPT: Duration = Duration::from_millis(200);

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether something for this process waits: what comes later goes behind it.
    pub(super) fn has(&self, slot: u16) -> bool {
        self.0.iter().any(|late| late.slot == slot)
    }

    /// `false`: there is no room.
    pub(super) fn keep(&mut self, slot: u16, before: &[u8], packet: &[u8], now: Instant) -> bool {
        if self.0.len() >= MOST {
            return false;
        }
        self.0.push_back(Late { slot, since: now, frame: [before, packet].concat().into() });
        true
    }

    /// Tries all again, in order; says how many are given up.
    pub(super) fn again(
        &mut self,
        now: Instant,
        mut pass: impl FnMut(u16, &[u8]) -> Passed,
    ) -> u64 {
        let mut full = Vec::new();
        let mut lost = 0;
        self.0.retain(|late| {
            let passed = match full.contains(&late.slot) {
                true => Passed::NotYet,
                false => pass(late.slot, &late.frame),
            };
            let is_over = now.duration_since(late.since) > KEPT;
            match passed {
                Passed::Yes => return false,
                Passed::NotYet if !is_over => full.push(late.slot),
                Passed::NotYet | Passed::Never => lost += 1,
            }
            passed == Passed::NotYet && !is_over
        });
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_keeps_its_order_and_is_given_up_in_time() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        for (slot, packet) in [(1, b"a"), (2, b"b"), (1, b"c")] {
            assert!(waiting.keep(slot, b"", packet, now));
        }
        assert!(waiting.has(1) && !waiting.has(3));
        let mut tried = Vec::new();
        let lost = waiting.again(now, |slot, frame| {
            tried.push((slot, frame.to_vec()));
            if slot == 1 { Passed::NotYet } else { Passed::Yes }
        });
        let wanted = [(1, b"a".to_vec()), (2, b"b".to_vec())];
        assert_eq!((lost, tried), (0, wanted.to_vec()), "nothing overtakes what is for the same");
        let later = now + KEPT + Duration::from_millis(1);
        assert_eq!(waiting.again(later, |_, _| Passed::NotYet), 2);
        assert!(waiting.is_empty());
        assert!((0..MOST).all(|_| waiting.keep(1, b"", b"x", now)));
        assert!(!waiting.keep(1, b"", b"x", now), "there is an end to it");
        assert_eq!(waiting.again(now, |_, _| Passed::Never), MOST as u64);
    }
}
