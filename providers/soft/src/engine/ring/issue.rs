//! Issues a request of a connected QP: selects the path of its bytes and writes its slots.
//! `Requester::issue_waiting` enters here; slots go to the ring of the remote QP, one-sided
//! operations to `onesided`.
//!
//! Map of the file:
//!
//! - Threads: every thread that posts or advances a send queue enters by `issue`. Responders of
//!   local QPs enter by `offered` to read an offer.
//! - Locks: every function runs under `Qp::requester`. Chunks are taken under `Chunks::free`;
//!   windows under `Windows::state`.
//! - Order of a request: `issue` > `issue_send`, `issue_write`, `issue_read`, `issue_atomic` >
//!   `direct` (the initiator moves the bytes) or `put_piece` (slots in the ring).
//!   `Entry::phase` and `Entry::offset` record the progress.

use crate::engine::keys::access::{AccessError, Direction};
use crate::engine::keys::regions::LOCAL_WRITE;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::Requester;
use crate::engine::ring::copying::is_measured;
use crate::engine::ring::holder::Reach;
use crate::engine::ring::onesided::OneSidedTarget;
use crate::engine::ring::{LentChunk, Link, ReadResponse};
use abi::*;
use soft_local::shm::layout::CHUNK_BYTES;
use soft_local::shm::slot::*;
use soft_memory::range::{bytes_of, bytes_of_mut};
use soft_memory::{Range, Ranges};
use soft_semantics::inbound::Nak;
use soft_semantics::request::{RemoteAddress, RequestOperation, RequestPhase};
use soft_semantics::state::QpType;
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::time::Instant;

/// Result of a one-sided request that the initiator executes itself.
enum Direct {
    Done,
    /// UC: the responder drops the message. The sender gets a success, and no receive completes
    /// (IBTA 1.7 9.8.2.2).
    Dropped,
    /// Not possible yet; try again after the next acknowledgement.
    Later,
    /// The request failed, or fails when the responder refuses it (already recorded).
    Failed,
}

/// Head of a slot, without the fields that [`Requester::put_piece`] adds.
pub(in crate::engine) struct SlotHead {
    pub(in crate::engine) op: Op,
    pub(in crate::engine) flags: u8,
    pub(in crate::engine) carrier: PayloadLocation,
    pub(in crate::engine) count: u8,
    pub(in crate::engine) imm: u32,
}

impl Requester {
    /// Issues request `n` as far as possible. Returns true if the request was issued whole or
    /// failed, false if its rest waits.
    pub(in crate::engine) fn issue(&mut self, qp: &Qp, link: &Link, n: u64) -> bool {
        let entry = self.sends.queue.entry(n);
        let (fenced, operation) = (entry.has_flag(IBV_SEND_FENCE), entry.request.operation);
        if fenced && self.ring.responses_due > 0 {
            self.absorb(qp, link);
            self.reap(qp);
            if self.ring.responses_due > 0 {
                return false;
            }
        }
        match operation {
            RequestOperation::Send
            | RequestOperation::Segments(_)
            | RequestOperation::Finish(_) => self.issue_send(qp, link, n),
            RequestOperation::Write(remote) => self.issue_write(qp, link, n, remote),
            RequestOperation::Read(remote) | RequestOperation::Fetch(remote, _) => {
                self.issue_read(qp, link, n, remote)
            }
            RequestOperation::FetchAdd { remote, add } => {
                self.issue_atomic(qp, link, n, remote, (add, None))
            }
            RequestOperation::CompareSwap { remote, compare, swap } => {
                self.issue_atomic(qp, link, n, remote, (compare, Some(swap)))
            }
            RequestOperation::Store { remote, word } => {
                self.issue_atomic_write(qp, link, n, remote, word)
            }
            RequestOperation::Flush { remote, len, placement } => {
                self.issue_flush(qp, link, n, remote, (len, placement))
            }
            RequestOperation::Bind(_) | RequestOperation::Invalidate { .. } => {
                self.sends.issue_local(qp, n)
            }
            RequestOperation::Refused(nak) => self.issue_refused(qp, link, n, nak),
        }
    }

