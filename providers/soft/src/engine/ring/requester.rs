//! The requester of a connected QP on this host: from a posted request to its completion
//! (IBTA 1.7 9.7). `posting` queues requests here, `issue` puts them into the remote ring, and
//! completions go to the send CQ.
//!
//! Requests are issued strictly in order. A request travels as slots in the ring of the remote QP,
//! which acknowledges by advancing a counter, or the initiator moves the bytes itself (`onesided`).
//! A request waits in the queue while the ring is full, no chunk is free, earlier slots are not
//! acknowledged, or the remote QP does not serve. Every poll and the service thread try again.
//!
//! Map of the file:
//!
//! - Threads: application threads enter by `advance` (poll of the send CQ) and by `posting`. A
//!   responder enters by `advance` or `complete_acknowledged` when a message carries an
//!   acknowledgement. The service thread enters by `advance`. `ibv_modify_qp` enters by `connect`,
//!   `reset`, `resume` and `flush`.
//! - Locks: every function runs under `Qp::requester`. A function that needs a `responder` lock
//!   runs later, in `Qp::release_requester`. Locks taken here: the ring of the send CQ,
//!   `Chunks::free`, tag list.
//! - Mirrors: `Qp::outstanding` mirrors `is_busy`, written by `settle`, `flush` and `posting`.
//! - Fields: `RingSender` in `ring/mod.rs`, `Requester` in `queues/qp/mod.rs`. The requests
//!   themselves are `send_requests`.
#![forbid(unsafe_code)]

use crate::engine::datagram::sender::DatagramSender;
use crate::engine::keys::regions::LOCAL_WRITE;
use crate::engine::queues::cq::completions::Batch;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::send_requests::SendRequests;
use crate::engine::queues::qp::{Issued, Requester, RetryAttributes, Wire};
use crate::engine::ring::costs::Copying;
use crate::engine::ring::holder::{PeerState, Reach};
use crate::engine::ring::rendezvous;
use crate::engine::ring::{AckWait, LentChunk, Link, RingSender};
use crate::engine::xrc::XrcRings;
use abi::*;
use soft_local::fabric::Peer;
use soft_local::shm::holder::RingHolder;
use soft_local::shm::layout::{Life, RING_SLOTS};
use soft_memory::Ranges;
use soft_semantics::completion::{Cqe, PushOutcome, found_by, vendor_err};
use soft_semantics::failure_state::FailureEffects;
use soft_semantics::frames::segmenter::Segmenter;
use soft_semantics::inbound::Nak;
use soft_semantics::request::{QueuedRequest, Request, RequestPhase, SendQueue, completion_opcode};
use soft_semantics::state::{QpState, QpType, give_up_us};
use soft_semantics::strict::takes_resource;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Largest message in bytes (`max_msg_sz` of the port).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;
/// Polls without an acknowledgement after which the service thread of an idle peer is asked to
/// look. The request is repeated after twice as many polls, and so on. From four times this number
/// on, the service thread of a polling peer is asked as well.
const POLLS_UNANSWERED: u32 = 1 << 10;

/// Into the ring of the remote QP on this host.
#[derive(Debug)]
pub(in crate::engine) struct RingWire;

impl Wire for RingWire {
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        requester.issue_by_ring(qp);
        Issued::SoFar
    }

    fn is_timed(&self) -> bool {
        true
    }
}

impl AckWait {
    /// An acknowledgement arrived.
    const fn end(&mut self) {
        self.polls = 0;
        self.unanswered_since = None;
    }
}

impl Requester {
    /// The requester of a new QP, whose requests go by `wire`.
    pub(in crate::engine) fn new(
        wire: Box<dyn Wire>,
        queue: SendQueue,
        segmenter: Segmenter,
    ) -> Self {
        Self {
            sends: SendRequests::new(queue),
            ring: RingSender::default(),
            xrc_rings: XrcRings::default(),
            datagrams: DatagramSender::new(segmenter),
            host_connection: None,
            retry: RetryAttributes::default(),
            wire,
        }
    }

