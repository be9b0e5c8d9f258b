//! The failure state of a send queue: working, failed, or broken with a QP that must be notified
//! (IBTA 1.7 10.3.1, 9.9).
//!
//! The send queue's owner changes the state; the QP learns of a failure under its own locks.

/// The failure state of a send queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// Requests are issued.
    #[default]
    Going,
    /// A request failed, or will fail when its response arrives. No later request is issued.
    Failed,
    /// A failed request was completed. All later requests are flushed.
    Broken(FailureNotice),
}

/// Whether the QP knows that its send queue broke. The QP's state changes at once. Further
/// consequences need locks that the thread that detects the failure does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureNotice {
    /// The QP was not notified.
    NotNotified(Breakage),
    /// The QP was notified, and has not asked for the breakage.
    Notified(Breakage),
    /// The QP knows the breakage.
    Known,
}

/// The consequences of a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakage {
    /// The QP left its state, so later requests are flushed.
    pub stopped: bool,
    /// The QP itself failed (`IBV_EVENT_QP_FATAL`).
    pub fatal: bool,
}

impl Fate {
    /// Whether requests are issued.
    #[inline]
    #[must_use]
    pub const fn is_going(self) -> bool {
        matches!(self, Self::Going)
    }

    /// Whether a failed request was completed.
    #[inline]
    #[must_use]
    pub const fn is_broken(self) -> bool {
        matches!(self, Self::Broken(_))
    }

    /// Whether the QP must be notified.
    #[inline]
    #[must_use]
    pub const fn is_untold(self) -> bool {
        matches!(self, Self::Broken(FailureNotice::NotNotified(_)))
    }

    /// Records that a request failed or will fail.
    pub const fn fail(&mut self) {
        if self.is_going() {
            *self = Self::Failed;
        }
    }

    /// Records that a failed request was completed, and that the QP must be notified.
    pub const fn break_off(&mut self, now: Breakage) {
        let before = self.breakage();
        *self = Self::Broken(FailureNotice::NotNotified(Breakage {
            stopped: before.stopped | now.stopped,
            fatal: before.fatal | now.fatal,
        }));
    }

    /// Records a flushed request, whose cause the caller knows.
    pub const fn flush(&mut self) {
        if !self.is_broken() {
            *self = Self::Broken(FailureNotice::Known);
        }
    }

    /// Marks the QP as notified. Returns whether it was not notified before.
    #[inline]
    pub const fn tell(&mut self) -> bool {
        let Self::Broken(FailureNotice::NotNotified(breakage)) = *self else { return false };
        *self = Self::Broken(FailureNotice::Notified(breakage));
        true
    }

    /// Returns the breakage, and records that the QP knows it.
    pub const fn learn(&mut self) -> Breakage {
        let breakage = self.breakage();
        if self.is_broken() {
            *self = Self::Broken(FailureNotice::Known);
        }
        breakage
    }

    /// Restarts the queue, after a reset or SQE. A pending notification is dropped, because the QP
    /// has left the state that it concerns.
    pub const fn resume(&mut self) {
        *self = Self::Going;
    }

    const fn breakage(self) -> Breakage {
        match self {
            Self::Broken(
                FailureNotice::NotNotified(breakage) | FailureNotice::Notified(breakage),
            ) => breakage,
            _ => Breakage { stopped: false, fatal: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Breakage = Breakage { stopped: false, fatal: false };
    const STOPPED: Breakage = Breakage { stopped: true, fatal: false };
    const FATAL: Breakage = Breakage { stopped: true, fatal: true };
    const KNOWN: Fate = Fate::Broken(FailureNotice::Known);

    const fn untold(breakage: Breakage) -> Fate {
        Fate::Broken(FailureNotice::NotNotified(breakage))
    }

    const fn told(breakage: Breakage) -> Fate {
        Fate::Broken(FailureNotice::Notified(breakage))
    }

    /// Each state, and its successor after: failure, breakage that stops, flush, notification,
    /// query.
    const TRANSITIONS: [(Fate, [Fate; 5]); 7] = [
        (Fate::Going, [Fate::Failed, untold(STOPPED), KNOWN, Fate::Going, Fate::Going]),
        (Fate::Failed, [Fate::Failed, untold(STOPPED), KNOWN, Fate::Failed, Fate::Failed]),
        (untold(NONE), [untold(NONE), untold(STOPPED), untold(NONE), told(NONE), KNOWN]),
        (untold(FATAL), [untold(FATAL), untold(FATAL), untold(FATAL), told(FATAL), KNOWN]),
        (told(NONE), [told(NONE), untold(STOPPED), told(NONE), told(NONE), KNOWN]),
        (told(FATAL), [told(FATAL), untold(FATAL), told(FATAL), told(FATAL), KNOWN]),
        (KNOWN, [KNOWN, untold(STOPPED), KNOWN, KNOWN, KNOWN]),
    ];

    /// IBTA 1.7 9.9, 10.3.1.
    #[test]
    fn every_failure_state_has_its_successors() {
        let steps: [fn(&mut Fate); 5] = [
            Fate::fail,
            |fate| fate.break_off(STOPPED),
            Fate::flush,
            |fate| assert_eq!(fate.is_untold(), fate.tell()),
            |fate| {
                fate.learn();
            },
        ];
        for (from, expected) in TRANSITIONS {
            for (step, expected) in steps.iter().zip(expected) {
                let mut fate = from;
                step(&mut fate);
                assert_eq!(fate, expected, "from {from:?}");
            }
            let mut fate = from;
            fate.resume();
            assert!(fate.is_going() && !fate.is_broken(), "from {from:?}");
        }
    }

    #[test]
    fn a_breakage_is_notified_once_and_learnt_once() {
        let mut fate = Fate::Going;
        fate.fail();
        assert!(!fate.is_going() && !fate.is_broken() && !fate.tell());
        fate.break_off(FATAL);
        assert!(fate.is_broken() && fate.is_untold());
        assert!(fate.tell() && !fate.tell());
        assert_eq!((fate.learn(), fate.learn()), (FATAL, NONE));
        assert!(fate.is_broken() && !fate.is_untold());
    }
}
