//! The usual case of SEND, without detours, on the sending side: bytes of one range, in a slot or a chunk, on a connection where nothing
//! waits. `quick_receive` is the other side.
//!
//! Here is only what such a message needs, and what all messages of a list have in common is done once for the list. Whatever is
//! not as usual (a key that is wrong, a queue that is full) is left, untouched, to the general way, `issue`. Both ways may take turns on
//! one connection.

use super::objects::connection::Requester;
use super::objects::holder::PeerState;
use super::objects::qp::Qp;
use super::regions::Covered;
use super::state::State;
use abi::*;
use soft_local::shm::layout::RING_SLOTS;
use soft_local::shm::ring::Ring;
use soft_local::shm::slot::{BounceBuffer, SEND_INLINE, Short};
use soft_memory::Range;

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
    /// The first slot, if it was not shown yet, and its bytes.
    first: Option<(Short, [u8; SEND_INLINE])>,
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
        if is_first && more {
            let mut bytes = [0; SEND_INLINE];
            if !from.get(&mut bytes) {
                return false;
            }
            self.first = Some((head, bytes));
        } else {
            // Bytes that are gone the general way finds gone, too, and says so.
            if !self.ring.fill(head, from) {
                return false;
            }
            self.ring.show(head);
            self.requester.unpublished |= is_first;
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
        if !from.copy_to(base) {
            self.requester.take_back_chunk(self.qp);
            return false;
        }
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
        if let Some((first, mut bytes)) = self.first.take() {
            // SAFETY: bytes of our own, which the range does not outlive.
            let bytes = unsafe { Range::new(bytes.as_mut_ptr(), first.len()) };
            let is_there = self.ring.fill(first, bytes);
            debug_assert!(is_there, "bytes of our own");
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