    /// In SQD: whether all begun requests are complete. Requests that were only posted wait for
    /// RTS.
    pub(crate) fn is_drained(&mut self) -> bool {
        self.sends.queue.completed == self.sends.queue.issued && !self.is_midway()
    }

    /// Whether the next request to issue was begun.
    fn is_midway(&mut self) -> bool {
        let n = self.sends.queue.issued;
        n != self.sends.queue.posted
            && (self.sends.queue.entry(n).offset > 0 || self.is_held_by_fault())
    }

    /// Takes over the attributes of a change to RTS.
    pub(crate) fn begin_sending(&mut self, attr: &ibv_qp_attr) {
        self.retry = RetryAttributes::of(attr);
        self.ring.first_psn = attr.sq_psn;
        self.await_drain(false);
        if let Some(connection) = &mut self.host_connection {
            connection.ready_to_send(attr);
        }
    }

    /// The process of the remote QP, if the connection leads to a process of this host.
    pub(crate) fn linked_peer(&self) -> Option<&Arc<Peer>> {
        self.ring.link.as_ref().map(|link| link.peer())
    }

    /// On a change to or from SQD: whether the application wants the event for a drained queue.
    pub(crate) const fn await_drain(&mut self, awaited: bool) {
        self.sends.drain_awaited = awaited;
    }

    /// In SQD: continues the request that was begun, and no later request.
    #[cold]
    fn finish_begun(&mut self, qp: &Qp) {
        self.issue_before(self.sends.queue.issued + 1, |of| of.issue_waiting(qp));
    }

    /// Stops the send queue behind the failed request. The QP state changes now, before the failed
    /// completion is visible. The consequences of the change need further locks and follow later.
    #[cold]
    pub(in crate::engine) fn stop_queue(&mut self, qp: &Qp, fatal: bool) {
        let stopped = qp.stop_sending(fatal);
        self.sends.failure.break_off(FailureEffects { stopped, fatal });
    }

    /// Begins a connection (at RTR). `take_lent` has removed the chunks of the previous connection.
    pub(crate) fn connect(&mut self, link: Option<Box<Link>>) {
        self.reset_xrc_rings(link.as_ref().map_or(0, |link| link.qpn));
        self.ring.link = link;
        self.wire.detach_link(&mut self.ring.link);
        self.ring.maps = None;
        self.ring.copying = Copying::default();
        self.ring.latched = None;
        self.ring.attach_refused = false;
        self.ring.out_of_sequence = false;
        self.ring.ack_wait.unanswered_since = None;
    }

    /// The remote QP, if it belongs to this process.
    pub(in crate::engine) fn local_remote_qp(&self) -> Option<Arc<Qp>> {
        self.ring.link.as_ref()?.local_qp.upgrade()
    }

    /// Forgets all posted requests (change to RESET).
    pub(crate) fn reset(&mut self) {
        self.sends.clear();
        self.datagrams.waiting.clear();
        self.ring.responses_due = 0;
        self.ring.ack_wait.unanswered_since = None;
        self.ring.unannounced = false;
    }

    /// Lets a queue continue after an error (SQE to RTS).
    pub(crate) fn resume(&mut self) {
        self.sends.failure.resume();
    }

    /// Removes the chunks that the peer may still read or write. Returns them with the link, whose
    /// ring shows when the peer is done.
    pub(crate) fn take_lent(&mut self) -> Option<(Box<Link>, VecDeque<LentChunk>)> {
        let lent = std::mem::take(&mut self.ring.lent_chunks);
        self.ring.maps = None;
        let link = self.ring.link.take().or_else(|| self.wire.attach_link());
        self.reset_xrc_rings(0);
        if lent.is_empty() { None } else { Some((link?, lent)) }
    }

