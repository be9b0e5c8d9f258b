//! What a responder does with a request, whatever brought it: match a receive, check keys and rights, place or fetch
//! the bytes, complete (IBTA vol 1, 9.7 "responder", 9.8 for unreliable transports).
//!
//! A transport (the ring of a connection, the datagram rings, later packets from a network) takes its own units apart,
//! calls one of `send`, `write`, `read` and `atomic` for each piece, in order, and carries out the verdict: acknowledge, wait,
//! refuse, drop. How bytes get here is its own business, behind [`Source`].

use super::access::{AtomicLock, Fault, admit, permit};
use super::completion::{Cqe, vendor_err};
use super::imported::Imported;
use super::in_flight::Announced;
use super::objects::connection::{Inbound, MessageProgress};
use super::objects::qp::Qp;
use super::objects::srq::Srq;
use super::receive::Receive;
use super::regions::{
    IMPORTED, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, is_window, right_to_flush,
};
use super::request::RemoteAddress;
use super::state::Kind;
use super::tags::wire::HEADERS_LEN;
use super::windows::Done;
use abi::*;
use soft_memory::careful::Seen;
use soft_memory::ranges::Remote;
use soft_memory::{Range, Ranges};
pub(crate) use soft_semantics::inbound::{Headers, Nak, Verdict};
use soft_sys::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where the bytes of a piece come from.
pub(crate) trait Source {
    /// Brings the piece to `offset` of `ranges`, at most up to `total` of the message; returns how many bytes that were.
    ///
    /// # Errors
    /// `EPROTO` the piece makes no sense; `ESTALE` its sender went away meanwhile; `ESRCH` it died; anything else: it could not be fetched.
    fn bring(&self, ranges: &Ranges, offset: usize, total: usize) -> Result<usize, Errno>;

    /// Copies the first bytes of the message, whose first piece this is; how many there were.
    ///
    /// # Errors
    /// As `bring`; a source that never leads to a tag matching queue need not know how.
    fn peek(&self, _start: &mut [u8; HEADERS_LEN]) -> Result<usize, Errno> {
        Err(Errno::EPROTO)
    }
}

impl Inbound {
    /// Whether a message that begins finds nothing left over: no receive that was taken, nothing to skip.
    #[inline]
    pub(super) const fn is_idle(&self) -> bool {
        !self.taken && !self.skipping && self.message.is_none()
    }

    /// A connection begins.
    pub(crate) fn restart(&mut self) {
        self.message = None;
        self.written = 0;
        self.skipping = false;
        self.srq = None;
        self.elsewhere = 0;
    }

    /// A receive was taken for a message that does not count: the next one gets it.
    #[cold]
    pub(super) fn keep(&mut self, wr_id: u64, sge: ibv_sge) {
        self.receive.wr_id = wr_id;
        self.receive.sges.clear();
        self.receive.sges.push(sge);
        self.taken = true;
    }

    /// XRC: requests name shared queue `number` from here on. One that is not there refuses the first of them.
    pub(crate) fn address(&mut self, qp: &Qp, number: u32) {
        self.give_back();
        self.srq = named_queue(qp, number);
    }

    /// XRC: has `look` see a request that names shared queue `number`, while the message that is coming stays as it is.
    pub(crate) fn aside<T>(&mut self, qp: &Qp, number: u32, look: impl FnOnce(&Self) -> T) -> T {
        let there = std::mem::replace(&mut self.srq, named_queue(qp, number));
        let seen = look(self);
        self.srq = there;
        seen
    }

    /// Whether requests can be served: those of an XRC QP need a queue.
    #[inline]
    pub(crate) fn is_addressed(&self, qp: &Qp) -> bool {
        qp.kind != Kind::XrcRecv || self.srq.as_ref().is_some_and(|srq| !srq.is_retired())
    }

