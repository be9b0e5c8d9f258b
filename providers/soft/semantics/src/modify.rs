//! The state machine of a QP: its transitions, their required and optional attributes, and valid
//! values (ibv_modify_qp(3), table of transitions; IBTA 1.7 10.3.1, 11.2.5.2).
//!
//! [`modify`] checks a call; the engine executes the returned [`Step`]. Map of this file:
//! [`Changes`] and [`Step`], the checks, `copy_effective` and [`reported_attributes`] for
//! ibv_query_qp(3), then the table of transitions.

use crate::Refused;
use crate::state::{QpState, QpType};
use abi::*;

/// The device limits that attributes must respect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// READs and atomics in flight on one connection, as initiator and as target.
    pub max_rd_atomic: u8,
    /// Largest path MTU, an `ibv_mtu`.
    pub max_mtu: u32,
}

/// The changes of one ibv_modify_qp call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The `IBV_QP_*` bits of the attributes that take effect.
    effective_mask: u32,
    /// The action besides storing attributes.
    pub step: Step,
}

/// The action of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To RESET: all attributes and posted requests are dropped.
    Reset,
    /// To ERR, by the application. `used`: the QP was not in RESET, so requests may have to be
    /// flushed.
    Fail {
        /// Whether the QP was outside RESET.
        used: bool,
    },
    /// To INIT, or a change of attributes only.
    Init,
    /// To RTR: the remote end is known.
    Connect,
    /// To RTS.
    Send {
        /// From SQE: failed requests are flushed, and the queue continues.
        resumes: bool,
        /// From SQD: posted requests are issued again.
        undrains: bool,
    },
    /// To SQD from RTS: no further request is issued.
    Drain {
        /// Whether `IBV_EVENT_SQ_DRAINED` must follow when all issued requests are complete.
        notify: bool,
    },
    /// A change of attributes of a draining QP.
    Drained,
}

/// The effect of ibv_modify_qp(3) on a QP of `kind` in state `now`. `mask` names the given
/// attributes of `attr`.
///
/// The caller must check the address (`IBV_QP_AV`).
///
/// # Errors
/// `Unsupported`: a rate limit, because sends are not paced. `Invalid`: unknown state or
/// transition; `cur_qp_state` differs from the present state; an attribute is missing or not
/// allowed in this transition; a value exceeds the device's limits.
pub fn modify(
    kind: QpType,
    now: QpState,
    attr: &ibv_qp_attr,
    mask: u32,
    limits: &Limits,
) -> Result<Changes, Refused> {
    let given = mask & !ignored(kind);
    if given & IBV_QP_RATE_LIMIT != 0 {
        return Err(Refused::Unsupported);
    }
    if given & IBV_QP_CUR_STATE != 0 {
        let current = QpState::from_raw(attr.cur_qp_state).ok_or(Refused::Invalid)?;
        let may_be_given =
            matches!(current, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        if !may_be_given || current != now {
            return Err(Refused::Invalid);
        }
    }
    let to = match given & IBV_QP_STATE {
        0 => now,
        _ => QpState::from_raw(attr.qp_state).ok_or(Refused::Invalid)?,
    };
    if !permits(kind, now, to, given) || !are_possible(attr, given, limits) {
        return Err(Refused::Invalid);
    }
    let notify = given & IBV_QP_EN_SQD_ASYNC_NOTIFY != 0 && attr.en_sqd_async_notify != 0;
    let step = match to {
        QpState::Reset => Step::Reset,
        QpState::Err => Step::Fail { used: now != QpState::Reset },
        QpState::Init => Step::Init,
        QpState::Rtr => Step::Connect,
        QpState::Rts => Step::Send { resumes: now == QpState::Sqe, undrains: now == QpState::Sqd },
        QpState::Sqd if now == QpState::Rts => Step::Drain { notify },
        QpState::Sqd => Step::Drained,
        // No transition leads to SQE.
        QpState::Sqe => return Err(Refused::Invalid),
    };
    Ok(Changes { effective_mask: given, step })
}

/// Whether the values of the given attributes are within the device's limits.
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
        // Alternate paths are not supported, as in rxe.
        (IBV_QP_ALT_PATH, false),
        (IBV_QP_CAP, false),
    ];
    rules.iter().all(|(bit, good)| given & bit == 0 || *good)
}

