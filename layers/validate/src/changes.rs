//! QP-02 to QP-11, WR-06: the facts about a change of a QP by ibv_modify_qp(3), and its checks.
//! `checks::change` judges the facts. `qp` has the call.

use core::ffi::c_int;

use abi::{IBV_QPT_DRIVER, IBV_QPT_XRC_RECV, QpAttrMask as M, ibv_qp_attr};

use crate::checks::change::{self, AlternatePath, ChangeFacts, QpChange};
use crate::checks::{Id, refused_change};
use crate::gid;
use crate::report::{report, wanted};
use crate::state::Qp;

const CALL: &str = "ibv_modify_qp";

/// Reads the attributes that `mask` names.
///
/// # Safety
/// `attr` is readable where `mask` names a member.
pub(crate) unsafe fn read(attr: *const ibv_qp_attr, mask: M) -> QpChange {
    macro_rules! member {
        ($bit:ident $field:ident) => {
            // SAFETY: the mask names the member.
            mask.contains(M::$bit).then(|| unsafe { (*attr).$field })
        };
    }
    QpChange {
        mask: mask.bits(),
        qp_state: member!(STATE qp_state),
        cur_qp_state: member!(CUR_STATE cur_qp_state),
        path_mtu: member!(PATH_MTU path_mtu),
        port_num: member!(PORT port_num),
        timeout: member!(TIMEOUT timeout),
        retry_cnt: member!(RETRY_CNT retry_cnt),
        rnr_retry: member!(RNR_RETRY rnr_retry),
        min_rnr_timer: member!(MIN_RNR_TIMER min_rnr_timer),
        rq_psn: member!(RQ_PSN rq_psn),
        sq_psn: member!(SQ_PSN sq_psn),
        dest_qp_num: member!(DEST_QPN dest_qp_num),
        qkey: member!(QKEY qkey),
        pkey_index: member!(PKEY_INDEX pkey_index),
        max_rd_atomic: member!(MAX_QP_RD_ATOMIC max_rd_atomic),
        max_dest_rd_atomic: member!(MAX_DEST_RD_ATOMIC max_dest_rd_atomic),
        qp_access_flags: member!(ACCESS_FLAGS qp_access_flags),
        ah_attr: member!(AV ah_attr),
        alternate: mask.contains(M::ALT_PATH).then(|| {
            // SAFETY: the mask names these members.
            unsafe {
                AlternatePath {
                    ah_attr: (*attr).alt_ah_attr,
                    port_num: (*attr).alt_port_num,
                    timeout: (*attr).alt_timeout,
                    pkey_index: (*attr).alt_pkey_index,
                }
            }
        }),
        path_mig_state: member!(PATH_MIG_STATE path_mig_state),
        en_sqd_async_notify: member!(EN_SQD_ASYNC_NOTIFY en_sqd_async_notify),
        rate_limit: member!(RATE_LIMIT rate_limit),
    }
}

/// The facts about a QP for the checks of a change.
fn facts(qp: &Qp) -> ChangeFacts<'_> {
    // One lock at a time.
    let port = qp.attr.lock().port_num;
    let lacks_receives = qp.srq.is_none() && qp.recv.lock().flights.is_empty();
    ChangeFacts {
        kind: qp.kind,
        state: qp.state(),
        // Other processes may have an XRC_RECV QP open.
        is_certain: qp.kind != IBV_QPT_XRC_RECV && !qp.has_failed(),
        port,
        ports: &qp.ctx.ports,
        device: qp.ctx.device.as_ref(),
        lacks_receives,
    }
}

/// Checks a change before the call. Returns whether a check found a reason for a refusal.
pub(crate) fn check(qp: &Qp, asked: &QpChange) -> bool {
    let facts = facts(qp);
    let asked = asked.of_kind(qp.kind);
    let object = || qp.name();
    let wrong_state = change::state(&facts, &asked);
    let mut is_explained = wrong_state.is_some();
    report(CALL, object, wrong_state, qp.about());
    report(CALL, object, change::advice(&facts, &asked), qp.about());
    if let Some(address) = &asked.ah_attr {
        let port = facts.port_after(&asked);
        is_explained |= gid::check(CALL, &qp.name(), &qp.ctx, port, address, qp.about());
    }
    let values = change::values(&facts, &asked);
    is_explained |= !values.is_empty();
    report(CALL, object, values, qp.about());
    is_explained
}

/// QP-03, QP-05: explains a refused change in which no check found an error. `actual` asks the
/// device for the state of the QP.
#[cold]
pub(crate) fn refused(
    qp: &Qp,
    asked: &QpChange,
    errno: c_int,
    actual: impl FnOnce() -> Option<u32>,
) {
    let facts = facts(qp);
    let needs_route = (errno == libc::EINVAL).then(|| change::needs_route(&facts, asked)).flatten();
    if needs_route.is_some() {
        return report(CALL, || qp.name(), needs_route, qp.about());
    }
    if !wanted(Id::Qp03) || qp.kind == IBV_QPT_DRIVER {
        return;
    }
    let is_empty = |port, index| gid::is_empty(&qp.ctx, port, index);
    let found = refused_change::refused(&facts, asked, errno, actual(), &is_empty);
    report(CALL, || qp.name(), found, qp.about());
}
