//! The receiving half of a QP: checks, matches, scatters and completes what a piece asks for (IBTA vol 1, 9.7
//! "responder").
//!
//! It does not care how a piece arrived: the ring of a connection today, a datagram ring or a network packet all
//! end in the same steps. Whoever polls drives it, or the service thread.

use super::completion::Cqe;
use super::issue::changed;
use super::link::Link;
use super::onesided::{AtomicLock, Spot, admit, update};
use super::qp::Qp;
use super::ranges::{Range, Ranges};
use super::receive::Receive;
use super::regions::{LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use super::state::{Kind, State, rnr_timer_us};
use crate::shm::layout::{CHUNK_BYTES, RING_SLOTS};
use crate::shm::slot::*;
use crate::shm::view::Ring;
use crate::sys::cma::{self, IoVec};
use crate::sys::errno::Errno;
use abi::*;
use arrayvec::ArrayVec;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Pieces, and about how many bytes, handled in one go, so that one busy ring does not starve the others of a queue, and
/// acknowledgements of large messages are not kept back.
const BUDGET: usize = 128;
const BUDGET_BYTES: usize = 128 * 1024;

/// Pieces after which an acknowledgement is due even in a stream.
const ACK_EVERY: u32 = RING_SLOTS / 8;
/// Bytes after which one is.
const ACK_BYTES: usize = 32 * 1024;

/// Why a request was refused (IBTA vol 1, table 57: syndromes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Nak {
    Invalid = 1,
    Access = 2,
    Operation = 3,
    /// No receive was posted for as long as the requester was willing to wait.
    Rnr = 4,
}

impl Nak {
    pub(crate) const fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            1 => Self::Invalid,
            2 => Self::Access,
            3 => Self::Operation,
            4 => Self::Rnr,
            _ => return None,
        })
    }

    /// The status that the requester's completion gets.
    pub(crate) const fn requester_status(self) -> u32 {
        match self {
            Self::Invalid => IBV_WC_REM_INV_REQ_ERR,
            Self::Access => IBV_WC_REM_ACCESS_ERR,
            Self::Operation => IBV_WC_REM_OP_ERR,
            Self::Rnr => IBV_WC_RNR_RETRY_EXC_ERR,
        }
    }
}

/// What became of one piece.
enum Step {
    Next,
    /// No receive is posted: the piece stays where it is.
    NotReady,
    Refuse(Nak),
    /// The sender took its connection down while we worked: what it sent does not count.
    Stale,
}

/// How much of a message has arrived.
#[derive(Clone, Copy, Debug)]
struct Message {
    total: usize,
    done: usize,
}

/// An RDMA WRITE of several pieces: only its length is remembered.
#[derive(Clone, Copy, Debug, Default)]
struct Written {
    done: usize,
}

#[derive(Debug)]
pub(crate) struct Responder {
    ring: Ring,
    pub(crate) link: Option<Box<Link>>,
    next: u32,
    /// A message whose last piece has not come; `receive` is for it.
    message: Option<Message>,
    written: Written,
    /// The receive taken last, kept in place: it is large to move about.
    receive: Receive,
    /// Whether `receive` was taken and not completed: if no message uses it, the next one does.
    taken: bool,
    /// Unreliable: pieces are dropped up to the next first one.
    skipping: bool,
    /// Since when the piece at the head waits for a receive.
    rnr_since: Option<Instant>,
    pub(crate) min_rnr_timer: u8,
    /// A refusal was sent: nothing more is served on this connection.
    refused: bool,
    /// First sequence number not acknowledged yet.
    acked: u32,
    /// Bytes moved by the present round, of messages that did not fit into their slots.
    moved: usize,
}

impl Responder {
    pub(crate) fn new(ring: Ring, next: u32) -> Self {
        Self {
            ring,
            link: None,
            next,
            message: None,
            written: Written::default(),
            receive: Receive::default(),
            taken: false,
            skipping: false,
            rnr_since: None,
            min_rnr_timer: 0,
            refused: false,
            acked: next,
            moved: 0,
        }
    }

    /// Begins a connection and returns the sequence number that its first piece must carry: a lap beyond
    /// anything that may lie in the ring.
    pub(crate) fn connect(&mut self, link: Option<Box<Link>>) -> u32 {
        self.next = self.next.wrapping_add(RING_SLOTS);
        if self.next < RING_SLOTS {
            // Slots of zeroed memory read as sequence number 0 and up to a lap.
            self.next = RING_SLOTS;
        }
        self.link = link;
        self.message = None;
        self.written = Written::default();
        self.skipping = false;
        self.rnr_since = None;
        self.refused = false;
        self.acked = self.next;
        self.ring.nak().store(0, Ordering::Relaxed);
        self.ring.acked().store(self.next, Ordering::Release);
        self.next
    }