    /// Takes in acknowledgements, completes requests, issues waiting requests, and checks timeouts.
    pub(crate) fn advance(&mut self, qp: &Qp) {
        self.absorb_here(qp);
        self.reap(qp);
        if self.waits_for_memory_window() {
            self.issue_to_host(qp);
            self.reap(qp);
        }
        loop {
            let begun = self.begin_fetches(qp);
            if self.sends.has_issuable() {
                match qp.state() {
                    QpState::Rts => self.issue_waiting(qp),
                    QpState::Sqd if self.is_midway() => self.finish_begun(qp),
                    _ => {}
                }
                self.reap(qp);
            }
            if !begun {
                break;
            }
        }
        if self.sends.queue.issued != self.sends.queue.posted {
            self.wait_for_acks(qp);
        }
        self.check_timeout(qp);
        self.publish();
        self.publish_outstanding(qp);
    }

    /// Completes acknowledged requests, and issues nothing.
    pub(in crate::engine) fn complete_acknowledged(&mut self, qp: &Qp) {
        self.absorb_here(qp);
        self.reap(qp);
        self.publish_outstanding(qp);
    }

    /// As `absorb`, for the active link, if any.
    pub(in crate::engine) fn absorb_here(&mut self, qp: &Qp) {
        if let Some(link) = self.ring.link.take() {
            self.absorb(qp, &link);
            self.ring.link = Some(link);
        }
    }

    /// Publishes whether requests are outstanding, and sends the event for a drained queue.
    pub(crate) fn publish_outstanding(&mut self, qp: &Qp) {
        qp.sends_outstanding(self.is_busy(qp));
        if self.sends.drain_awaited && self.is_drained() {
            self.sends.drain_awaited = false;
            qp.event(IBV_EVENT_SQ_DRAINED);
        }
    }

    /// Whether requests are outstanding.
    pub(in crate::engine) fn is_busy(&self, qp: &Qp) -> bool {
        self.sends.failure.needs_notice()
            || !self.sends.queue.is_idle()
            || qp.tagging().is_some_and(|(_, own)| own.is_waiting())
    }

    /// Issues waiting requests into the ring of the remote QP.
    fn issue_by_ring(&mut self, qp: &Qp) {
        let Some(link) = self.ring.link.take() else {
            return self.issue_unlinked(qp);
        };
        while self.sends.has_issuable() {
            let answers = self.is_served(qp, &link);
            if answers && self.sends.queue.posted - self.sends.queue.issued > 1 {
                let done = self.issue_run(qp, &link, self.sends.queue.issued);
                self.sends.queue.issued += done;
                if done > 0 {
                    continue;
                }
            }
            if !answers && !self.sends.is_local(self.sends.queue.issued) {
                if qp.qp_type() != QpType::Uc {
                    self.start_timeout(qp);
                    break;
                }
                // Unreliable: a message that no QP receives is lost, and the sender gets a success.
                let n = self.sends.queue.issued;
                self.sends.queue.entry(n).phase = RequestPhase::Done;
            } else if !self.issue(qp, &link, self.sends.queue.issued) {
                break;
            }
            self.sends.queue.issued += 1;
        }
        self.ring.link = Some(link);
    }

    /// Without a link: issues requests that need no remote QP.
    #[cold]
    fn issue_unlinked(&mut self, qp: &Qp) {
        while self.sends.has_issuable() {
            if !self.sends.is_local(self.sends.queue.issued) {
                return self.start_timeout(qp);
            }
            if !self.sends.issue_local(qp, self.sends.queue.issued) {
                return;
            }
            self.sends.queue.issued += 1;
        }
    }

    /// Whether the remote QP serves this connection. Adopts its sequence numbers the first time.
    pub(in crate::engine) fn is_served(&mut self, qp: &Qp, link: &Link) -> bool {
        match (link.peer_state(qp.qpn()), self.ring.latched) {
            (PeerState::Serving(now), Some(latched)) if now == latched => true,
            (PeerState::Serving(now), latched) => {
                // A UC responder accepts any message as the first of a connection.
                let begins =
                    latched.is_none() || qp.qp_type() == QpType::Uc || self.is_connection_unused();
                begins && self.adopt_connection(qp, link, now)
            }
            (PeerState::Silent | PeerState::Dead, _) => false,
        }
    }

    /// Whether no slot was sent on the adopted connection.
    fn is_connection_unused(&self) -> bool {
        self.ring.connected_at == (self.ring.next, self.sends.queue.issued)
            && self.ring.acked == self.ring.next
    }

