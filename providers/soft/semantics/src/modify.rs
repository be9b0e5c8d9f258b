//! The state machine of a QP: which transitions exist, which attributes each requires and allows, and what each attribute may say
//! (ibv_modify_qp(3), table of transitions; IBTA vol 1, 10.3.1 and 11.2.5.2).

use crate::Refused;
use crate::state::{Kind, State};
use abi::*;

/// What the device can do, as far as attributes name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// READs and atomics under way on one connection, as initiator and as target.
    pub max_rd_atomic: u8,
    /// Largest path MTU, an `ibv_mtu`.
    pub max_mtu: u32,
}

/// What a call of ibv_modify_qp changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changes {
    /// `IBV_QP_*` bits of the attributes that act.
    given: u32,
    /// What happens besides remembering them.
    pub step: Step,
}

/// What a transition does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To RESET: all attributes and everything that was posted are forgotten.
    Reset,
    /// To ERR, at the application's wish. `used`: the QP was not in RESET, so there may be something to flush.
    Fail {
        /// It was.
        used: bool,
    },
    /// To INIT, or nothing but attributes.
    Init,
    /// To RTR: the other end is known.
    Connect,
    /// To RTS.
    Send {
        /// From SQE: what failed is flushed, and the queue goes on.
        resumes: bool,
        /// From SQD: what was only posted is begun.
        undrains: bool,
    },
    /// To SQD from RTS: nothing more is begun.
    Drain {
        /// `IBV_EVENT_SQ_DRAINED` is wanted when what was begun is done.
        notify: bool,
    },
    /// Attributes of a QP that drains.
    Drained,
}

/// What `ibv_modify_qp` does to a QP of `kind` in state `now`; `mask` says which of `attr` the application gave.
///
/// Where an address leads (`IBV_QP_AV`) is for the caller to check.
///
/// # Errors
/// `Unsupported` a rate limit, as nothing is paced. `Invalid` no such state or transition; the present state is not what `cur_qp_state` says;
/// an attribute is missing, or not allowed in this transition; a value that the device does not have.
pub fn modify(
    kind: Kind,
    now: State,
    attr: &ibv_qp_attr,
    mask: u32,
    limits: &Limits,
) -> Result<Changes, Refused> {
    let given = mask & !ignored(kind);
    if given & IBV_QP_RATE_LIMIT != 0 {
        return Err(Refused::Unsupported);
    }
    if given & IBV_QP_CUR_STATE != 0 {
        let said = State::from_raw(attr.cur_qp_state).ok_or(Refused::Invalid)?;
        let sayable = matches!(said, State::Rtr | State::Rts | State::Sqd | State::Sqe);
        if !sayable || said != now {
            return Err(Refused::Invalid);
        }
    }
    let to = match given & IBV_QP_STATE {
        0 => now,
        _ => State::from_raw(attr.qp_state).ok_or(Refused::Invalid)?,
    };
    if !permits(kind, now, to, given) || !are_possible(attr, given, limits) {
        return Err(Refused::Invalid);
    }
    let notify = given & IBV_QP_EN_SQD_ASYNC_NOTIFY != 0 && attr.en_sqd_async_notify != 0;
    let step = match to {
        State::Reset => Step::Reset,
        State::Err => Step::Fail { used: now != State::Reset },
        State::Init => Step::Init,
        State::Rtr => Step::Connect,
        State::Rts => Step::Send { resumes: now == State::Sqe, undrains: now == State::Sqd },
        State::Sqd if now == State::Rts => Step::Drain { notify },
        State::Sqd => Step::Drained,
        // No transition leads there.
        State::Sqe => return Err(Refused::Invalid),
    };
    Ok(Changes { given, step })
}

