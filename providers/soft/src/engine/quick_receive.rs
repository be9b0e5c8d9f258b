//! The usual case of SEND, without detours, on the receiving side: bytes of one range, in a slot or a chunk, into a receive of one range.
//! `quick_send` is the other side.
//!
//! Here is only what such a message needs, and what all messages in the ring have in common is done once for them. Whatever is not as
//! usual (a key that is wrong, a queue that is empty, an event to be sent) is left, untouched, to the general way, `inbound`. Both ways
//! may take turns on one connection.
#![forbid(unsafe_code)]

use super::completion::{Cqe, Pushed};
use super::objects::connection::{Link, Responder};
use super::objects::qp::Qp;
use super::regions::{Covered, LOCAL_WRITE};
use abi::*;
use soft_local::shm::layout::CHUNK_BYTES;
use soft_local::shm::slot::{SEND_INLINE, Short};
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

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
        let Some(pair) = qp.pair().filter(|_| self.inbound.is_idle()) else { return 0 };
        let Some(head) = self.ring.head(self.next) else { return 0 };
        let Some(life) = self.life_of_sender(qp, link, head).filter(|_| head.is_one()) else {
            return 0;
        };
        if !qp.has_noted(head.ack()) {
            // Takes the requester's lock, which comes before those that follow.
            qp.note_acked_along(head.ack());
        }
        let mut receives = qp.receives.lock();
        let mut batch = pair.recv_cq.batch();
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
        let Some(pair) = qp.pair() else { return false };
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
        // A chunk is mapped.
        let _ = from.copy_to(to);
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
        pair.recv_cq.push(&cqe, head.is_solicited());
        self.inbound.moved += len;
        self.next = self.next.wrapping_add(1);
        self.rnr_since = None;
        true
    }
}
