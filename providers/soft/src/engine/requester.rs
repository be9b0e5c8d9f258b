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
//! - Fields: `objects/connection.rs`.

use super::inbound::Nak;
use super::objects::connection::{LentChunk, Link, Requester, RetryAttributes, XrcRings};
use super::objects::copying::Copying;
use super::objects::holder::{PeerState, Reach, RingHolder};
use super::objects::qp::Qp;
use super::regions::LOCAL_WRITE;
use super::rendezvous;
use super::request::{Entry, Phase, Request, SendQueue, completion_opcode};
use super::state::{Kind, State, give_up_us};
use super::tso::Segmenter;
use super::waiting::WaitingDatagrams;
use super::wire::plain_wire;
use crate::engine::completion::{Cqe, Pushed, found_by, vendor_err};
use crate::engine::polling::Batch;
use abi::*;
use soft_local::shm::layout::{Life, RING_SLOTS};
use soft_memory::{Range, Ranges};
use soft_semantics::fate::{Breakage, Fate};
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

impl Requester {
    pub(crate) fn new(kind: Kind, queue: SendQueue, segmenter: Segmenter) -> Self {
        Self {
            queue,
            unpolled: None,
            wire: plain_wire(kind, false),
            link: None,
            host_connection: None,
            retry: RetryAttributes::default(),
            latched: None,
            next: 0,
            acked: 0,
            first_psn: 0,
            connected_at: (0, 0),
            out_of_sequence: false,
            lent_chunks: VecDeque::new(),
            responses_due: 0,
            named_srq: 0,
            xrc_rings: XrcRings::default(),
            copying: Copying::default(),
            maps: None,
            run_lists: None,
            gathering: false,
            unannounced: false,
            attach_refused: false,
            unanswered_since: None,
            blocked_request: None,
            polls_without_ack: 0,
            peer_polls: 0,
            datagrams_wait: false,
            full_receivers_since: None,
            waiting: WaitingDatagrams::default(),
            segmenter: Box::new(segmenter),
            fate: Fate::Going,
            drain_awaited: false,
        }
    }

    /// In SQD: whether all begun requests are complete. Requests that were only posted wait for
    /// RTS.
    pub(crate) fn is_drained(&mut self) -> bool {
        self.queue.completed == self.queue.issued && !self.is_midway()
    }

    /// Whether the next request to issue was begun.
    fn is_midway(&mut self) -> bool {
        let n = self.queue.issued;
        n != self.queue.posted && (self.queue.entry(n).offset > 0 || self.is_held_by_fault())
    }

    /// On a change to or from SQD: whether the application wants the event for a drained queue.
    pub(crate) const fn await_drain(&mut self, awaited: bool) {
        self.drain_awaited = awaited;
    }

    /// In SQD: continues the request that was begun, and no later request.
    #[cold]
    fn finish_begun(&mut self, qp: &Qp) {
        let posted = std::mem::replace(&mut self.queue.posted, self.queue.issued + 1);
        self.issue_waiting(qp);
        self.queue.posted = posted;
    }

    /// Stops the send queue behind the failed request. The QP state changes now, before the failed
    /// completion is visible. The consequences of the change need further locks and follow later.
    #[cold]
    pub(super) fn stop_queue(&mut self, qp: &Qp, fatal: bool) {
        let stopped = qp.stop_sending(fatal);
        self.fate.break_off(Breakage { stopped, fatal });
    }

    /// Begins a connection (at RTR). `take_lent` has removed the chunks of the previous connection.
    pub(crate) fn connect(&mut self, link: Option<Box<Link>>) {
        self.reset_xrc_rings(link.as_ref().map_or(0, |link| link.qpn));
        self.link = link;
        self.wire.detach_link(&mut self.link);
        self.maps = None;
        self.copying = Copying::default();
        self.latched = None;
        self.attach_refused = false;
        self.out_of_sequence = false;
        self.unanswered_since = None;
    }