/// Values that a mask lets through can still be none that the device has.
fn are_possible(attr: &ibv_qp_attr, given: u32, limits: &Limits) -> bool {
    let rules = [
        (IBV_QP_PORT, attr.port_num == 1),
        (IBV_QP_PKEY_INDEX, attr.pkey_index == 0),
        (IBV_QP_PATH_MTU, (IBV_MTU_256..=limits.max_mtu).contains(&attr.path_mtu)),
        (IBV_QP_TIMEOUT, attr.timeout < 32),
        (IBV_QP_RETRY_CNT, attr.retry_cnt < 8),
        (IBV_QP_RNR_RETRY, attr.rnr_retry < 8),
        (IBV_QP_MIN_RNR_TIMER, attr.min_rnr_timer < 32),
        (IBV_QP_MAX_QP_RD_ATOMIC, attr.max_rd_atomic <= limits.max_rd_atomic),
        (IBV_QP_MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic <= limits.max_rd_atomic),
        (IBV_QP_DEST_QPN, attr.dest_qp_num < 1 << 24),
        // No alternate path, as with rxe.
        (IBV_QP_ALT_PATH, false),
        (IBV_QP_CAP, false),
    ];
    rules.iter().all(|(bit, good)| given & bit == 0 || *good)
}

impl Changes {
    /// Whether the attribute of this `IBV_QP_*` bit acts.
    #[must_use]
    pub const fn has(&self, bit: u32) -> bool {
        self.given & bit != 0
    }

    /// Takes what acts of `attr` over into `known`, what ibv_query_qp(3) shows and the QP goes by.
    pub fn remember(&self, known: &mut ibv_qp_attr, attr: &ibv_qp_attr) {
        const PSN: u32 = 0xff_ffff;
        if self.has(IBV_QP_ACCESS_FLAGS) {
            known.qp_access_flags = attr.qp_access_flags;
        }
        if self.has(IBV_QP_PKEY_INDEX) {
            known.pkey_index = attr.pkey_index;
        }
        if self.has(IBV_QP_PORT) {
            known.port_num = attr.port_num;
        }
        if self.has(IBV_QP_QKEY) {
            known.qkey = attr.qkey;
        }
        if self.has(IBV_QP_AV) {
            known.ah_attr = attr.ah_attr;
        }
        if self.has(IBV_QP_PATH_MTU) {
            known.path_mtu = attr.path_mtu;
        }
        if self.has(IBV_QP_TIMEOUT) {
            known.timeout = attr.timeout;
        }
        if self.has(IBV_QP_RETRY_CNT) {
            known.retry_cnt = attr.retry_cnt;
        }
        if self.has(IBV_QP_RNR_RETRY) {
            known.rnr_retry = attr.rnr_retry;
        }
        if self.has(IBV_QP_RQ_PSN) {
            known.rq_psn = attr.rq_psn & PSN;
        }
        if self.has(IBV_QP_SQ_PSN) {
            known.sq_psn = attr.sq_psn & PSN;
        }
        if self.has(IBV_QP_MAX_QP_RD_ATOMIC) {
            known.max_rd_atomic = attr.max_rd_atomic;
        }
        if self.has(IBV_QP_MAX_DEST_RD_ATOMIC) {
            known.max_dest_rd_atomic = attr.max_dest_rd_atomic;
        }
        if self.has(IBV_QP_MIN_RNR_TIMER) {
            known.min_rnr_timer = attr.min_rnr_timer;
        }
        if self.has(IBV_QP_PATH_MIG_STATE) {
            known.path_mig_state = attr.path_mig_state;
        }
        if self.has(IBV_QP_EN_SQD_ASYNC_NOTIFY) {
            known.en_sqd_async_notify = attr.en_sqd_async_notify;
        }
        if self.has(IBV_QP_DEST_QPN) {
            known.dest_qp_num = attr.dest_qp_num;
        }
    }
}

/// What ibv_query_qp(3) shows of a QP in state `now`; `draining`: in SQD, something that was begun is not done.
#[must_use]
pub fn shown(known: &ibv_qp_attr, cap: ibv_qp_cap, now: State, draining: bool) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: now as u32,
        cur_qp_state: now as u32,
        cap,
        sq_draining: u8::from(now == State::Sqd && draining),
        ..*known
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
const ANSWERS: u32 = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
/// What a reliable requester needs to know.
const SENDER: u32 = ANSWERS | IBV_QP_SQ_PSN;
/// What a reliable responder goes by.
const RESPONDER: u32 = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
/// What may change on the way to RTS, and in it.
const GOING: u32 = IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
/// What may change while the send queue is drained.
const DRAINED: u32 =
    IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE;

