//! CQ-06, CQ-07, CQ-08: events that were read, and how many of them the program acknowledged. The
//! counts of acknowledgements are in the objects of C.

use core::sync::atomic::{AtomicU32, Ordering};

use layer_tap::argument::AcknowledgedEvents;

use crate::checks::events::{self, Unacknowledged};
use crate::patience::persists;
use crate::report::{is_enabled, report};
use crate::state::Cq;

/// CQ-06, CQ-08: reports the destruction of an object that waits for acknowledgements.
pub(crate) fn waits(
    events: Unacknowledged,
    call: &str,
    object: &str,
    got: &AtomicU32,
    acked: AcknowledgedEvents<'_>,
) {
    if !is_enabled(events.id()) {
        return;
    }
    let waiting = persists(|| {
        let (got, acked) = (got.load(Ordering::Relaxed), acked.read());
        events::unacknowledged(got, acked).map(|_| (got, acked))
    });
    let found = waiting.map(|(got, acked)| events::waits(events, got, acked));
    report(call, || object.to_owned(), found, None);
}

/// CQ-07: reports more acknowledged events than the program has read.
pub(crate) fn check(call: &str, cq: &Cq, acked: u32) {
    let found = events::acknowledged_too_often(cq.events_read.load(Ordering::Relaxed), acked);
    report(call, || cq.name(), found, None);
}
