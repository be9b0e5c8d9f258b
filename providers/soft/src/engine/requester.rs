//! The sending half of a connected QP: from posted request to completion (IBTA vol 1, 9.7 "requester").
//!
//! Requests are issued strictly in order. A piece is put into the ring of the remote QP, which
//! acknowledges by advancing a counter, or the initiator moves the bytes itself (`onesided`). What cannot be issued now
//! (ring full, no chunk, earlier pieces not acknowledged, remote QP not ready) waits in the queue and is tried again by
//! whoever polls, or by the service thread.

use super::inbound::Nak;
use super::objects::connection::{Lanes, Lent, Link, Patience, Requester};
use super::objects::copying::Copying;
use super::objects::holder::{Holder, PeerState, Reach};
use super::objects::qp::Qp;
use super::regions::LOCAL_WRITE;
use super::rendezvous;
use super::request::{Entry, Phase, Request, SendQueue, completion_opcode};
use super::state::{Kind, State, give_up_us};
use super::tso::Segmenter;
use super::waiting::Waiting;
use super::wire::usual;
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

/// Largest message (`max_msg_sz` of the port).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;
/// Polls without an acknowledgement after which, if the peer does not poll either, its service thread is asked to look; then
/// after twice as many, and so on; from the third time on even if the peer polls.
const POLLS_UNANSWERED: u32 = 1 << 10;

impl Requester {
    pub(crate) fn new(kind: Kind, queue: SendQueue, segmenter: Segmenter) -> Self {
        Self {
            queue,
            unpolled: None,
            wire: usual(kind, false),
            link: None,
            remote: None,
            patience: Patience::default(),
            latched: None,
            next: 0,
            acked: 0,
            first_psn: 0,
            latched_at: (0, 0),
            out_of_sequence: false,
            lent: VecDeque::new(),
            answers_due: 0,
            addressed: 0,
            lanes: Lanes::default(),
            copying: Copying::default(),
            maps: None,
            run_lists: None,
            held_back: false,
            unpublished: false,
            attach_refused: false,
            stalled: None,
            held_up: None,
            waits: 0,
            peer_polls: 0,
            datagrams_wait: false,
            receivers_waited_for: None,
            waiting: Waiting::default(),
            segmenter: Box::new(segmenter),
            fate: Fate::Going,
            drain_awaited: false,
        }
    }

    /// In SQD: whether what was begun is complete. What was only posted waits for RTS.
    pub(crate) fn is_drained(&mut self) -> bool {
        self.queue.completed == self.queue.issued && !self.is_midway()
    }

    /// Whether the request that is issued next was begun.
    fn is_midway(&mut self) -> bool {
        let n = self.queue.issued;
        n != self.queue.posted && (self.queue.entry(n).offset > 0 || self.is_held_by_fault())
    }

    /// From SQD to wherever, or to SQD: whether the event that the queue has drained is wanted.
    pub(crate) const fn await_drain(&mut self, awaited: bool) {
        self.drain_awaited = awaited;
    }

    /// In SQD: goes on with the request that was begun, and with no other.
    #[cold]
    fn finish_begun(&mut self, qp: &Qp) {
        let posted = std::mem::replace(&mut self.queue.posted, self.queue.issued + 1);
        self.issue_waiting(qp);
        self.queue.posted = posted;
    }

    /// Nothing behind what was completed is done any more. The state changes now, before anybody can see the completion that tells of it;
    /// what follows from it needs other locks.
    #[cold]
    pub(super) fn break_off(&mut self, qp: &Qp, fatal: bool) {
        let stopped = qp.stop(fatal);
        self.fate.break_off(Breakage { stopped, fatal });
    }

    /// Begins a connection (at RTR). The old one's chunks were taken away by `take_lent`.
    pub(crate) fn connect(&mut self, link: Option<Box<Link>>) {
        self.forget_lanes(link.as_ref().map_or(0, |link| link.qpn));
        self.link = link;
        self.wire.keep(&mut self.link);
        self.maps = None;
        self.copying = Copying::default();
        self.latched = None;
        self.attach_refused = false;
        self.out_of_sequence = false;
        self.stalled = None;
    }

    /// The remote QP, where it is one of this process.
    pub(super) fn remote_here(&self) -> Option<Arc<Qp>> {
        self.link.as_ref()?.here.upgrade()
    }

