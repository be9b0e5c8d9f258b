//! The usual case of SEND, without detours: bytes of one range, in a slot or a chunk, on a connection where nothing waits, into a
//! receive of one range.
//!
//! Here is only what such a message needs, and what all messages of a list have in common is done once for the list. Whatever is
//! not as usual (a key that is wrong, a queue that is full, an event to be sent) is left, untouched, to the general way: `issue`
//! on the sending side, `inbound` on the receiving one. Both ways may take turns on one connection.

use super::completion::{Cqe, Pushed};
use super::objects::connection::{Link, Requester, Responder};
use super::objects::holder::PeerState;
use super::objects::qp::Qp;
use super::regions::{Covered, LOCAL_WRITE};
use super::state::State;
use abi::*;
use soft_local::shm::layout::{CHUNK_BYTES, RING_SLOTS};
use soft_local::shm::slot::{BounceBuffer, SEND_INLINE, Short};
use soft_local::shm::view::Ring;
use soft_memory::Range;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

/// Flags of a request that mean nothing until it completes, or only one bit in its slot.
const USUAL: u32 = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;

/// A list of SENDs of one range, short or of a chunk at most, on its way into the ring of the remote QP. If the first one is short, its
/// slot is written last, when this is dropped: whoever finds it finds them all, and does not follow on our heels from one cache line
/// to the next; and its line, which the receiver is looking at, is taken away from him once.
#[derive(Debug)]
pub(crate) struct Quick<'a> {
    qp: &'a Qp,
    ring: Ring,
    requester: &'a mut Requester,
    /// How many more there is room for, in the send queue and in the ring.
    left: usize,
    /// The first slot, if it was not shown yet, and where its bytes are.
    first: Option<(Short, Range)>,
    /// What is the same in all heads, once there was a first one.
    same: Option<Short>,
    /// The region that was used last.
    region: Covered,
}

impl Requester {
    /// Whether SENDs can go the usual way just now.
    #[inline]
    pub(crate) fn quick<'a>(&'a mut self, qp: &'a Qp) -> Option<Quick<'a>> {
        if !qp.sends_plainly()
            || !qp.is_in(State::Rts)
            || !self.fate.is_going()
            || self.queue.issued != self.queue.posted
            || self.queue.is_careful()
        {
            return None;
        }
        let link = self.link.as_deref()?;
        let PeerState::Serving(now) = link.peer_state(qp.qpn) else { return None };
        if self.latched != Some(now) {
            return None;
        }
        let ring = link.ring;
        let room = RING_SLOTS - self.next.wrapping_sub(self.acked);
        let left = self.queue.room().min(room as usize);
        let (same, region) = (None, Covered::default());
        Some(Quick { qp, ring, requester: self, left, first: None, same, region })
    }

    /// Completes what was sent, if a message brought the acknowledgement of all of it and nothing else is to be done; `false`:
    /// it is not so, or not all.
    #[inline]
    pub(super) fn finish_usual(&mut self, qp: &Qp) -> bool {
        let due = self.next.wrapping_sub(self.acked);
        let usual = due != 0
            && qp.acked_along(self.acked) == due
            && qp.sends_plainly()
            && qp.is_in(State::Rts)
            && self.latched.is_some()
            && self.answers_due == 0
            && self.fate.is_going()
            && !self.unpublished
            && self.queue.issued == self.queue.posted;
        if !usual {
            return false;
        }
        while let Some(lent) = self.lent.pop_front() {
            qp.adapter.chunks.give(lent.chunk);
        }
        self.note_acked_all();
        self.reap(qp);
        if self.queue.is_idle() {
            qp.sends_outstanding(false);
        }
        self.queue.is_idle()
    }
}