    /// Begins to send on the remote connection `now`, if its responder expects the first request:
    /// the PSN matches, and no other incarnation of this QP has sent there. On a network the
    /// responder would drop a request with another PSN, until the requester gives up or the
    /// responder begins another connection (IBTA 1.7 9.7.5.1.2). An unreliable responder accepts
    /// any PSN (9.8.2.2).
    #[cold]
    fn adopt_connection(&mut self, qp: &Qp, link: &Link, now: u16) -> bool {
        let generation = Life::unpack(qp.entry().packed_life.load(Ordering::Relaxed)).generation;
        let me = RingHolder::new(qp.adapter().fabric.identity(), generation);
        // A stand-in has no PSN and is valid only while its home QP is, so both rings are taken.
        let home = self.xrc_rings.home().unwrap_or(link);
        let psn = home.entry().rq_psn.load(Ordering::Relaxed);
        let expected = !qp.qp_type().is_reliable() || psn == self.ring.first_psn;
        let taken = expected && me.take(&home.ring) && me.take(&link.ring);
        self.ring.out_of_sequence = !taken && qp.qp_type() != QpType::Uc;
        if self.ring.out_of_sequence {
            return false;
        }
        self.ring.latched = Some(now);
        self.ring.next = link.entry().ring_base.load(Ordering::Relaxed);
        if !taken {
            self.ring.next = me.take_over(&link.ring);
            link.ring_taken_over();
        }
        self.ring.acked = self.ring.next;
        self.ring.connected_at = (self.ring.next, self.sends.queue.issued);
        self.ring.named_srq = 0;
        self.ring.ack_wait.unanswered_since = None;
        let whole = qp.qp_type() != QpType::Uc || self.drop_issued(qp);
        // The peer may have begun another connection meanwhile. The values read above may then
        // belong to the new connection, and the ring is not usable yet.
        whole && link.peer_state(qp.qpn()) == PeerState::Serving(now)
    }

    /// Completes everything that an unreliable QP sent to a finished connection, and takes its
    /// chunks back. Returns false if the request issued next was begun; its rest is lost as well.
    fn drop_issued(&mut self, qp: &Qp) -> bool {
        for n in self.sends.queue.completed..self.sends.queue.issued {
            self.sends.queue.entry(n).phase = RequestPhase::Done;
        }
        for lent in self.ring.lent_chunks.drain(..) {
            qp.adapter().chunks.give(lent.chunk);
        }
        !self.is_midway()
    }

    /// Number of free slots in the remote ring.
    #[inline]
    pub(in crate::engine) fn room(&mut self, qp: &Qp, link: &Link) -> u32 {
        let room = RING_SLOTS - self.ring.next.wrapping_sub(self.ring.acked);
        if room > 0 {
            return room;
        }
        self.absorb(qp, link);
        RING_SLOTS - self.ring.next.wrapping_sub(self.ring.acked)
    }

    /// Takes in acknowledgements and a refusal of the remote QP.
    pub(in crate::engine) fn absorb(&mut self, qp: &Qp, link: &Link) {
        if self.ring.latched.is_none() || self.ring.acked == self.ring.next {
            return;
        }
        // Load the NAK first. `Responder::refuse` stores the last good acknowledgement, then the
        // NAK with Release, then its new life. The Acquire load pairs with the store of the NAK: a
        // requester that reads the NAK also reads the acknowledgement before it. In the other order
        // the NAK would be charged to a slot that was acknowledged.
        let nak = link.ring.nak().load(Ordering::Acquire);
        let due = self.ring.next.wrapping_sub(self.ring.acked);
        let told = link.ring.claimed_progress().unchecked().wrapping_sub(self.ring.acked);
        let along = qp.acks().piggybacked_beyond(self.ring.acked);
        // A distance beyond the sent slots is an older number, or a number that no correct peer
        // stores. Both count as zero.
        let within = |advance: u32| if advance <= due { advance } else { 0 };
        let advance = within(told).max(within(along));
        if advance > 0 && !self.ack_proves_execution(qp, link) {
            return;
        }
        let acked = self.ring.acked.wrapping_add(advance);
        if advance > 0 {
            self.ring.ack_wait.end();
            while let Some(lent) = self.ring.lent_chunks.front().copied() {
                if acked.wrapping_sub(lent.seq) as i32 <= 0 {
                    break;
                }
                self.ring.lent_chunks.pop_front();
                self.accept_response(qp, &lent);
                qp.adapter().chunks.give(lent.chunk);
            }
            self.ring.acked = acked;
        }
        if let Some(nak) = nak.check(Nak::from_raw)
            && self.ring.acked != self.ring.next
        {
            let status = self.status_of_refusal(qp, nak);
            self.fail_slot(self.ring.acked, status);
        }
    }