    /// The queue that the taken receive came from, if it was none of the QP's own, gets it back.
    fn give_back(&mut self) {
        self.message = None;
        if let Some(srq) = &self.srq
            && std::mem::replace(&mut self.taken, false)
        {
            srq.give_back(&self.receive);
        }
    }

    /// A receive completes: on the queue of the shared one that it was of, if XRC named that, or else on the QP's.
    fn push(&self, qp: &Qp, cqe: &Cqe, solicited: bool) {
        let named = self.srq.as_ref().and_then(|srq| srq.cq.as_ref());
        if let Some(cq) = named.or(qp.pair().map(|pair| &pair.recv_cq)) {
            cq.push(cqe, solicited);
        }
    }

    /// The protection domain that receives, and keys of one-sided requests, belong to.
    pub(crate) fn domain(&self, qp: &Qp) -> u32 {
        self.srq.as_ref().map_or_else(|| qp.receive_pd(), |srq| srq.pd)
    }

    /// The rights that our QP gives to its peer.
    fn rights(&self, qp: &Qp) -> u64 {
        let entry = qp.stand().map_or_else(|| qp.entry(), |stand| stand.home.entry());
        let rights = entry.rights.load(Ordering::Relaxed);
        match &self.srq {
            Some(srq) => u64::from(srq.pd) << 32 | rights & u64::from(u32::MAX),
            None => rights,
        }
    }

    /// What the peer of our QP may reach at `remote`, if it may and it is there.
    fn admit(&self, qp: &Qp, remote: RemoteAddress, len: u64, need: u32) -> Result<Place, Nak> {
        find(qp, self.rights(qp), remote, len, need)
    }

    /// Whether our QP lets its peer do what needs the rights `need`, to whatever memory and how many bytes of it.
    ///
    /// # Errors
    /// What the request is refused with.
    pub(crate) fn permits(&self, qp: &Qp, need: u32) -> Result<(), Nak> {
        permit(self.rights(qp), need).map(drop)
    }

    /// Whether registered memory is mapped, where that is not sure.
    fn is_mapped(&mut self, here: Range) -> bool {
        !self.careful || self.seen.is_mapped(here.address(), here.len())
    }

    /// Whether the peer of our QP may reach all of the `len` bytes at `remote`, as a request of several pieces needs.
    ///
    /// # Errors
    /// What the request is refused with.
    pub(crate) fn may(
        &self,
        qp: &Qp,
        remote: RemoteAddress,
        len: u64,
        need: u32,
    ) -> Result<(), Nak> {
        let _in_flight = announce(qp, remote);
        self.admit(qp, remote, len, need).map(drop)
    }

    #[inline]
    fn take_receive(&mut self, qp: &Qp) -> bool {
        match &self.srq {
            Some(srq) => srq.take(&mut self.receive),
            None => qp.take_receive(&mut self.receive),
        }
    }

    /// The receive that was taken and never completed, if there is one.
    pub(crate) fn take_unfinished(&mut self, qp: &Qp) -> Option<Receive> {
        self.abandon(qp);
        self.give_back();
        std::mem::replace(&mut self.taken, false).then(|| std::mem::take(&mut *self.receive))
    }

    /// Whether a piece belongs to a message that is being dropped.
    pub(crate) fn skips(&mut self, first: bool) -> bool {
        self.skipping &= !first;
        self.skipping
    }

    /// A request that cannot be done: refused on a reliable connection, dropped on an unreliable one.
    pub(crate) fn unservable(&mut self, qp: &Qp, nak: Nak) -> Verdict {
        if qp.kind.is_reliable() {
            return Verdict::Refuse(nak);
        }
        self.message = None;
        self.skipping = true;
        Verdict::Dropped
    }