    /// Where the next connection's ring begins, for whoever gets this table entry after us.
    pub(crate) const fn position(&self) -> u32 {
        self.next
    }

    /// The receive that was taken and never completed, if there is one.
    pub(crate) fn take_unfinished(&mut self) -> Option<Receive> {
        self.message = None;
        std::mem::replace(&mut self.taken, false).then(|| std::mem::take(&mut self.receive))
    }

    /// When the service thread must look again, if it must.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let retries = self.link.as_ref()?.entry().rnr_retry.load(Ordering::Relaxed);
        let since = self.rnr_since?;
        let wait = rnr_timer_us(self.min_rnr_timer) * u32::from(retries);
        (retries < 7).then(|| since + Duration::from_micros(u64::from(wait)))
    }

    /// Serves what lies in the ring. Returns whether the QP went to error, and must be flushed.
    pub(crate) fn advance(&mut self, qp: &Qp) -> bool {
        if self.refused || !matches!(qp.state(), State::Rtr | State::Rts | State::Sqd | State::Sqe)
        {
            return false;
        }
        let Some(link) = self.link.take() else { return false };
        let before = self.next;
        let mut fatal = false;
        self.moved = 0;
        for _ in 0..BUDGET {
            let Some((words, body)) = self.ring.take(self.next) else { break };
            match self.serve(qp, &link, words, &body) {
                Step::Next => {}
                Step::Stale => self.message = None,
                Step::NotReady => break,
                Step::Refuse(nak) => {
                    // Before the sender can know: who hears of a refusal finds the QP in error.
                    fatal = nak != Nak::Rnr && qp.fail();
                    self.refuse(qp, &link, nak);
                    break;
                }
            }
            self.rnr_since = None;
            self.next = self.next.wrapping_add(1);
            if self.moved >= BUDGET_BYTES {
                break;
            }
        }
        self.link = Some(link);
        if self.next != before {
            // In a stream, one acknowledgement for many pieces: each costs both sides the transfer of a cache line.
            let due = self.next.wrapping_sub(self.acked);
            let later = qp.arrived(self.next, due) && due < ACK_EVERY;
            if !later || self.moved >= ACK_BYTES {
                self.acknowledge(qp);
            }
        }
        fatal
    }

    /// Tells the sender how far we are.
    pub(crate) fn acknowledge(&mut self, qp: &Qp) {
        if self.acked == self.next || self.refused {
            return;
        }
        self.acked = self.next;
        qp.acknowledged();
        // Pairs with the Acquire in Requester::absorb: what was acknowledged was done.
        self.ring.acked().store(self.next, Ordering::Release);
        if let Some(link) = &self.link {
            link.acks_published();
        }
    }

    fn refuse(&mut self, qp: &Qp, link: &Link, nak: Nak) {
        self.refused = true;
        self.acked = self.next;
        self.ring.acked().store(self.next, Ordering::Release);
        // Pairs with the Acquire in Requester::absorb.
        self.ring.nak().store(nak as u32, Ordering::Release);
        link.acks_published();
        let event = match nak {
            Nak::Invalid => IBV_EVENT_QP_REQ_ERR,
            Nak::Access => IBV_EVENT_QP_ACCESS_ERR,
            Nak::Operation => IBV_EVENT_QP_FATAL,
            Nak::Rnr => return,
        };
        qp.event(event);
    }

    fn serve(&mut self, qp: &Qp, link: &Link, words: [u64; 2], body: &[u64; BODY_WORDS]) -> Step {
        let Some(head) = Head::parse(words) else { return self.unservable(qp, Nak::Invalid) };
        if head.src_qpn != link.qpn {
            // Left over from a connection that this ring had before.
            return Step::Next;
        }
        if head.op == Op::Fault {
            return Step::Refuse(Nak::from_raw(head.imm).unwrap_or(Nak::Invalid));
        }
        if !link.may_send(qp.qpn) {
            return Step::Stale;
        }
        // A request completes before its answer arrives, as it does on a wire.
        qp.note_acked_along(head.ack);
        if self.skipping && !head.has(FIRST) {
            return Step::Next;
        }
        self.skipping = false;
        match head.op {
            Op::Send => self.serve_send(qp, link, &head, body),
            Op::Write => self.serve_write(qp, link, &head, body),
            Op::Read => self.serve_read(qp, link, body),
            Op::CompareSwap | Op::FetchAdd => self.serve_atomic(qp, link, &head, body),
            Op::Datagram | Op::Fault => self.unservable(qp, Nak::Invalid),
        }
    }

    /// A request that cannot be done: refused on a reliable connection, dropped on an unreliable one.
    fn unservable(&mut self, qp: &Qp, nak: Nak) -> Step {
        if qp.kind == Kind::Rc {
            return Step::Refuse(nak);
        }
        self.message = None;
        self.skipping = true;
        Step::Next
    }

    /// Gets the next posted receive into `self.receive`. Otherwise says what the transport does without one.
    fn need_receive(&mut self, qp: &Qp, link: &Link) -> Result<(), Step> {
        if self.taken {
            return Ok(());
        }
        self.taken = qp.take_receive(&mut self.receive);
        if self.taken {
            return Ok(());
        }
        if qp.kind != Kind::Rc {
            self.skipping = true;
            return Err(Step::Next);
        }
        // Ask to be called by whoever posts a receive, then look again: one of the two sees the other.
        qp.await_receive();
        self.taken = qp.take_receive(&mut self.receive);
        if self.taken {
            return Ok(());
        }
        let now = Instant::now();
        let since = *self.rnr_since.get_or_insert(now);
        let retries = link.entry().rnr_retry.load(Ordering::Relaxed);
        let wait = Duration::from_micros(u64::from(rnr_timer_us(self.min_rnr_timer)));
        if retries < 7 && now.duration_since(since) >= wait * u32::from(retries) {
            return Err(Step::Refuse(Nak::Rnr));
        }
        qp.adapter.watch(qp);
        Err(Step::NotReady)
    }

    fn serve_send(&mut self, qp: &Qp, link: &Link, head: &Head, body: &[u64; BODY_WORDS]) -> Step {
        let mut message = if head.has(FIRST) {
            // A message that was never finished leaves its receive to this one.
            self.message = None;
            let total = match head.carrier {
                Carrier::Inline => usize::from(head.count),
                Carrier::Chunk | Carrier::AttachList => body[1] as u32 as usize,
                Carrier::Attach => high(body[ATTACH_SGES + 1]) as usize,
            };
            if let Err(step) = self.need_receive(qp, link) {
                return step;
            }
            Message { total, done: 0 }
        } else {
            match self.message.take() {
                Some(message) => message,
                None => return self.unservable(qp, Nak::Invalid),
            }
        };
        let pd = qp.receive_pd();
        let Some(ranges) = qp.adapter.regions.resolve(pd, &self.receive.sges, LOCAL_WRITE) else {
            return self.spoiled(qp, IBV_WC_LOC_PROT_ERR, Nak::Operation);
        };
        if message.total > ranges.total() {
            return self.spoiled(qp, IBV_WC_LOC_LEN_ERR, Nak::Invalid);
        }
        match self.fetch(link, head, body, &ranges, message) {
            Ok(len) => {
                message.done += len;
                self.moved += if head.carrier == Carrier::Inline { 0 } else { len };
            }
            Err(Errno::EPROTO) => return self.unservable(qp, Nak::Invalid),
            // A dead or departed sender's message never was; anything else is an error of the operation.
            Err(_) if !link.may_send(qp.qpn) || link.peer.is_dead() => return Step::Stale,
            Err(_) => return self.unservable(qp, Nak::Operation),
        }
        if head.carrier != Carrier::Inline && !link.may_send(qp.qpn) {
            return Step::Stale;
        }
        if head.has(LAST) {
            self.complete(qp, link, head, IBV_WC_RECV, message.done);
        } else {
            self.message = Some(message);
        }
        Step::Next
    }

    /// The taken receive is done.
    fn complete(&mut self, qp: &Qp, link: &Link, head: &Head, opcode: u32, len: usize) {
        self.taken = false;
        let cqe = Cqe {
            wr_id: self.receive.wr_id,
            status: IBV_WC_SUCCESS,
            opcode,
            byte_len: len as u32,
            imm: head.imm,
            qp_num: qp.qpn,
            src_qp: link.qpn,
            wc_flags: if head.has(IMM) { IBV_WC_WITH_IMM } else { 0 },
        };
        qp.recv_cq.push(&cqe, head.has(SOLICITED));
    }

    /// The taken receive does not take the message: it completes with `status`, and the sender hears `nak`.
    fn spoiled(&mut self, qp: &Qp, status: u32, nak: Nak) -> Step {
        self.taken = false;
        let cqe = Cqe {
            wr_id: self.receive.wr_id,
            status,
            opcode: IBV_WC_RECV,
            qp_num: qp.qpn,
            ..Cqe::default()
        };
        qp.recv_cq.push(&cqe, false);
        if qp.kind == Kind::Rc {
            return Step::Refuse(nak);
        }
        self.skipping = true;
        Step::Next
    }

    /// Brings the bytes of a SEND piece to where `message` stands in `ranges`; returns how many. EPROTO: the piece makes no
    /// sense.
    fn fetch(
        &self,
        link: &Link,
        head: &Head,
        body: &[u64; BODY_WORDS],
        ranges: &Ranges,
        message: Message,
    ) -> Result<usize, Errno> {
        let Message { total, done: offset } = message;
        let fits = |len: usize| {
            if offset + len <= total { Ok(len) } else { Err(Errno::EPROTO) }
        };
        match head.carrier {
            Carrier::Inline => {
                let len = fits(usize::from(head.count))?;
                // SAFETY: `count` is at most SEND_INLINE (Head::parse), the size of the body.
                unsafe { ranges.scatter(offset, body.as_ptr().cast(), len) };
                Ok(len)
            }
            Carrier::Chunk => {
                let len = fits(high(body[0]) as usize)?;
                let chunk = link.view.chunk(low(body[0])).ok_or(Errno::EPROTO)?;
                if len > CHUNK_BYTES {
                    return Err(Errno::EPROTO);
                }
                // SAFETY: a chunk of the sender's segment, mapped while the link lives, is CHUNK_BYTES long.
                unsafe { ranges.scatter(offset, chunk, len) };
                Ok(len)
            }
            Carrier::Attach => {
                let lens = [low(body[3]), high(body[3]), low(body[4])];
                let there: ArrayVec<IoVec, ATTACH_SGES> = (0..usize::from(head.count))
                    .map(|i| IoVec::new(body[i], lens[i] as usize))
                    .collect();
                pull(link, &there, ranges, total)
            }
            Carrier::AttachList => {
                let chunk = link.view.chunk(low(body[0])).ok_or(Errno::EPROTO)?;
                let count = high(body[0]) as usize;
                if count > super::ranges::MAX_SGE {
                    return Err(Errno::EPROTO);
                }
                let there: ArrayVec<IoVec, { super::ranges::MAX_SGE }> = (0..count)
                    .map(|i| {
                        // SAFETY: MAX_SGE pairs of words lie within a chunk; any bits are two numbers.
                        let [addr, len] = unsafe { chunk.cast::<[u64; 2]>().add(i).read() };
                        IoVec::new(addr, len as usize)
                    })
                    .collect();
                pull(link, &there, ranges, total)
            }
        }
    }

    fn own_rights(qp: &Qp) -> u64 {
        qp.entry().rights.load(Ordering::Relaxed)
    }

    fn serve_write(&mut self, qp: &Qp, link: &Link, head: &Head, body: &[u64; BODY_WORDS]) -> Step {
        if head.has(FIRST) {
            self.written = Written::default();
        }
        let spot = Spot { addr: body[0], rkey: low(body[1]) };
        let len = high(body[1]) as usize;
        if !head.has(PLACED) && len > 0 {
            let source = match head.carrier {
                Carrier::Inline if len <= ADDRESSED_INLINE => body[2..].as_ptr().cast::<u8>(),
                Carrier::Chunk if len <= CHUNK_BYTES => match link.view.chunk(low(body[2])) {
                    Some(chunk) => chunk.cast_const(),
                    None => return self.unservable(qp, Nak::Invalid),
                },
                _ => return self.unservable(qp, Nak::Invalid),
            };
            let view = &qp.adapter.view;
            let Some(va) = admit(view, Self::own_rights(qp), spot, len as u64, REMOTE_WRITE) else {
                return self.unservable(qp, Nak::Access);
            };
            // SAFETY: `va` is ours and registered for `len` bytes (checked; deregistration waits for this QP's lock);
            // the source has them by the checks above; memmove, since sender and receiver may be one process.
            unsafe { std::ptr::copy(source, va as *mut u8, len) };
            self.moved += len;
        }
        if !(head.has(LAST) && head.has(IMM)) {
            self.written.done += len;
            return Step::Next;
        }
        if let Err(step) = self.need_receive(qp, link) {
            return step;
        }
        let done = self.written.done + len;
        self.complete(qp, link, head, IBV_WC_RECV_RDMA_WITH_IMM, done);
        Step::Next
    }

    fn serve_read(&mut self, qp: &Qp, link: &Link, body: &[u64; BODY_WORDS]) -> Step {
        let spot = Spot { addr: body[0], rkey: low(body[1]) };
        let len = high(body[1]) as usize;
        let Some(chunk) = link.view.chunk(low(body[2])).filter(|_| len <= CHUNK_BYTES) else {
            return self.unservable(qp, Nak::Invalid);
        };
        if len == 0 {
            return Step::Next;
        }
        let rights = Self::own_rights(qp);
        let Some(va) = admit(&qp.adapter.view, rights, spot, len as u64, REMOTE_READ) else {
            return self.unservable(qp, Nak::Access);
        };
        // SAFETY: `va` as in serve_write; the chunk is in the requester's segment, mapped while the link lives, and lent
        // to us until we acknowledge.
        unsafe { std::ptr::copy(va as *const u8, chunk, len) };
        self.moved += len;
        Step::Next
    }

    fn serve_atomic(
        &mut self,
        qp: &Qp,
        link: &Link,
        head: &Head,
        body: &[u64; BODY_WORDS],
    ) -> Step {
        let spot = Spot { addr: body[0], rkey: low(body[1]) };
        let Some(chunk) = link.view.chunk(high(body[1])) else {
            return self.unservable(qp, Nak::Invalid);
        };
        if !spot.addr.is_multiple_of(8) {
            return self.unservable(qp, Nak::Invalid);
        }
        let view = &qp.adapter.view;
        let Some(va) = admit(view, Self::own_rights(qp), spot, 8, REMOTE_ATOMIC) else {
            return self.unservable(qp, Nak::Access);
        };
        let own = u32::from(link.own_slot()) + 1;
        let Some(_held) = AtomicLock::take(&view.rings_head().atomic_lock, own) else {
            return Step::NotReady;
        };
        let swaps = head.op == Op::CompareSwap;
        // SAFETY: `va` is ours and registered for eight bytes; the lock is held; the chunk has room for the answer.
        unsafe {
            let old = update(va, |old| changed(swaps, old, body[2], body[3]));
            chunk.cast::<u64>().write(old);
        }
        Step::Next
    }
}

