//! The state of a QP in the shared table of QPs. `Qp::change_state` publishes it; `Link` and
//! queries read it.
#![forbid(unsafe_code)]

use soft_local::shm::layout::Life;
use soft_semantics::state::QpState;

/// The shared value of `state`; `is_down` says that the port is down.
pub(crate) const fn to_shared(state: QpState, down: bool) -> u8 {
    match state {
        QpState::Reset => Life::RESET,
        QpState::Init => Life::INIT,
        QpState::Rtr if down => Life::RTR_DOWN,
        QpState::Rtr => Life::RTR,
        QpState::Rts if down => Life::RTS_DOWN,
        QpState::Rts => Life::RTS,
        QpState::Sqd if down => Life::SQD_DOWN,
        QpState::Sqd => Life::SQD,
        QpState::Sqe if down => Life::SQE_DOWN,
        QpState::Sqe => Life::SQE,
        QpState::Err => Life::ERR,
    }
}

/// The state of a shared value; None if no QP exists.
pub(crate) const fn from_shared(shared: u8) -> Option<QpState> {
    Some(match shared {
        Life::RESET => QpState::Reset,
        Life::INIT => QpState::Init,
        Life::RTR | Life::RTR_DOWN => QpState::Rtr,
        Life::RTS | Life::RTS_DOWN => QpState::Rts,
        Life::SQD | Life::SQD_DOWN => QpState::Sqd,
        Life::SQE | Life::SQE_DOWN => QpState::Sqe,
        Life::ERR => QpState::Err,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [QpState; 7] = [
        QpState::Reset,
        QpState::Init,
        QpState::Rtr,
        QpState::Rts,
        QpState::Sqd,
        QpState::Sqe,
        QpState::Err,
    ];

    #[test]
    fn peers_read_the_state_whether_the_port_is_up_or_not_and_are_served_only_if_it_is() {
        let life = |state| Life { state, qp_type: 2, generation: 0, dest_qpn: 7 };
        for state in STATES {
            let (up, down) = (to_shared(state, false), to_shared(state, true));
            assert_eq!(from_shared(up), Some(state));
            assert_eq!(from_shared(down), Some(state));
            let serving =
                matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
            assert_eq!(life(up).serves(7), serving);
            assert!(!life(up).serves(8) && !life(down).serves(7));
            assert_eq!(life(up).is_connected_to(7), serving);
            assert_eq!(life(down).is_connected_to(7), serving, "it is, with nobody to be heard");
            assert!(!life(up).is_connected_to(8) && !life(down).is_connected_to(8));
            let sending = matches!(state, QpState::Rts | QpState::Sqd);
            assert_eq!(life(up).may_send(7), sending);
            assert_eq!(life(down).may_send(7), sending, "what was sent before it went down counts");
            assert!(!life(up).may_send(8));
        }
        assert_eq!(from_shared(Life::NONE), None);
    }
}