/// What the transition `from` -> `to` of a QP of `kind` takes, or `None` when it does not exist.
#[must_use]
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
        (Sqd, Sqd, Rc) => (0, DRAINED | ANSWERS | RESPONDER | IBV_QP_PORT),
        (Sqd, Sqd, XrcSend) => (0, DRAINED | ANSWERS | IBV_QP_PORT),
        (Sqd, Sqd, XrcRecv) => (0, DRAINED | RESPONDER | IBV_QP_PORT | IBV_QP_TIMEOUT),
        (Sqd, Sqd, Uc) => (0, DRAINED),
        (Sqd, Sqd, Ud) => (0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
        _ => return None,
    };
    Some(Attributes { required, optional })
}

/// What the kernel's verbs take out of a mask before they look at it: an XRC QP is half of an RC one, and what is for the
/// other half is ignored, so that applications can treat all alike.
const fn ignored(kind: Kind) -> u32 {
    match kind {
        Kind::XrcSend => RESPONDER,
        Kind::XrcRecv => IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
        _ => 0,
    }
}

/// Checks `given` (the mask of ibv_modify_qp) against the transition; `false` is EINVAL.
const fn permits(kind: Kind, from: State, to: State, given: u32) -> bool {
    match transition(kind, from, to) {
        None => false,
        Some(Attributes { required, optional }) => {
            given & required == required && given & !(required | optional | IBV_QP_STATE) == 0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Kind::{Raw, Rc, Uc, Ud, XrcRecv, XrcSend};
    use State::{Init, Reset, Rtr, Rts, Sqd, Sqe};

    const KINDS: [Kind; 6] = [Rc, Uc, Ud, Raw, XrcSend, XrcRecv];
    const STATES: [State; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, State::Err];

    #[test]
    fn every_state_may_be_reset_or_failed_with_no_attribute() {
        for kind in KINDS {
            for from in STATES {
                assert!(permits(kind, from, Reset, IBV_QP_STATE));
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
            assert_eq!(transition(kind, Reset, Rtr), None);
            assert_eq!(transition(kind, Init, Rts), None);
            assert_eq!(transition(kind, State::Err, Rts), None);
            assert_eq!(transition(kind, Rtr, Rtr), None);
        }
        assert_eq!(transition(Rc, Sqe, Rts), None, "RC has no SQE");
    }

    const LIMITS: Limits = Limits { max_rd_atomic: 16, max_mtu: IBV_MTU_4096 };
    const ACCESS: u32 = IBV_QP_ACCESS_FLAGS;
    const PKEY: u32 = IBV_QP_PKEY_INDEX;
    const PORT: u32 = IBV_QP_PORT;
    const QKEY: u32 = IBV_QP_QKEY;
    const CUR: u32 = IBV_QP_CUR_STATE;
    const MIG: u32 = IBV_QP_PATH_MIG_STATE;
    const TIMER: u32 = IBV_QP_MIN_RNR_TIMER;
    const TO_RTR: u32 = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    const DEST_RD: u32 = IBV_QP_MAX_DEST_RD_ATOMIC;
    const RETRIES: u32 = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    const TIMEOUT: u32 = IBV_QP_TIMEOUT;
    const SQ: u32 = IBV_QP_SQ_PSN;

    /// All transitions but those to RESET and ERR: kind, from, to, required, optional. By ibv_modify_qp(3), and IBTA vol 1, 11.2.5.2 for what is
    /// optional; of XRC as the kernel's table has it. Without what an alternate path needs, which no adapter of this kind has.
    const RULES: &[(Kind, State, State, u32, u32)] = &[
        (Rc, Reset, Init, PKEY | PORT | ACCESS, 0),
        (Rc, Init, Init, 0, PKEY | PORT | ACCESS),
        (Rc, Init, Rtr, TO_RTR | DEST_RD | TIMER, PKEY | ACCESS),
        (Rc, Rtr, Rts, SQ | TIMEOUT | RETRIES, CUR | ACCESS | TIMER | MIG),
        (Rc, Rts, Rts, 0, CUR | ACCESS | TIMER | MIG),
        (Rc, Rts, Sqd, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (Rc, Sqd, Rts, 0, CUR | ACCESS | TIMER | MIG),
        (
            Rc,
            Sqd,
            Sqd,
            0,
            PORT | IBV_QP_AV | TIMEOUT | RETRIES | DEST_RD | PKEY | ACCESS | TIMER | MIG,
        ),
        (Uc, Reset, Init, PKEY | PORT | ACCESS, 0),
        (Uc, Init, Init, 0, PKEY | PORT | ACCESS),
        (Uc, Init, Rtr, TO_RTR, PKEY | ACCESS),
        (Uc, Rtr, Rts, SQ, CUR | ACCESS | MIG),
        (Uc, Rts, Rts, 0, CUR | ACCESS | MIG),
        (Uc, Rts, Sqd, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (Uc, Sqd, Rts, 0, CUR | ACCESS | MIG),
        (Uc, Sqd, Sqd, 0, IBV_QP_AV | PKEY | ACCESS | MIG),
        (Uc, Sqe, Rts, 0, CUR | ACCESS),
        (Ud, Reset, Init, PKEY | PORT | QKEY, 0),
        (Ud, Init, Init, 0, PKEY | PORT | QKEY),
        (Ud, Init, Rtr, 0, PKEY | QKEY),
        (Ud, Rtr, Rts, SQ, CUR | QKEY),
        (Ud, Rts, Rts, 0, CUR | QKEY),
        (Ud, Rts, Sqd, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (Ud, Sqd, Rts, 0, CUR | QKEY),
        (Ud, Sqd, Sqd, 0, PKEY | QKEY),
        (Ud, Sqe, Rts, 0, CUR | QKEY),
        (Raw, Reset, Init, PORT, 0),
        (Raw, Init, Init, 0, 0),
        (Raw, Init, Rtr, 0, 0),
        (Raw, Rtr, Rts, 0, 0),
        (Raw, Rts, Rts, 0, 0),
        (Raw, Rts, Sqd, 0, 0),
        (Raw, Sqd, Rts, 0, 0),
        (Raw, Sqd, Sqd, 0, 0),
        (Raw, Sqe, Rts, 0, 0),
        // Of an XRC QP what is for its other half is allowed everywhere, and ignored.
        (XrcSend, Reset, Init, PKEY | PORT | ACCESS, DEST_RD | TIMER),
        (XrcSend, Init, Init, 0, PKEY | PORT | ACCESS | DEST_RD | TIMER),
        (XrcSend, Init, Rtr, TO_RTR, PKEY | ACCESS | DEST_RD | TIMER),
        (XrcSend, Rtr, Rts, SQ | TIMEOUT | RETRIES, CUR | ACCESS | MIG | DEST_RD | TIMER),
        (XrcSend, Rts, Rts, 0, CUR | ACCESS | MIG | DEST_RD | TIMER),
        (XrcSend, Rts, Sqd, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY | DEST_RD | TIMER),
        (XrcSend, Sqd, Rts, 0, CUR | ACCESS | MIG | DEST_RD | TIMER),
        (
            XrcSend,
            Sqd,
            Sqd,
            0,
            PORT | IBV_QP_AV | TIMEOUT | RETRIES | PKEY | ACCESS | MIG | DEST_RD | TIMER,
        ),
        (XrcRecv, Reset, Init, PKEY | PORT | ACCESS, RETRIES),
        (XrcRecv, Init, Init, 0, PKEY | PORT | ACCESS | RETRIES),
        (XrcRecv, Init, Rtr, TO_RTR | DEST_RD | TIMER, PKEY | ACCESS | RETRIES),
        (XrcRecv, Rtr, Rts, SQ | TIMEOUT, CUR | ACCESS | TIMER | MIG | RETRIES),
        (XrcRecv, Rts, Rts, 0, CUR | ACCESS | TIMER | MIG | RETRIES),
        (XrcRecv, Rts, Sqd, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY | RETRIES),
        (XrcRecv, Sqd, Rts, 0, CUR | ACCESS | TIMER | MIG | RETRIES),
        (
            XrcRecv,
            Sqd,
            Sqd,
            0,
            PORT | IBV_QP_AV | TIMEOUT | DEST_RD | PKEY | ACCESS | TIMER | MIG | RETRIES,
        ),
    ];

    /// Right values for every attribute.
    fn values(from: State, to: State) -> ibv_qp_attr {
        ibv_qp_attr {
            qp_state: to as u32,
            cur_qp_state: from as u32,
            path_mtu: IBV_MTU_1024,
            path_mig_state: IBV_MIG_MIGRATED,
            qkey: 0x7531,
            rq_psn: 0x12_3456,
            sq_psn: 0x65_4321,
            dest_qp_num: 77,
            qp_access_flags: 6,
            max_rd_atomic: 3,
            max_dest_rd_atomic: 5,
            min_rnr_timer: 12,
            port_num: 1,
            timeout: 14,
            retry_cnt: 6,
            rnr_retry: 4,
            ..Zeroed::zeroed()
        }
    }

    fn ask(kind: Kind, from: State, to: State, mask: u32) -> Result<Changes, Refused> {
        modify(kind, from, &values(from, to), IBV_QP_STATE | mask, &LIMITS)
    }

    #[test]
    fn every_attribute_is_required_allowed_or_refused_as_the_table_says() {
        let mut asked = 0;
        for kind in KINDS {
            for (from, to) in STATES.iter().flat_map(|f| STATES.iter().map(move |t| (*f, *t))) {
                let rule = RULES.iter().find(|r| (r.0, r.1, r.2) == (kind, from, to));
                let (required, optional) = match (rule, to) {
                    (Some((.., required, optional)), _) => (*required, *optional),
                    (None, Reset | State::Err) => (0, ignored(kind)),
                    (None, _) => {
                        for mask in [0, PKEY | PORT | ACCESS, PKEY | PORT | QKEY, TO_RTR, SQ] {
                            let refused = ask(kind, from, to, mask);
                            assert_eq!(refused, Err(Refused::Invalid), "{kind:?} {from:?} {to:?}");
                        }
                        continue;
                    }
                };
                // A state that cannot be said is refused whatever the table allows.
                let sayable = matches!(from, Rtr | Rts | Sqd | Sqe);
                let optional = if sayable { optional } else { optional & !CUR };
                assert!(ask(kind, from, to, required).is_ok(), "{kind:?} {from:?} {to:?}");
                assert!(
                    ask(kind, from, to, required | optional).is_ok(),
                    "{kind:?} {from:?} {to:?}"
                );
                for bit in (1..21).map(|bit| 1 << bit).filter(|bit| *bit != IBV_QP_ALT_PATH) {
                    let outcome = if required & bit != 0 {
                        ask(kind, from, to, required & !bit)
                    } else {
                        ask(kind, from, to, required | bit)
                    };
                    let good = optional & bit != 0;
                    assert_eq!(outcome.is_ok(), good, "{kind:?} {from:?} {to:?} {bit:#x}");
                    asked += 1;
                }
                // Migration needs an alternate path; this adapter has none.
                assert!(ask(kind, from, to, required | IBV_QP_ALT_PATH).is_err());
            }
        }
        assert!(asked > 2000, "{asked}");
    }

    #[test]
    fn a_value_that_the_device_does_not_have_is_refused_where_its_attribute_is_given() {
        type Change = fn(&mut ibv_qp_attr);
        let wrong: [(u32, Change); 11] = [
            (PORT, |a| a.port_num = 2),
            (PORT, |a| a.port_num = 0),
            (PKEY, |a| a.pkey_index = 1),
            (TIMEOUT, |a| a.timeout = 32),
            (IBV_QP_RETRY_CNT, |a| a.retry_cnt = 8),
            (IBV_QP_RNR_RETRY, |a| a.rnr_retry = 8),
            (TIMER, |a| a.min_rnr_timer = 32),
            (IBV_QP_MAX_QP_RD_ATOMIC, |a| a.max_rd_atomic = 17),
            (DEST_RD, |a| a.max_dest_rd_atomic = 17),
            (CUR, |a| a.cur_qp_state = Rtr as u32),
            (CUR, |a| a.cur_qp_state = 7),
        ];
        for (bit, change) in wrong {
            let (from, to) = if bit == CUR { (Rts, Rts) } else { (Sqd, Sqd) };
            let mut attr = values(from, to);
            assert!(modify(Rc, from, &attr, bit, &LIMITS).is_ok(), "{bit:#x}");
            change(&mut attr);
            assert_eq!(modify(Rc, from, &attr, bit, &LIMITS), Err(Refused::Invalid));
            assert!(
                modify(Rc, from, &attr, 0, &LIMITS).is_ok(),
                "what is not given does not count"
            );
        }
        let wrong: [Change; 3] =
            [|a| a.path_mtu = 0, |a| a.path_mtu = 6, |a| a.dest_qp_num = 1 << 24];
        for change in wrong {
            let mut attr = values(Init, Rtr);
            let mask = IBV_QP_STATE | TO_RTR;
            assert!(modify(Uc, Init, &attr, mask, &LIMITS).is_ok());
            change(&mut attr);
            assert_eq!(modify(Uc, Init, &attr, mask, &LIMITS), Err(Refused::Invalid));
        }
        let attr = ibv_qp_attr { qp_state: 7, ..values(Rts, Rts) };
        assert_eq!(modify(Rc, Rts, &attr, IBV_QP_STATE, &LIMITS), Err(Refused::Invalid));
        let limited = modify(Rc, Rts, &values(Rts, Rts), IBV_QP_RATE_LIMIT, &LIMITS);
        assert_eq!(limited, Err(Refused::Unsupported));
    }

    #[test]
    fn a_transition_says_what_it_does() {
        let step = |kind, from, to, mask| ask(kind, from, to, mask).map(|c| c.step);
        let sends = |resumes, undrains| Ok(Step::Send { resumes, undrains });
        assert_eq!(step(Rc, Rts, Reset, 0), Ok(Step::Reset));
        assert_eq!(step(Rc, Reset, State::Err, 0), Ok(Step::Fail { used: false }));
        assert_eq!(step(Rc, Init, State::Err, 0), Ok(Step::Fail { used: true }));
        assert_eq!(step(Rc, Reset, Init, PKEY | PORT | ACCESS), Ok(Step::Init));
        assert_eq!(step(Ud, Init, Rtr, 0), Ok(Step::Connect));
        assert_eq!(step(Ud, Rtr, Rts, SQ), sends(false, false));
        assert_eq!(step(Ud, Sqe, Rts, 0), sends(true, false));
        assert_eq!(step(Ud, Sqd, Rts, 0), sends(false, true));
        assert_eq!(step(Ud, Rts, Sqd, 0), Ok(Step::Drain { notify: false }));
        assert_eq!(step(Ud, Sqd, Sqd, 0), Ok(Step::Drained));
        for wanted in [0, 1] {
            let attr = ibv_qp_attr { en_sqd_async_notify: wanted, ..values(Rts, Sqd) };
            let mask = IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY;
            let changes = modify(Ud, Rts, &attr, mask, &LIMITS).expect("allowed");
            assert_eq!(changes.step, Step::Drain { notify: wanted == 1 });
        }
        // Without a state, only attributes change.
        let changes = modify(Ud, Rts, &values(Rts, Reset), QKEY, &LIMITS);
        assert_eq!(changes.map(|c| c.step), sends(false, false));
    }

    #[test]
    fn what_is_given_is_remembered_and_nothing_else() {
        let attr = ibv_qp_attr { rq_psn: 0xff12_3456, ..values(Init, Rtr) };
        let changes = modify(Uc, Init, &attr, IBV_QP_STATE | TO_RTR, &LIMITS).expect("allowed");
        let mut known: ibv_qp_attr = Zeroed::zeroed();
        changes.remember(&mut known, &attr);
        assert_eq!(
            (known.rq_psn, known.path_mtu, known.dest_qp_num),
            (0x12_3456, IBV_MTU_1024, 77)
        );
        assert_eq!(
            (known.qkey, known.timeout, known.qp_access_flags, known.port_num),
            (0, 0, 0, 0)
        );
        // What is for an XRC QP's other half is not.
        let attr = values(Init, Rtr);
        let mask = IBV_QP_STATE | TO_RTR | DEST_RD | TIMER;
        let changes = modify(XrcSend, Init, &attr, mask, &LIMITS).expect("ignored");
        changes.remember(&mut known, &attr);
        assert_eq!((known.max_dest_rd_atomic, known.min_rnr_timer), (0, 0));
        assert!(changes.has(IBV_QP_AV) && !changes.has(TIMER));
    }

    #[test]
    fn a_queue_drains_only_in_sqd() {
        let draining = |now| shown(&Zeroed::zeroed(), Zeroed::zeroed(), now, true).sq_draining;
        assert_eq!((draining(Rts), draining(Sqd)), (0, 1));
        let attr = shown(&values(Rts, Rts), Zeroed::zeroed(), Sqe, false);
        assert_eq!((attr.qp_state, attr.cur_qp_state, attr.timeout), (5, 5, 14));
    }
}
