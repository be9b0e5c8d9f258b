//! The state machine of a QP: which transitions exist, and which attributes each requires and allows
//! (ibv_modify_qp(3), table of transitions; IBTA vol 1, 10.3.1).

use abi::*;

/// `ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// Nothing is posted, nobody is connected.
    Reset = 0,
    /// Receives can be posted.
    Init = 1,
    /// Ready to receive: the other end is known.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// The send queue drains: what was begun is done, nothing else is.
    Sqd = 4,
    /// The send queue of an unreliable QP failed; it still receives.
    Sqe = 5,
    /// Everything that is posted is flushed.
    Err = 6,
}

impl State {
    /// From `ibv_qp_state`; `None`: there is no such state.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqd,
            5 => Self::Sqe,
            6 => Self::Err,
            _ => return None,
        })
    }
}

/// Transports that this adapter offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Datagrams.
    Ud = 4,
    /// Ethernet frames (`IBV_QPT_RAW_PACKET`).
    Raw = 8,
    /// The sending end of an XRC connection (`IBV_QPT_XRC_SEND`).
    XrcSend = 9,
    /// The receiving end (`IBV_QPT_XRC_RECV`).
    XrcRecv = 10,
}

impl Kind {
    /// From `ibv_qp_type`.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            2 => Self::Rc,
            3 => Self::Uc,
            4 => Self::Ud,
            8 => Self::Raw,
            9 => Self::XrcSend,
            10 => Self::XrcRecv,
            _ => return None,
        })
    }

    /// Whether it has one other end, named when it goes to RTR.
    pub const fn is_connected(self) -> bool {
        !matches!(self, Self::Ud | Self::Raw)
    }

    /// Whether requests are acknowledged, and refused with a reason.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv)
    }
}

/// Attributes that a transition requires and allows besides `IBV_QP_STATE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// `IBV_QP_*` bits without which it is EINVAL.
    pub required: u32,
    /// `IBV_QP_*` bits that may be there.
    pub optional: u32,
}

/// Where the other end is.
const PATH: u32 = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
/// How long a requester waits for answers, and how many it asks for.
const PATIENCE: u32 =
    IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
/// What a reliable requester needs to know.
const SENDER: u32 = PATIENCE | IBV_QP_SQ_PSN;
/// What a reliable responder goes by.
const RESPONDER: u32 = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
/// What may change on the way to RTS, and in it.
const GOING: u32 = IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
/// What may change while the send queue is drained.
const DRAINED: u32 =
    IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE;

