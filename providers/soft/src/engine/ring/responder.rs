//! The responder of a connected QP on this host: reads slots from its ring and acknowledges
//! (IBTA 1.7 9.7.5). Polls of the receive CQ enter here; `inbound` executes the requests and
//! completes receives.
//!
//! Map of the file:
//!
//! - Threads: polls and the service thread enter by `advance` (`Qp::advance_receive`).
//!   `ibv_modify_qp` enters by `connect` and `take_unfinished`, the port by `set_port`. Posts of
//!   the same QP send acknowledgements without this lock (`acks`).
//! - Locks: every function runs under `Qp::responder`. Below it are taken: `Qp::requester` of this
//!   QP (piggybacked acknowledgements), the requester of a local sender that offers its memory,
//!   then `receives` and the ring of the receive CQ.
//! - Mirrors: `Qp::next_arrival` mirrors `next`; `Qp::acked_to_peer` mirrors `acked`.
//! - Shared memory: the remote requester writes slots; this responder writes `acked`, `nak`,
//!   `begun` and `holder` of the ring.
//! - Fields: `ring/mod.rs`.

use crate::engine::keys::regions::REMOTE_READ;
use crate::engine::queues::inbound::Source;
use crate::engine::queues::qp::Inbound;
use crate::engine::queues::qp::Qp;
use crate::engine::ring::copying::is_measured;
use crate::engine::ring::costs::Costs;
use crate::engine::ring::issue::new_atomic_value;
use crate::engine::ring::link::chunk_of;
use crate::engine::ring::{Link, Responder};
use abi::*;
use arrayvec::ArrayVec;
use soft_local::shm::holder::RingHolder;
use soft_local::shm::layout::{CHUNK_BYTES, RING_SLOTS, split_qpn};
use soft_local::shm::protocol;
use soft_local::shm::ring::Ring;
use soft_local::shm::slot::*;
use soft_local::shm::trust::Unchecked;
use soft_memory::cma::IoVec;
use soft_memory::range::bytes_of_mut;
use soft_memory::{MAX_SGE, Range, Ranges};
use soft_semantics::inbound::{Headers, Nak, Verdict};
use soft_semantics::receive::Receive;
use soft_semantics::request::RemoteAddress;
use soft_semantics::state::{QpState, QpType, rnr_timer_us};
use soft_semantics::tags::wire::HEADERS_LEN;
use soft_sys::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Limits of one round, in pieces and approximately in bytes. A busy ring must not starve the rings
/// of the same CQ, nor delay acknowledgements of large messages.
const BUDGET: usize = 128;
const BUDGET_BYTES: usize = 128 * 1024;
/// Pieces after which an acknowledgement is sent even in a stream.
const ACK_EVERY: u32 = RING_SLOTS / 8;
/// Bytes after which an acknowledgement is sent even in a stream.
const ACK_BYTES: usize = 32 * 1024;
/// Bit of `not_serving`: a refusal was sent, and the connection is over.
const REFUSED: u8 = 1;
/// Bit of `not_serving`: the port is down.
const PORT_DOWN: u8 = 2;
/// Bit of `not_serving`: the sender died with a message that must be fetched from its memory. Later
/// messages cannot overtake the lost message.
const SENDER_DIED: u8 = 4;

impl Responder {
    pub(crate) fn new(ring: Ring, next: u32) -> Self {
        Self {
            ring,
            link: None,
            next,
            sender: None,
            inbound: Inbound::default(),
            rnr_since: None,
            min_rnr_timer: 0,
            blocked_piece: None,
            not_serving: 0,
            acked: next,
            established: false,
            was_connected: false,
            costs: Costs::default(),
        }
    }

