//! WR-13: reports a list that was refused in its middle and is posted again from its start. The
//! posted part is in flight, and would be executed twice.
//!
//! The layer compares the first request of the next list with the first request of the refused
//! list: wr_id, opcode, first element and remote address. A message needs equal requests, and a
//! first request whose completion was not polled. A program that continues with `*bad_wr` gets no
//! message.

use core::ffi::c_int;

use crate::checks::Id;
use crate::report::{Message, emit, wanted};
use crate::stack::{self, Site};
use crate::state::{Qp, Queue};
use crate::wr::SendRequest;

/// The properties by which requests are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RequestKey {
    wr_id: u64,
    opcode: u32,
    remote: u64,
    count: usize,
    first: (u64, u32, u32),
}

impl RequestKey {
    fn of(send: &SendRequest<'_>) -> Self {
        let sges = send.sges.unwrap_or(&[]);
        let first = sges.first().map_or((0, 0, 0), |sge| (sge.addr, sge.length, sge.lkey));
        let SendRequest { wr_id, opcode, remote, .. } = *send;
        Self { wr_id, opcode, remote, count: sges.len(), first }
    }
}

/// The last refused list of a queue.
#[derive(Debug)]
pub(crate) struct RefusedList {
    first: RequestKey,
    /// The `wr_id` of `*bad_wr`.
    bad: u64,
    /// Number of posted requests, and of all requests in the list.
    posted: usize,
    all: usize,
    error: c_int,
    site: Site,
}

/// Notes a refused list of `all` requests. `ids` are the requests from `*bad_wr` on.
#[cold]
pub(crate) fn refused(
    queue: &mut Queue,
    first: &SendRequest<'_>,
    ids: &[u64],
    all: usize,
    error: c_int,
    site: Site,
) {
    let posted = all.saturating_sub(ids.len());
    // Requests with equal wr_ids cannot be told apart.
    if let Some(&bad) = ids.first()
        && posted > 0
        && bad != first.wr_id
        && wanted(Id::Wr13)
    {
        let first = RequestKey::of(first);
        queue.refused = Some(Box::new(RefusedList { first, bad, posted, all, error, site }));
    }
}

/// Checks the first request of the next list.
#[inline]
pub(crate) fn begins(qp: &Qp, call: &'static str, queue: &mut Queue, send: &SendRequest<'_>) {
    if let Some(refused) = queue.refused.take() {
        look(qp, call, queue, send, &refused);
    }
}

#[cold]
fn look(qp: &Qp, call: &'static str, queue: &Queue, send: &SendRequest<'_>, refused: &RefusedList) {
    let RefusedList { posted, all, bad, error, .. } = *refused;
    let is_in_flight = queue.flights.iter().any(|flight| flight.wr_id == send.wr_id);
    if RequestKey::of(send) != refused.first || !is_in_flight {
        return;
    }
    let error = layer_tap::names::errno(error);
    let message = Message {
        id: Id::Wr13,
        call,
        object: format!("{} wr_id {:#x}", qp.name(), send.wr_id),
        text: format!(
            "it is in flight already: {posted} of the {all} requests of a list were posted when it was refused ({error}); *bad_wr, wr_id {bad:#x}, was the first that was not"
        ),
        remedy: "go on with *bad_wr: what lies before it was posted, and completes".into(),
        also: stack::of(refused.site).map(|stack| ("the list was posted", stack)),
    };
    emit(&message, Some(qp));
}