    /// The remote QP, if it belongs to this process.
    pub(super) fn local_remote_qp(&self) -> Option<Arc<Qp>> {
        self.link.as_ref()?.local_qp.upgrade()
    }

    /// Forgets all posted requests (change to RESET).
    pub(crate) fn reset(&mut self) {
        self.queue.forget();
        if let Some(unpolled) = &mut self.unpolled {
            unpolled.forget();
        }
        self.waiting.forget();
        self.responses_due = 0;
        self.fate.resume();
        self.drain_awaited = false;
        self.unanswered_since = None;
        self.blocked_request = None;
        self.unannounced = false;
    }

    /// Lets a queue continue after an error (SQE to RTS).
    pub(crate) fn resume(&mut self) {
        self.fate.resume();
    }

    /// Removes the chunks that the peer may still read or write. Returns them with the link, whose
    /// ring shows when the peer is done.
    pub(crate) fn take_lent(&mut self) -> Option<(Box<Link>, VecDeque<LentChunk>)> {
        let lent = std::mem::take(&mut self.lent_chunks);
        self.maps = None;
        let link = self.link.take().or_else(|| self.wire.attach_link());
        self.reset_xrc_rings(0);
        if lent.is_empty() { None } else { Some((link?, lent)) }
    }

    /// The local memory of request `n`; None if an lkey is wrong. Code that is sensitive to time
    /// uses [`Requester::ranges_into`]: moving the large list costs more than filling it.
    pub(crate) fn ranges(&mut self, qp: &Qp, n: u64, need: u32) -> Option<Ranges> {
        // Built in place, because the list is large.
        let mut found = Some(Ranges::new());
        if let Some(ranges) = &mut found
            && !self.ranges_into(ranges, qp, n, need)
        {
            return None;
        }
        found
    }