    /// Begins a connection. Returns the sequence number of its first piece. The number lies beyond
    /// all numbers in the ring. A sender of the previous connection must not take the number for an
    /// acknowledgement of all its pieces, so the distance is two laps.
    pub(crate) fn connect(&mut self, link: Option<Box<Link>>) -> u32 {
        self.next = self.next.wrapping_add(2 * RING_SLOTS);
        if self.next.wrapping_add(RING_SLOTS) < 2 * RING_SLOTS {
            // Zeroed slots read as sequence number 0, so 0 must not occur in the first lap.
            self.next = RING_SLOTS;
        }
        self.was_connected = true;
        self.link = link;
        self.sender = None;
        self.inbound.restart();
        self.rnr_since = None;
        self.blocked_piece = None;
        self.not_serving &= PORT_DOWN;
        self.established = false;
        self.costs = Costs::default();
        self.acked = self.next;
        // Relaxed: the remote requester reads both words only after it read the life of the QP,
        // which is published later with Release (`Qp::publish_life`).
        self.ring.nak().store(0, Ordering::Relaxed);
        self.ring.begun().store(self.next, Ordering::Relaxed);
        self.ring.holder().store(0, Ordering::Relaxed);
        self.ring.acked().store(self.next, Ordering::Release);
        self.next
    }

    /// The position at which the next connection of this table entry begins.
    pub(crate) const fn position(&self) -> u32 {
        self.next
    }

    /// The receive that was taken and not completed, if any.
    pub(crate) fn take_unfinished(&mut self, qp: &Qp) -> Option<Receive> {
        self.inbound.take_unfinished(qp)
    }

    /// Records that the port went down or up. Slots in the ring wait for the port.
    pub(crate) fn set_port(&mut self, down: bool) {
        self.rnr_since = None;
        self.not_serving =
            if down { self.not_serving | PORT_DOWN } else { self.not_serving & !PORT_DOWN };
    }

