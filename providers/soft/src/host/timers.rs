//! Timeouts of the transports: when a QP needs service without a packet.
//! The driver (`wire`) runs the QPs whose timeout has expired.

use cface::sync::Mutex;
use ferroverbs_roce::Time;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// The timeouts of all transports of a process.
#[derive(Debug)]
pub(super) struct Timeouts {
    timers: Mutex<QpTimers>,
    /// Mirrors the earliest timeout in nanoseconds; `u64::MAX` without one. Written under the lock.
    /// A stale value delays a timeout until the next poll.
    earliest_ns: AtomicU64,
}

/// QPs of this process by the time of their next timeout. A timeout that moves back stays in the
/// set: one early call is cheaper than a change with each packet.
#[derive(Debug, Default)]
struct QpTimers(BTreeSet<(Time, usize)>);

impl Default for Timeouts {
    fn default() -> Self {
        Self { timers: Mutex::default(), earliest_ns: AtomicU64::new(u64::MAX) }
    }
}

impl Timeouts {
    /// Time of the earliest timeout.
    #[inline]
    pub(super) fn earliest(&self) -> Option<Time> {
        let earliest = self.earliest_ns.load(Ordering::Relaxed);
        (earliest != u64::MAX).then(|| Time::from_ns(earliest))
    }

    /// Whether a timeout has expired.
    #[inline]
    pub(super) fn is_due(&self, now: Time) -> bool {
        now.ns() >= self.earliest_ns.load(Ordering::Relaxed)
    }

    /// Schedules QP `index` for `wanted`; `present` is its timeout, before and after the call.
    /// Returns true if the new timeout is earlier than all before.
    pub(super) fn schedule(
        &self,
        index: usize,
        present: &mut Option<Time>,
        wanted: Option<Time>,
    ) -> bool {
        match (*present, wanted) {
            (_, None) => return false,
            (Some(at), Some(by)) if at <= by => return false,
            _ => {}
        }
        let mut timers = self.timers.lock();
        *present = timers.schedule(index, *present, wanted);
        let before = self.earliest_ns.load(Ordering::Relaxed);
        self.note_earliest(&timers) < before
    }

    /// Removes and returns the QP with the earliest timeout, if the time has come.
    pub(super) fn pop_due(&self, now: Time) -> Option<usize> {
        let mut timers = self.timers.lock();
        let due = timers.pop_due(now);
        self.note_earliest(&timers);
        due
    }

    /// Removes the timeout of QP `index`.
    pub(super) fn cancel(&self, index: usize, present: Option<Time>) {
        self.timers.lock().cancel(index, present);
    }

    fn note_earliest(&self, timers: &QpTimers) -> u64 {
        let earliest = timers.earliest().map_or(u64::MAX, Time::ns);
        self.earliest_ns.store(earliest, Ordering::Relaxed);
        earliest
    }
}

impl QpTimers {
    /// Schedules QP `index`, whose present timeout is `known`, for time `wanted`. Returns its
    /// timeout in the set.
    fn schedule(
        &mut self,
        index: usize,
        known: Option<Time>,
        installed: Option<Time>,
    ) -> Option<Time> {
        match (known, installed) {
            (Some(at), Some(by)) if at <= by => Some(at),
            (_, None) => known,
            (known, Some(by)) => {
                if let Some(at) = known {
                    self.0.remove(&(at, index));
                }
                self.0.insert((by, index));
                Some(by)
            }
        }
    }

    /// Removes and returns the QP with the earliest timeout, if the time has come.
    fn pop_due(&mut self, now: Time) -> Option<usize> {
        let &(at, index) = self.0.first()?;
        (at <= now).then(|| {
            self.0.pop_first();
            index
        })
    }

    /// Time of the earliest timeout.
    fn earliest(&self) -> Option<Time> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Removes the timeout of QP `index`.
    fn cancel(&mut self, index: usize, known: Option<Time>) {
        if let Some(at) = known {
            self.0.remove(&(at, index));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ns: u64) -> Time {
        Time::from_ns(ns)
    }

    #[test]
    fn timeouts_expire_in_order_and_once() {
        let mut timers = QpTimers::default();
        assert_eq!(timers.schedule(1, None, Some(at(30))), Some(at(30)));
        assert_eq!(timers.schedule(2, None, Some(at(10))), Some(at(10)));
        assert_eq!(timers.earliest(), Some(at(10)));
        assert_eq!(timers.pop_due(at(9)), None);
        assert_eq!(timers.pop_due(at(30)), Some(2));
        assert_eq!(timers.pop_due(at(30)), Some(1));
        assert_eq!(timers.pop_due(at(30)), None);
    }

    #[test]
    fn a_timeout_moves_forward_at_once_and_back_after_it_has_expired() {
        let mut timers = QpTimers::default();
        let alarm = timers.schedule(1, None, Some(at(20)));
        assert_eq!(
            timers.schedule(1, alarm, Some(at(50))),
            Some(at(20)),
            "looked at once too often"
        );
        assert_eq!(timers.schedule(1, alarm, None), Some(at(20)));
        assert_eq!(timers.schedule(1, alarm, Some(at(5))), Some(at(5)));
        assert_eq!(timers.pop_due(at(60)), Some(1));
        assert_eq!(timers.pop_due(at(60)), None, "not twice");
        let alarm = timers.schedule(1, None, Some(at(70)));
        timers.cancel(1, alarm);
        assert_eq!(timers.earliest(), None);
    }
}
