//! Fast path of SEND on the requester: messages of one memory range, in a slot or one chunk.
//! `post_send` enters here; the ring of the remote QP is the next stop, read by `fast_receive`.
//!
//! The code does work common to a list of requests once for the list. A request outside the fast
//! path (a wrong key, a full queue) is left untouched for the general path, `issue`. Both paths may
//! alternate on a connection.

use crate::engine::keys::regions::CheckedLkey;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::Requester;
use crate::engine::ring::holder::PeerState;
use crate::probes;
use abi::*;
use soft_local::shm::layout::RING_SLOTS;
use soft_local::shm::ring::Ring;
use soft_local::shm::slot::{BounceBuffer, SEND_INLINE, ShortHead};
use soft_memory::Range;
use soft_semantics::state::QpState;

/// Send flags that the fast path accepts: each costs at most a bit in the slot.
const FAST_FLAGS: u32 = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;

/// The fields of a SEND besides its one range. Immediate data is in network order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortSend {
    pub(crate) wr_id: u64,
    /// `ibv_wr_opcode`.
    pub(crate) opcode: u32,
    /// `ibv_send_flags`.
    pub(crate) flags: u32,
    pub(crate) imm: u32,
}

impl ShortSend {
    /// Whether the fast path accepts a request with this opcode and these flags.
    #[inline(always)]
    const fn is_fast(self) -> bool {
        matches!(self.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) && self.flags & !FAST_FLAGS == 0
    }

    /// The head of slot `seq`, from the fields that all slots of a list share.
    #[inline(always)]
    fn head(self, common: ShortHead, seq: u32, len: usize) -> ShortHead {
        let imm = (self.opcode == IBV_WR_SEND_WITH_IMM).then_some(self.imm);
        common.for_send(seq, len, imm, self.flags & IBV_SEND_SOLICITED != 0)
    }
}

/// A list of SENDs of one range each, on the way into the ring of the remote QP.
///
/// If the first request is short, its slot is written last, when the `FastSend` is dropped. A
/// receiver that finds the first slot then finds the whole list. The cache line of the first slot,
/// which the receiver polls, moves between the processors only once.
#[derive(Debug)]
pub(crate) struct FastSend<'a> {
    qp: &'a Qp,
    ring: Ring,
    requester: &'a mut Requester,
    /// Requests that still fit into both the send queue and the ring.
    room: usize,
    /// The first slot and its bytes, until the slot is published.
    unpublished_first: Option<(ShortHead, [u8; SEND_INLINE])>,
    /// Head fields common to all slots of the list; set with the first request.
    common_head: Option<ShortHead>,
    /// The region of the last lkey, kept as a cache.
    region: CheckedLkey,
}

impl Requester {
    /// Returns a fast sender if SENDs of this QP may take the fast path now.
    #[inline]
    pub(crate) fn fast_send<'a>(&'a mut self, qp: &'a Qp) -> Option<FastSend<'a>> {
        let (ring, left) = self.fast_ring(qp)?;
        let (same, region) = (None, CheckedLkey::default());
        Some(FastSend {
            qp,
            ring,
            requester: self,
            room: left,
            unpublished_first: None,
            common_head: same,
            region,
        })
    }

    /// The ring of the remote QP if SENDs may take the fast path now, and the number of requests
    /// that fit into both the send queue and the ring.
    #[inline(always)]
    fn fast_ring(&self, qp: &Qp) -> Option<(Ring, usize)> {
        if !qp.sends_plainly()
            || !qp.is_in(QpState::Rts)
            || !self.sends.failure.is_working()
            || self.sends.queue.issued != self.sends.queue.posted
            || self.sends.queue.is_careful()
        {
            return None;
        }
        let link = self.ring.link.as_deref()?;
        let PeerState::Serving(now) = link.peer_state(qp.qpn()) else { return None };
        if self.ring.latched != Some(now) {
            return None;
        }
        let room = RING_SLOTS - self.ring.next.wrapping_sub(self.ring.acked);
        Some((link.ring, self.sends.queue.room().min(room as usize)))
    }

    /// Posts a SEND of one range that is a list of its own and fits into a slot. Returns false,
    /// without any effect, if the request needs another path. The caller announces the slot
    /// (`publish`).
    ///
    /// The results are those of [`FastSend::post`]. Without the fields that a list keeps from one
    /// request to the next, the request needs half the instructions.
    #[inline(always)]
    pub(crate) fn post_single(&mut self, qp: &Qp, send: ShortSend, sge: &ibv_sge) -> bool {
        let len = sge.length as usize;
        if !send.is_fast() || len > SEND_INLINE {
            return false;
        }
        let Some((ring, 1..)) = self.fast_ring(qp) else { return false };
        let from = if send.flags & IBV_SEND_INLINE == 0 {
            let region = qp.adapter().regions.check_lkey(qp.pd(), sge.lkey, 0);
            region.and_then(|region| region.find(sge))
        } else {
            self.sends.inline_source(sge)
        };
        let Some(from) = from else { return false };
        let head = ShortHead::from(qp.qpn(), qp.acks().piggyback());
        let head = send.head(head, self.ring.next, len);
        if !ring.fill(head, from) {
            return false;
        }
        ring.publish_filled(head);
        self.ring.unannounced = true;
        self.record_published(send, sge.length, qp);
        qp.sends_outstanding(true);
        true
    }