    /// Gets the next posted receive into `self.receive`.
    pub(super) fn need_receive(&mut self, qp: &Qp) -> Result<(), Verdict> {
        self.taken = self.taken || self.take_receive(qp);
        if self.taken {
            return Ok(());
        }
        if !qp.kind.is_reliable() {
            self.skipping = true;
            return Err(Verdict::Dropped);
        }
        // Ask to be called by whoever posts a receive, then look again: one of the two sees the other.
        match &self.srq {
            Some(srq) => srq.await_receive(qp.me()),
            None => qp.await_receive(),
        }
        self.taken = self.take_receive(qp);
        if self.taken { Ok(()) } else { Err(Verdict::NotReady) }
    }

    /// A piece of a SEND, or a datagram.
    pub(crate) fn send(&mut self, qp: &Qp, headers: &Headers, source: &impl Source) -> Verdict {
        if let Some((tm, own)) = qp.tagging() {
            return self.send_tagged(qp, tm, own, headers, source);
        }
        let mut message = if headers.first {
            // A message that was never finished leaves its receive to this one.
            self.message = None;
            if let Err(verdict) = self.need_receive(qp) {
                return verdict;
            }
            MessageProgress { total: headers.total, done: 0 }
        } else {
            match self.message.take() {
                Some(message) => {
                    MessageProgress { total: message.total.max(headers.total), done: message.done }
                }
                None => return self.unservable(qp, Nak::Invalid),
            }
        };
        if message.total > self.receive.room() {
            return self.too_long(qp);
        }
        let pd = self.domain(qp);
        let mut ranges = Ranges::new();
        let (regions, list) = (&qp.adapter.regions, &self.receive.sges);
        if !regions.resolve_first(&mut ranges, pd, list, LOCAL_WRITE, message.total) {
            return self.spoiled(qp, IBV_WC_LOC_PROT_ERR, Nak::Operation);
        }
        ranges.take_care(self.careful);
        if let Some(rkey) = headers.invalidate {
            match qp.adapter.invalidate(qp, rkey) {
                Done::Yes => {}
                Done::Later => {
                    self.message = (!headers.first).then_some(message);
                    return Verdict::Busy;
                }
                Done::Refused => {
                    // Class J: the message is complete for its sender, who is not answered.
                    self.spoil(qp, IBV_WC_REM_INV_REQ_ERR);
                    return Verdict::Broken;
                }
            }
        }
        match source.bring(&ranges, message.done, message.total) {
            Ok(len) => {
                message.done += len;
                self.moved += len;
            }
            Err(Errno::EPROTO) => return self.unservable(qp, Nak::Invalid),
            Err(Errno::ESTALE) => return Verdict::Stale,
            Err(Errno::ESRCH) => return Verdict::Gone,
            Err(_) => return self.unservable(qp, Nak::Operation),
        }
        if headers.last {
            self.complete(qp, headers, IBV_WC_RECV, message.done);
        } else {
            self.message = Some(message);
        }
        Verdict::Done
    }

    /// The taken receive is done.
    fn complete(&mut self, qp: &Qp, headers: &Headers, opcode: u32, len: usize) {
        self.taken = false;
        let cqe = Cqe {
            wr_id: self.receive.wr_id,
            status: IBV_WC_SUCCESS,
            opcode,
            byte_len: len as u32,
            imm: headers.imm.or(headers.invalidate).unwrap_or(0),
            qp_num: qp.qpn,
            src_qp: headers.src_qpn,
            wc_flags: if headers.imm.is_some() { IBV_WC_WITH_IMM } else { 0 }
                | if headers.invalidate.is_some() { IBV_WC_WITH_INV } else { 0 }
                | if headers.packet != 0 { IBV_WC_GRH } else { 0 },
            sl: headers.packet,
            ..Cqe::default()
        };
        self.push(qp, &cqe, headers.solicited);
    }

    /// The message is longer than the taken receive. Who sends datagrams is nobody that the receiver chose, and shall not stop it:
    /// they are dropped, and the receive waits for the next one (class D).
    #[cold]
    fn too_long(&mut self, qp: &Qp) -> Verdict {
        if qp.kind != Kind::Ud {
            return self.spoiled(qp, IBV_WC_LOC_LEN_ERR, Nak::Invalid);
        }
        if let Some(srq) = qp.srq() {
            // Others receive from it, too.
            self.taken = false;
            srq.give_back(&self.receive);
        }
        Verdict::Dropped
    }

