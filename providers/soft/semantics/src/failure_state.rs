//! The failure state of a send queue: working, failed, or broken with a QP that must be notified
//! (IBTA 1.7 10.3.1, 9.9).
//!
//! The send queue's owner changes the state; the QP learns of a failure under its own locks.

/// The failure state of a send queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureState {
    /// Requests are issued.
    #[default]
    Working,
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
    NotNotified(FailureEffects),
    /// The QP was notified, and has not asked for the breakage.
    Notified(FailureEffects),
    /// The QP knows the breakage.
    Noticed,
}

/// The consequences of a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailureEffects {
    /// The QP left its state, so later requests are flushed.
    pub stopped: bool,
    /// The QP itself failed (`IBV_EVENT_QP_FATAL`).
    pub fatal: bool,
}

impl FailureState {
    /// Whether requests are issued.
    #[inline]
    #[must_use]
    pub const fn is_working(self) -> bool {
        matches!(self, Self::Working)
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
    pub const fn needs_notice(self) -> bool {
        matches!(self, Self::Broken(FailureNotice::NotNotified(_)))
    }

    /// Records that a request failed or will fail.
    pub const fn fail(&mut self) {
        if self.is_working() {
            *self = Self::Failed;
        }
    }

    /// Records that a failed request was completed, and that the QP must be notified.
    pub const fn break_off(&mut self, now: FailureEffects) {
        let before = self.breakage();
        *self = Self::Broken(FailureNotice::NotNotified(FailureEffects {
            stopped: before.stopped | now.stopped,
            fatal: before.fatal | now.fatal,
        }));
    }

    /// Records a flushed request, whose cause the caller knows.
    pub const fn flush(&mut self) {
        if !self.is_broken() {
            *self = Self::Broken(FailureNotice::Noticed);
        }
    }

    /// Marks the QP as notified. Returns whether it was not notified before.
    #[inline]
    pub const fn mark_notified(&mut self) -> bool {
        let Self::Broken(FailureNotice::NotNotified(breakage)) = *self else { return false };
        *self = Self::Broken(FailureNotice::Notified(breakage));
        true
    }

    /// Returns the breakage, and records that the QP knows it.
    pub const fn take_effects(&mut self) -> FailureEffects {
        let breakage = self.breakage();
        if self.is_broken() {
            *self = Self::Broken(FailureNotice::Noticed);
        }
        breakage
    }

    /// Restarts the queue, after a reset or SQE. A pending notification is dropped, because the QP
    /// has left the state that it concerns.
    pub const fn resume(&mut self) {
        *self = Self::Working;
    }

    const fn breakage(self) -> FailureEffects {
        match self {
            Self::Broken(
                FailureNotice::NotNotified(breakage) | FailureNotice::Notified(breakage),
            ) => breakage,
            _ => FailureEffects { stopped: false, fatal: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: FailureEffects = FailureEffects { stopped: false, fatal: false };
    const STOPPED: FailureEffects = FailureEffects { stopped: true, fatal: false };
    const FATAL: FailureEffects = FailureEffects { stopped: true, fatal: true };
    const KNOWN: FailureState = FailureState::Broken(FailureNotice::Noticed);

    const fn not_notified(breakage: FailureEffects) -> FailureState {
        FailureState::Broken(FailureNotice::NotNotified(breakage))
    }

    const fn notified(breakage: FailureEffects) -> FailureState {
        FailureState::Broken(FailureNotice::Notified(breakage))
    }

    /// Each state, and its successor after: failure, breakage that stops, flush, notification,
    /// query.
    const TRANSITIONS: [(FailureState, [FailureState; 5]); 7] = [
        (
            FailureState::Working,
            [
                FailureState::Failed,
                not_notified(STOPPED),
                KNOWN,
                FailureState::Working,
                FailureState::Working,
            ],
        ),
        (
            FailureState::Failed,
            [
                FailureState::Failed,
                not_notified(STOPPED),
                KNOWN,
                FailureState::Failed,
                FailureState::Failed,
            ],
        ),
        (
            not_notified(NONE),
            [not_notified(NONE), not_notified(STOPPED), not_notified(NONE), notified(NONE), KNOWN],
        ),
        (
            not_notified(FATAL),
            [not_notified(FATAL), not_notified(FATAL), not_notified(FATAL), notified(FATAL), KNOWN],
        ),
        (
            notified(NONE),
            [notified(NONE), not_notified(STOPPED), notified(NONE), notified(NONE), KNOWN],
        ),
        (
            notified(FATAL),
            [notified(FATAL), not_notified(FATAL), notified(FATAL), notified(FATAL), KNOWN],
        ),
        (KNOWN, [KNOWN, not_notified(STOPPED), KNOWN, KNOWN, KNOWN]),
    ];

    /// IBTA 1.7 9.9, 10.3.1.
    #[test]
    fn every_failure_state_has_its_successors() {
        let steps: [fn(&mut FailureState); 5] = [
            FailureState::fail,
            |failure| failure.break_off(STOPPED),
            FailureState::flush,
            |failure| assert_eq!(failure.needs_notice(), failure.mark_notified()),
            |failure| {
                failure.take_effects();
            },
        ];
        for (from, expected) in TRANSITIONS {
            for (step, expected) in steps.iter().zip(expected) {
                let mut failure = from;
                step(&mut failure);
                assert_eq!(failure, expected, "from {from:?}");
            }
            let mut failure = from;
            failure.resume();
            assert!(failure.is_working() && !failure.is_broken(), "from {from:?}");
        }
    }

    #[test]
    fn a_breakage_is_notified_once_and_learnt_once() {
        let mut failure = FailureState::Working;
        failure.fail();
        assert!(!failure.is_working() && !failure.is_broken() && !failure.mark_notified());
        failure.break_off(FATAL);
        assert!(failure.is_broken() && failure.needs_notice());
        assert!(failure.mark_notified() && !failure.mark_notified());
        assert_eq!((failure.take_effects(), failure.take_effects()), (FATAL, NONE));
        assert!(failure.is_broken() && !failure.needs_notice());
    }
}