impl Quick<'_> {
    /// Posts one request of one range, `more` being behind it; `false`: it is none of the usual ones, and nothing was done.
    #[inline]
    pub(crate) fn post(
        &mut self,
        (wr_id, opcode, flags, imm): (u64, u32, u32, u32),
        sge: &ibv_sge,
        more: bool,
    ) -> bool {
        let len = sge.length as usize;
        let usual = matches!(opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) && flags & !USUAL == 0;
        if !usual || self.left == 0 {
            return false;
        }
        if len > SEND_INLINE {
            return self.post_chunked((wr_id, opcode, flags, imm), sge);
        }
        let Some(from) = self.source(flags, sge) else { return false };
        let seq = self.requester.next;
        let is_first = self.same.is_none();
        let head = self.head(seq, len, opcode, flags, imm);
        if is_first {
            self.first = Some((head, from));
        }
        if is_first && !more {
            // Early, so that its line comes here meanwhile.
            self.show_first();
        } else if !is_first {
            self.ring.fill(head, from);
            self.ring.show(head);
        }
        self.count(wr_id, opcode, flags, sge.length);
        true
    }

    /// As `post`, of more bytes than a slot takes.
    #[inline(never)]
    fn post_chunked(
        &mut self,
        (wr_id, opcode, flags, imm): (u64, u32, u32, u32),
        sge: &ibv_sge,
    ) -> bool {
        let len = sge.length as usize;
        if len > self.qp.adapter.one_chunk {
            return false;
        }
        let Some(from) = self.source(flags, sge) else { return false };
        let Some((chunk, base)) = self.requester.lend(self.qp, None) else { return false };
        from.copy_to(base);
        let words = BounceBuffer { chunk, len: sge.length, total: u64::from(sge.length) }.emit();
        let head = self.head(self.requester.next, 0, opcode, flags, imm).chunked();
        self.ring.fill_words(head, words);
        self.ring.show(head);
        self.requester.unpublished = true;
        self.count(wr_id, opcode, flags, sge.length);
        true
    }

    /// Where the bytes of a request are, if they may be read.
    #[inline]
    fn source(&mut self, flags: u32, sge: &ibv_sge) -> Option<Range> {
        if flags & IBV_SEND_INLINE == 0 {
            let found = self.region.find(sge);
            return found.or_else(|| self.look_up(sge));
        }
        let len = sge.length as usize;
        // SAFETY: what a caller of ibv_post_send(3) gives as inline data it may read, until the post returns; it is only read.
        (len <= self.requester.queue.max_inline).then(|| unsafe { Range::at(sge.addr, len) })
    }

    #[inline]
    fn head(&mut self, seq: u32, len: usize, opcode: u32, flags: u32, imm: u32) -> Short {
        let first = || Short::from(self.qp.qpn, self.qp.acknowledge_along());
        let same = *self.same.get_or_insert_with(first);
        let imm = (opcode == IBV_WR_SEND_WITH_IMM).then_some(imm);
        same.with(seq, len, imm, flags & IBV_SEND_SOLICITED != 0)
    }

    /// One more was put into the ring.
    #[inline]
    fn count(&mut self, wr_id: u64, opcode: u32, flags: u32, len: u32) {
        self.left -= 1;
        let end = self.requester.next.wrapping_add(1);
        self.requester.next = end;
        self.requester.queue.push_published(wr_id, opcode, flags, len, end);
    }

    /// Publishes the first slot, if there is one that was not.
    #[inline]
    fn show_first(&mut self) {
        if let Some((first, from)) = self.first.take() {
            self.ring.fill(first, from);
            self.ring.show(first);
            self.requester.unpublished = true;
        }
    }

    #[inline]
    fn look_up(&mut self, sge: &ibv_sge) -> Option<Range> {
        self.region = self.qp.adapter.regions.covered(self.qp.pd, sge.lkey, 0)?;
        self.region.find(sge)
    }
}

impl Drop for Quick<'_> {
    #[inline]
    fn drop(&mut self) {
        self.show_first();
        if self.requester.unpublished {
            self.qp.sends_outstanding(true);
        }
    }
}

/// Immediate data of a completion, and the flag that tells of it.
#[inline]
fn imm_of(head: Short) -> (u32, u32) {
    head.imm().map_or((0, 0), |imm| (imm, IBV_WC_WITH_IMM))
}

/// The completion of a receive that a message with this `head` has taken.
#[inline]
fn received(qp: &Qp, head: Short, wr_id: u64, byte_len: u32) -> Cqe {
    let (imm, wc_flags) = imm_of(head);
    Cqe {
        wr_id,
        status: IBV_WC_SUCCESS,
        opcode: IBV_WC_RECV,
        byte_len,
        imm,
        qp_num: qp.qpn,
        src_qp: head.src_qpn(),
        wc_flags,
        ..Cqe::default()
    }
}

impl Responder {
    /// How things are with the QP that sent a slot with this `head`, if it is our peer and what it sends counts.
    #[inline]
    fn life_of_sender(&self, qp: &Qp, link: &Link, head: Short) -> Option<u64> {
        // After the slot: see `Link::may_send`.
        let life = link.life();
        let sends = self.sender.is_some_and(|sender| Link::sends_as(life, sender, qp.qpn));
        (sends && head.src_qpn() == link.qpn).then_some(life)
    }