    /// Forgets everything that was posted (to RESET).
    pub(crate) fn reset(&mut self) {
        self.queue.forget();
        if let Some(unpolled) = &mut self.unpolled {
            unpolled.forget();
        }
        self.waiting.forget();
        self.answers_due = 0;
        self.fate.resume();
        self.drain_awaited = false;
        self.stalled = None;
        self.held_up = None;
        self.unpublished = false;
    }

    /// Lets a queue that stopped at an error (SQE) go on.
    pub(crate) fn resume(&mut self) {
        self.fate.resume();
    }

    /// Chunks that the peer may still read or write, with the ring that tells when it is done.
    pub(crate) fn take_lent(&mut self) -> Option<(Box<Link>, VecDeque<Lent>)> {
        let lent = std::mem::take(&mut self.lent);
        self.maps = None;
        let link = self.link.take().or_else(|| self.wire.give_back());
        self.forget_lanes(0);
        if lent.is_empty() { None } else { Some((link?, lent)) }
    }

    /// The local memory of request `n`; `None`: a key is wrong. Where it matters how long that takes, [`Requester::ranges_into`]: a list
    /// has room for so many ranges that moving it about costs more than filling it.
    pub(crate) fn ranges(&mut self, qp: &Qp, n: u64, need: u32) -> Option<Ranges> {
        // Made where it is to be: it is large.
        let mut found = Some(Ranges::new());
        if let Some(ranges) = &mut found
            && !self.ranges_into(ranges, qp, n, need)
        {
            return None;
        }
        found
    }

