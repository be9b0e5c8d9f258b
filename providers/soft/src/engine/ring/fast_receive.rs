//! Fast path of SEND on the responder: messages of one memory range into receives of one range. A
//! poll enters here from `Responder::advance`; completions go to the receive CQ. `fast_send` is the
//! sending side.
//!
//! Work common to all messages in the ring is done once. A message outside the fast path (a wrong
//! key, no receive, an event to send) is left untouched for the general path, `inbound`. Both paths
//! may alternate on a connection.
#![forbid(unsafe_code)]

use crate::engine::keys::regions::{CheckedLkey, LOCAL_WRITE};
use crate::engine::queues::qp::Qp;
use crate::engine::ring::{Link, Responder};
use abi::*;
use soft_local::shm::layout::CHUNK_BYTES;
use soft_local::shm::slot::{SEND_INLINE, ShortHead};
use soft_semantics::completion::{Cqe, PushOutcome};
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

/// Immediate data of a completion, and its flag.
#[inline]
fn imm_of(head: ShortHead) -> (u32, u32) {
    head.imm().map_or((0, 0), |imm| (imm, IBV_WC_WITH_IMM))
}

#[inline]
fn received(qp: &Qp, head: ShortHead, wr_id: u64, byte_len: u32) -> Cqe {
    let (imm, wc_flags) = imm_of(head);
    Cqe {
        wr_id,
        status: IBV_WC_SUCCESS,
        opcode: IBV_WC_RECV,
        byte_len,
        imm,
        qp_num: qp.qpn(),
        src_qp: head.src_qpn(),
        wc_flags,
        ..Cqe::default()
    }
}

impl Responder {
    /// The life word of the sender, if the sender of a slot with this `head` is the peer and its
    /// messages still count.
    #[inline]
    fn sender_life(&self, qp: &Qp, link: &Link, head: ShortHead) -> Option<u64> {
        // Loaded after the slot: see `Link::may_send`.
        let life = link.remote_life();
        let sends = self.sender.is_some_and(|sender| Link::sends_as(life, sender, qp.qpn()));
        (sends && head.src_qpn() == link.qpn).then_some(life)
    }

    /// Serves at most `most` short messages from the head of the ring. Returns the number of
    /// messages served; the caller serves the next message by another path.
    pub(in crate::engine) fn serve_short(&mut self, qp: &Qp, link: &Link, most: usize) -> usize {
        let Some(pair) = qp.pair().filter(|_| self.inbound.has_no_message()) else { return 0 };
        let Some(head) = self.ring.head(self.next) else { return 0 };
        let Some(life) = self.sender_life(qp, link, head).filter(|_| head.is_one()) else {
            return 0;
        };
        if !qp.acks().has_noted(head.ack()) {
            // Takes the requester lock, which precedes the locks taken below.
            qp.note_piggybacked_ack(head.ack());
        }
        let mut receives = qp.own_receives().lock();
        let mut batch = pair.recv_cq.completion_batch();
        let mut pushed = PushOutcome::Quiet;
        let mut served = 0;
        let mut region = CheckedLkey::default();
        // Fields common to all messages are set once.
        let mut cqe = received(qp, head, 0, 0);
        // Local copies: the compiler would load fields again after each store to shared memory.
        let ring = self.ring;
        let mut next = self.next;
        while served < most && pushed == PushOutcome::Quiet {
            let Some(now) = ring.head(next) else { break };
            if !now.matches_head(head) || link.remote_life() != life {
                break;
            }
            let Some(oldest) = receives.oldest() else { break };
            let [sge] = oldest.list() else { break };
            let len = now.len();
            let to = region.find(sge).or_else(|| {
                region = qp.adapter().regions.check_lkey(qp.pd(), sge.lkey, LOCAL_WRITE)?;
                region.find(sge)
            });
            let Some(to) = to else { break };
            if len > SEND_INLINE || len > sge.length as usize {
                break;
            }
            ring.copy_payload(next, to.first(len));
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

    /// Serves the message at the head of the ring if a chunk carries all its bytes. During the copy
    /// only the responder lock is held.
    pub(in crate::engine) fn serve_chunked(
        &mut self,
        qp: &Qp,
        link: &Link,
        head: ShortHead,
    ) -> bool {
        let Some(pair) = qp.pair() else { return false };
        if !head.is_chunked() || !self.inbound.has_no_message() {
            return false;
        }
        let Some(life) = self.sender_life(qp, link, head) else { return false };
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
        if !qp.acks().has_noted(head.ack()) {
            // Takes the requester lock, which precedes the locks taken below.
            qp.note_piggybacked_ack(head.ack());
        }
        let mut receives = qp.own_receives().lock();
        let Some(oldest) = receives.oldest() else { return false };
        let &[sge] = oldest.list() else { return false };
        let to = if byte_len <= sge.length {
            let region = qp.adapter().regions.check_lkey(qp.pd(), sge.lkey, LOCAL_WRITE);
            region.and_then(|region| region.find(&sge))
        } else {
            None
        };
        let Some(to) = to else { return false };
        let wr_id = oldest.take();
        drop(receives);
        let begun = (len > qp.adapter().identity.eager_bytes()).then(Instant::now);
        // The copy cannot fail: a chunk is always mapped.
        let _ = from.copy_to(to);
        if let Some(begun) = begun {
            self.costs.record_emptying(qp, begun.elapsed(), len);
        }
        // The Acquire fence orders the copy before the load of the life word. A sender changes its
        // life before it reuses the chunk. Without the fence the copy could read reused bytes under
        // an old life.
        fence(Ordering::Acquire);
        if link.remote_life() != life {
            self.inbound.keep_receive(wr_id, sge);
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
