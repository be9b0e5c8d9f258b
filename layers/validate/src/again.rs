//! WR-13: a list of requests was refused in its middle, and all of it is posted again. What was posted the first time is in flight, and is done twice.
//!
//! What a program takes for posted is not seen; that it posts the same request again is. It is the same if it has the wr_id, the operation, the first element and
//! the remote address of the list's first one, of which the completion was not polled. A program that goes on with `*bad_wr`, or with anything else, hears nothing.

use core::ffi::c_int;

use crate::checks::Id;
use crate::report::{Message, tell, wanted};
use crate::stack::{self, Site};
use crate::state::{Qp, Queue};
use crate::wr::Send;

/// What one request is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    wr_id: u64,
    opcode: u32,
    remote: u64,
    count: usize,
    first: (u64, u32, u32),
}

impl Request {
    fn of(send: &Send<'_>) -> Self {
        let sges = send.sges.unwrap_or(&[]);
        let first = sges.first().map_or((0, 0, 0), |sge| (sge.addr, sge.length, sge.lkey));
        let Send { wr_id, opcode, remote, .. } = *send;
        Self { wr_id, opcode, remote, count: sges.len(), first }
    }
}

/// The list that was refused last.
#[derive(Debug)]
pub(crate) struct Refused {
    first: Request,
    /// The `wr_id` of `*bad_wr`.
    bad: u64,
    /// How many of it were posted, and how many it had.
    posted: usize,
    all: usize,
    error: c_int,
    site: Site,
}

/// A list of `all` was refused; these ids, from `*bad_wr` on, were not posted.
#[cold]
pub(crate) fn refused(
    queue: &mut Queue,
    first: &Send<'_>,
    ids: &[u64],
    all: usize,
    error: c_int,
    site: Site,
) {
    let posted = all.saturating_sub(ids.len());
    // Where all have the same wr_id nobody can tell them apart.
    if let Some(&bad) = ids.first()
        && posted > 0
        && bad != first.wr_id
        && wanted(Id::Wr13)
    {
        let first = Request::of(first);
        queue.refused = Some(Box::new(Refused { first, bad, posted, all, error, site }));
    }
}

/// The first request of the next list is about to be posted.
#[inline]
pub(crate) fn begins(qp: &Qp, call: &'static str, queue: &mut Queue, send: &Send<'_>) {
    if let Some(refused) = queue.refused.take() {
        look(qp, call, queue, send, &refused);
    }
}

#[cold]
fn look(qp: &Qp, call: &'static str, queue: &Queue, send: &Send<'_>, refused: &Refused) {
    let Refused { posted, all, bad, error, .. } = *refused;
    let is_in_flight = queue.flights.iter().any(|flight| flight.wr_id == send.wr_id);
    if Request::of(send) != refused.first || !is_in_flight {
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
    tell(&message, Some(qp));
}