    /// Flags of the last piece.
    fn last_flags(&mut self, n: u64) -> u8 {
        let entry = self.sends.queue.entry(n);
        let imm = match entry.request.opcode {
            IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM => IMM,
            IBV_WR_SEND_WITH_INV => INVALIDATE,
            _ => 0,
        };
        let solicited = if entry.has_flag(IBV_SEND_SOLICITED) { SOLICITED } else { 0 };
        LAST | imm | solicited
    }

    pub(in crate::engine) fn put_piece(
        &mut self,
        qp: &Qp,
        link: &Link,
        head: &SlotHead,
        body: &[u64],
    ) {
        let head = Head {
            seq: self.ring.next,
            op: head.op,
            flags: head.flags,
            carrier: head.carrier,
            count: head.count,
            imm: head.imm,
            src_qpn: qp.qpn(),
            ack: qp.acks().piggyback(),
        };
        link.ring.publish_piece(&head, body);
        self.ring.next = self.ring.next.wrapping_add(1);
        self.ring.unannounced = true;
    }

    /// Takes a chunk that travels with the next slot.
    #[inline]
    pub(in crate::engine) fn lend(
        &mut self,
        qp: &Qp,
        answer: Option<ReadResponse>,
    ) -> Option<(u32, Range<'static>)> {
        let chunk = qp.adapter().chunks.take()?;
        let base = qp.adapter().view.chunk(chunk)?;
        self.ring.lent_chunks.push_back(LentChunk { seq: self.ring.next, chunk, response: answer });
        Some((chunk, base))
    }

    /// Takes back the last lent chunk, which could not be filled because the memory of the request
    /// is unmapped.
    #[cold]
    pub(in crate::engine) fn take_back_chunk(&mut self, qp: &Qp) {
        if let Some(lent) = self.ring.lent_chunks.pop_back() {
            qp.adapter().chunks.give(lent.chunk);
        }
    }

    /// Takes back the last lent chunk and fails request `n`, whose memory is unmapped.
    #[cold]
    fn unlend(&mut self, qp: &Qp, n: u64) -> bool {
        self.take_back_chunk(qp);
        self.failed(n, IBV_WC_LOC_PROT_ERR)
    }

    fn published(&mut self, n: u64) -> bool {
        let end = self.ring.next;
        let entry = self.sends.queue.entry(n);
        entry.phase = RequestPhase::Published;
        entry.end = end;
        true
    }

    fn request_is_done(&mut self, n: u64) -> bool {
        self.sends.queue.entry(n).phase = RequestPhase::Done;
        true
    }

    fn failed(&mut self, n: u64, status: u32) -> bool {
        self.sends.fail(n, status);
        true
    }

    fn issue_send(&mut self, qp: &Qp, link: &Link, n: u64) -> bool {
        let mut ranges = Ranges::new();
        if !self.sends.ranges_into(&mut ranges, qp, n, 0) {
            return self.failed(n, IBV_WC_LOC_PROT_ERR);
        }
        let imm = self.sends.queue.entry(n).request.imm;
        let last = self.last_flags(n);
        let total = ranges.total();
        // The application may reuse inline data after the post, so the receiver must not fetch it.
        let is_inline = self.sends.queue.entry(n).has_flag(IBV_SEND_INLINE);
        loop {
            if self.room(qp, link) == 0 {
                return false;
            }
            let offset = self.sends.queue.entry(n).offset as usize;
            let first = if offset == 0 { FIRST } else { 0 };
            if offset == 0 && total <= SEND_INLINE {
                let mut body = [0u64; BODY_WORDS];
                if !ranges.gather_bytes(0, &mut bytes_of_mut(&mut body)[..total]) {
                    return self.failed(n, IBV_WC_LOC_PROT_ERR);
                }
                let words = total.div_ceil(8);
                let head = SlotHead {
                    op: Op::Send,
                    flags: FIRST | last,
                    carrier: PayloadLocation::Inline,
                    count: total as u8,
                    imm,
                };
                self.put_piece(qp, link, &head, &body[..words]);
                return self.published(n);
            }
            if offset == 0
                && total > qp.adapter().identity.eager_bytes()
                && link.peer_attaches()
                && !ranges.is_abroad()
                && !is_inline
                && !self.goes_through_chunks(qp, link)
            {
                return self.offer(qp, link, n, &ranges, last);
            }
            let Some((chunk, base)) = self.lend(qp, None) else { return false };
            let len = (total - offset).min(CHUNK_BYTES);
            let tells =
                total > qp.adapter().identity.eager_bytes() && is_measured(offset, len, total);
            let begun = tells.then(Instant::now);
            if !ranges.gather(offset, base.first(len)) {
                return self.unlend(qp, n);
            }
            if let Some(begun) = begun {
                self.ring.copying.record_fill(begun.elapsed(), len);
            }
            let end = offset + len == total;
            let flags = first | if end { last } else { 0 };
            let body = BounceBuffer { chunk, len: len as u32, total: total as u64 }.emit();
            let head =
                SlotHead { op: Op::Send, flags, carrier: PayloadLocation::Chunk, count: 0, imm };
            self.put_piece(qp, link, &head, &body);
            self.sends.queue.entry(n).offset += len as u32;
            if end {
                return self.published(n);
            }
        }
    }