    /// As [`Requester::ranges`], into an empty list; false instead of None.
    #[inline]
    pub(crate) fn ranges_into(&mut self, ranges: &mut Ranges, qp: &Qp, n: u64, need: u32) -> bool {
        let entry = self.queue.entry(n);
        let (kept, len) = (entry.kept, entry.len as usize);
        if !entry.has(IBV_SEND_INLINE) {
            let pd = if entry.own { qp.receive_pd() } else { qp.pd };
            return qp.adapter.regions.resolve_into(ranges, pd, self.queue.list(n), need);
        }
        if kept {
            let base = self.queue.inline_mut(n).as_mut_ptr();
            // SAFETY: the queue keeps a copy of at least `len` bytes until the request is over.
            ranges.push(unsafe { Range::new(base, len) });
        } else {
            *ranges = self.raw_ranges(n);
        }
        true
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
            if self.fate.is_going() && self.queue.issued != self.queue.posted {
                match qp.state() {
                    State::Rts => self.issue_waiting(qp),
                    State::Sqd if self.is_midway() => self.finish_begun(qp),
                    _ => {}
                }
                self.reap(qp);
            }
            if !begun {
                break;
            }
        }
        if self.queue.issued != self.queue.posted {
            self.wait_for_acks(qp);
        }
        self.check_timeout(qp);
        self.publish();
        self.settle(qp);
    }

    /// Completes acknowledged requests, and issues nothing.
    pub(super) fn complete_acknowledged(&mut self, qp: &Qp) {
        self.absorb_here(qp);
        self.reap(qp);
        self.settle(qp);
    }

    /// As `absorb`, for the active link, if any.
    pub(super) fn absorb_here(&mut self, qp: &Qp) {
        if let Some(link) = self.link.take() {
            self.absorb(qp, &link);
            self.link = Some(link);
        }
    }

    /// Publishes whether requests are outstanding, and sends the event for a drained queue.
    pub(crate) fn settle(&mut self, qp: &Qp) {
        qp.sends_outstanding(self.is_busy(qp));
        if self.drain_awaited && self.is_drained() {
            self.drain_awaited = false;
            qp.event(IBV_EVENT_SQ_DRAINED);
        }
    }

    /// Whether requests are outstanding.
    pub(super) fn is_busy(&self, qp: &Qp) -> bool {
        self.fate.is_untold()
            || !self.queue.is_idle()
            || qp.tagging().is_some_and(|(_, own)| own.is_waiting())
    }

    /// Issues waiting requests into the ring of the remote QP.
    pub(super) fn issue_by_ring(&mut self, qp: &Qp) {
        let Some(link) = self.link.take() else {
            return self.issue_unlinked(qp);
        };
        while self.queue.issued != self.queue.posted && self.fate.is_going() {
            let answers = self.is_served(qp, &link);
            if answers && self.queue.posted - self.queue.issued > 1 {
                let done = self.issue_run(qp, &link, self.queue.issued);
                self.queue.issued += done;
                if done > 0 {
                    continue;
                }
            }
            if !answers && !self.is_local(self.queue.issued) {
                if qp.kind != Kind::Uc {
                    self.start_timeout(qp);
                    break;
                }
                // Unreliable: a message that no QP receives is lost, and the sender gets a success.
                let n = self.queue.issued;
                self.queue.entry(n).phase = Phase::Done;
            } else if !self.issue(qp, &link, self.queue.issued) {
                break;
            }
            self.queue.issued += 1;
        }
        self.link = Some(link);
    }

    /// Without a link: issues requests that need no remote QP.
    #[cold]
    fn issue_unlinked(&mut self, qp: &Qp) {
        while self.queue.issued != self.queue.posted && self.fate.is_going() {
            if !self.is_local(self.queue.issued) {
                return self.start_timeout(qp);
            }
            if !self.issue_local(qp, self.queue.issued) {
                return;
            }
            self.queue.issued += 1;
        }
    }

    /// Whether request `n` needs no remote QP.
    #[cold]
    fn is_local(&mut self, n: u64) -> bool {
        self.queue.entry(n).request.what.is_local()
    }

    /// Whether the remote QP serves this connection. Adopts its sequence numbers the first time.
    pub(super) fn is_served(&mut self, qp: &Qp, link: &Link) -> bool {
        match (link.peer_state(qp.qpn), self.latched) {
            (PeerState::Serving(now), Some(latched)) if now == latched => true,
            (PeerState::Serving(now), latched) => {
                // A UC responder accepts any message as the first of a connection.
                let begins =
                    latched.is_none() || qp.kind == Kind::Uc || self.is_connection_unused();
                begins && self.adopt_connection(qp, link, now)
            }
            (PeerState::Silent | PeerState::Dead, _) => false,
        }
    }

    /// Whether no slot was sent on the adopted connection.
    fn is_connection_unused(&self) -> bool {
        self.connected_at == (self.next, self.queue.issued) && self.acked == self.next
    }

    /// Begins to send on the remote connection `now`, if its responder expects the first request:
    /// the PSN matches, and no other incarnation of this QP has sent there. On a network the
    /// responder would drop a request with another PSN, until the requester gives up or the
    /// responder begins another connection (IBTA 1.7 9.7.5.1.2). An unreliable responder accepts
    /// any PSN (9.8.2.2).
    #[cold]
    fn adopt_connection(&mut self, qp: &Qp, link: &Link, now: u16) -> bool {
        let generation = Life::unpack(qp.entry().life.load(Ordering::Relaxed)).generation;
        let me = RingHolder::new(qp.adapter.fabric.identity(), generation);
        // A stand-in has no PSN and is valid only while its home QP is, so both rings are taken.
        let home = self.xrc_rings.home().unwrap_or(link);
        let psn = home.entry().rq_psn.load(Ordering::Relaxed);
        let expected = !qp.kind.is_reliable() || psn == self.first_psn;
        let taken = expected && me.take(&home.ring) && me.take(&link.ring);
        self.out_of_sequence = !taken && qp.kind != Kind::Uc;
        if self.out_of_sequence {
            return false;
        }
        self.latched = Some(now);
        self.next = link.entry().ring_base.load(Ordering::Relaxed);
        if !taken {
            self.next = me.take_over(&link.ring);
            link.ring_taken_over();
        }
        self.acked = self.next;
        self.connected_at = (self.next, self.queue.issued);
        self.named_srq = 0;
        self.unanswered_since = None;
        let whole = qp.kind != Kind::Uc || self.drop_issued(qp);
        // The peer may have begun another connection meanwhile. The values read above may then
        // belong to the new connection, and the ring is not usable yet.
        whole && link.peer_state(qp.qpn) == PeerState::Serving(now)
    }

    /// Completes everything that an unreliable QP sent to a finished connection, and takes its
    /// chunks back. Returns false if the request issued next was begun; its rest is lost as well.
    fn drop_issued(&mut self, qp: &Qp) -> bool {
        for n in self.queue.completed..self.queue.issued {
            self.queue.entry(n).phase = Phase::Done;
        }
        for lent in self.lent_chunks.drain(..) {
            qp.adapter.chunks.give(lent.chunk);
        }
        !self.is_midway()
    }

    /// Number of free slots in the remote ring.
    #[inline]
    pub(super) fn room(&mut self, qp: &Qp, link: &Link) -> u32 {
        let room = RING_SLOTS - self.next.wrapping_sub(self.acked);
        if room > 0 {
            return room;
        }
        self.absorb(qp, link);
        RING_SLOTS - self.next.wrapping_sub(self.acked)
    }

    /// Takes in acknowledgements and a refusal of the remote QP.
    pub(super) fn absorb(&mut self, qp: &Qp, link: &Link) {
        if self.latched.is_none() || self.acked == self.next {
            return;
        }
        // Load the NAK first. `Responder::refuse` stores the last good acknowledgement, then the
        // NAK with Release, then its new life. The Acquire load pairs with the store of the NAK: a
        // requester that reads the NAK also reads the acknowledgement before it. In the other order
        // the NAK would be charged to a slot that was acknowledged.
        let nak = link.ring.nak().load(Ordering::Acquire);
        let due = self.next.wrapping_sub(self.acked);
        let told = link.ring.told().as_said().wrapping_sub(self.acked);
        let along = qp.piggybacked_acks(self.acked);
        // A distance beyond the sent slots is an older number, or a number that no correct peer
        // stores. Both count as zero.
        let within = |advance: u32| if advance <= due { advance } else { 0 };
        let advance = within(told).max(within(along));
        if advance > 0 && !self.ack_proves_execution(qp, link) {
            return;
        }
        let acked = self.acked.wrapping_add(advance);
        if advance > 0 {
            self.polls_without_ack = 0;
            self.unanswered_since = None;
            while let Some(lent) = self.lent_chunks.front().copied() {
                if acked.wrapping_sub(lent.seq) as i32 <= 0 {
                    break;
                }
                self.lent_chunks.pop_front();
                self.accept_response(qp, &lent);
                qp.adapter.chunks.give(lent.chunk);
            }
            self.acked = acked;
        }
        if let Some(nak) = nak.check(Nak::from_raw)
            && self.acked != self.next
        {
            let status = self.status_of_refusal(qp, nak);
            self.fail_slot(self.acked, status);
        }
    }

    /// The status of the first request that is not acknowledged. If the receiver could not fetch
    /// the message because its memory is unmapped here, the sender is at fault, as for a message
    /// copied by the sender.
    #[cold]
    fn status_of_refusal(&mut self, qp: &Qp, nak: Nak) -> u32 {
        let is_lost = nak == Nak::Operation
            && self.offered(qp, self.acked).is_some_and(|ranges| ranges.is_gone());
        if is_lost { IBV_WC_LOC_PROT_ERR } else { nak.requester_status() }
    }

    /// Whether a loaded acknowledgement proves that requests were executed. A peer that finds this
    /// QP out of RTS skips its slots, and acknowledges the skipped slots so that their chunks
    /// return. This QP stores its state before the peer skips, so a reader of the acknowledgement
    /// also reads the new state. The requests then wait for flush or RESET; the chunks are released
    /// afterwards.
    #[inline]
    fn ack_proves_execution(&self, qp: &Qp, link: &Link) -> bool {
        matches!(qp.state(), State::Rts | State::Sqd)
            || !qp.kind.is_reliable()
            || self.queue.completed == self.queue.posted
            || is_connected_to_itself(qp, link)
    }

    /// Takes in the refusal of a QP that is connected to itself. Its responder takes the QP to ERR.
    /// Without this step the flush would come first and hide the status of the refused request. A
    /// requester of another QP reads the refusal first, because its own state does not change.
    #[cold]
    fn absorb_own_refusal(&mut self, qp: &Qp) {
        if self.link.as_deref().is_some_and(|link| is_connected_to_itself(qp, link)) {
            self.absorb_here(qp);
        }
    }

    /// Copies the response of a READ or an atomic to the local memory, unless the request was
    /// flushed.
    fn accept_response(&mut self, qp: &Qp, lent: &LentChunk) {
        let Some(answer) = lent.response else { return };
        if answer.entry < self.queue.completed {
            return;
        }
        let Some(chunk) = qp.adapter.view.chunk(lent.chunk) else { return };
        let mut ranges = Ranges::new();
        let placed = self.ranges_into(&mut ranges, qp, answer.entry, LOCAL_WRITE)
            && ranges.scatter(answer.offset, chunk.first(answer.len));
        if !placed {
            self.fail(answer.entry, IBV_WC_LOC_PROT_ERR);
        }
    }

    /// The remote QP refused slot `seq`: fails the request that owns the slot.
    fn fail_slot(&mut self, seq: u32, status: u32) {
        for n in self.queue.completed..self.queue.posted {
            let entry = *self.queue.entry(n);
            let holds = match entry.phase {
                Phase::Published => entry.end.wrapping_sub(seq) as i32 > 0,
                Phase::Waiting => entry.offset > 0,
                Phase::Done | Phase::Failed(_) | Phase::Dead => false,
            };
            if holds {
                return self.fail(n, status);
            }
        }
    }

    /// Fails request `n` with `status`. No later request is issued.
    pub(crate) fn fail(&mut self, n: u64, status: u32) {
        self.end_request(n, Phase::Failed(status));
    }

    /// Ends request `n` in this phase. No later request is issued.
    fn end_request(&mut self, n: u64, phase: Phase) {
        self.queue.entry(n).phase = phase;
        self.queue.issued = self.queue.issued.max(n + 1);
        self.fate.fail();
    }

    /// Records that the peer acknowledged all sent slots.
    #[inline]
    pub(super) const fn note_acked_all(&mut self) {
        self.acked = self.next;
        self.polls_without_ack = 0;
        self.unanswered_since = None;
    }

    /// Completes finished requests, in order.
    pub(crate) fn reap(&mut self, qp: &Qp) {
        if self.fate.is_broken() {
            return;
        }
        let mut batch: Option<Batch<'_>> = None;
        while self.queue.completed < self.queue.issued {
            let n = self.queue.completed;
            let acked = self.acked;
            let entry = self.queue.entry(n);
            let status = match entry.phase {
                Phase::Waiting => break,
                Phase::Published if acked.wrapping_sub(entry.end) as i32 >= 0 => IBV_WC_SUCCESS,
                Phase::Published => break,
                Phase::Done => IBV_WC_SUCCESS,
                Phase::Failed(status) => status,
                Phase::Dead => IBV_WC_RETRY_EXC_ERR,
            };
            let answered = matches!(
                entry.request.opcode,
                IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD
            ) && entry.phase == Phase::Published;
            self.responses_due -= u32::from(answered);
            if status == IBV_WC_SUCCESS && !entry.own {
                let mut position = None;
                if let Some(pair) = qp.pair()
                    && (pair.signals_all || entry.has(IBV_SEND_SIGNALED))
                {
                    let cqe = done(qp, &entry.request, entry.len);
                    let ring = batch.get_or_insert_with(|| pair.send_cq.completion_batch());
                    position = self.unpolled.is_some().then(|| ring.next_position());
                    let pushed = ring.push(&cqe, false);
                    if pushed != Pushed::Quiet
                        && let Some(ring) = batch.take()
                    {
                        ring.end(pushed);
                    }
                }
                if let Some(unpolled) = &mut self.unpolled {
                    unpolled.completed(takes_resource(&entry.request.what), position);
                }
                self.queue.complete_oldest(false);
                continue;
            }
            let entry = *entry;
            self.queue.complete_oldest(entry.own);
            if let Some(ring) = batch.take() {
                ring.end(Pushed::Quiet);
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
            ring.end(Pushed::Quiet);
        }
    }

    /// Completes all remaining requests with a flush error.
    pub(crate) fn flush(&mut self, qp: &Qp) {
        qp.adapter.helping.wait_for_stuck_piece();
        self.absorb_own_refusal(qp);
        self.reap(qp);
        while self.queue.completed < self.queue.posted {
            let entry = *self.queue.entry(self.queue.completed);
            let status = match entry.phase {
                Phase::Failed(status) if !self.fate.is_broken() => status,
                Phase::Dead if !self.fate.is_broken() => IBV_WC_RETRY_EXC_ERR,
                _ => IBV_WC_WR_FLUSH_ERR,
            };
            self.fate.flush();
            self.queue.complete_oldest(entry.own);
            let position = complete(qp, &entry, status, 0);
            self.note_unpolled(&entry, position);
        }
        self.queue.issued = self.queue.posted;
        self.waiting.forget();
        self.responses_due = 0;
        self.fate.fail();
        if let Some((tm, own)) = qp.tagging() {
            rendezvous::drop_fetches(qp, tm, own);
        }
        qp.sends_outstanding(false);
    }

    /// The remote QP does not serve: the timeout begins to count.
    pub(super) fn start_timeout(&mut self, qp: &Qp) {
        if self.unanswered_since.is_none() {
            self.unanswered_since = Some(Instant::now());
            qp.adapter.watch_qp(qp);
        }
    }

    /// Request `n` waits for an event without notification. The service thread tries again if no
    /// thread polls.
    #[cold]
    pub(super) fn watch_blocked(&mut self, qp: &Qp, n: u64) {
        if self.blocked_request.replace(n) != Some(n) {
            qp.adapter.watch_qp(qp);
        }
    }

    /// The time at which the retries are exhausted, if the timeout counts.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let RetryAttributes { timeout, retry_cnt, .. } = self.retry;
        let due = self.unanswered_since? + Duration::from_micros(give_up_us(timeout, retry_cnt)?);
        Some(due)
    }

    /// Whether the service thread must look again without an arrival: the remote QP may begin to
    /// serve without notice.
    pub(crate) fn recheck(&self) -> bool {
        let held_up = matches!(self.blocked_request, Some(n) if n == self.queue.issued);
        self.unanswered_since.is_some()
            || self.is_held_by_fault()
            || self.datagrams_wait
            || self.waits_for_memory_window()
            || (held_up && self.queue.issued != self.queue.posted)
    }

    fn check_timeout(&mut self, qp: &Qp) {
        // Work on local windows does not wait for the remote QP.
        let waiting = self.queue.issued != self.queue.posted
            && qp.state() != State::Sqd
            && !self.is_local(self.queue.issued);
        if (self.acked == self.next && !waiting) || self.fate.is_broken() || !self.wire.is_timed() {
            self.unanswered_since = None;
            return;
        }
        let Some(link) = self.link.take() else { return self.check_timeout_unlinked(qp) };
        let peer_state = self.peer_state(qp, &link);
        match peer_state {
            PeerState::Serving(now)
                if !self.out_of_sequence && self.latched.is_none_or(|l| l == now) =>
            {
                self.polls_without_ack = self.polls_without_ack.wrapping_add(1);
                if self.polls_without_ack >= POLLS_UNANSWERED
                    && self.polls_without_ack.is_power_of_two()
                {
                    let polls = link.view.tables_head().polls.0.load(Ordering::Relaxed);
                    let same = std::mem::replace(&mut self.peer_polls, polls) == polls;
                    // The peer may be polling a CQ that the remote QP does not use.
                    if same || self.polls_without_ack >= 4 * POLLS_UNANSWERED {
                        link.wake_service();
                    }
                }
                self.unanswered_since = None;
            }
            _ => {
                // An acknowledgement or a refusal may have arrived just before the remote QP
                // stopped.
                self.absorb(qp, &link);
                self.reap(qp);
                if self.acked != self.next || waiting {
                    self.start_timeout(qp);
                    // A peer that took its QP down before its process ended counts as silent, not
                    // as dead. The last messages may exceed what the peer wanted, and the
                    // application may finish before the timeout (ibv_srq_pingpong -e). Without a
                    // timeout the wait would never end, so the death counts.
                    let ends = link.was_cut(qp.qpn) || self.retry.timeout == 0;
                    self.give_up_if_due(qp, peer_state == PeerState::Dead && ends);
                }
            }
        }
        self.link = Some(link);
    }

    /// No link exists, or the port is down: only the timeout ends the wait.
    #[cold]
    fn check_timeout_unlinked(&mut self, qp: &Qp) {
        self.start_timeout(qp);
        self.give_up_if_due(qp, false);
    }

    fn give_up_if_due(&mut self, qp: &Qp, dead: bool) {
        if self.fate.is_broken() || self.queue.is_idle() {
            return;
        }
        if qp.kind == Kind::Uc {
            for n in self.queue.completed..self.queue.posted {
                if n >= self.queue.issued {
                    // Work on local windows is still executed.
                    if self.is_local(n) {
                        break;
                    }
                    self.queue.issued = n + 1;
                }
                self.queue.entry(n).phase = Phase::Done;
            }
            return self.reap(qp);
        }
        let due = self.deadline().is_some_and(|d| Instant::now() >= d);
        if due || dead {
            let phase = if dead { Phase::Dead } else { Phase::Failed(IBV_WC_RETRY_EXC_ERR) };
            self.end_request(self.queue.completed, phase);
            self.reap(qp);
        }
    }

    /// How the target's memory is reached on this connection.
    pub(super) fn reach(&self, link: &Link) -> Reach {
        match link.reach() {
            Reach::Attach if self.attach_refused => Reach::No,
            reach => reach,
        }
    }
}

/// Whether a QP is connected to itself. Its responder skips no slot of its requester: a QP in ERR
/// serves nothing.
fn is_connected_to_itself(qp: &Qp, link: &Link) -> bool {
    link.peer.is_self && link.qpn == qp.qpn
}

#[inline]
fn done(qp: &Qp, request: &Request, byte_len: u32) -> Cqe {
    Cqe {
        wr_id: request.wr_id,
        status: IBV_WC_SUCCESS,
        opcode: completion_opcode(request.opcode),
        byte_len,
        qp_num: qp.qpn,
        ..Cqe::default()
    }
}

/// Completes a request. Returns the position of the completion, if any.
#[cold]
fn complete(qp: &Qp, entry: &Entry, status: u32, byte_len: u32) -> Option<u64> {
    let request = &entry.request;
    if entry.own {
        rendezvous::finish_request(qp, request, status);
        return None;
    }
    let cqe = Cqe {
        status,
        vendor_err: match vendor_err(status) {
            found_by::TIME if entry.phase == Phase::Dead => found_by::DEATH,
            usual => usual,
        },
        ..done(qp, request, byte_len)
    };
    qp.pair().map(|pair| pair.send_cq.push_with(&cqe, None, false))
}