    /// The status of the first request that is not acknowledged. If the receiver could not fetch
    /// the message because its memory is unmapped here, the sender is at fault, as for a message
    /// copied by the sender.
    #[cold]
    fn status_of_refusal(&mut self, qp: &Qp, nak: Nak) -> u32 {
        let is_lost = nak == Nak::Operation
            && self.offered(qp, self.ring.acked).is_some_and(|ranges| ranges.is_gone());
        if is_lost { IBV_WC_LOC_PROT_ERR } else { nak.requester_status() }
    }

    /// Whether a loaded acknowledgement proves that requests were executed. A peer that finds this
    /// QP out of RTS skips its slots, and acknowledges the skipped slots so that their chunks
    /// return. This QP stores its state before the peer skips, so a reader of the acknowledgement
    /// also reads the new state. The requests then wait for flush or RESET; the chunks are released
    /// afterwards.
    #[inline]
    fn ack_proves_execution(&self, qp: &Qp, link: &Link) -> bool {
        matches!(qp.state(), QpState::Rts | QpState::Sqd)
            || !qp.qp_type().is_reliable()
            || self.sends.queue.completed == self.sends.queue.posted
            || is_connected_to_itself(qp, link)
    }

    /// Takes in the refusal of a QP that is connected to itself. Its responder takes the QP to ERR.
    /// Without this step the flush would come first and hide the status of the refused request. A
    /// requester of another QP reads the refusal first, because its own state does not change.
    #[cold]
    fn absorb_own_refusal(&mut self, qp: &Qp) {
        if self.ring.link.as_deref().is_some_and(|link| is_connected_to_itself(qp, link)) {
            self.absorb_here(qp);
        }
    }

    /// Copies the response of a READ or an atomic to the local memory, unless the request was
    /// flushed.
    fn accept_response(&mut self, qp: &Qp, lent: &LentChunk) {
        let Some(answer) = lent.response else { return };
        if answer.entry < self.sends.queue.completed {
            return;
        }
        let Some(chunk) = qp.adapter().view.chunk(lent.chunk) else { return };
        let mut ranges = Ranges::new();
        let placed = self.sends.ranges_into(&mut ranges, qp, answer.entry, LOCAL_WRITE)
            && ranges.scatter(answer.offset, chunk.first(answer.len));
        if !placed {
            self.sends.fail(answer.entry, IBV_WC_LOC_PROT_ERR);
        }
    }

    /// The remote QP refused slot `seq`: fails the request that owns the slot.
    fn fail_slot(&mut self, seq: u32, status: u32) {
        for n in self.sends.queue.completed..self.sends.queue.posted {
            let entry = *self.sends.queue.entry(n);
            let holds = match entry.phase {
                RequestPhase::Published => entry.end.wrapping_sub(seq) as i32 > 0,
                RequestPhase::Waiting => entry.offset > 0,
                RequestPhase::Done | RequestPhase::Failed(_) | RequestPhase::PeerDied => false,
            };
            if holds {
                return self.sends.fail(n, status);
            }
        }
    }

    /// Records that the peer acknowledged all sent slots.
    #[inline]
    pub(in crate::engine) const fn note_acked_all(&mut self) {
        self.ring.acked = self.ring.next;
        self.ring.ack_wait.end();
    }

