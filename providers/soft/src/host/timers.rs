//! When a QP is to be looked at though nothing came.

use ferroverbs_roce::Time;
use std::collections::BTreeSet;

/// QPs of this process by the time at which they want to be looked at. A QP that needs it later than it said is looked at
/// once too often, and says so anew: that is cheaper than to move it with every packet.
#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(Time, usize)>);

impl Timers {
    /// QP `index`, which has alarm `known`, wants to be looked at by `wanted`; returns its alarm from now on.
    pub(super) fn set(
        &mut self,
        index: usize,
        known: Option<Time>,
        wanted: Option<Time>,
    ) -> Option<Time> {
        match (known, wanted) {
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

    /// The QP whose alarm is the earliest, if that is over; it has none any more.
    pub(super) fn take_due(&mut self, now: Time) -> Option<usize> {
        let &(at, index) = self.0.first()?;
        (at <= now).then(|| {
            self.0.pop_first();
            index
        })
    }

    /// When the next alarm is.
    pub(super) fn next(&self) -> Option<Time> {
        self.0.first().map(|(at, _)| *at)
    }

    /// QP `index` has no alarm any more.
    pub(super) fn forget(&mut self, index: usize, known: Option<Time>) {
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
    fn the_earliest_comes_first_and_each_once() {
        let mut timers = Timers::default();
        assert_eq!(timers.set(1, None, Some(at(30))), Some(at(30)));
        assert_eq!(timers.set(2, None, Some(at(10))), Some(at(10)));
        assert_eq!(timers.next(), Some(at(10)));
        assert_eq!(timers.take_due(at(9)), None);
        assert_eq!(timers.take_due(at(30)), Some(2));
        assert_eq!(timers.take_due(at(30)), Some(1));
        assert_eq!(timers.take_due(at(30)), None);
    }

    #[test]
    fn an_alarm_moves_forward_at_once_and_backward_when_it_is_over() {
        let mut timers = Timers::default();
        let alarm = timers.set(1, None, Some(at(20)));
        assert_eq!(timers.set(1, alarm, Some(at(50))), Some(at(20)), "looked at once too often");
        assert_eq!(timers.set(1, alarm, None), Some(at(20)));
        assert_eq!(timers.set(1, alarm, Some(at(5))), Some(at(5)));
        assert_eq!(timers.take_due(at(60)), Some(1));
        assert_eq!(timers.take_due(at(60)), None, "not twice");
        let alarm = timers.set(1, None, Some(at(70)));
        timers.forget(1, alarm);
        assert_eq!(timers.next(), None);
    }
}