    /// Serves the usual messages at the head of the ring, up to `most` of them; returns how many. What is there then, if
    /// anything is, the caller serves.
    pub(super) fn serve_usual(&mut self, qp: &Qp, link: &Link, most: usize) -> usize {
        if !self.inbound.is_idle() {
            return 0;
        }
        let Some(head) = self.ring.head(self.next) else { return 0 };
        let Some(life) = self.life_of_sender(qp, link, head).filter(|_| head.is_one()) else {
            return 0;
        };
        if !qp.has_noted(head.ack()) {
            // Takes the requester's lock, which comes before those that follow.
            qp.note_acked_along(head.ack());
        }
        let mut receives = qp.receives.lock();
        let mut batch = qp.recv_cq.batch();
        let mut pushed = Pushed::Quiet;
        let mut served = 0;
        let mut region = Covered::default();
        // Most of it is the same for all of them.
        let mut cqe = received(qp, head, 0, 0);
        // Of our own, as is `next`: fields would be read again after each store to shared memory.
        let ring = self.ring;
        let mut next = self.next;
        while served < most && pushed == Pushed::Quiet {
            let Some(now) = ring.head(next) else { break };
            if !now.is_as(head) || link.life() != life {
                break;
            }
            let Some(oldest) = receives.oldest() else { break };
            let [sge] = oldest.list() else { break };
            let len = now.len();
            let to = region.find(sge).or_else(|| {
                region = qp.adapter.regions.covered(qp.pd, sge.lkey, LOCAL_WRITE)?;
                region.find(sge)
            });
            let Some(to) = to else { break };
            if len > SEND_INLINE || len > sge.length as usize {
                break;
            }
            ring.pour(next, to.first(len));
            (cqe.wr_id, cqe.byte_len) = (oldest.take(), len as u32);
            (cqe.imm, cqe.wc_flags) = imm_of(now);
            pushed = batch.push(&cqe, now.is_solicited());
            self.inbound.moved += len;
            next = next.wrapping_add(1);
            served += 1;
        }
        drop(receives);
        if served > 0 {
            self.next = next;
            self.rnr_since = None;
            batch.end(pushed);
        }
        served
    }

    /// Serves the message at the head of the ring if it is a usual one in a chunk. No lock but our own is held while it is copied.
    pub(super) fn serve_chunked(&mut self, qp: &Qp, link: &Link, head: Short) -> bool {
        if !head.is_chunked() || !self.inbound.is_idle() {
            return false;
        }
        let Some(life) = self.life_of_sender(qp, link, head) else { return false };
        let Some(bounced) = self.ring.bounce_buffer(self.next) else { return false };
        let bounced = bounced.check(|bounced| {
            let whole =
                bounced.len as usize <= CHUNK_BYTES && bounced.total == u64::from(bounced.len);
            link.view
                .chunk(bounced.chunk)
                .filter(|_| whole)
                .map(|from| (from.first(bounced.len as usize), bounced.len))
        });
        let Some((from, byte_len)) = bounced else { return false };
        let len = byte_len as usize;
        if !qp.has_noted(head.ack()) {
            // Takes the requester's lock, which comes before those that follow.
            qp.note_acked_along(head.ack());
        }
        let mut receives = qp.receives.lock();
        let Some(oldest) = receives.oldest() else { return false };
        let &[sge] = oldest.list() else { return false };
        let to = if byte_len <= sge.length {
            let region = qp.adapter.regions.covered(qp.pd, sge.lkey, LOCAL_WRITE);
            region.and_then(|region| region.find(&sge))
        } else {
            None
        };
        let Some(to) = to else { return false };
        let wr_id = oldest.take();
        drop(receives);
        let begun = (len > qp.adapter.eager_bytes).then(Instant::now);
        from.copy_to(to);
        if let Some(begun) = begun {
            self.costs.emptied(qp, begun.elapsed(), len);
        }
        // The copy before the look: who takes the connection down may use the chunk otherwise.
        fence(Ordering::Acquire);
        if link.life() != life {
            self.inbound.keep(wr_id, sge);
            return false;
        }
        let cqe = received(qp, head, wr_id, byte_len);
        qp.recv_cq.push(&cqe, head.is_solicited());
        self.inbound.moved += len;
        self.next = self.next.wrapping_add(1);
        self.rnr_since = None;
        true
    }
}