    /// Completes acknowledged SENDs of the application, in order, with fields that are set once.
    /// Returns whether other finished or failed requests may follow.
    fn reap_sends(&mut self, qp: &Qp) -> bool {
        let Some(pair) = qp.pair() else { return true };
        let mut batch: Option<Batch<'_>> = None;
        let mut cqe = Cqe { opcode: IBV_WC_SEND, qp_num: qp.qpn(), ..Cqe::default() };
        let (acked, signals_all) = (self.ring.acked, pair.signals_all);
        let mut others = false;
        let mut pushed = PushOutcome::Quiet;
        while self.sends.queue.completed < self.sends.queue.issued {
            let entry = self.sends.queue.entry(self.sends.queue.completed);
            let is_send = matches!(entry.request.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM);
            if entry.phase != RequestPhase::Published
                || !is_send
                || entry.is_tag_operation
                || pushed != PushOutcome::Quiet
            {
                others = true;
                break;
            }
            if (acked.wrapping_sub(entry.end) as i32) < 0 {
                break;
            }
            if signals_all || entry.has_flag(IBV_SEND_SIGNALED) {
                (cqe.wr_id, cqe.byte_len) = (entry.request.wr_id, entry.len);
                let ring = batch.get_or_insert_with(|| pair.send_cq.completion_batch());
                pushed = ring.push(&cqe, false);
            }
            self.sends.queue.complete_oldest(false);
        }
        if let Some(ring) = batch {
            ring.end(pushed);
        }
        others
    }

    /// Completes finished requests, in order.
    pub(crate) fn reap(&mut self, qp: &Qp) {
        if self.sends.failure.is_broken() {
            return;
        }
        if self.sends.unpolled.is_none() && !self.reap_sends(qp) {
            return;
        }
        let mut batch: Option<Batch<'_>> = None;
        while self.sends.queue.completed < self.sends.queue.issued {
            let n = self.sends.queue.completed;
            let acked = self.ring.acked;
            let entry = self.sends.queue.entry(n);
            let status = match entry.phase {
                RequestPhase::Waiting => break,
                RequestPhase::Published if acked.wrapping_sub(entry.end) as i32 >= 0 => {
                    IBV_WC_SUCCESS
                }
                RequestPhase::Published => break,
                RequestPhase::Done => IBV_WC_SUCCESS,
                RequestPhase::Failed(status) => status,
                RequestPhase::PeerDied => IBV_WC_RETRY_EXC_ERR,
            };
            let answered = matches!(
                entry.request.opcode,
                IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD
            ) && entry.phase == RequestPhase::Published;
            self.ring.responses_due -= u32::from(answered);
            if status == IBV_WC_SUCCESS && !entry.is_tag_operation {
                let mut position = None;
                if let Some(pair) = qp.pair()
                    && (pair.signals_all || entry.has_flag(IBV_SEND_SIGNALED))
                {
                    let cqe = success_cqe(qp, &entry.request, entry.len);
                    let ring = batch.get_or_insert_with(|| pair.send_cq.completion_batch());
                    position = self.sends.unpolled.is_some().then(|| ring.next_position());
                    let pushed = ring.push(&cqe, false);
                    if pushed != PushOutcome::Quiet
                        && let Some(ring) = batch.take()
                    {
                        ring.end(pushed);
                    }
                }
                if let Some(unpolled) = &mut self.sends.unpolled {
                    unpolled.completed(takes_resource(&entry.request.operation), position);
                }
                self.sends.queue.complete_oldest(false);
                continue;
            }
            let entry = *entry;
            self.sends.queue.complete_oldest(entry.is_tag_operation);
            if let Some(ring) = batch.take() {
                ring.end(PushOutcome::Quiet);
            }
            let failed = status != IBV_WC_SUCCESS;
            if failed {
                self.stop_queue(qp, false);
            }
            let position = complete(qp, &entry, status, entry.len);
            self.note_unpolled(&entry, position);
            if failed {
                // Later requests are flushed.
                break;
            }
        }
        if let Some(ring) = batch {
            ring.end(PushOutcome::Quiet);
        }
    }