    /// The time at which a waiting message exhausts the RNR retries of its sender, if any message
    /// waits.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let retries = self.link.as_ref()?.entry().rnr_retry.load(Ordering::Relaxed);
        let since = self.rnr_since.filter(|_| self.not_serving == 0)?;
        let wait = rnr_timer_us(self.min_rnr_timer) * u32::from(retries);
        (retries < 7).then(|| since + Duration::from_micros(u64::from(wait)))
    }

    /// Whether the service thread must look again without an arrival.
    pub(crate) fn recheck(&self) -> bool {
        self.blocked_piece == Some(self.next) && self.not_serving == 0 && self.link.is_some()
    }

    /// Serves the ring. Returns true if the QP went to ERR and must be flushed.
    pub(crate) fn advance(&mut self, qp: &Qp) -> bool {
        if self.not_serving != 0 || !qp.is_receiving() || !qp.is_xrc_receiver_valid() {
            return false;
        }
        if !self.established {
            self.establish(qp);
        }
        if qp.qp_type() == QpType::Uc {
            self.follow_takeover(qp);
        }
        if self.sender.is_none() {
            // Pieces that arrive from now on are served by the next look.
            return false;
        }
        let Some(link) = self.link.take() else { return false };
        let before = self.next;
        let mut fatal = false;
        self.inbound.moved = 0;
        let mut left = BUDGET;
        let usually =
            qp.receives_plainly() && !(self.inbound.check_memory && qp.are_receives_unmapped());
        while left > 0 {
            if usually {
                left -= self.serve_short(qp, &link, left);
                if left == 0 {
                    break;
                }
                let Some(head) = self.ring.head(self.next) else { break };
                if self.serve_chunked(qp, &link, head) {
                    left -= 1;
                    if self.inbound.moved >= BUDGET_BYTES {
                        break;
                    }
                    continue;
                }
            }
            left -= 1;
            let Some((words, body)) = self.ring.take_piece(self.next) else { break };
            let mut verdict = self.serve_piece(qp, &link, words, &body);
            if verdict == Verdict::NotReady && self.rnr_expired(qp, &link) {
                verdict = Verdict::Refuse(Nak::Rnr);
            }
            match verdict {
                Verdict::Done | Verdict::Dropped => {}
                Verdict::Stale => self.inbound.abandon(qp),
                Verdict::SenderDied => {
                    self.inbound.abandon(qp);
                    self.not_serving |= SENDER_DIED;
                    break;
                }
                Verdict::NotReady => break,
                Verdict::Busy => {
                    // The end of the operation in flight gives no notice: the service thread tries
                    // again if no thread polls.
                    if self.blocked_piece.replace(self.next) != Some(self.next) {
                        qp.adapter().service.watch_qp(qp);
                    }
                    break;
                }
                Verdict::Broken => {
                    fatal = qp.fail();
                    break;
                }
                Verdict::Refuse(nak) => {
                    fatal = self.refuse(qp, &link, nak);
                    break;
                }
            }
            self.rnr_since = None;
            self.next = self.next.wrapping_add(1);
            if self.inbound.moved >= BUDGET_BYTES {
                break;
            }
        }
        self.link = Some(link);
        if self.next != before {
            // In a stream an acknowledgement covers many pieces, because each acknowledgement moves
            // a cache line between the processors.
            let due = self.next.wrapping_sub(self.acked);
            let later = qp.note_arrival(self.next) && due < ACK_EVERY;
            if !later || self.inbound.moved >= ACK_BYTES {
                self.acknowledge_arrivals(qp);
            }
        }
        fatal
    }

    /// Handles the first arrival on a connection. The event is sent if the QP is not in RTS yet,
    /// because the application may wait for the event (IBTA 1.7 11.6.3.1).
    #[cold]
    fn establish(&mut self, qp: &Qp) {
        if self.ring.ready(self.next) {
            self.established = true;
            if qp.qp_type() != QpType::Uc {
                self.sender = RingHolder::of(&self.ring);
            }
            if qp.state() == QpState::Rtr && qp.as_stand_in().is_none() {
                qp.event(IBV_EVENT_COMM_EST);
            }
        }
    }

    /// Unreliable connection: detects that another incarnation of the sender took the ring over,
    /// and continues at its position.
    fn follow_takeover(&mut self, qp: &Qp) {
        let holder = RingHolder::of(&self.ring);
        if holder == self.sender {
            return;
        }
        self.sender = holder;
        let begun = self.ring.begun().load(Ordering::Relaxed).unchecked();
        if begun.wrapping_sub(self.next) as i32 > 0 {
            self.inbound.abandon(qp);
            self.rnr_since = None;
            self.next = begun;
            qp.note_arrival(self.next);
            self.acknowledge_arrivals(qp);
        }
    }

    /// Acknowledges all pieces before `next`.
    pub(crate) fn acknowledge_arrivals(&mut self, qp: &Qp) {
        if self.acked == self.next || self.not_serving != 0 {
            return;
        }
        self.acked = self.next;
        qp.acks().set_acked_to_peer(self.next);
        // Pairs with the Acquire in `Requester::absorb`: acknowledged pieces were executed.
        protocol::acknowledge(self.ring.acked().word(), self.next);
        if let Some(link) = &self.link {
            link.acks_published();
        }
    }

    /// Refuses the piece at the head. Returns whether the QP went to ERR.
    fn refuse(&mut self, qp: &Qp, link: &Link, nak: Nak) -> bool {
        self.not_serving |= REFUSED;
        self.acked = self.next;
        let (ring, next) = (self.ring, self.next);
        let say = || {
            protocol::acknowledge(ring.acked().word(), next);
            // Release, after the store of `acked`. Pairs with the Acquire in `Requester::absorb`,
            // which loads the NAK first: a requester that reads the NAK also reads its position.
            ring.nak().store(nak as u32, Ordering::Release);
        };
        // The QP state changes first, then the refusal is stored, then the life is published. A
        // peer that reads the refusal finds the QP in ERR. A peer that reads the life in ERR, and
        // starts its timeout, finds the refusal.
        let failed = nak != Nak::Rnr && qp.fail_after(say);
        if !failed {
            say();
        }
        link.alarm();
        if let Some(event) = nak.event() {
            qp.event(event);
        }
        failed
    }

    /// Whether the piece at the head has waited for a receive as long as its sender allows.
    /// Otherwise asks the service thread to look again.
    fn rnr_expired(&mut self, qp: &Qp, link: &Link) -> bool {
        let now = Instant::now();
        let since = *self.rnr_since.get_or_insert(now);
        let retries = link.entry().rnr_retry.load(Ordering::Relaxed);
        let wait = Duration::from_micros(u64::from(rnr_timer_us(self.min_rnr_timer)));
        if retries < 7 && now.duration_since(since) >= wait * u32::from(retries) {
            return true;
        }
        if retries < 7 {
            qp.adapter().service.watch_qp(qp);
        }
        false
    }

    fn serve_piece(&mut self, qp: &Qp, link: &Link, words: [u64; 2], body: &Body) -> Verdict {
        let Some(head) = Head::parse(words) else {
            return self.inbound.reject(qp, Nak::Invalid);
        };
        if head.src_qpn != link.qpn {
            // A slot of a previous connection of this ring.
            return Verdict::Dropped;
        }
        if head.op == Op::Fault {
            // Requests that the sender acknowledged before its request failed were executed.
            qp.note_piggybacked_ack(head.ack);
            let nak = Nak::from_raw(head.imm).unwrap_or(Nak::Invalid);
            return match head.has_flag(IMM) {
                true => self.inbound.reject_write(qp, true, nak),
                false => Verdict::Refuse(nak),
            };
        }
        if !self.sender.is_some_and(|sender| link.may_send_as(sender, qp.qpn())) {
            return Verdict::Stale;
        }
        // A request completes before its response arrives, as on a network.
        if qp.qp_type() != QpType::XrcRecv {
            qp.note_piggybacked_ack(head.ack);
        } else if head.has_flag(LAST) {
            qp.adapter().xrc.senders.complete(link.peer().slot);
        }
        if self.inbound.skips(head.has_flag(FIRST)) {
            return Verdict::Dropped;
        }
        if head.op == Op::Address && qp.qp_type() == QpType::XrcRecv {
            self.inbound.select_srq(qp, body.low(0).unchecked());
            return Verdict::Done;
        }
        if !self.inbound.has_srq(qp) {
            return Verdict::Refuse(Nak::InvalidRd);
        }
        let total = match head.carrier {
            PayloadLocation::Inline => usize::from(head.count),
            // `Inbound::send` checks the length against the receive.
            PayloadLocation::Chunk | PayloadLocation::AttachList => {
                body.low(1).unchecked() as usize
            }
            PayloadLocation::Attach => body.high(ATTACH_SGES + 1).unchecked() as usize,
        };
        let headers = Headers {
            first: head.has_flag(FIRST),
            last: head.has_flag(LAST),
            imm: head.has_flag(IMM).then_some(head.imm),
            invalidate: head.has_flag(INVALIDATE).then_some(head.imm),
            solicited: head.has_flag(SOLICITED),
            total,
            src_qpn: link.qpn,
            packet: 0,
        };
        match head.op {
            Op::Send => {
                // Every peer can write the slot, so its addresses prove nothing about memory of
                // this process. The offer of a local QP is read from its send queue, under its
                // requester lock. That lock precedes the locks taken for receiving.
                let own_sender = local_offering_qp(qp, link, &head);
                let mut offer = own_sender.as_ref().map(|sender| sender.requester().lock());
                let own = own_sender.as_ref().zip(offer.as_mut());
                let own = own.and_then(|(sender, queue)| queue.offered(sender, head.seq));
                let (sender, costs) = (self.sender, &self.costs);
                let source =
                    SlotSource { qp, link, sender, costs, head: &head, body, sender_memory: own };
                self.inbound.send(qp, &headers, &source)
            }
            Op::Write => self.serve_write(qp, link, &head, &headers, body),
            Op::Read | Op::CompareSwap | Op::FetchAdd => {
                self.serve_with_response(qp, link, &head, body)
            }
            Op::AtomicWrite => {
                self.inbound.store(qp, remote_address(body), body.word(2).unchecked())
            }
            Op::Flush => {
                let (len, what) = (body.word(2).unchecked(), body.high(1).unchecked());
                self.inbound.flush(qp, remote_address(body), len, what)
            }
            _ => self.inbound.reject(qp, Nak::Invalid),
        }
    }

    fn serve_write(
        &mut self,
        qp: &Qp,
        link: &Link,
        head: &Head,
        headers: &Headers,
        body: &Body,
    ) -> Verdict {
        let remote = remote_address(body);
        // Bytes that the initiator already placed are not moved again.
        let len = body.high(1).unchecked() as usize;
        let source = match head.carrier {
            _ if head.has_flag(PLACED) => None,
            PayloadLocation::Inline if len <= ADDRESSED_INLINE => {
                let Some(bytes) = body.bytes(2).get(..len) else {
                    return self.inbound.reject(qp, Nak::Invalid);
                };
                let headers = Headers { total: len, ..*headers };
                return self.inbound.write_bytes(qp, &headers, remote, bytes);
            }
            PayloadLocation::Chunk if len <= CHUNK_BYTES => {
                match body.low(2).check(|chunk| chunk_of(&link.view, chunk)) {
                    Some(chunk) => Some(chunk.first(len)),
                    None => return self.inbound.reject(qp, Nak::Invalid),
                }
            }
            _ => return self.inbound.reject(qp, Nak::Invalid),
        };
        let total = match head.carrier {
            PayloadLocation::Chunk => body.high(2).unchecked() as usize,
            _ => len,
        };
        self.inbound.write(qp, &Headers { total, ..*headers }, remote, len, source)
    }

    /// Serves requests whose response goes into a chunk lent by the requester.
    fn serve_with_response(&mut self, qp: &Qp, link: &Link, head: &Head, body: &Body) -> Verdict {
        let remote = remote_address(body);
        let is_read = head.op == Op::Read;
        let (chunk, len) = if is_read {
            (body.low(2), body.high(1).at_most(CHUNK_BYTES))
        } else {
            (body.high(1), Some(size_of::<u64>()))
        };
        let (Some(answer), Some(len)) = (chunk.check(|chunk| chunk_of(&link.view, chunk)), len)
        else {
            return self.inbound.reject(qp, Nak::Invalid);
        };
        let swaps = head.op == Op::CompareSwap;
        if is_read {
            let total = u64::from(body.high(2).unchecked());
            let whole = if head.has_flag(FIRST) && total > len as u64 {
                self.inbound.check_access(qp, remote, total, REMOTE_READ)
            } else {
                Ok(())
            };
            return match whole {
                Ok(()) => self.inbound.read(qp, remote, answer.first(len)),
                Err(nak) => self.inbound.reject(qp, nak),
            };
        }
        let [compare_add, swap] = [2, 3].map(|at| body.word(at).unchecked());
        let change = |old| new_atomic_value(swaps, old, compare_add, swap);
        self.inbound.atomic(qp, remote, change, answer)
    }
}