    /// A WRITE that cannot be done. Where a key forbids it, the receive that one with immediate data takes says so (IBTA vol 1, 11.6.2: local
    /// access error), if there is one. An operation that the QP does not allow takes none.
    #[cold]
    pub(crate) fn unwritable(&mut self, qp: &Qp, immediate: bool, nak: Nak) -> Verdict {
        if immediate && nak == Nak::Access && qp.kind.is_reliable() {
            self.taken = self.taken || self.take_receive(qp);
            if self.taken {
                return self.spoiled(qp, IBV_WC_LOC_ACCESS_ERR, nak);
            }
        }
        self.unservable(qp, nak)
    }

    /// The taken receive does not take the message: it completes with `status`, and the sender hears `nak`.
    fn spoiled(&mut self, qp: &Qp, status: u32, nak: Nak) -> Verdict {
        self.spoil(qp, status);
        if qp.kind.is_reliable() { Verdict::Refuse(nak) } else { Verdict::Broken }
    }

    /// The taken receive completes with `status`, an error.
    fn spoil(&mut self, qp: &Qp, status: u32) {
        self.taken = false;
        let cqe = Cqe {
            wr_id: self.receive.wr_id,
            status,
            opcode: IBV_WC_RECV,
            qp_num: qp.qpn,
            vendor_err: vendor_err(status),
            ..Cqe::default()
        };
        self.push(qp, &cqe, false);
    }

    /// A piece of an RDMA WRITE: `len` bytes at `source`, or none where they were placed already. The first one says how long all of it is.
    pub(crate) fn write(
        &mut self,
        qp: &Qp,
        headers: &Headers,
        remote: RemoteAddress,
        len: usize,
        source: Option<Range>,
    ) -> Verdict {
        if headers.first {
            self.written = 0;
            // All of it is refused before any of it is placed. What comes in one piece is looked at when that is placed.
            let allowed = if headers.total > len {
                self.may(qp, remote, headers.total as u64, REMOTE_WRITE)
            } else {
                self.permits(qp, REMOTE_WRITE)
            };
            if let Err(nak) = allowed {
                return self.unwritable(qp, headers.imm.is_some(), nak);
            }
        }
        if let Some(source) = source
            && len > 0
        {
            let _in_flight = announce(qp, remote);
            let placed = match self.admit(qp, remote, len as u64, REMOTE_WRITE) {
                Ok(Place::Here(here)) => !self.is_mapped(here) || source.copy_to(here),
                Ok(Place::There(imported, va)) => imported.write(va, source),
                Err(nak) => return self.unwritable(qp, headers.imm.is_some(), nak),
            };
            if !placed {
                return self.unservable(qp, Nak::Operation);
            }
            self.moved += len;
        }
        if !headers.last || headers.imm.is_none() {
            self.written += len;
            return Verdict::Done;
        }
        if let Err(verdict) = self.need_receive(qp) {
            return verdict;
        }
        let done = self.written + len;
        self.complete(qp, headers, IBV_WC_RECV_RDMA_WITH_IMM, done);
        Verdict::Done
    }

    /// As [`Inbound::write`], of bytes of our own.
    pub(crate) fn write_bytes(
        &mut self,
        qp: &Qp,
        headers: &Headers,
        remote: RemoteAddress,
        bytes: &[u8],
    ) -> Verdict {
        // SAFETY: a slice, which is only read from; the range is gone when this returns.
        let from = unsafe { Range::new(bytes.as_ptr().cast_mut(), bytes.len()) };
        self.write(qp, headers, remote, bytes.len(), Some(from))
    }

