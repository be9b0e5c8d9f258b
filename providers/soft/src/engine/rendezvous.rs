//! The send side that a tag matching shared receive queue has in each of its QPs: it reads the data of a matched rendezvous
//! and tells the sender by a FIN message. Both are requests in the QP's send queue, in a part of it that is not the
//! application's; a queue without room for sends of its own (`max_send_wr` 0) has that part all the same.

use super::objects::connection::Requester;
use super::objects::qp::{Fetch, Fetched, Qp, Tagging};
use super::objects::srq::TagMatching;
use super::receive::Receive;
use super::request::{self, RemoteAddress, Request, SendQueue, What};
use super::state::State;
use super::tags::wire::{HEADERS_LEN, fin};
use abi::*;

/// Requests of the shared receive queue that can be in a send queue: two for each rendezvous. The rest waits outside.
pub(super) const OWN_REQUESTS: usize = 32;

impl Requester {
    /// Begins rendezvous that wait, as far as there is room. Returns whether there is anything new to issue.
    #[inline]
    pub(super) fn begin_fetches(&mut self, qp: &Qp) -> bool {
        qp.tagging().is_some_and(|(tm, own)| self.begin_found(qp, tm, own))
    }

    fn begin_found(&mut self, qp: &Qp, tm: &TagMatching, own: &Tagging) -> bool {
        match qp.state() {
            State::Rts | State::Sqd => {}
            // What is in the queue fails first, when it is flushed.
            State::Err if self.queue.is_idle() => {
                drop_fetches(qp, tm, own);
                return false;
            }
            _ => return false,
        }
        let mut begun = false;
        while self.queue.own_room() >= 2
            && let Some(fetch) = own.next()
        {
            begin(&mut self.queue, tm, &fetch);
            begun = true;
        }
        begun
    }
}

fn begin(queue: &mut SendQueue, tm: &TagMatching, fetch: &Fetch) {
    let mut receive = Receive::default();
    // It is taken, and stays so until `finished`.
    tm.lock().list.describe(fetch.handle, &mut receive);
    let mut left = fetch.offer.len;
    receive.sges.retain(|sge| {
        sge.length = sge.length.min(left);
        left -= sge.length;
        sge.length > 0
    });
    let fetched = request::Fetched { len: fetch.offer.len, solicited: fetch.solicited };
    let common = Request { wr_id: u64::from(fetch.handle), ..Request::default() };
    let from = RemoteAddress { addr: fetch.offer.va, rkey: fetch.offer.rkey };
    let read = Request { opcode: IBV_WR_RDMA_READ, what: What::Fetch(from, fetched), ..common };
    queue.push_own(&read, &receive.sges, fetch.offer.len);
    // The fence: the sender is told when the data is here, not when it was asked for.
    let done = Request {
        opcode: IBV_WR_SEND,
        flags: IBV_SEND_INLINE | IBV_SEND_FENCE,
        what: What::Finish(fetched),
        ..common
    };
    let n = queue.push_own(&done, &[], HEADERS_LEN as u32);
    let bytes = fin(fetch.tagged, fetch.offer);
    for (to, from) in queue.inline_mut(n).iter_mut().zip(bytes) {
        *to = from;
    }
    queue.entry(n).kept = true;
}

impl Requester {
    /// The send queue forgets everything: receives of rendezvous under way fail.
    pub(super) fn forget_fetches(&mut self, qp: &Qp) {
        for n in self.queue.completed..self.queue.posted {
            let entry = *self.queue.entry(n);
            if entry.own {
                finished(qp, &entry.request, IBV_WC_WR_FLUSH_ERR);
            }
        }
    }
}

/// One of the two requests of a rendezvous is complete.
#[cold]
pub(super) fn finished(qp: &Qp, request: &Request, status: u32) {
    let Some((tm, _)) = qp.tagging() else { return };
    let request::Fetched { len, solicited } = match request.what {
        What::Fetch(..) if status == IBV_WC_SUCCESS => return,
        What::Fetch(_, fetched) | What::Finish(fetched) => fetched,
        _ => return,
    };
    let fetched = Fetched { handle: request.wr_id as u32, len, solicited };
    // A peer goes past what a QP in RESET left in its ring: that is no acknowledgement.
    let cut = status == IBV_WC_SUCCESS && qp.state() == State::Reset;
    tm.fetched(qp, &fetched, if cut { IBV_WC_WR_FLUSH_ERR } else { status });
}

/// The QP does not go on: what waits fails.
pub(super) fn drop_fetches(qp: &Qp, tm: &TagMatching, own: &Tagging) {
    while let Some(fetch) = own.next() {
        let fetched =
            Fetched { handle: fetch.handle, len: fetch.offer.len, solicited: fetch.solicited };
        tm.fetched(qp, &fetched, IBV_WC_WR_FLUSH_ERR);
    }
}