/// The target named by a one-sided request, unchecked; `Inbound::admit` checks it.
fn remote_address(body: &Body) -> RemoteAddress {
    RemoteAddress { addr: body.word(0).unchecked(), rkey: body.low(1).unchecked() }
}

/// A SEND piece: its bytes are in a slot of the local ring, or at the place that the slot names.
struct SlotSource<'a> {
    qp: &'a Qp,
    link: &'a Link,
    sender: Option<RingHolder>,
    costs: &'a Costs,
    head: &'a Head,
    body: &'a Body,
    /// The memory offered by a sender of this process.
    sender_memory: Option<Ranges<'static>>,
}

/// The local QP that sent a piece naming memory of its sender.
fn local_offering_qp(qp: &Qp, link: &Link, head: &Head) -> Option<Arc<Qp>> {
    let offers = matches!(head.carrier, PayloadLocation::Attach | PayloadLocation::AttachList);
    if !offers || !link.peer().is_self {
        return None;
    }
    let (_, index) = split_qpn(link.qpn);
    qp.adapter().registry.qp(index).filter(|sender| sender.qpn() == link.qpn)
}

impl Source for SlotSource<'_> {
    fn copy_piece(&self, ranges: &Ranges, offset: usize, total: usize) -> Result<usize, Errno> {
        self.check_sender(self.copy(ranges, offset, total))
    }

    fn peek(&self, start: &mut [u8; HEADERS_LEN]) -> Result<usize, Errno> {
        self.check_sender(self.copy_start(&Ranges::of(Range::of(start))))
    }
}