    /// Enters the request of the slot just written into the send queue.
    #[inline(always)]
    fn record_published(&mut self, send: ShortSend, len: u32, qp: &Qp) {
        let end = self.ring.next.wrapping_add(1);
        self.ring.next = end;
        self.sends.queue.push_published(send.wr_id, send.opcode, send.flags, len, end);
        probes::post_send(send.wr_id, send.opcode, len, qp);
    }

    /// Completes all sent requests if a piggybacked acknowledgement covers all of them and no other
    /// work waits. Returns true if the send queue is then empty; the general path does the rest.
    #[inline]
    pub(in crate::engine) fn finish_fast(&mut self, qp: &Qp) -> bool {
        let due = self.ring.next.wrapping_sub(self.ring.acked);
        let usual = due != 0
            && qp.acks().piggybacked_beyond(self.ring.acked) == due
            && qp.sends_plainly()
            && qp.is_in(QpState::Rts)
            && self.ring.latched.is_some()
            && self.ring.responses_due == 0
            && self.sends.failure.is_working()
            && !self.ring.unannounced
            && self.sends.queue.issued == self.sends.queue.posted;
        if !usual {
            return false;
        }
        while let Some(lent) = self.ring.lent_chunks.pop_front() {
            qp.adapter().chunks.give(lent.chunk);
        }
        self.note_acked_all();
        self.reap(qp);
        if self.sends.queue.is_idle() {
            qp.sends_outstanding(false);
        }
        self.sends.queue.is_idle()
    }
}

impl FastSend<'_> {
    /// Posts a request of one range; `more` says that further requests follow. Returns false,
    /// without any effect, if the request needs the general path.
    #[inline(always)]
    pub(crate) fn post(&mut self, send: ShortSend, sge: &ibv_sge, more: bool) -> bool {
        let len = sge.length as usize;
        if !send.is_fast() || self.room == 0 {
            return false;
        }
        if len > SEND_INLINE {
            return self.post_chunked(send, sge);
        }
        let Some(from) = self.source(send.flags, sge) else { return false };
        let seq = self.requester.ring.next;
        let is_first = self.common_head.is_none();
        let head = self.head(send, seq, len);
        if is_first && more {
            let mut bytes = [0; SEND_INLINE];
            if !from.get(&mut bytes) {
                return false;
            }
            self.unpublished_first = Some((head, bytes));
        } else {
            // The general path finds the same missing memory again and reports the error.
            if !self.ring.fill(head, from) {
                return false;
            }
            self.ring.publish_filled(head);
            self.requester.ring.unannounced |= is_first;
        }
        self.record_posted(send, sge.length);
        true
    }

    /// As `post`, for messages longer than a slot.
    #[inline(never)]
    fn post_chunked(&mut self, send: ShortSend, sge: &ibv_sge) -> bool {
        let len = sge.length as usize;
        if len > self.qp.adapter().identity.one_chunk() {
            return false;
        }
        let Some(from) = self.source(send.flags, sge) else { return false };
        let Some((chunk, base)) = self.requester.lend(self.qp, None) else { return false };
        if !from.copy_to(base) {
            self.requester.take_back_chunk(self.qp);
            return false;
        }
        let words = BounceBuffer { chunk, len: sge.length, total: u64::from(sge.length) }.emit();
        let head = self.head(send, self.requester.ring.next, 0).chunked();
        self.ring.fill_words(head, words);
        self.ring.publish_filled(head);
        self.requester.ring.unannounced = true;
        self.record_posted(send, sge.length);
        true
    }

    /// The bytes of a request, if the lkey permits reading (or the data is inline).
    #[inline]
    fn source(&mut self, flags: u32, sge: &ibv_sge) -> Option<Range<'static>> {
        if flags & IBV_SEND_INLINE == 0 {
            let found = self.region.find(sge);
            return found.or_else(|| self.look_up(sge));
        }
        self.requester.sends.inline_source(sge)
    }

    #[inline]
    fn head(&mut self, send: ShortSend, seq: u32, len: usize) -> ShortHead {
        let first = || ShortHead::from(self.qp.qpn(), self.qp.acks().piggyback());
        let same = *self.common_head.get_or_insert_with(first);
        send.head(same, seq, len)
    }

    #[inline]
    fn record_posted(&mut self, send: ShortSend, len: u32) {
        self.room -= 1;
        self.requester.record_published(send, len, self.qp);
    }

    #[inline]
    fn publish_first(&mut self) {
        if let Some((first, mut bytes)) = self.unpublished_first.take() {
            let is_there = self.ring.fill(first, Range::of(&mut bytes).first(first.len()));
            debug_assert!(is_there, "bytes of our own");
            self.ring.publish_filled(first);
            self.requester.ring.unannounced = true;
        }
    }

    #[inline(never)]
    fn look_up(&mut self, sge: &ibv_sge) -> Option<Range<'static>> {
        self.region = self.qp.adapter().regions.check_lkey(self.qp.pd(), sge.lkey, 0)?;
        self.region.find(sge)
    }
}

impl Drop for FastSend<'_> {
    #[inline]
    fn drop(&mut self) {
        self.publish_first();
        if self.requester.ring.unannounced {
            self.qp.sends_outstanding(true);
        }
    }
}
