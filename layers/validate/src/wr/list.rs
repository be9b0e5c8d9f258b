//! WR-11: lists of requests that form a ring.

use core::sync::atomic::Ordering;

use crate::checks::queue;
use crate::report::report;
use crate::state::Qp;

/// The number of requests after which a list is checked for a ring. Shorter lists are common, and
/// the check walks the list once more.
pub(super) const LONG: usize = 64;

/// WR-11: reports a ring of requests.
#[cold]
pub(super) fn ring(call: &'static str, qp: Option<&Qp>, object: String) {
    if let Some(qp) = qp {
        // The number of requests that the provider takes is unknown.
        qp.failed.store(true, Ordering::Relaxed);
    }
    report(call, || object.clone(), [queue::ring()], qp.and_then(Qp::message_subject));
}