    /// A piece of an RDMA READ: as many bytes as `answer` has.
    pub(crate) fn read(&mut self, qp: &Qp, remote: RemoteAddress, answer: Range) -> Verdict {
        let len = answer.len();
        if len == 0 {
            return match self.permits(qp, REMOTE_READ) {
                Ok(()) => Verdict::Done,
                Err(nak) => self.unservable(qp, nak),
            };
        }
        let rights = self.rights(qp);
        let seen = self.careful.then_some(&mut self.seen);
        match read_region(qp, rights, seen, remote, answer) {
            Ok(()) => {
                self.moved += len;
                Verdict::Done
            }
            Err(nak) => self.unservable(qp, nak),
        }
    }

    /// An atomic: `change` on the word at `remote`; what was there goes to `answer`.
    pub(crate) fn atomic(
        &mut self,
        qp: &Qp,
        remote: RemoteAddress,
        change: impl Fn(u64) -> u64,
        answer: Range,
    ) -> Verdict {
        if !remote.addr.is_multiple_of(8) {
            return self.unservable(qp, Nak::Invalid);
        }
        let view = &qp.adapter.view;
        let _in_flight = announce(qp, remote);
        let here = match self.admit(qp, remote, 8, REMOTE_ATOMIC) {
            Ok(Place::Here(here)) if !self.is_mapped(here) => {
                return self.unservable(qp, Nak::Operation);
            }
            Ok(Place::Here(here)) => here,
            Ok(Place::There(imported, va)) => {
                return self.atomically(qp, &imported, va, change, |old| _ = answer.store(old));
            }
            Err(nak) => return self.unservable(qp, nak),
        };
        let own = u32::from(qp.adapter.fabric.slot()) + 1;
        let Some(_held) = AtomicLock::take(&view.rings_head().atomic_lock, own) else {
            return Verdict::Busy;
        };
        let Some(old) = here.update(change) else { return self.unservable(qp, Nak::Operation) };
        // A chunk, or a word of ours.
        let _ = answer.store(old);
        Verdict::Done
    }

    /// As [`Inbound::atomic`]; what was there as a number.
    pub(crate) fn atomic_value(
        &mut self,
        qp: &Qp,
        remote: RemoteAddress,
        change: impl Fn(u64) -> u64,
    ) -> (Verdict, u64) {
        let mut original = 0u64;
        // SAFETY: eight bytes of ours that nobody else knows; the range is gone when this returns.
        let answer = unsafe { Range::new((&raw mut original).cast(), size_of::<u64>()) };
        let verdict = self.atomic(qp, remote, change, answer);
        (verdict, original)
    }

    /// An atomic write of `value` to `remote`.
    pub(crate) fn store(&mut self, qp: &Qp, remote: RemoteAddress, value: u64) -> Verdict {
        if !remote.addr.is_multiple_of(8) {
            return self.unservable(qp, Nak::Invalid);
        }
        let _in_flight = announce(qp, remote);
        let here = match self.admit(qp, remote, 8, REMOTE_WRITE) {
            Ok(Place::Here(here)) if !self.is_mapped(here) => {
                return self.unservable(qp, Nak::Operation);
            }
            Ok(Place::Here(here)) => here,
            Ok(Place::There(imported, va)) => {
                return self.atomically(qp, &imported, va, |_| value, |_| ());
            }
            Err(nak) => return self.unservable(qp, nak),
        };
        let own = u32::from(qp.adapter.fabric.slot()) + 1;
        let lock = &qp.adapter.view.rings_head().atomic_lock;
        let Some(_held) = AtomicLock::take(lock, own) else {
            return Verdict::Busy;
        };
        if here.store(value) { Verdict::Done } else { self.unservable(qp, Nak::Operation) }
    }

    /// An atomic on a word of an imported region.
    #[cold]
    fn atomically(
        &mut self,
        qp: &Qp,
        imported: &Imported,
        va: u64,
        change: impl Fn(u64) -> u64,
        answer: impl FnOnce(u64),
    ) -> Verdict {
        match imported.atomic(va, change) {
            Ok(old) => {
                answer(old);
                Verdict::Done
            }
            Err(Fault::Busy) => Verdict::Busy,
            Err(_) => self.unservable(qp, Nak::Operation),
        }
    }