/// What the transition `from` -> `to` of a QP of `kind` takes, or `None` when it does not exist.
pub const fn transition(kind: Kind, from: State, to: State) -> Option<Attributes> {
    use Kind::{Raw, Rc, Uc, Ud, XrcRecv, XrcSend};
    use State::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let (required, optional) = match (from, to, kind) {
        (_, Reset | Err, _) => (0, 0),
        (Reset, Init, Ud) => (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0),
        (Reset, Init, Raw) => (IBV_QP_PORT, 0),
        (Init, Init | Rtr, Raw) | (Rtr | Rts | Sqd | Sqe, Rts, Raw) | (Rts | Sqd, Sqd, Raw) => {
            (0, 0)
        }
        (Reset, Init, _) => (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0),
        (Init, Init, Ud) => (0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
        (Init, Init, _) => (0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        (Init, Rtr, Rc | XrcRecv) => (
            PATH | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
            IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
        ),
        (Init, Rtr, Uc | XrcSend) => {
            (PATH, IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX)
        }
        (Init, Rtr, Ud) => (0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
        (Rtr, Rts, Rc) => (SENDER, GOING | IBV_QP_MIN_RNR_TIMER),
        (Rtr, Rts, XrcSend) => (SENDER, GOING),
        (Rtr, Rts, XrcRecv) => (IBV_QP_TIMEOUT | IBV_QP_SQ_PSN, GOING | IBV_QP_MIN_RNR_TIMER),
        (Rtr, Rts, Uc) => (IBV_QP_SQ_PSN, GOING),
        (Rtr, Rts, Ud) => (IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY),
        (Rts | Sqd, Rts, Rc | XrcRecv) => (0, GOING | IBV_QP_MIN_RNR_TIMER),
        (Rts | Sqd, Rts, Uc | XrcSend) => (0, GOING),
        (Rts | Sqd | Sqe, Rts, Ud) => (0, IBV_QP_CUR_STATE | IBV_QP_QKEY),
        (Sqe, Rts, Uc) => (0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS),
        (Rts, Sqd, _) => (0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd, Rc) => (0, DRAINED | PATIENCE | RESPONDER | IBV_QP_PORT),
        (Sqd, Sqd, XrcSend) => (0, DRAINED | PATIENCE | IBV_QP_PORT),
        (Sqd, Sqd, XrcRecv) => (0, DRAINED | RESPONDER | IBV_QP_PORT | IBV_QP_TIMEOUT),
        (Sqd, Sqd, Uc) => (0, DRAINED),
        (Sqd, Sqd, Ud) => (0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
        _ => return None,
    };
    Some(Attributes { required, optional })
}

/// What the kernel's verbs take out of a mask before they look at it: an XRC QP is half of an RC one, and what is for the
/// other half is ignored, so that applications can treat all alike.
pub const fn ignored(kind: Kind) -> u32 {
    match kind {
        Kind::XrcSend => RESPONDER,
        Kind::XrcRecv => IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
        _ => 0,
    }
}

/// Checks `given` (the mask of ibv_modify_qp) against the transition; `false` is EINVAL.
pub const fn permits(kind: Kind, from: State, to: State, given: u32) -> bool {
    match transition(kind, from, to) {
        None => false,
        Some(Attributes { required, optional }) => {
            given & required == required && given & !(required | optional | IBV_QP_STATE) == 0
        }
    }
}

/// How long a responder without a receive asks to wait, in microseconds, by the 5-bit code of
/// `min_rnr_timer` (IBTA vol 1, table 45).
pub const fn rnr_timer_us(code: u8) -> u32 {
    const HUNDREDTHS_OF_MS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    HUNDREDTHS_OF_MS[(code & 31) as usize] * 10
}

/// How long a requester waits in all for an answer before it gives up, in microseconds: `timeout` is the 5-bit exponent of
/// ibv_qp_attr (4.096 us times two to its power; 0: for ever), tried once and `retry_cnt` times again (IBTA vol 1, 9.7.6.1.3).
pub const fn give_up_us(timeout: u8, retry_cnt: u8) -> Option<u64> {
    if timeout & 31 == 0 {
        return None;
    }
    Some((4096u64 << (timeout & 31)) / 1000 * (retry_cnt as u64 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 6] =
        [Kind::Rc, Kind::Uc, Kind::Ud, Kind::Raw, Kind::XrcSend, Kind::XrcRecv];
    const STATES: [State; 7] =
        [State::Reset, State::Init, State::Rtr, State::Rts, State::Sqd, State::Sqe, State::Err];

    #[test]
    fn every_state_may_be_reset_or_failed_with_no_attribute() {
        for kind in KINDS {
            for from in STATES {
                assert!(permits(kind, from, State::Reset, IBV_QP_STATE));
                assert!(permits(kind, from, State::Err, IBV_QP_STATE));
                assert!(!permits(kind, from, State::Err, IBV_QP_STATE | IBV_QP_QKEY));
            }
        }
    }

    #[test]
    fn each_required_attribute_is_required_and_no_foreign_one_is_allowed() {
        for kind in KINDS {
            for (from, to) in STATES.iter().flat_map(|f| STATES.iter().map(move |t| (*f, *t))) {
                let Some(a) = transition(kind, from, to) else { continue };
                assert!(permits(kind, from, to, IBV_QP_STATE | a.required));
                assert!(permits(kind, from, to, IBV_QP_STATE | a.required | a.optional));
                for bit in (1..21).map(|b| 1 << b) {
                    if a.required & bit != 0 {
                        assert!(!permits(kind, from, to, IBV_QP_STATE | a.required & !bit));
                    } else if a.optional & bit == 0 {
                        assert!(!permits(kind, from, to, IBV_QP_STATE | a.required | bit));
                    }
                }
            }
        }
    }

    #[test]
    fn there_is_no_way_round_init_and_rtr() {
        for kind in KINDS {
            assert_eq!(transition(kind, State::Reset, State::Rtr), None);
            assert_eq!(transition(kind, State::Init, State::Rts), None);
            assert_eq!(transition(kind, State::Err, State::Rts), None);
            assert_eq!(transition(kind, State::Rtr, State::Rtr), None);
        }
        assert_eq!(transition(Kind::Rc, State::Sqe, State::Rts), None, "RC has no SQE");
    }

    #[test]
    fn timers_follow_the_specification() {
        assert_eq!(rnr_timer_us(0), 655_360);
        assert_eq!(rnr_timer_us(1), 10);
        assert_eq!(rnr_timer_us(12), 640);
        assert_eq!(rnr_timer_us(31), 491_520);
        assert_eq!(give_up_us(0, 7), None);
        assert_eq!(give_up_us(14, 7), Some(67_108 * 8));
    }
}