    /// Whether a long message goes through chunks although the receiver could fetch the bytes.
    fn goes_through_chunks(&mut self, qp: &Qp, link: &Link) -> bool {
        link.chunk_worth().is_some_and(|worth| self.ring.copying.prefers_chunks(worth))
            && qp.adapter().chunks.are_mostly_free()
    }

    /// Names the local memory in a slot; the receiver fetches the message with one copy.
    fn offer(&mut self, qp: &Qp, link: &Link, n: u64, ranges: &Ranges, last: u8) -> bool {
        let imm = self.sends.queue.entry(n).request.imm;
        let items = ranges.items();
        let total = ranges.total() as u32;
        let flags = FIRST | last;
        if items.len() <= ATTACH_SGES {
            let mut body = [0u64; ATTACH_SGES + 2];
            let mut lens = [0u32; ATTACH_SGES + 1];
            for (i, item) in items.iter().enumerate() {
                body[i] = item.address();
                lens[i] = item.len() as u32;
            }
            body[ATTACH_SGES] = halves(lens[0], lens[1]);
            body[ATTACH_SGES + 1] = halves(lens[2], total);
            let head = SlotHead {
                op: Op::Send,
                flags,
                carrier: PayloadLocation::Attach,
                count: items.len() as u8,
                imm,
            };
            self.put_piece(qp, link, &head, &body);
        } else {
            let Some((chunk, base)) = self.lend(qp, None) else { return false };
            for (i, item) in items.iter().enumerate() {
                let words = [item.address(), item.len() as u64];
                base.part(i * size_of_val(&words), size_of_val(&words)).copy_from(bytes_of(&words));
            }
            let body = [halves(chunk, items.len() as u32), u64::from(total)];
            let head = SlotHead {
                op: Op::Send,
                flags,
                carrier: PayloadLocation::AttachList,
                count: 0,
                imm,
            };
            self.put_piece(qp, link, &head, &body);
        }
        self.published(n)
    }

