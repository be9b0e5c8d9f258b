//! The state of a QP in the shared table of QPs. `Qp::change_state` publishes it; `Link` and
//! queries read it.
#![forbid(unsafe_code)]

use soft_local::shm::layout::Life;
use soft_semantics::state::State;

/// The shared value of `state`; `down` says that the port is down.
pub(crate) const fn to_shared(state: State, down: bool) -> u8 {
    match state {
        State::Reset => Life::RESET,
        State::Init => Life::INIT,
        State::Rtr if down => Life::RTR_DOWN,
        State::Rtr => Life::RTR,
        State::Rts if down => Life::RTS_DOWN,
        State::Rts => Life::RTS,
        State::Sqd if down => Life::SQD_DOWN,
        State::Sqd => Life::SQD,
        State::Sqe if down => Life::SQE_DOWN,
        State::Sqe => Life::SQE,
        State::Err => Life::ERR,
    }
}

/// The state of a shared value; None if no QP exists.
pub(crate) const fn from_shared(shared: u8) -> Option<State> {
    Some(match shared {
        Life::RESET => State::Reset,
        Life::INIT => State::Init,
        Life::RTR | Life::RTR_DOWN => State::Rtr,
        Life::RTS | Life::RTS_DOWN => State::Rts,
        Life::SQD | Life::SQD_DOWN => State::Sqd,
        Life::SQE | Life::SQE_DOWN => State::Sqe,
        Life::ERR => State::Err,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 7] =
        [State::Reset, State::Init, State::Rtr, State::Rts, State::Sqd, State::Sqe, State::Err];

    #[test]
    fn peers_read_the_state_whether_the_port_is_up_or_not_and_are_served_only_if_it_is() {
        let life = |state| Life { state, kind: 2, generation: 0, dest_qpn: 7 };
        for state in STATES {
            let (up, down) = (to_shared(state, false), to_shared(state, true));
            assert_eq!(from_shared(up), Some(state));
            assert_eq!(from_shared(down), Some(state));
            let serving = matches!(state, State::Rtr | State::Rts | State::Sqd | State::Sqe);
            assert_eq!(life(up).serves(7), serving);
            assert!(!life(up).serves(8) && !life(down).serves(7));
            assert_eq!(life(up).is_connected_to(7), serving);
            assert_eq!(life(down).is_connected_to(7), serving, "it is, with nobody to be heard");
            assert!(!life(up).is_connected_to(8) && !life(down).is_connected_to(8));
            let sending = matches!(state, State::Rts | State::Sqd);
            assert_eq!(life(up).may_send(7), sending);
            assert_eq!(life(down).may_send(7), sending, "what was sent before it went down counts");
            assert!(!life(up).may_send(8));
        }
        assert_eq!(from_shared(Life::NONE), None);
    }
}