    /// Completes all remaining requests with a flush error.
    pub(crate) fn flush(&mut self, qp: &Qp) {
        qp.adapter().helping.wait_for_stuck_piece();
        self.absorb_own_refusal(qp);
        self.reap(qp);
        while self.sends.queue.completed < self.sends.queue.posted {
            let entry = *self.sends.queue.entry(self.sends.queue.completed);
            let status = match entry.phase {
                RequestPhase::Failed(status) if !self.sends.failure.is_broken() => status,
                RequestPhase::PeerDied if !self.sends.failure.is_broken() => IBV_WC_RETRY_EXC_ERR,
                _ => IBV_WC_WR_FLUSH_ERR,
            };
            self.sends.failure.flush();
            self.sends.queue.complete_oldest(entry.is_tag_operation);
            let position = complete(qp, &entry, status, 0);
            self.note_unpolled(&entry, position);
        }
        self.sends.queue.issued = self.sends.queue.posted;
        self.datagrams.waiting.clear();
        self.ring.responses_due = 0;
        self.sends.failure.fail();
        if let Some((tm, own)) = qp.tagging() {
            rendezvous::drop_fetches(qp, tm, own);
        }
        qp.sends_outstanding(false);
    }

    /// The remote QP does not serve: the timeout begins to count.
    pub(in crate::engine) fn start_timeout(&mut self, qp: &Qp) {
        if self.ring.ack_wait.unanswered_since.is_none() {
            self.ring.ack_wait.unanswered_since = Some(Instant::now());
            qp.adapter().service.watch_qp(qp);
        }
    }

    /// The time at which the retries are exhausted, if the timeout counts.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let RetryAttributes { timeout, retry_cnt, .. } = self.retry;
        let due = self.ring.ack_wait.unanswered_since?
            + Duration::from_micros(give_up_us(timeout, retry_cnt)?);
        Some(due)
    }

    /// Whether the service thread must look again without an arrival: the remote QP may begin to
    /// serve without notice.
    pub(crate) fn recheck(&self) -> bool {
        let held_up = matches!(self.sends.blocked_request, Some(n) if n == self.sends.queue.issued);
        self.ring.ack_wait.unanswered_since.is_some()
            || self.is_held_by_fault()
            || self.datagrams.waits_for_room
            || self.waits_for_memory_window()
            || (held_up && self.sends.queue.issued != self.sends.queue.posted)
    }

    fn check_timeout(&mut self, qp: &Qp) {
        // Work on local windows does not wait for the remote QP.
        let waiting = self.sends.queue.issued != self.sends.queue.posted
            && qp.state() != QpState::Sqd
            && !self.sends.is_local(self.sends.queue.issued);
        if (self.ring.acked == self.ring.next && !waiting)
            || self.sends.failure.is_broken()
            || !self.wire.is_timed()
        {
            self.ring.ack_wait.unanswered_since = None;
            return;
        }
        let Some(link) = self.ring.link.take() else { return self.check_timeout_unlinked(qp) };
        let peer_state = self.peer_state(qp, &link);
        match peer_state {
            PeerState::Serving(now)
                if !self.ring.out_of_sequence && self.ring.latched.is_none_or(|l| l == now) =>
            {
                self.ring.ack_wait.polls = self.ring.ack_wait.polls.wrapping_add(1);
                if self.ring.ack_wait.polls >= POLLS_UNANSWERED
                    && self.ring.ack_wait.polls.is_power_of_two()
                {
                    let polls = link.view.tables_head().polls.0.load(Ordering::Relaxed);
                    let same =
                        std::mem::replace(&mut self.ring.ack_wait.peer_polls, polls) == polls;
                    // The peer may be polling a CQ that the remote QP does not use.
                    if same || self.ring.ack_wait.polls >= 4 * POLLS_UNANSWERED {
                        link.wake_service();
                    }
                }
                self.ring.ack_wait.unanswered_since = None;
            }
            _ => {
                // An acknowledgement or a refusal may have arrived just before the remote QP
                // stopped.
                self.absorb(qp, &link);
                self.reap(qp);
                if self.ring.acked != self.ring.next || waiting {
                    self.start_timeout(qp);
                    // A peer that took its QP down before its process ended counts as silent, not
                    // as dead. The last messages may exceed what the peer wanted, and the
                    // application may finish before the timeout (ibv_srq_pingpong -e). Without a
                    // timeout the wait would never end, so the death counts.
                    let ends = link.was_cut(qp.qpn()) || self.retry.timeout == 0;
                    self.give_up_if_due(qp, peer_state == PeerState::Dead && ends);
                }
            }
        }
        self.ring.link = Some(link);
    }

    /// No link exists, or the port is down: only the timeout ends the wait.
    #[cold]
    fn check_timeout_unlinked(&mut self, qp: &Qp) {
        self.start_timeout(qp);
        self.give_up_if_due(qp, false);
    }

    fn give_up_if_due(&mut self, qp: &Qp, dead: bool) {
        if self.sends.failure.is_broken() || self.sends.queue.is_idle() {
            return;
        }
        if qp.qp_type() == QpType::Uc {
            for n in self.sends.queue.completed..self.sends.queue.posted {
                if n >= self.sends.queue.issued {
                    // Work on local windows is still executed.
                    if self.sends.is_local(n) {
                        break;
                    }
                    self.sends.queue.issued = n + 1;
                }
                self.sends.queue.entry(n).phase = RequestPhase::Done;
            }
            return self.reap(qp);
        }
        let due = self.deadline().is_some_and(|d| Instant::now() >= d);
        if due || dead {
            let phase = if dead {
                RequestPhase::PeerDied
            } else {
                RequestPhase::Failed(IBV_WC_RETRY_EXC_ERR)
            };
            self.sends.end_request(self.sends.queue.completed, phase);
            self.reap(qp);
        }
    }

    /// How the target's memory is reached on this connection.
    pub(in crate::engine) fn reach(&self, link: &Link) -> Reach {
        match link.reach() {
            Reach::Attach if self.ring.attach_refused => Reach::No,
            reach => reach,
        }
    }
}