    /// The memory offered in slot `seq`, if the offer is not acknowledged yet.
    pub(in crate::engine) fn offered(&mut self, qp: &Qp, seq: u32) -> Option<Ranges<'static>> {
        let end = seq.wrapping_add(1);
        let n = (self.sends.queue.completed..self.sends.queue.issued).find(|n| {
            let entry = self.sends.queue.entry(*n);
            entry.phase == RequestPhase::Published && entry.end == end
        })?;
        let entry = self.sends.queue.entry(n);
        let sends = matches!(
            entry.request.opcode,
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV
        );
        // A copied message has an offset, is inline, or was short and kept no list.
        if !sends || entry.offset > 0 || entry.has_flag(IBV_SEND_INLINE) {
            return None;
        }
        self.sends.ranges(qp, n, 0).filter(|ranges| !ranges.is_abroad())
    }

    /// Tries to execute a one-sided request here. Continues if the memory cannot be reached: the
    /// request then goes by the ring. All published slots must be acknowledged first, because a
    /// responder executes requests in order.
    fn direct(
        &mut self,
        qp: &Qp,
        link: &Link,
        n: u64,
        act: impl FnOnce(&OneSidedTarget<'_>) -> Result<(), AccessError>,
    ) -> ControlFlow<Direct> {
        let reach = self.reach(link);
        if reach == Reach::No || self.sends.queue.entry(n).offset > 0 {
            return ControlFlow::Continue(());
        }
        if self.ring.acked != self.ring.next {
            self.absorb(qp, link);
            if self.ring.acked != self.ring.next {
                return ControlFlow::Break(Direct::Later);
            }
        }
        let srqn =
            (qp.qp_type() == QpType::XrcSend).then_some(self.sends.queue.entry(n).request.srqn);
        let gate = self.xrc_rings.home().unwrap_or(link).entry();
        let maps = RefCell::new(self.ring.maps.take().unwrap_or_default());
        let (in_flight, helping) = (&qp.adapter().in_flight, &qp.adapter().helping);
        let target =
            OneSidedTarget { link, reach, in_flight, helping, maps: &maps, qp_entry: gate, srqn };
        let result = act(&target);
        self.ring.maps = Some(maps.into_inner());
        let nak = match result {
            Ok(()) => return ControlFlow::Break(Direct::Done),
            Err(AccessError::AttachRefused) => {
                self.ring.attach_refused = true;
                return ControlFlow::Continue(());
            }
            Err(AccessError::Imported) => return ControlFlow::Continue(()),
            // The next look at the peer finds the process dead or the operation done.
            Err(AccessError::PeerDied | AccessError::Busy) => {
                self.sends.watch_blocked(qp, n);
                return ControlFlow::Break(Direct::Later);
            }
            Err(AccessError::Local) => {
                self.sends.fail(n, IBV_WC_LOC_PROT_ERR);
                return ControlFlow::Break(Direct::Failed);
            }
            Err(_) if qp.qp_type() == QpType::Uc => return ControlFlow::Break(Direct::Dropped),
            Err(AccessError::Access) => Nak::Access,
            Err(AccessError::NoQueue) => Nak::InvalidRd,
            Err(AccessError::Forbidden | AccessError::Alignment) => Nak::Invalid,
            Err(AccessError::Remote) => Nak::Operation,
        };
        // A refused WRITE with immediate data completes a receive of the peer.
        let immediate = self.sends.queue.entry(n).request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
        self.put_refusal_request(qp, link, n, nak, immediate);
        ControlFlow::Break(Direct::Failed)
    }

    /// Records the result of a request that the initiator executed. Returns as [`Self::issue`].
    fn settle_direct(&mut self, n: u64, result: Direct) -> bool {
        match result {
            Direct::Later => false,
            Direct::Failed => true,
            Direct::Done | Direct::Dropped => self.request_is_done(n),
        }
    }

    /// Asks the responder to refuse request `n` and go to ERR, as a responder would. The request
    /// fails when the refusal arrives.
    #[cold]
    pub(in crate::engine) fn put_refusal_request(
        &mut self,
        qp: &Qp,
        link: &Link,
        n: u64,
        nak: Nak,
        immediate: bool,
    ) {
        let head = SlotHead {
            op: Op::Fault,
            flags: FIRST | LAST | if immediate { IMM } else { 0 },
            carrier: PayloadLocation::Inline,
            count: 0,
            imm: nak as u32,
        };
        self.put_piece(qp, link, &head, &[]);
        link.wake_service();
        self.sends.failure.fail();
        self.published(n);
    }

    fn issue_write(&mut self, qp: &Qp, link: &Link, n: u64, remote: RemoteAddress) -> bool {
        let mut ranges = Ranges::new();
        if !self.sends.ranges_into(&mut ranges, qp, n, 0) {
            return self.failed(n, IBV_WC_LOC_PROT_ERR);
        }
        let imm = self.sends.queue.entry(n).request.imm;
        let last = self.last_flags(n);
        let total = ranges.total();
        match self.direct(qp, link, n, |t| t.transfer(remote, &ranges, Direction::Write)) {
            ControlFlow::Continue(()) => {}
            ControlFlow::Break(Direct::Done) if last & IMM != 0 => {
                let body = [remote.addr, halves(remote.rkey, total as u32)];
                let flags = FIRST | PLACED | last;
                let head = SlotHead {
                    op: Op::Write,
                    flags,
                    carrier: PayloadLocation::Inline,
                    count: 0,
                    imm,
                };
                self.put_piece(qp, link, &head, &body);
                return self.published(n);
            }
            ControlFlow::Break(result) => return self.settle_direct(n, result),
        }
        loop {
            if self.room(qp, link) == 0 {
                return false;
            }
            let offset = self.sends.queue.entry(n).offset as usize;
            let first = if offset == 0 { FIRST } else { 0 };
            let mut body = [0u64; BODY_WORDS];
            body[0] = remote.addr.wrapping_add(offset as u64);
            let (len, carrier) = if total <= ADDRESSED_INLINE {
                if !ranges.gather_bytes(0, &mut bytes_of_mut(&mut body[2..])[..total]) {
                    return self.failed(n, IBV_WC_LOC_PROT_ERR);
                }
                (total, (PayloadLocation::Inline, total as u8))
            } else {
                let Some((chunk, base)) = self.lend(qp, None) else { return false };
                let len = (total - offset).min(CHUNK_BYTES);
                if !ranges.gather(offset, base.first(len)) {
                    return self.unlend(qp, n);
                }
                body[2] = halves(chunk, total as u32);
                (len, (PayloadLocation::Chunk, 0))
            };
            body[1] = halves(remote.rkey, len as u32);
            let end = offset + len == total;
            // Every piece says that immediate data follows: a refused piece then takes a receive.
            let flags = first | if end { last } else { last & IMM };
            let head = SlotHead { op: Op::Write, flags, carrier: carrier.0, count: carrier.1, imm };
            self.put_piece(qp, link, &head, &body);
            self.sends.queue.entry(n).offset += len as u32;
            if end {
                return self.published(n);
            }
        }
    }

    fn issue_read(&mut self, qp: &Qp, link: &Link, n: u64, remote: RemoteAddress) -> bool {
        let mut ranges = Ranges::new();
        if !self.sends.ranges_into(&mut ranges, qp, n, LOCAL_WRITE) {
            return self.failed(n, IBV_WC_LOC_PROT_ERR);
        }
        let total = ranges.total();
        if let ControlFlow::Break(result) =
            self.direct(qp, link, n, |t| t.transfer(remote, &ranges, Direction::Read))
        {
            return self.settle_direct(n, result);
        }
        loop {
            if self.room(qp, link) == 0 {
                return false;
            }
            let offset = self.sends.queue.entry(n).offset as usize;
            let len = (total - offset).min(CHUNK_BYTES);
            let Some((chunk, _)) = self.lend(qp, Some(ReadResponse { entry: n, offset, len }))
            else {
                return false;
            };
            let first = if offset == 0 { FIRST } else { 0 };
            let end = offset + len == total;
            let flags = first | if end { LAST } else { 0 };
            let addr = remote.addr.wrapping_add(offset as u64);
            let body = [addr, halves(remote.rkey, len as u32), halves(chunk, total as u32)];
            let head =
                SlotHead { op: Op::Read, flags, carrier: PayloadLocation::Chunk, count: 0, imm: 0 };
            self.put_piece(qp, link, &head, &body);
            self.sends.queue.entry(n).offset += len as u32;
            if end {
                self.ring.responses_due += 1;
                return self.published(n);
            }
        }
    }

    /// In another process the owner stores the word: only a store by a processor is atomic, not a
    /// copy by the kernel.
    #[cold]
    fn issue_atomic_write(
        &mut self,
        qp: &Qp,
        link: &Link,
        n: u64,
        remote: RemoteAddress,
        word: Option<u64>,
    ) -> bool {
        let mut value = word.unwrap_or(0);
        if word.is_none() {
            let mut ranges = Ranges::new();
            if !self.sends.ranges_into(&mut ranges, qp, n, 0) {
                return self.failed(n, IBV_WC_LOC_PROT_ERR);
            }
            if ranges.total() != 8 {
                return self.failed(n, IBV_WC_LOC_LEN_ERR);
            }
            if !ranges.gather_bytes(0, bytes_of_mut(std::slice::from_mut(&mut value))) {
                return self.failed(n, IBV_WC_LOC_PROT_ERR);
            }
        }
        if self.reach(link) == Reach::OwnMemory
            && let ControlFlow::Break(result) =
                self.direct(qp, link, n, |target| target.store(remote, value))
        {
            return self.settle_direct(n, result);
        }
        self.put_request(
            qp,
            link,
            n,
            Op::AtomicWrite,
            &[remote.addr, halves(remote.rkey, 0), value],
        )
    }

    #[cold]
    fn issue_flush(
        &mut self,
        qp: &Qp,
        link: &Link,
        n: u64,
        remote: RemoteAddress,
        (len, placement): (u64, u32),
    ) -> bool {
        if let ControlFlow::Break(result) =
            self.direct(qp, link, n, |target| target.flush(remote, len, placement))
        {
            return self.settle_direct(n, result);
        }
        self.put_request(
            qp,
            link,
            n,
            Op::Flush,
            &[remote.addr, halves(remote.rkey, placement), len],
        )
    }

    /// Puts a request of one slot into the ring.
    fn put_request(&mut self, qp: &Qp, link: &Link, n: u64, op: Op, body: &[u64]) -> bool {
        if self.room(qp, link) == 0 {
            return false;
        }
        let flags = FIRST | LAST;
        let head = SlotHead { op, flags, carrier: PayloadLocation::Inline, count: 0, imm: 0 };
        self.put_piece(qp, link, &head, body);
        self.published(n)
    }

    /// Compares if `swap` is given, and adds otherwise.
    fn issue_atomic(
        &mut self,
        qp: &Qp,
        link: &Link,
        n: u64,
        remote: RemoteAddress,
        (compare_add, swap): (u64, Option<u64>),
    ) -> bool {
        let mut ranges = Ranges::new();
        if !self.sends.ranges_into(&mut ranges, qp, n, LOCAL_WRITE) {
            return self.failed(n, IBV_WC_LOC_PROT_ERR);
        }
        if ranges.total() != 8 {
            return self.failed(n, IBV_WC_LOC_LEN_ERR);
        }
        let (swaps, swap) = (swap.is_some(), swap.unwrap_or(0));
        let done = self.direct(qp, link, n, |target| {
            let old =
                target.atomic(remote, |old| new_atomic_value(swaps, old, compare_add, swap))?;
            let placed = ranges.scatter_bytes(0, &old.to_ne_bytes());
            if placed { Ok(()) } else { Err(AccessError::Local) }
        });
        if let ControlFlow::Break(result) = done {
            return self.settle_direct(n, result);
        }
        if self.room(qp, link) == 0 {
            return false;
        }
        let Some((chunk, _)) = self.lend(qp, Some(ReadResponse { entry: n, offset: 0, len: 8 }))
        else {
            return false;
        };
        let op = if swaps { Op::CompareSwap } else { Op::FetchAdd };
        let body = [remote.addr, halves(remote.rkey, chunk), compare_add, swap];
        let head =
            SlotHead { op, flags: FIRST | LAST, carrier: PayloadLocation::Chunk, count: 0, imm: 0 };
        self.put_piece(qp, link, &head, &body);
        self.ring.responses_due += 1;
        self.published(n)
    }
}

/// The new value of an atomic's target (IBTA 1.7 9.4.5): fetch-and-add adds; compare-and-swap
/// swaps if the values are equal.
pub(in crate::engine) const fn new_atomic_value(
    swaps: bool,
    old: u64,
    compare_add: u64,
    swap: u64,
) -> u64 {
    if !swaps {
        old.wrapping_add(compare_add)
    } else if old == compare_add {
        swap
    } else {
        old
    }
}
