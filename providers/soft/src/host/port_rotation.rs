//! By which way messages of connection managers go.

use ferroverbs_net::LANES;
use ferroverbs_roce::Time;
use std::time::Duration;

/// Source ports that take turns for what goes to connection managers. Which of the processes there gets it is the kernel's choice, by ports too, and that one
/// may be stopped, and pass nothing on: who asks again asks from another port. What follows closely goes the same way, and is not overtaken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turns {
    /// The present one.
    turn: u32,
    /// Since when it is, and when something went last.
    begun: Time,
    last: Time,
}

/// A message that comes so long after the one before it is no part of the same exchange, or repeats it.
const QUIET: Duration = Duration::from_millis(50);
/// Where there is always something that goes.
const LONG: Duration = Duration::from_secs(1);

impl Turns {
    /// Whose turn it is.
    pub(super) const fn number(self) -> u32 {
        self.turn
    }

    /// Something goes now; whether it is another one's turn.
    pub(super) fn turn(&mut self, now: Time) -> bool {
        let turns = now.since(self.last) >= QUIET || now.since(self.begun) >= LONG;
        self.last = now;
        if turns {
            self.turn = (self.turn + 1) % LANES as u32;
            self.begun = now;
        }
        turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_repeated_goes_another_way_and_what_follows_closely_the_same() {
        let (mut turns, at) = (Turns::default(), |ms: u64| Time::from_ns(ms * 1_000_000));
        let mut went = |ms| (turns.turn(at(ms)), turns.number());
        assert_eq!(went(1000), (true, 1));
        assert_eq!(went(1001), (false, 1));
        assert_eq!(went(1049), (false, 1));
        assert_eq!(went(1100), (true, 2));
        // Never quiet.
        let turned = (1101..6101).filter(|ms| went(*ms).0).count();
        assert_eq!(turned, 5);
        let ways: std::collections::BTreeSet<_> =
            (0..16).map(|n| went(10_000 + 100 * n).1).collect();
        assert_eq!(ways.len(), LANES);
    }
}
