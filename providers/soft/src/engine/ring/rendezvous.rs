//! Rendezvous of tag matching: READ of the data of a matched message, then FIN to its sender.
//! `tagged` queues a fetch; `Requester::advance` begins it, in a part of the send queue reserved
//! for the library.
//!
//! Both requests use entries that the application cannot use. A send queue without room for the
//! application (`max_send_wr` 0) has these entries, too.

use crate::engine::queues::qp::Requester;
use crate::engine::queues::qp::{Fetch, Qp, RendezvousPayload, Tagging};
use crate::engine::queues::srq::TagMatching;
use abi::*;
use soft_semantics::receive::Receive;
use soft_semantics::request::{self, RemoteAddress, Request, RequestOperation, SendQueue};
use soft_semantics::state::QpState;
use soft_semantics::tags::wire::{HEADERS_LEN, fin};

/// Entries reserved for the shared receive queue: two for each rendezvous. Further rendezvous wait
/// in `pending_fetches`.
pub(in crate::engine) const OWN_REQUESTS: usize = 32;

impl Requester {
    /// Begins waiting rendezvous while entries are free. Returns whether any was begun.
    #[inline]
    pub(in crate::engine) fn begin_fetches(&mut self, qp: &Qp) -> bool {
        qp.tagging().is_some_and(|(tm, own)| self.begin_pending(qp, tm, own))
    }

    fn begin_pending(&mut self, qp: &Qp, tm: &TagMatching, own: &Tagging) -> bool {
        match qp.state() {
            QpState::Rts | QpState::Sqd => {}
            // Queued requests fail first, in the flush.
            QpState::Err if self.sends.queue.is_idle() => {
                drop_fetches(qp, tm, own);
                return false;
            }
            _ => return false,
        }
        let mut begun = false;
        while self.sends.queue.own_room() >= 2
            && let Some(fetch) = own.next_fetch()
        {
            begin(&mut self.sends.queue, tm, &fetch);
            begun = true;
        }
        begun
    }
}

fn begin(queue: &mut SendQueue, tm: &TagMatching, fetch: &Fetch) {
    let mut receive = Receive::default();
    // The entry stays taken until `finished`.
    tm.lock().list.describe(fetch.handle, &mut receive);
    let mut left = fetch.offer.len;
    receive.sges.retain(|sge| {
        sge.length = sge.length.min(left);
        left -= sge.length;
        sge.length > 0
    });
    let fetched = request::RendezvousPayload { len: fetch.offer.len, solicited: fetch.solicited };
    let common = Request { wr_id: u64::from(fetch.handle), ..Request::default() };
    let from = RemoteAddress { addr: fetch.offer.va, rkey: fetch.offer.rkey };
    let read = Request {
        opcode: IBV_WR_RDMA_READ,
        operation: RequestOperation::Fetch(from, fetched),
        ..common
    };
    queue.push_own(&read, &receive.sges, fetch.offer.len);
    // The fence delays FIN until the data has arrived.
    let done = Request {
        opcode: IBV_WR_SEND,
        flags: IBV_SEND_INLINE | IBV_SEND_FENCE,
        operation: RequestOperation::Finish(fetched),
        ..common
    };
    let n = queue.push_own(&done, &[], HEADERS_LEN as u32);
    let bytes = fin(fetch.tagged, fetch.offer);
    for (to, from) in queue.inline_mut(n).iter_mut().zip(bytes) {
        *to = from;
    }
    queue.entry(n).inline_is_copied = true;
}

impl Requester {
    /// Fails the receives of begun rendezvous, when the send queue forgets everything.
    pub(in crate::engine) fn forget_fetches(&mut self, qp: &Qp) {
        for n in self.sends.queue.completed..self.sends.queue.posted {
            let entry = *self.sends.queue.entry(n);
            if entry.is_tag_operation {
                finish_request(qp, &entry.request, IBV_WC_WR_FLUSH_ERR);
            }
        }
    }
}

/// Handles the end of one of the two requests of a rendezvous.
#[cold]
pub(in crate::engine) fn finish_request(qp: &Qp, request: &Request, status: u32) {
    let Some((tm, _)) = qp.tagging() else { return };
    let request::RendezvousPayload { len, solicited } = match request.operation {
        RequestOperation::Fetch(..) if status == IBV_WC_SUCCESS => return,
        RequestOperation::Fetch(_, fetched) | RequestOperation::Finish(fetched) => fetched,
        _ => return,
    };
    let fetched = RendezvousPayload { handle: request.wr_id as u32, len, solicited };
    // A peer skips slots of a QP in RESET. The resulting acknowledgement does not prove that FIN
    // was executed.
    let cut = status == IBV_WC_SUCCESS && qp.state() == QpState::Reset;
    tm.finish_fetch(qp, &fetched, if cut { IBV_WC_WR_FLUSH_ERR } else { status });
}

/// Fails the waiting rendezvous of a QP that stops.
pub(in crate::engine) fn drop_fetches(qp: &Qp, tm: &TagMatching, own: &Tagging) {
    while let Some(fetch) = own.next_fetch() {
        let fetched = RendezvousPayload {
            handle: fetch.handle,
            len: fetch.offer.len,
            solicited: fetch.solicited,
        };
        tm.finish_fetch(qp, &fetched, IBV_WC_WR_FLUSH_ERR);
    }
}