impl Changes {
    /// Whether the attribute of this `IBV_QP_*` bit takes effect.
    #[must_use]
    pub const fn has(&self, bit: u32) -> bool {
        self.effective_mask & bit != 0
    }

    /// Copies the effective attributes from `attr` to `known`, which ibv_query_qp(3) reports and
    /// the QP uses.
    pub fn copy_effective(&self, known: &mut ibv_qp_attr, attr: &ibv_qp_attr) {
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

/// The attributes that ibv_query_qp(3) reports for a QP in state `now`. `draining`: in SQD, issued
/// requests are incomplete.
#[must_use]
pub fn reported_attributes(
    known: &ibv_qp_attr,
    cap: ibv_qp_cap,
    now: QpState,
    draining: bool,
) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: now as u32,
        cur_qp_state: now as u32,
        cap,
        sq_draining: u8::from(now == QpState::Sqd && draining),
        ..*known
    }
}

/// The attributes that a transition requires and allows besides `IBV_QP_STATE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// `IBV_QP_*` bits that must be set, else EINVAL.
    pub required: u32,
    /// `IBV_QP_*` bits that may be set.
    pub optional: u32,
}

/// The address of the remote end.
const PATH: u32 = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
/// The requester's timeouts, retries, and depth of READs.
const ANSWERS: u32 = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
/// The attributes of a reliable requester.
const SENDER: u32 = ANSWERS | IBV_QP_SQ_PSN;
/// The attributes of a reliable responder.
const RESPONDER: u32 = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
/// Attributes that may change on the way to RTS, and in RTS.
const GOING: u32 = IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
/// Attributes that may change while the send queue drains.
const DRAINED: u32 =
    IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE;

/// The attributes of the transition `from` -> `to` of a QP of `kind`; `None`: no such transition.
#[must_use]
pub const fn transition(kind: QpType, from: QpState, to: QpState) -> Option<Attributes> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use QpType::{Raw, Rc, Uc, Ud, XrcRecv, XrcSend};
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

/// Attributes that the kernel removes from a mask first. An XRC QP is half of an RC QP, and
/// attributes of the other half are ignored, so that applications can treat all QPs alike.
const fn ignored(kind: QpType) -> u32 {
    match kind {
        QpType::XrcSend => RESPONDER,
        QpType::XrcRecv => IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
        _ => 0,
    }
}

