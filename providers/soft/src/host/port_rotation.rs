//! Source ports of messages to connection managers (QP 1).
//! Used by UD when a datagram to QP 1 selects its route (`datagrams`).

use ferroverbs_net::LANES;
use ferroverbs_roce::Time;
use std::time::Duration;

/// Rotates the source port of messages to connection managers. The peer's kernel selects the
/// receiving process by ports, and a stopped process forwards nothing. A repeated message therefore
/// leaves from another port. Messages in close succession keep their port and their order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SourcePortRotation {
    /// The present port, as an offset to the QP number.
    offset: u32,
    /// Time of the last change, and of the last message.
    changed_at: Time,
    last_send: Time,
}

/// After a pause of this length a message belongs to another exchange, or is a repetition.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum time on one port under continuous traffic.
const MAX_TIME_ON_PORT: Duration = Duration::from_secs(1);

impl SourcePortRotation {
    /// The present port, as an offset to the QP number.
    pub(super) const fn offset(self) -> u32 {
        self.offset
    }

    /// Notes that a message is sent now. Returns true if the port has changed.
    pub(super) fn advance_on_send(&mut self, now: Time) -> bool {
        let turns =
            now.since(self.last_send) >= PAUSE || now.since(self.changed_at) >= MAX_TIME_ON_PORT;
        self.last_send = now;
        if turns {
            self.offset = (self.offset + 1) % LANES as u32;
            self.changed_at = now;
        }
        turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_message_changes_the_port_and_a_close_successor_does_not() {
        let (mut turns, at) =
            (SourcePortRotation::default(), |ms: u64| Time::from_ns(ms * 1_000_000));
        let mut went = |ms| (turns.advance_on_send(at(ms)), turns.offset());
        assert_eq!(went(1000), (true, 1));
        assert_eq!(went(1001), (false, 1));
        assert_eq!(went(1049), (false, 1));
        assert_eq!(went(1100), (true, 2));
        // Continuous traffic without a pause.
        let turned = (1101..6101).filter(|ms| went(*ms).0).count();
        assert_eq!(turned, 5);
        let ways: std::collections::BTreeSet<_> =
            (0..16).map(|n| went(10_000 + 100 * n).1).collect();
        assert_eq!(ways.len(), LANES);
    }
}
