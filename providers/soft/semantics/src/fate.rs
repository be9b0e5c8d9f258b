//! What became of a send queue: it goes on, or a request failed, or that was completed and the QP is to be told (IBTA vol 1, 10.3.1 and 9.9).

/// What became of a send queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// Requests are issued.
    #[default]
    Going,
    /// A request failed, or will when it is answered: nothing behind it is issued.
    Failed,
    /// A failed request was completed: whatever is behind it is flushed.
    Broken(Word),
}

/// Whether the QP knows that its queue broke. Its state changes at once; what follows from that needs locks that whoever finds the failure does
/// not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Not yet.
    Untold(Breakage),
    /// It was told, and has not asked what happened.
    Told(Breakage),
    /// It knows all.
    Known,
}

/// What broke with a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakage {
    /// That took the QP to another state: what is behind is to be flushed.
    pub stopped: bool,
    /// The QP itself broke (`IBV_EVENT_QP_FATAL`).
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

    /// Whether the QP is to be told.
    #[inline]
    #[must_use]
    pub const fn is_untold(self) -> bool {
        matches!(self, Self::Broken(Word::Untold(_)))
    }

    /// A request failed, or will.
    pub const fn fail(&mut self) {
        if self.is_going() {
            *self = Self::Failed;
        }
    }

    /// A failed request is completed, and the QP does not know.
    pub const fn break_off(&mut self, now: Breakage) {
        let before = self.breakage();
        *self = Self::Broken(Word::Untold(Breakage {
            stopped: before.stopped | now.stopped,
            fatal: before.fatal | now.fatal,
        }));
    }

    /// A request is flushed, by one who knows why.
    pub const fn flush(&mut self) {
        if !self.is_broken() {
            *self = Self::Broken(Word::Known);
        }
    }

    /// Whether the QP is to be told; it is, with this.
    #[inline]
    pub const fn tell(&mut self) -> bool {
        let Self::Broken(Word::Untold(breakage)) = *self else { return false };
        *self = Self::Broken(Word::Told(breakage));
        true
    }

    /// What the QP does not know yet; it does now.
    pub const fn learn(&mut self) -> Breakage {
        let breakage = self.breakage();
        if self.is_broken() {
            *self = Self::Broken(Word::Known);
        }
        breakage
    }

    /// The queue begins anew, or goes on after SQE. What the QP was not told does not matter any more: it has left the state that it was about.
    pub const fn resume(&mut self) {
        *self = Self::Going;
    }

    const fn breakage(self) -> Breakage {
        match self {
            Self::Broken(Word::Untold(breakage) | Word::Told(breakage)) => breakage,
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
    const KNOWN: Fate = Fate::Broken(Word::Known);

    const fn untold(breakage: Breakage) -> Fate {
        Fate::Broken(Word::Untold(breakage))
    }

    const fn told(breakage: Breakage) -> Fate {
        Fate::Broken(Word::Told(breakage))
    }

    /// Each state, and what it is after: a failure, a breakage that stops, a flush, telling, learning.
    const TRANSITIONS: [(Fate, [Fate; 5]); 7] = [
        (Fate::Going, [Fate::Failed, untold(STOPPED), KNOWN, Fate::Going, Fate::Going]),
        (Fate::Failed, [Fate::Failed, untold(STOPPED), KNOWN, Fate::Failed, Fate::Failed]),
        (untold(NONE), [untold(NONE), untold(STOPPED), untold(NONE), told(NONE), KNOWN]),
        (untold(FATAL), [untold(FATAL), untold(FATAL), untold(FATAL), told(FATAL), KNOWN]),
        (told(NONE), [told(NONE), untold(STOPPED), told(NONE), told(NONE), KNOWN]),
        (told(FATAL), [told(FATAL), untold(FATAL), told(FATAL), told(FATAL), KNOWN]),
        (KNOWN, [KNOWN, untold(STOPPED), KNOWN, KNOWN, KNOWN]),
    ];

    #[test]
    fn every_state_goes_where_it_should() {
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
    fn what_happened_is_told_once_and_learnt_once() {
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