/// Checks `given` (the mask of ibv_modify_qp) against the transition; `false` is EINVAL.
const fn permits(kind: QpType, from: QpState, to: QpState, given: u32) -> bool {
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
    use QpState::{Init, Reset, Rtr, Rts, Sqd, Sqe};
    use QpType::{Raw, Rc, Uc, Ud, XrcRecv, XrcSend};

    const KINDS: [QpType; 6] = [Rc, Uc, Ud, Raw, XrcSend, XrcRecv];
    const STATES: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, QpState::Err];

    /// IBTA 1.7 10.3.1.
    #[test]
    fn every_state_may_be_reset_or_failed_with_no_attribute() {
        for kind in KINDS {
            for from in STATES {
                assert!(permits(kind, from, Reset, IBV_QP_STATE));
                assert!(permits(kind, from, QpState::Err, IBV_QP_STATE));
                assert!(!permits(kind, from, QpState::Err, IBV_QP_STATE | IBV_QP_QKEY));
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

    /// IBTA 1.7 10.3.1.
    #[test]
    fn no_transition_skips_init_or_rtr() {
        for kind in KINDS {
            assert_eq!(transition(kind, Reset, Rtr), None);
            assert_eq!(transition(kind, Init, Rts), None);
            assert_eq!(transition(kind, QpState::Err, Rts), None);
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

    /// All transitions except those to RESET and ERR: kind, from, to, required, optional. From
    /// ibv_modify_qp(3), and IBTA 1.7 11.2.5.2 for optional attributes; XRC from the kernel's
    /// table. Attributes of alternate paths are omitted, because software adapters have none.
    const RULES: &[(QpType, QpState, QpState, u32, u32)] = &[
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
        // An XRC QP allows and ignores the attributes of its other half.
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

    /// Valid values for every attribute.
    fn values(from: QpState, to: QpState) -> ibv_qp_attr {
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

    fn changes_of(kind: QpType, from: QpState, to: QpState, mask: u32) -> Result<Changes, Refused> {
        modify(kind, from, &values(from, to), IBV_QP_STATE | mask, &LIMITS)
    }

    #[test]
    fn every_attribute_is_required_allowed_or_refused_as_the_table_says() {
        let mut requested = 0;
        for kind in KINDS {
            for (from, to) in STATES.iter().flat_map(|f| STATES.iter().map(move |t| (*f, *t))) {
                let rule = RULES.iter().find(|r| (r.0, r.1, r.2) == (kind, from, to));
                let (required, optional) = match (rule, to) {
                    (Some((.., required, optional)), _) => (*required, *optional),
                    (None, Reset | QpState::Err) => (0, ignored(kind)),
                    (None, _) => {
                        for mask in [0, PKEY | PORT | ACCESS, PKEY | PORT | QKEY, TO_RTR, SQ] {
                            let refused = changes_of(kind, from, to, mask);
                            assert_eq!(refused, Err(Refused::Invalid), "{kind:?} {from:?} {to:?}");
                        }
                        continue;
                    }
                };
                // A `cur_qp_state` outside these states is always refused.
                let sayable = matches!(from, Rtr | Rts | Sqd | Sqe);
                let optional = if sayable { optional } else { optional & !CUR };
                assert!(changes_of(kind, from, to, required).is_ok(), "{kind:?} {from:?} {to:?}");
                assert!(
                    changes_of(kind, from, to, required | optional).is_ok(),
                    "{kind:?} {from:?} {to:?}"
                );
                for bit in (1..21).map(|bit| 1 << bit).filter(|bit| *bit != IBV_QP_ALT_PATH) {
                    let outcome = if required & bit != 0 {
                        changes_of(kind, from, to, required & !bit)
                    } else {
                        changes_of(kind, from, to, required | bit)
                    };
                    let good = optional & bit != 0;
                    assert_eq!(outcome.is_ok(), good, "{kind:?} {from:?} {to:?} {bit:#x}");
                    requested += 1;
                }
                // Migration needs an alternate path, which this adapter lacks.
                assert!(changes_of(kind, from, to, required | IBV_QP_ALT_PATH).is_err());
            }
        }
        assert!(requested > 2000, "{requested}");
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
        let step = |kind, from, to, mask| changes_of(kind, from, to, mask).map(|c| c.step);
        let sends = |resumes, undrains| Ok(Step::Send { resumes, undrains });
        assert_eq!(step(Rc, Rts, Reset, 0), Ok(Step::Reset));
        assert_eq!(step(Rc, Reset, QpState::Err, 0), Ok(Step::Fail { used: false }));
        assert_eq!(step(Rc, Init, QpState::Err, 0), Ok(Step::Fail { used: true }));
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
    fn only_given_attributes_are_stored() {
        let attr = ibv_qp_attr { rq_psn: 0xff12_3456, ..values(Init, Rtr) };
        let changes = modify(Uc, Init, &attr, IBV_QP_STATE | TO_RTR, &LIMITS).expect("allowed");
        let mut known: ibv_qp_attr = Zeroed::zeroed();
        changes.copy_effective(&mut known, &attr);
        assert_eq!(
            (known.rq_psn, known.path_mtu, known.dest_qp_num),
            (0x12_3456, IBV_MTU_1024, 77)
        );
        assert_eq!(
            (known.qkey, known.timeout, known.qp_access_flags, known.port_num),
            (0, 0, 0, 0)
        );
        // Attributes of an XRC QP's other half are not stored.
        let attr = values(Init, Rtr);
        let mask = IBV_QP_STATE | TO_RTR | DEST_RD | TIMER;
        let changes = modify(XrcSend, Init, &attr, mask, &LIMITS).expect("ignored");
        changes.copy_effective(&mut known, &attr);
        assert_eq!((known.max_dest_rd_atomic, known.min_rnr_timer), (0, 0));
        assert!(changes.has(IBV_QP_AV) && !changes.has(TIMER));
    }

    #[test]
    fn a_queue_drains_only_in_sqd() {
        let draining =
            |now| reported_attributes(&Zeroed::zeroed(), Zeroed::zeroed(), now, true).sq_draining;
        assert_eq!((draining(Rts), draining(Sqd)), (0, 1));
        let attr = reported_attributes(&values(Rts, Rts), Zeroed::zeroed(), Sqe, false);
        assert_eq!((attr.qp_state, attr.cur_qp_state, attr.timeout), (5, 5, 14));
    }
}
