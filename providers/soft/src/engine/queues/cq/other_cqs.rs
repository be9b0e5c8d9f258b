//! Looks of a poll at further CQs of the process that no thread polls. `Cq::drive` enters here
//! after fruitless polls; found work is served like in a poll of the other CQ.
//!
//! A thread that polls a CQ may wait for work that only a poll of another CQ would do. Example: a
//! thread polls its send CQ, while its messages wait in rings of a receive CQ of the same process.
//! So a fruitless poll sometimes looks at the next CQ without recent polls. The service thread does
//! the same, but milliseconds later.
//!
//! Requests of the polled CQ come first: if the remote QP belongs to this process, the look serves
//! that QP and no other CQ. Threads with separate CQs therefore do not disturb each other.
#![forbid(unsafe_code)]

use crate::engine::adapter::registry::OtherCq;
use crate::engine::queues::cq::Cq;
use crate::engine::queues::cq::hot_slots::MAX_HOT;
use crate::engine::queues::cq::other_cq_looks::OtherCqLooks;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::served_by::ServedBy;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Fruitless polls per look, powers of two: after a look with completions, after a look without
/// (least and most), and without any other CQ. A look at a CQ polled by another thread takes cache
/// lines from that thread.
const AFTER_COMPLETIONS: u32 = 1;
const MIN_INTERVAL: u32 = 4;
const MAX_INTERVAL: u32 = 64;
const INTERVAL_ALONE: u32 = 1024;

/// Result of a look at another CQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum LookResult {
    Completions,
    Nothing,
    /// The process has no other CQ.
    NoOtherCq,
}

impl OtherCqLooks {
    /// Counts a fruitless poll. Returns whether a look is due.
    #[inline]
    pub(in crate::engine) fn is_due(&self) -> bool {
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        polls & self.interval_mask.load(Ordering::Relaxed) == 0
    }

    /// Sets the interval until the next look.
    fn set_interval(&self, found: LookResult) {
        let every = match found {
            LookResult::Completions => AFTER_COMPLETIONS,
            LookResult::Nothing => ((self.interval_mask.load(Ordering::Relaxed) + 1) * 2)
                .clamp(MIN_INTERVAL, MAX_INTERVAL),
            LookResult::NoOtherCq => INTERVAL_ALONE,
        };
        self.interval_mask.store(every - 1, Ordering::Relaxed);
    }

    /// Whether the CQ was polled since the last call.
    fn was_polled(&self) -> bool {
        let polls = self.polls.load(Ordering::Relaxed);
        self.polls_seen_by_others.swap(polls, Ordering::Relaxed) != polls
    }
}

impl Cq {
    /// Serves the remote QPs of this CQ's requests, otherwise looks at the next other CQ of the
    /// process.
    #[cold]
    pub(in crate::engine) fn look_at_other_cq(&self) {
        let found = if self.serve_local_receivers() {
            LookResult::Completions
        } else {
            match self
                .adapter
                .registry
                .next_other_cq(self.key(), |cq| cq.other_cq_looks.was_polled())
            {
                OtherCq::Cq(other) => other.look_for_other_poller(),
                OtherCq::Polled => LookResult::Nothing,
                OtherCq::None => LookResult::NoOtherCq,
            }
        };
        self.other_cq_looks.set_interval(found);
    }

    /// Serves QPs of this process that no thread polls and that have requests from this CQ. Returns
    /// whether any request was served.
    fn serve_local_receivers(&self) -> bool {
        // Begins with another QP each time: the first QPs may wait for receives that are not
        // posted.
        let turn = self.other_cq_looks.polls.load(Ordering::Relaxed) as usize;
        let mut any = false;
        self.each_sender(turn, MAX_HOT, |qp| {
            if let Some(remote) = qp.local_remote_qp()
                && remote.serve_for_sender(self)
            {
                qp.advance_send();
                any = true;
            }
        });
        any
    }

    /// Looks on behalf of a thread that polls another CQ.
    fn look_for_other_poller(&self) -> LookResult {
        let before = self.count();
        if self.try_look(ServedBy::Library) && self.count() != before {
            LookResult::Completions
        } else {
            LookResult::Nothing
        }
    }
}

impl Qp {
    /// The remote QP of the connection, if it belongs to this process.
    fn local_remote_qp(&self) -> Option<Arc<Self>> {
        self.requester().lock().local_remote_qp()
    }

    /// Serves arrivals for a sender whose thread polls `queue`, unless another thread polls for
    /// this QP. Returns whether any was served.
    fn serve_for_sender(&self, queue: &Cq) -> bool {
        if self.receives_on(queue)
            || !self.has_arrivals()
            || self.pair().is_some_and(|pair| pair.recv_cq.other_cq_looks.was_polled())
        {
            return false;
        }
        let before = self.acks().next_arrival();
        self.advance_receive(ServedBy::Library);
        // The acknowledgement is sent at once, because the sender waits for it.
        self.send_due_ack();
        self.acks().next_arrival() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks_in(of: &OtherCqLooks, polls: u32) -> usize {
        (0..polls).filter(|_| of.is_due()).count()
    }

    #[test]
    fn fruitless_checks_become_rare_and_a_fruitful_one_makes_them_frequent() {
        let of = OtherCqLooks::default();
        assert_eq!(looks_in(&of, INTERVAL_ALONE), INTERVAL_ALONE as usize);
        for expected in [MIN_INTERVAL, 2 * MIN_INTERVAL, 4 * MIN_INTERVAL] {
            of.set_interval(LookResult::Nothing);
            assert_eq!(looks_in(&of, INTERVAL_ALONE), (INTERVAL_ALONE / expected) as usize);
        }
        for _ in 0..10 {
            of.set_interval(LookResult::Nothing);
        }
        assert_eq!(looks_in(&of, INTERVAL_ALONE), (INTERVAL_ALONE / MAX_INTERVAL) as usize);
        of.set_interval(LookResult::Completions);
        assert_eq!(looks_in(&of, INTERVAL_ALONE), INTERVAL_ALONE as usize);
        of.set_interval(LookResult::NoOtherCq);
        assert_eq!(looks_in(&of, INTERVAL_ALONE), 1);
        of.set_interval(LookResult::Nothing);
        assert_eq!(looks_in(&of, INTERVAL_ALONE), (INTERVAL_ALONE / MAX_INTERVAL) as usize);
    }

    #[test]
    fn a_cq_that_another_thread_polls_is_left_to_that_thread() {
        let of = OtherCqLooks::default();
        assert!(!of.was_polled());
        of.is_due();
        assert!(of.was_polled());
        assert!(!of.was_polled());
    }
}