impl SlotSource<'_> {
    /// Rejects bytes of a sender that died or took its connection down: its memory may be in other
    /// use.
    fn check_sender(&self, brought: Result<usize, Errno>) -> Result<usize, Errno> {
        let Self { qp, link, .. } = *self;
        let sends = || self.sender.is_some_and(|sender| link.may_send_as(sender, qp.qpn()));
        if self.head.carrier != PayloadLocation::Inline && !sends() {
            Err(Errno::ESTALE)
        } else if brought.is_err() && link.peer().is_dead() {
            Err(Errno::ESRCH)
        } else {
            brought
        }
    }

    /// Copies as much of the piece as `ranges` hold.
    fn copy_start(&self, ranges: &Ranges) -> Result<usize, Errno> {
        let Self { link, head, body, .. } = *self;
        match head.carrier {
            PayloadLocation::Inline => {
                let len = usize::from(head.count).min(ranges.total());
                placed(ranges.scatter_bytes(0, body.bytes(0).get(..len).unwrap_or_default()), len)
            }
            PayloadLocation::Chunk => {
                let len = body.high(0).at_most(CHUNK_BYTES).ok_or(Errno::EPROTO)?;
                let len = len.min(ranges.total());
                let chunk = body.low(0).check(|chunk| chunk_of(&link.view, chunk));
                let chunk = chunk.ok_or(Errno::EPROTO)?;
                placed(ranges.scatter(0, chunk.first(len)), len)
            }
            PayloadLocation::Attach | PayloadLocation::AttachList if link.peer().is_self => {
                let own = self.sender_memory.as_ref().ok_or(Errno::EPROTO)?;
                self.copy_offer(ranges, own.total().min(ranges.total()))
            }
            PayloadLocation::Attach | PayloadLocation::AttachList => {
                let mut left = ranges.total();
                let mut there = self.offered_ranges()?;
                there.retain(|range| {
                    *range = IoVec::new(range.address(), range.len().min(left));
                    left -= range.len();
                    !range.is_empty()
                });
                fetch_from(link, &there, ranges, ranges.total() - left)
            }
        }
    }

    /// Copies the first `total` bytes offered by a sender of this process.
    fn copy_offer(&self, to: &Ranges, total: usize) -> Result<usize, Errno> {
        let mut done = 0;
        for range in self.sender_memory.iter().flat_map(Ranges::items) {
            let from = range.first(total - done);
            done += placed(to.scatter(done, from), from.len())?;
        }
        Ok(done)
    }

    /// The memory of another process that the slot names.
    fn offered_ranges(&self) -> Result<ArrayVec<IoVec, MAX_SGE>, Errno> {
        let Self { link, head, body, .. } = *self;
        if head.carrier == PayloadLocation::Attach {
            let lens = [body.low(3), body.high(3), body.low(4)];
            // Addresses of the other process, checked by the kernel.
            let range = |(at, len)| IoVec::new(body.word(at).unchecked(), len as usize);
            let lens = lens.map(Unchecked::unchecked).into_iter().take(usize::from(head.count));
            return Ok(lens.enumerate().map(range).collect());
        }
        let chunk = body.low(0).check(|chunk| chunk_of(&link.view, chunk)).ok_or(Errno::EPROTO)?;
        let count = body.high(0).at_most(MAX_SGE).ok_or(Errno::EPROTO)?;
        Ok((0..count)
            .map(|i| {
                let mut words = [0u64; 2];
                // The copy cannot fail: a chunk is always mapped.
                let _ = chunk
                    .part(i * size_of_val(&words), size_of_val(&words))
                    .get(bytes_of_mut(&mut words));
                let [addr, len] = words;
                IoVec::new(addr, len as usize)
            })
            .collect())
    }

    fn copy(&self, ranges: &Ranges, offset: usize, total: usize) -> Result<usize, Errno> {
        let Self { link, head, body, .. } = *self;
        let fits = |len: usize| {
            if offset + len <= total { Ok(len) } else { Err(Errno::EPROTO) }
        };
        match head.carrier {
            PayloadLocation::Inline => {
                let len = fits(usize::from(head.count))?;
                let bytes = body.bytes(0).get(..len).unwrap_or_default();
                placed(ranges.scatter_bytes(offset, bytes), len)
            }
            PayloadLocation::Chunk => {
                let len = fits(body.high(0).at_most(CHUNK_BYTES).ok_or(Errno::EPROTO)?)?;
                let chunk = body.low(0).check(|chunk| chunk_of(&link.view, chunk));
                let chunk = chunk.ok_or(Errno::EPROTO)?;
                let tells = total > self.qp.adapter().identity.eager_bytes()
                    && is_measured(offset, len, total);
                let begun = tells.then(Instant::now);
                let moved = placed(ranges.scatter(offset, chunk.first(len)), len)?;
                if let Some(begun) = begun {
                    self.costs.record_emptying(self.qp, begun.elapsed(), len);
                }
                Ok(moved)
            }
            // An offer covers a whole message. Together with earlier pieces the message would
            // exceed its announced length.
            PayloadLocation::Attach | PayloadLocation::AttachList if offset > 0 => {
                Err(Errno::EPROTO)
            }
            PayloadLocation::Attach | PayloadLocation::AttachList => self.fetch(ranges, total),
        }
    }

    /// Fetches the message from the memory of its sender, and measures the cost.
    fn fetch(&self, ranges: &Ranges, total: usize) -> Result<usize, Errno> {
        if self.link.peer().is_self {
            let offered = self.sender_memory.as_ref().map(Ranges::total);
            let fits = offered == Some(total) && total <= ranges.total();
            return if fits { self.copy_offer(ranges, total) } else { Err(Errno::EPROTO) };
        }
        let begun = Instant::now();
        let fetched = fetch_from(self.link, &self.offered_ranges()?, ranges, total)?;
        self.costs.record_fetch(self.qp, begun.elapsed(), fetched);
        Ok(fetched)
    }
}

