//! QP-02 to QP-11, WR-06: the facts about a change of a QP by ibv_modify_qp(3), and its checks.
//! `checks::change` judges the facts. `qp` has the call.

use core::ffi::c_int;

use abi::{IBV_QPT_DRIVER, IBV_QPT_XRC_RECV};

use crate::checks::change::{self, ChangeFacts, QpChange};
use crate::checks::{Id, refused_change};
use crate::gid;
use crate::report::{is_enabled, report};
use crate::state::Qp;

const CALL: &str = "ibv_modify_qp";

/// The facts about a QP for the checks of a change.
fn facts(qp: &Qp) -> ChangeFacts<'_> {
    // One lock at a time.
    let port = qp.attr.lock().port_num;
    let lacks_receives = qp.srq.is_none() && qp.recv.lock().flights.is_empty();
    ChangeFacts {
        qp_type: qp.qp_type,
        state: qp.state(),
        // Other processes may have an XRC_RECV QP open.
        is_certain: qp.qp_type != IBV_QPT_XRC_RECV && !qp.has_failed(),
        port,
        ports: &qp.ctx.ports,
        device: qp.ctx.device.as_ref(),
        lacks_receives,
    }
}

/// Checks a change before the call. Returns whether a check found a reason for a refusal.
pub(crate) fn check(qp: &Qp, asked: &QpChange) -> bool {
    let facts = facts(qp);
    let asked = asked.of_kind(qp.qp_type);
    let object = || qp.name();
    let wrong_state = change::state(&facts, &asked);
    let mut is_explained = wrong_state.is_some();
    report(CALL, object, wrong_state, qp.message_subject());
    report(CALL, object, change::advice(&facts, &asked), qp.message_subject());
    if let Some(address) = &asked.ah_attr {
        let port = facts.port_after(&asked);
        is_explained |= gid::check(CALL, &qp.name(), &qp.ctx, port, address, qp.message_subject());
    }
    let values = change::values(&facts, &asked);
    is_explained |= !values.is_empty();
    report(CALL, object, values, qp.message_subject());
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
        return report(CALL, || qp.name(), needs_route, qp.message_subject());
    }
    if !is_enabled(Id::Qp03) || qp.qp_type == IBV_QPT_DRIVER {
        return;
    }
    let is_empty = |port, index| gid::is_empty(&qp.ctx, port, index);
    let found = refused_change::refused(&facts, asked, errno, actual(), &is_empty);
    report(CALL, || qp.name(), found, qp.message_subject());
}