/// Fetches `total` bytes of the sender's memory into `ranges`.
fn pull(link: &Link, there: &[IoVec], ranges: &Ranges, total: usize) -> Result<usize, Errno> {
    if there.iter().map(IoVec::len).sum::<usize>() != total || total > ranges.total() {
        return Err(Errno::EPROTO);
    }
    if link.peer.is_self {
        let mut done = 0;
        for range in there {
            // SAFETY: our own requester named its application's registered memory.
            unsafe { ranges.scatter(done, range.address() as *const u8, range.len()) };
            done += range.len();
        }
        return Ok(total);
    }
    let mut done = 0;
    while done < total {
        let own: ArrayVec<IoVec, { super::ranges::MAX_SGE }> = ranges
            .part(done, total - done)
            .items()
            .iter()
            .map(|r: &Range| IoVec::new(r.base as u64, r.len))
            .collect();
        let mut skip = done;
        let rest: ArrayVec<IoVec, { super::ranges::MAX_SGE }> = there
            .iter()
            .filter_map(|r| {
                let cut = skip.min(r.len());
                skip -= cut;
                (cut < r.len()).then(|| IoVec::new(r.address() + cut as u64, r.len() - cut))
            })
            .collect();
        // SAFETY: the ranges are posted receive buffers, checked against their keys.
        match unsafe { cma::read(link.peer.pid, &own, &rest) } {
            Ok(0) => return Err(Errno::EFAULT),
            Ok(n) => done += n,
            Err(e) => return Err(e),
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_survives_its_word() {
        for nak in [Nak::Invalid, Nak::Access, Nak::Operation, Nak::Rnr] {
            assert_eq!(Nak::from_raw(nak as u32), Some(nak));
        }
        assert_eq!(Nak::from_raw(0), None);
    }
}
