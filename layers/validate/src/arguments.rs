//! OB-01, QP-13: objects that a call names: destroyed ones, those of another context, and those
//! that QPs still use.

use std::sync::Arc;

use abi::ibv_pd;
use layer_tap::Arg;

use crate::checks::objects;
use crate::report::report;
use crate::state::{PDS, Qp, destroyed_at};

/// OB-01: reports an argument that is destroyed, or that belongs to another context. `of` is the
/// context of the live object.
pub(crate) fn check(call: &str, ctx: usize, kind: &'static str, at: usize, of: Option<usize>) {
    let found = objects::argument(kind, at, ctx, of, || destroyed_at(kind, at));
    report(call, || format!("{kind} {at:#x}"), found, None);
}

/// OB-01: reports a destroyed PD, as long as its memory is readable.
pub(crate) fn live_pd(call: &str, pd: Arg<'_, ibv_pd>) {
    if PDS.get(pd.at()).is_none() {
        check(call, 0, "pd", pd.at(), None);
    }
}

/// QP-13: reports the QPs that still use an object.
pub(crate) fn still_used(call: &str, kind: &str, at: usize, users: &[&Arc<Qp>]) {
    let names: Vec<String> = users.iter().map(|qp| qp.name()).collect();
    let found = users.first().and_then(|first| objects::used_by_qps(&names, first.created_by));
    report(call, || format!("{kind} {at:#x}"), found, None);
}