/// Fetches `total` bytes from the memory of another process into `ranges`.
fn fetch_from(link: &Link, there: &[IoVec], ranges: &Ranges, total: usize) -> Result<usize, Errno> {
    let sum = there.iter().try_fold(0usize, |sum, range| sum.checked_add(range.len()));
    if sum != Some(total) || total > ranges.total() {
        return Err(Errno::EPROTO);
    }
    let memory = link.peer().memory().ok_or(Errno::EPERM)?;
    // Bytes for an imported region of a third process pass through a buffer.
    let mut buffer = vec![0u8; if ranges.is_abroad() { total.min(FETCH_BUFFER) } else { 0 }];
    let mut done = 0;
    while done < total {
        let part = if ranges.is_abroad() {
            Ranges::of(Range::of(&mut buffer).first(total - done))
        } else {
            ranges.part(done, total - done)
        };
        let mut skip = done;
        let rest: ArrayVec<IoVec, MAX_SGE> = there
            .iter()
            .filter_map(|r| {
                let cut = skip.min(r.len());
                skip -= cut;
                (cut < r.len()).then(|| IoVec::new(r.address() + cut as u64, r.len() - cut))
            })
            .collect();
        let read = memory.read(part.items(), &rest);
        drop(part);
        match read {
            // The same rule as in `soft_memory::careful`: unmapped receive memory swallows the
            // bytes.
            Ok(0) | Err(Errno::EFAULT) if ranges.is_gone() => return Ok(total),
            Ok(0) => return Err(Errno::EFAULT),
            Ok(n) => {
                if ranges.is_abroad() {
                    let filled = buffer.get(..n).unwrap_or_default();
                    placed(ranges.scatter_bytes(done, filled), n)?;
                }
                done += n;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(total)
}

/// Bytes fetched by one call for memory of another process.
const FETCH_BUFFER: usize = 256 << 10;

/// `len` if the bytes were placed; EFAULT if the imported region is gone.
const fn placed(done: bool, len: usize) -> Result<usize, Errno> {
    if done { Ok(len) } else { Err(Errno::EFAULT) }
}