impl Qp {
    /// Records the acknowledgement that a piece of the remote QP carried. Called under the
    /// responder lock. Completes the acknowledged requests, so their completions precede the
    /// completion of the piece.
    #[inline]
    pub(crate) fn note_piggybacked_ack(&self, ack: u32) {
        self.acks().note_piggybacked(ack);
        if self.may_have_outstanding() {
            // A broken send queue is handled by the next look: its flush needs the responder lock,
            // held here.
            let mut requester = self.requester().lock();
            if !requester.finish_fast(self) {
                requester.advance(self);
            }
        }
    }
}

/// Whether a QP is connected to itself. Its responder skips no slot of its requester: a QP in ERR
/// serves nothing.
fn is_connected_to_itself(qp: &Qp, link: &Link) -> bool {
    link.peer().is_self && link.qpn == qp.qpn()
}

#[inline]
fn success_cqe(qp: &Qp, request: &Request, byte_len: u32) -> Cqe {
    Cqe {
        wr_id: request.wr_id,
        status: IBV_WC_SUCCESS,
        opcode: completion_opcode(request.opcode),
        byte_len,
        qp_num: qp.qpn(),
        ..Cqe::default()
    }
}

/// Completes a request. Returns the position of the completion, if any.
#[cold]
fn complete(qp: &Qp, entry: &QueuedRequest, status: u32, byte_len: u32) -> Option<u64> {
    let request = &entry.request;
    if entry.is_tag_operation {
        rendezvous::finish_request(qp, request, status);
        return None;
    }
    let cqe = Cqe {
        status,
        vendor_err: match vendor_err(status) {
            found_by::TIME if entry.phase == RequestPhase::PeerDied => found_by::DEATH,
            usual => usual,
        },
        ..success_cqe(qp, request, byte_len)
    };
    let cq = &qp.pair()?.send_cq;
    Some(match status {
        IBV_WC_SUCCESS => cq.push_with(&cqe, None, false),
        _ => cq.push_failed(&cqe, false),
    })
}