    /// A flush of what was written to `len` bytes at `remote`: it is where it belongs, so only the rights are left to check.
    pub(crate) fn flush(
        &mut self,
        qp: &Qp,
        remote: RemoteAddress,
        len: u64,
        placement: u32,
    ) -> Verdict {
        match self.admit(qp, remote, len, right_to_flush(placement)) {
            Ok(_) => Verdict::Done,
            Err(nak) => self.unservable(qp, nak),
        }
    }
}

/// What a peer with these `rights` may reach at `remote` by `qp`, if it may and it is there.
fn find(qp: &Qp, rights: u64, remote: RemoteAddress, len: u64, need: u32) -> Result<Place, Nak> {
    // A window is bound to the QP that the peer connected to.
    let qpn = qp.stand().map_or(qp.qpn, |stand| stand.home.qpn);
    let found = admit(&qp.adapter.view, qpn, rights, remote, len, need)?;
    if found.access & IMPORTED != 0 {
        // Its owner took its key back: as if it never was.
        let imported = qp.adapter.regions.imported(remote.rkey);
        let imported = imported.filter(|imported| imported.is_there()).ok_or(Nak::Access)?;
        return Ok(Place::There(imported, found.va));
    }
    let there = found.is_there(len, need & !REMOTE_READ != 0);
    // SAFETY: ours, and registered for `len` bytes; deregistration waits for this QP's lock, or for the announcement.
    let here = unsafe { Range::at(found.va, len as usize) };
    if there { Ok(Place::Here(here)) } else { Err(Nak::Operation) }
}

/// Fills `answer` with what is at `remote`, which a peer with these rights reads; with `seen`, where it may be gone. The responder's or
/// the requester's lock of `qp` is held, which deregistration waits for.
///
/// # Errors
/// What the request is refused with.
pub(crate) fn read_region(
    qp: &Qp,
    rights: u64,
    seen: Option<&mut Seen>,
    remote: RemoteAddress,
    answer: Range,
) -> Result<(), Nak> {
    let len = answer.len();
    let _in_flight = announce(qp, remote);
    let read = match find(qp, rights, remote, len as u64, REMOTE_READ)? {
        Place::Here(here) => {
            seen.is_none_or(|seen| seen.is_mapped(here.address(), len)) && here.copy_to(answer)
        }
        Place::There(imported, va) => imported.read(va, answer),
    };
    if read { Ok(()) } else { Err(Nak::Operation) }
}

/// As [`read_region`], into bytes of our own.
pub(crate) fn read_region_bytes(
    qp: &Qp,
    rights: u64,
    seen: &mut Seen,
    remote: RemoteAddress,
    answer: &mut [u8],
) -> Result<(), Nak> {
    // SAFETY: a slice that is borrowed alone; the range is gone when this returns.
    let answer = unsafe { Range::new(answer.as_mut_ptr(), answer.len()) };
    read_region(qp, rights, Some(seen), remote, answer)
}

/// The shared queue that requests of an XRC QP name so.
fn named_queue(qp: &Qp, number: u32) -> Option<Arc<Srq>> {
    qp.adapter.srq(number).filter(|srq| srq.domain == qp.role.domain())
}

/// Where a request's target is.
enum Place {
    /// In our process.
    Here(Range),
    /// At this address of the process that a region was imported from.
    There(Arc<Imported>, u64),
}

/// Whoever takes a window back waits for announcements alone, while deregistration waits for the QP's lock, too.
fn announce(qp: &Qp, remote: RemoteAddress) -> Option<Announced<'_>> {
    is_window(remote.rkey)
        .then(|| qp.adapter.in_flight.announce(qp.adapter.fabric.slot(), remote.rkey))
}