    /// As [`Requester::ranges`], into an empty list; `false` for `None`.
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
            // SAFETY: a copy that the queue keeps until the request is over, of `len` bytes or more.
            ranges.push(unsafe { Range::new(base, len) });
        } else {
            *ranges = self.raw_ranges(n);
        }
        true
    }

    /// Everything that can go on: acknowledgements, completions, waiting requests, patience.
    pub(crate) fn advance(&mut self, qp: &Qp) {
        self.absorb_here(qp);
        self.reap(qp);
        if self.waits_for_window() {
            self.issue_remote(qp);
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
        self.lose_patience(qp);
        self.publish();
        self.settle(qp);
    }

    /// Completes what is acknowledged, and begins nothing.
    pub(super) fn complete_acknowledged(&mut self, qp: &Qp) {
        self.absorb_here(qp);
        self.reap(qp);
        self.settle(qp);
    }

    /// As `absorb`, from the remote QP that requests go to now, if there is one.
    pub(super) fn absorb_here(&mut self, qp: &Qp) {
        if let Some(link) = self.link.take() {
            self.absorb(qp, &link);
            self.link = Some(link);
        }
    }

    /// Says whether anything is left to do.
    pub(crate) fn settle(&mut self, qp: &Qp) {
        qp.sends_outstanding(self.is_busy(qp));
        if self.drain_awaited && self.is_drained() {
            self.drain_awaited = false;
            qp.event(IBV_EVENT_SQ_DRAINED);
        }
    }

    /// Whether anything is left to do.
    pub(super) fn is_busy(&self, qp: &Qp) -> bool {
        self.fate.is_untold()
            || !self.queue.is_idle()
            || qp.tagging().is_some_and(|(_, own)| own.is_waiting())
    }

    /// Issues what waits into the ring of the remote QP.
    pub(super) fn issue_by_ring(&mut self, qp: &Qp) {
        let Some(link) = self.link.take() else {
            return self.issue_unlinked(qp);
        };
        while self.queue.issued != self.queue.posted && self.fate.is_going() {
            let answers = self.answers(qp, &link);
            if answers && self.queue.posted - self.queue.issued > 1 {
                let done = self.issue_run(qp, &link, self.queue.issued);
                self.queue.issued += done;
                if done > 0 {
                    continue;
                }
            }
            if !answers && !self.is_local(self.queue.issued) {
                if qp.kind != Kind::Uc {
                    self.stall(qp);
                    break;
                }
                // Unreliable: what nobody takes is lost, and the sender never knows.
                let n = self.queue.issued;
                self.queue.entry(n).phase = Phase::Done;
            } else if !self.issue(qp, &link, self.queue.issued) {
                break;
            }
            self.queue.issued += 1;
        }
        self.link = Some(link);
    }

    /// Issues what concerns nobody else, where nobody is at the other end.
    #[cold]
    fn issue_unlinked(&mut self, qp: &Qp) {
        while self.queue.issued != self.queue.posted && self.fate.is_going() {
            if !self.is_local(self.queue.issued) {
                return self.stall(qp);
            }
            if !self.issue_local(qp, self.queue.issued) {
                return;
            }
            self.queue.issued += 1;
        }
    }

    /// Whether request `n` concerns nobody but us.
    #[cold]
    fn is_local(&mut self, n: u64) -> bool {
        self.queue.entry(n).request.what.is_local()
    }

    /// Whether the remote QP serves this connection; takes up its sequence numbers the first time.
    pub(super) fn answers(&mut self, qp: &Qp, link: &Link) -> bool {
        match (link.peer_state(qp.qpn), self.latched) {
            (PeerState::Serving(now), Some(latched)) if now == latched => true,
            (PeerState::Serving(now), latched) => {
                // Who receives unreliably begins with whatever message comes.
                let begins = latched.is_none() || qp.kind == Kind::Uc || self.is_untouched();
                begins && self.take_up(qp, link, now)
            }
            (PeerState::Silent | PeerState::Dead, _) => false,
        }
    }

    /// Whether nothing was sent on the remote connection that was taken up.
    fn is_untouched(&self) -> bool {
        self.latched_at == (self.next, self.queue.issued) && self.acked == self.next
    }

    /// Begins to send on the remote connection `now`, if its responder expects our first request: it has the right PSN, and no other
    /// incarnation of ours has sent there before. On a wire the responder would drop what we send and ask for another PSN, until we give
    /// up, or until it begins another connection (IBTA vol 1, 9.7.5.1.2). One that is unreliable takes any (9.8.2.2).
    #[cold]
    fn take_up(&mut self, qp: &Qp, link: &Link, now: u16) -> bool {
        let generation = Life::unpack(qp.entry().life.load(Ordering::Relaxed)).generation;
        let me = Holder::new(qp.adapter.fabric.identity(), generation);
        // A stand-in has no PSN of its own, and goes when the QP does that it stands for.
        let home = self.lanes.home().unwrap_or(link);
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
            link.taken_over();
        }
        self.acked = self.next;
        self.latched_at = (self.next, self.queue.issued);
        self.addressed = 0;
        self.stalled = None;
        let whole = qp.kind != Kind::Uc || self.lose_issued(qp);
        // If it began another connection meanwhile, what we have taken may be that one's, and the rest not.
        whole && link.peer_state(qp.qpn) == PeerState::Serving(now)
    }

    /// What an unreliable connection sent to one that is over is lost, and its chunks are ours again. `false`: so is the rest of the request
    /// that is issued next.
    fn lose_issued(&mut self, qp: &Qp) -> bool {
        for n in self.queue.completed..self.queue.issued {
            self.queue.entry(n).phase = Phase::Done;
        }
        for lent in self.lent.drain(..) {
            qp.adapter.chunks.give(lent.chunk);
        }
        !self.is_midway()
    }

    /// Slots free in the remote ring.
    #[inline]
    pub(super) fn room(&mut self, qp: &Qp, link: &Link) -> u32 {
        let room = RING_SLOTS - self.next.wrapping_sub(self.acked);
        if room > 0 {
            return room;
        }
        self.absorb(qp, link);
        RING_SLOTS - self.next.wrapping_sub(self.acked)
    }

    /// Takes in what the remote QP acknowledged or refused.
    pub(super) fn absorb(&mut self, qp: &Qp, link: &Link) {
        if self.latched.is_none() || self.acked == self.next {
            return;
        }
        // The nak is stored before the life changes and after the last good acknowledgement: its Acquire pairs with the
        // Release in Responder::refuse, so with a nak comes the `acked` that it is about.
        let nak = link.ring.nak().load(Ordering::Acquire);
        let due = self.next.wrapping_sub(self.acked);
        let told = link.ring.told().as_said().wrapping_sub(self.acked);
        let along = qp.acked_along(self.acked);
        // What is beyond our pieces is older than what we know, or no number that our peer could have reached.
        let within = |advance: u32| if advance <= due { advance } else { 0 };
        let advance = within(told).max(within(along));
        if advance > 0 && !self.counts(qp, link) {
            return;
        }
        let acked = self.acked.wrapping_add(advance);
        if advance > 0 {
            self.waits = 0;
            self.stalled = None;
            while let Some(lent) = self.lent.front().copied() {
                if acked.wrapping_sub(lent.seq) as i32 <= 0 {
                    break;
                }
                self.lent.pop_front();
                self.take_answer(qp, &lent);
                qp.adapter.chunks.give(lent.chunk);
            }
            self.acked = acked;
        }
        if let Some(nak) = nak.check(Nak::from_raw)
            && self.acked != self.next
        {
            let status = self.status_of_refusal(qp, nak);
            self.refuse_at(self.acked, status);
        }
    }

    /// With which status the first request completes that was not acknowledged. Of a message that the receiver could not fetch, as its memory is
    /// gone here, the fault is the sender's, as of a message that the sender copies.
    #[cold]
    fn status_of_refusal(&mut self, qp: &Qp, nak: Nak) -> u32 {
        let is_lost = nak == Nak::Operation
            && self.offered(qp, self.acked).is_some_and(|ranges| ranges.is_gone());
        if is_lost { IBV_WC_LOC_PROT_ERR } else { nak.requester_status() }
    }

    /// Whether an acknowledgement that was just loaded says that requests were done. A peer that finds us out of RTS
    /// skips our slots, and acknowledges them so that their chunks come back: whoever sees that sees the state that made
    /// it, which was stored before. The requests wait for their flush (or RESET) then, and the chunks for what is after it.
    #[inline]
    fn counts(&self, qp: &Qp, link: &Link) -> bool {
        matches!(qp.state(), State::Rts | State::Sqd)
            || !qp.kind.is_reliable()
            || self.queue.completed == self.queue.posted
            || is_own_peer(qp, link)
    }

    /// Takes in what a QP that is connected to itself refused. Its responder takes the QP to error, so that the requests would be flushed before
    /// the requester looks, and none would say why. A requester of another QP sees the refusal first, as its own state does not change with it.
    #[cold]
    fn absorb_own_refusal(&mut self, qp: &Qp) {
        if self.link.as_deref().is_some_and(|link| is_own_peer(qp, link)) {
            self.absorb_here(qp);
        }
    }

    /// Places the answer of a READ or an atomic; not for requests that were flushed meanwhile.
    fn take_answer(&mut self, qp: &Qp, lent: &Lent) {
        let Some(answer) = lent.answer else { return };
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

    /// The remote QP refused slot `seq`: its request failed.
    fn refuse_at(&mut self, seq: u32, status: u32) {
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

    /// Request `n` will complete with `status`; nothing behind it is issued.
    pub(crate) fn fail(&mut self, n: u64, status: u32) {
        self.end_badly(n, Phase::Failed(status));
    }

    /// Request `n` failed in this way; nothing behind it is issued.
    fn end_badly(&mut self, n: u64, phase: Phase) {
        self.queue.entry(n).phase = phase;
        self.queue.issued = self.queue.issued.max(n + 1);
        self.fate.fail();
    }

    /// The peer acknowledged all that was sent.
    #[inline]
    pub(super) const fn note_acked_all(&mut self) {
        self.acked = self.next;
        self.waits = 0;
        self.stalled = None;
    }

    /// Completes what is complete, in order.
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
            self.answers_due -= u32::from(answered);
            if status == IBV_WC_SUCCESS && !entry.own {
                let mut position = None;
                if let Some(pair) = qp.pair()
                    && (pair.signals_all || entry.has(IBV_SEND_SIGNALED))
                {
                    let cqe = done(qp, &entry.request, entry.len);
                    let ring = batch.get_or_insert_with(|| pair.send_cq.batch());
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
                self.break_off(qp, false);
            }
            let position = complete(qp, &entry, status, entry.len);
            self.note_unpolled(&entry, position);
            if failed {
                // What is behind is flushed.
                break;
            }
        }
        if let Some(ring) = batch {
            ring.end(Pushed::Quiet);
        }
    }

    /// Completes everything that is left with a flush error.
    pub(crate) fn flush(&mut self, qp: &Qp) {
        qp.adapter.helping.settle();
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
        self.answers_due = 0;
        self.fate.fail();
        if let Some((tm, own)) = qp.tagging() {
            rendezvous::drop_fetches(qp, tm, own);
        }
        qp.sends_outstanding(false);
    }

    /// The remote QP does not answer: time begins to count.
    pub(super) fn stall(&mut self, qp: &Qp) {
        if self.stalled.is_none() {
            self.stalled = Some(Instant::now());
            qp.adapter.watch(qp);
        }
    }

    /// Request `n` waits for somebody who will not tell us: the service thread tries again if nobody polls.
    #[cold]
    pub(super) fn hold_up(&mut self, qp: &Qp, n: u64) {
        if self.held_up.replace(n) != Some(n) {
            qp.adapter.watch(qp);
        }
    }

    /// When the service thread must look again, if it must.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let Patience { timeout, retry_cnt, .. } = self.patience;
        let due = self.stalled? + Duration::from_micros(give_up_us(timeout, retry_cnt)?);
        Some(due)
    }

    /// Whether the service thread must look again even if nothing arrives: the remote QP may come up unannounced.
    pub(crate) fn recheck(&self) -> bool {
        let held_up = matches!(self.held_up, Some(n) if n == self.queue.issued);
        self.stalled.is_some()
            || self.is_held_by_fault()
            || self.datagrams_wait
            || self.waits_for_window()
            || (held_up && self.queue.issued != self.queue.posted)
    }

    fn lose_patience(&mut self, qp: &Qp) {
        // Work on our own windows waits for nobody at the other end.
        let waiting = self.queue.issued != self.queue.posted
            && qp.state() != State::Sqd
            && !self.is_local(self.queue.issued);
        if (self.acked == self.next && !waiting) || self.fate.is_broken() || !self.wire.is_timed() {
            self.stalled = None;
            return;
        }
        let Some(link) = self.link.take() else { return self.despair(qp) };
        let peer_state = self.peer_state(qp, &link);
        match peer_state {
            PeerState::Serving(now)
                if !self.out_of_sequence && self.latched.is_none_or(|l| l == now) =>
            {
                self.waits = self.waits.wrapping_add(1);
                if self.waits >= POLLS_UNANSWERED && self.waits.is_power_of_two() {
                    let polls = link.view.tables_head().polls.0.load(Ordering::Relaxed);
                    let same = std::mem::replace(&mut self.peer_polls, polls) == polls;
                    // What it polls may be another queue than that of the remote QP.
                    if same || self.waits >= 4 * POLLS_UNANSWERED {
                        link.kick();
                    }
                }
                self.stalled = None;
            }
            _ => {
                // An acknowledgement or refusal may have come just before the remote QP stopped.
                self.absorb(qp, &link);
                self.reap(qp);
                if self.acked != self.next || waiting {
                    self.stall(qp);
                    // Who took its QP down before its process ended is gone as on a wire, after the timeout: what we sent last
                    // may be more than it wanted, and the application may be done before (ibv_srq_pingpong -e). For ever is too long.
                    let ends = link.was_cut(qp.qpn) || self.patience.timeout == 0;
                    self.give_up_if_due(qp, peer_state == PeerState::Dead && ends);
                }
            }
        }
        self.link = Some(link);
    }

    /// There is no remote QP to be heard of, or the port is down.
    #[cold]
    fn despair(&mut self, qp: &Qp) {
        self.stall(qp);
        self.give_up_if_due(qp, false);
    }

    fn give_up_if_due(&mut self, qp: &Qp, dead: bool) {
        if self.fate.is_broken() || self.queue.is_idle() {
            return;
        }
        if qp.kind == Kind::Uc {
            for n in self.queue.completed..self.queue.posted {
                if n >= self.queue.issued {
                    // Work on our own windows is still to be done.
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
            self.end_badly(self.queue.completed, phase);
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

/// Whether a QP is connected to itself. Its responder skips nothing that its requester sent: in error it serves nothing.
fn is_own_peer(qp: &Qp, link: &Link) -> bool {
    link.peer.is_self && link.qpn == qp.qpn
}

/// The completion of a request that succeeded.
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

/// Completes a request; the position of its completion, if it has one.
#[cold]
fn complete(qp: &Qp, entry: &Entry, status: u32, byte_len: u32) -> Option<u64> {
    let request = &entry.request;
    if entry.own {
        rendezvous::finished(qp, request, status);
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
