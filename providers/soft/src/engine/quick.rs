//! The usual case of SEND, without detours: a few bytes of one range, in a slot, on a connection where nothing waits, into a
//! receive of one range.
//!
//! Here is only what such a message needs, and what all messages of a list have in common is done once for the list. Whatever is
//! not as usual (a key that is wrong, a queue that is full, an event to be sent) is left, untouched, to the general way: `issue`
//! on the sending side, `inbound` on the receiving one. Both ways may take turns on one connection.

use super::completion::{Cqe, Pushed};
use super::link::{Link, Standing};
use super::qp::Qp;
use super::regions::{Covered, LOCAL_WRITE};
use super::requester::Requester;
use super::responder::Responder;
use super::state::State;
use crate::shm::layout::RING_SLOTS;
use crate::shm::slot::{SEND_INLINE, Short};
use crate::shm::view::Ring;
use abi::*;

/// Flags of a request that mean nothing until it completes, or only one bit in its slot.
const USUAL: u32 = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;

/// A list of short SENDs on its way into the ring of the remote QP. The first slot is written last, when this is dropped: whoever
/// finds it finds them all, and does not follow on our heels from one cache line to the next; and its line, which the receiver is
/// looking at, is taken away from him once.
#[derive(Debug)]
pub(crate) struct Quick<'a> {
    qp: &'a Qp,
    ring: Ring,
    requester: &'a mut Requester,
    /// How many more there is room for, in the send queue and in the ring.
    left: usize,
    /// The first slot, once there is one, and where its bytes are.
    first: Option<(Short, *const u8)>,
    /// What is the same in all heads; counts once there is a first slot.
    same: Short,
    /// The region that was used last.
    region: Covered,
}

impl Requester {
    /// Whether short SENDs can go the usual way just now.
    #[inline]
    pub(crate) fn quick<'a>(&'a mut self, qp: &'a Qp) -> Option<Quick<'a>> {
        if !qp.sends_plainly()
            || !qp.is_in(State::Rts)
            || self.failed
            || self.queue.issued != self.queue.posted
            || self.queue.is_careful()
        {
            return None;
        }
        let link = self.link.as_deref()?;
        let Standing::Serving(now) = link.standing(qp.qpn) else { return None };
        if self.latched != Some(now) {
            return None;
        }
        let ring = link.ring;
        let room = RING_SLOTS - self.next.wrapping_sub(self.acked);
        let left = self.queue.room().min(room as usize);
        let (same, region) = (Short([0; 2]), Covered::default());
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
            && self.lent.is_empty()
            && !self.failed
            && !self.unpublished
            && self.queue.issued == self.queue.posted;
        if !usual {
            return false;
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
        if !usual || len > SEND_INLINE || self.left == 0 {
            return false;
        }
        let from = if flags & IBV_SEND_INLINE == 0 {
            let found = self.region.find(sge);
            let Some(from) = found.or_else(|| self.look_up(sge)) else { return false };
            from.cast_const()
        } else if len <= self.requester.queue.max_inline {
            sge.addr as *const u8
        } else {
            return false;
        };
        let seq = self.requester.next;
        let is_first = self.first.is_none();
        if is_first {
            self.same = Short::from(self.qp.qpn, self.qp.acknowledge_along());
        }
        let imm = (opcode == IBV_WR_SEND_WITH_IMM).then_some(imm);
        let head = self.same.with(seq, len, imm, flags & IBV_SEND_SOLICITED != 0);
        if is_first {
            self.first = Some((head, from));
        }
        if is_first && !more {
            // Early, so that its line comes here meanwhile.
            self.show_first();
        } else if !is_first {
            // SAFETY: registered memory of the application, or what it says is its own for inline data, `len` bytes of it; the
            // requester's lock holds off deregistration.
            unsafe { self.ring.fill(head, from, len) };
            self.ring.show(head);
        }
        self.left -= 1;
        let end = seq.wrapping_add(1);
        self.requester.next = end;
        self.requester.queue.push_published(wr_id, opcode, flags, sge.length, end);
        true
    }

    /// Publishes the first slot, if there is one that was not.
    #[inline]
    fn show_first(&mut self) {
        if let Some((first, from)) = self.first.take() {
            // SAFETY: as in `post`, whose lock is still held.
            unsafe { self.ring.fill(first, from, first.len()) };
            self.ring.show(first);
            self.requester.unpublished = true;
        }
    }

    #[inline]
    fn look_up(&mut self, sge: &ibv_sge) -> Option<*mut u8> {
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

impl Responder {
    /// Serves the usual messages at the head of the ring, up to `most` of them; returns how many. What is there then, if
    /// anything is, the caller serves.
    pub(super) fn serve_usual(&mut self, qp: &Qp, link: &Link, most: usize) -> usize {
        if !self.inbound.is_idle() {
            return 0;
        }
        let Some(head) = self.ring.head(self.next) else { return 0 };
        // After the slot: see `Link::may_send`.
        let life = link.life();
        let sends = self.sender.is_some_and(|sender| Link::sends_as(life, sender, qp.qpn));
        if !head.is_one() || head.src_qpn() != link.qpn || !sends {
            return 0;
        }
        if !qp.has_noted(head.ack()) {
            // Takes the requester's lock, which comes before those that follow.
            qp.note_acked_along(head.ack());
        }
        let mut receives = qp.receives.lock();
        let mut batch = qp.recv_cq.batch();
        let mut pushed = Pushed::Quiet;
        let mut served = 0;
        let mut region = Covered::default();
        while served < most && pushed == Pushed::Quiet {
            let Some(now) = self.ring.head(self.next) else { break };
            if !now.is_as(head) || link.life() != life {
                break;
            }
            let Some((wr_id, [sge])) = receives.front() else { break };
            let len = now.len();
            let to = region.find(sge).or_else(|| {
                region = qp.adapter.regions.covered(qp.pd, sge.lkey, LOCAL_WRITE)?;
                region.find(sge)
            });
            let Some(to) = to else { break };
            if len > SEND_INLINE || len > sge.length as usize {
                break;
            }
            // SAFETY: a posted receive of `len` bytes or more, registered; the responder's lock holds off deregistration.
            unsafe { self.ring.pour(self.next, to, len) };
            receives.drop_front();
            let imm = now.imm();
            let cqe = Cqe {
                wr_id,
                status: IBV_WC_SUCCESS,
                opcode: IBV_WC_RECV,
                byte_len: len as u32,
                imm: imm.unwrap_or(0),
                qp_num: qp.qpn,
                src_qp: link.qpn,
                wc_flags: if imm.is_some() { IBV_WC_WITH_IMM } else { 0 },
                ..Cqe::default()
            };
            pushed = batch.push(&cqe, now.is_solicited());
            self.inbound.moved += len;
            self.next = self.next.wrapping_add(1);
            served += 1;
        }
        drop(receives);
        if served > 0 {
            self.rnr_since = None;
            batch.end(pushed);
        }
        served
    }
}
