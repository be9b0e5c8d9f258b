//! The responder's rules for a request: match a receive, check keys and rights, place bytes,
//! complete (IBTA 1.7 9.7, 9.8). Every transport of arrivals ends here: the ring of a
//! connection, datagram rings, and the wire between hosts.
//!
//! A transport decodes its own units and calls `send`, `write`, `read` or `atomic` for each piece,
//! in order. It then carries out the verdict: acknowledge, wait, refuse or drop. A [`Source`] hides
//! how the bytes arrive.
//!
//! Map of the file:
//!
//! - Threads: polls, the service thread and the driver of the wire between hosts, each through its
//!   transport.
//! - Locks: every function runs under `Qp::responder`. Taken below it: `Qp::receives`, the queue
//!   and waiters of an SRQ, the tag list, `AtomicLock`, and the ring of the receive CQ.
//! - Deregistration: a key is looked up and its bytes are moved under the responder lock, which
//!   deregistration waits for. A window additionally needs an announcement.
//! - Fields: `Inbound` in `qp/mod.rs`.

use crate::engine::keys::access::{AccessError, AtomicLock, admit, permit};
use crate::engine::keys::imported::Imported;
use crate::engine::keys::in_flight::Announced;
use crate::engine::keys::regions::{
    IMPORTED, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE, is_window, right_to_flush,
};
use crate::engine::keys::windows::BindResult;
use crate::engine::queues::cq::Cq;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::{Inbound, MessageProgress};
use crate::engine::queues::srq::Srq;
use abi::*;
use soft_memory::careful::MappedRange;
use soft_memory::ranges::Remote;
use soft_memory::{Range, Ranges};
use soft_semantics::completion::{Cqe, vendor_err};
use soft_semantics::inbound::{Headers, Nak, Verdict};
use soft_semantics::receive::Receive;
use soft_semantics::request::RemoteAddress;
use soft_semantics::state::QpType;
use soft_semantics::tags::wire::HEADERS_LEN;
use soft_sys::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The source of the bytes of a piece.
pub(crate) trait Source {
    /// Copies the piece to `offset` of `ranges`, at most up to byte `total` of the message. Returns
    /// the number of bytes.
    ///
    /// # Errors
    /// `EPROTO` the piece is invalid; `ESTALE` its sender went away meanwhile; `ESRCH` its sender
    /// died; any further errno: the bytes could not be fetched.
    fn copy_piece(&self, ranges: &Ranges, offset: usize, total: usize) -> Result<usize, Errno>;

    /// Copies the first bytes of the message from its first piece. Returns the number of bytes.
    ///
    /// # Errors
    /// As `copy_piece`. A source that never serves a tag matching queue need not implement the
    /// function.
    fn peek(&self, _start: &mut [u8; HEADERS_LEN]) -> Result<usize, Errno> {
        Err(Errno::EPROTO)
    }
}

impl Inbound {
    /// Whether no earlier message left a receive or a rest to skip.
    #[inline]
    pub(in crate::engine) const fn has_no_message(&self) -> bool {
        !self.has_unfinished_receive && !self.skipping && self.message.is_none()
    }

    /// Begins a connection.
    pub(crate) fn restart(&mut self) {
        self.message = None;
        self.written = 0;
        self.skipping = false;
        self.srq = None;
        self.foreign_srq = 0;
    }

    /// Keeps a receive that was taken for an invalid message, for the next message.
    #[cold]
    pub(in crate::engine) fn keep_receive(&mut self, wr_id: u64, sge: ibv_sge) {
        self.receive.wr_id = wr_id;
        self.receive.sges.clear();
        self.receive.sges.push(sge);
        self.has_unfinished_receive = true;
    }

    /// XRC: selects shared queue `number` for the requests that follow. An unknown number refuses
    /// the first of them.
    pub(crate) fn select_srq(&mut self, qp: &Qp, number: u32) {
        self.return_receive();
        self.srq = find_srq(qp, number);
    }

    /// XRC: calls `look` with shared queue `number` selected, then restores the selection. The
    /// message in progress is unchanged.
    pub(crate) fn with_srq<T>(&mut self, qp: &Qp, number: u32, look: impl FnOnce(&Self) -> T) -> T {
        let there = std::mem::replace(&mut self.srq, find_srq(qp, number));
        let seen = look(self);
        self.srq = there;
        seen
    }

    /// Whether requests can be served; an XRC QP needs a selected queue.
    #[inline]
    pub(crate) fn has_srq(&self, qp: &Qp) -> bool {
        qp.qp_type() != QpType::XrcRecv || self.srq.as_ref().is_some_and(|srq| !srq.is_retired())
    }

    /// Returns the taken receive to the selected shared queue, if a queue is selected.
    fn return_receive(&mut self) {
        self.message = None;
        if let Some(srq) = &self.srq
            && std::mem::replace(&mut self.has_unfinished_receive, false)
        {
            srq.give_back(&self.receive);
        }
    }

    /// Adds the completion of a receive.
    fn push(&self, qp: &Qp, cqe: &Cqe, solicited: bool) {
        if let Some(cq) = self.cq(qp) {
            cq.push(cqe, solicited);
        }
    }

    /// The CQ of the selected shared queue, otherwise the receive CQ of the QP.
    fn cq<'a>(&'a self, qp: &'a Qp) -> Option<&'a Cq> {
        let of_srq = self.srq.as_ref().and_then(|srq| srq.cq.as_ref());
        of_srq.or(qp.pair().map(|pair| &pair.recv_cq)).map(|cq| &**cq)
    }

    /// The protection domain of receives and of the keys of one-sided requests.
    pub(crate) fn domain(&self, qp: &Qp) -> u32 {
        self.srq.as_ref().map_or_else(|| qp.receive_pd(), |srq| srq.pd)
    }

    /// The rights that the QP gives to its peer.
    fn rights(&self, qp: &Qp) -> u64 {
        let entry = qp.as_stand_in().map_or_else(|| qp.entry(), |stand| stand.home.entry());
        let rights = entry.rights.load(Ordering::Relaxed);
        match &self.srq {
            Some(srq) => u64::from(srq.pd) << 32 | rights & u64::from(u32::MAX),
            None => rights,
        }
    }

    /// The memory at `remote`, if the peer of the QP may access it and it is mapped.
    fn admit(
        &self,
        qp: &Qp,
        remote: RemoteAddress,
        len: u64,
        need: u32,
    ) -> Result<TargetMemory, Nak> {
        find_target(qp, self.rights(qp), remote, len, need)
    }

    /// Checks that the QP permits operations that need the rights `need`, for any memory and
    /// length.
    ///
    /// # Errors
    /// The NAK for the request.
    pub(crate) fn permits(&self, qp: &Qp, need: u32) -> Result<(), Nak> {
        permit(self.rights(qp), need).map(drop)
    }

    /// Whether registered memory is mapped, where a check is needed.
    fn is_mapped(&mut self, here: Range) -> bool {
        !self.check_memory || self.checked_pages.is_mapped(here.address(), here.len())
    }

    /// Checks that the peer of the QP may access all `len` bytes at `remote`. Needed before the
    /// first piece of a request of several pieces.
    ///
    /// # Errors
    /// The NAK for the request.
    pub(crate) fn check_access(
        &self,
        qp: &Qp,
        remote: RemoteAddress,
        len: u64,
        need: u32,
    ) -> Result<(), Nak> {
        let _in_flight = announce_window_use(qp, remote);
        self.admit(qp, remote, len, need).map(drop)
    }

    #[inline]
    fn take_receive(&mut self, qp: &Qp) -> bool {
        match &self.srq {
            Some(srq) => srq.take_receive(&mut self.receive),
            None => qp.take_receive(&mut self.receive),
        }
    }

    /// The receive that was taken and not completed, if any.
    pub(crate) fn take_unfinished(&mut self, qp: &Qp) -> Option<Receive> {
        self.abandon(qp);
        self.return_receive();
        std::mem::replace(&mut self.has_unfinished_receive, false)
            .then(|| std::mem::take(&mut *self.receive))
    }

    /// Whether a piece belongs to a message that is being dropped.
    pub(crate) fn skips(&mut self, first: bool) -> bool {
        self.skipping &= !first;
        self.skipping
    }

    /// Handles a request that cannot be executed: refused on a reliable connection, dropped on an
    /// unreliable connection.
    pub(crate) fn reject(&mut self, qp: &Qp, nak: Nak) -> Verdict {
        if qp.qp_type().is_reliable() {
            return Verdict::Refuse(nak);
        }
        self.message = None;
        self.skipping = true;
        Verdict::Dropped
    }

    /// Takes the next posted receive into `self.receive`.
    pub(in crate::engine) fn need_receive(&mut self, qp: &Qp) -> Result<(), Verdict> {
        self.has_unfinished_receive = self.has_unfinished_receive || self.take_receive(qp);
        if self.has_unfinished_receive {
            return Ok(());
        }
        if !qp.qp_type().is_reliable() {
            self.skipping = true;
            return Err(Verdict::Dropped);
        }
        // Register for a notification first, then look again. A thread that posts a receive stores
        // it before it reads the registration, so either this look finds the receive or the posting
        // thread finds the registration.
        match &self.srq {
            Some(srq) => srq.await_receive(qp.me()),
            None => qp.await_receive(),
        }
        self.has_unfinished_receive = self.take_receive(qp);
        if self.has_unfinished_receive { Ok(()) } else { Err(Verdict::NotReady) }
    }

    /// Serves a piece of a SEND, or a datagram.
    pub(crate) fn send(&mut self, qp: &Qp, headers: &Headers, source: &impl Source) -> Verdict {
        if let Some((tm, own)) = qp.tagging() {
            return self.send_tagged(qp, tm, own, headers, source);
        }
        let mut message = if headers.first {
            // An unfinished message leaves its receive to the next message.
            self.message = None;
            if let Err(verdict) = self.need_receive(qp) {
                return verdict;
            }
            MessageProgress { total: headers.total, bytes_done: 0 }
        } else {
            match self.message.take() {
                Some(message) => MessageProgress {
                    total: message.total.max(headers.total),
                    bytes_done: message.bytes_done,
                },
                None => return self.reject(qp, Nak::Invalid),
            }
        };
        if message.total > self.receive.room() {
            return self.too_long(qp);
        }
        let pd = self.domain(qp);
        let mut ranges = Ranges::new();
        let (regions, list) = (&qp.adapter().regions, &self.receive.sges);
        if !regions.resolve_first(&mut ranges, pd, list, LOCAL_WRITE, message.total) {
            return self.fail_receive_and_refuse(qp, IBV_WC_LOC_PROT_ERR, Nak::Operation);
        }
        ranges.take_care(self.check_memory);
        if let Some(rkey) = headers.invalidate {
            match qp.adapter().invalidate(qp, rkey) {
                BindResult::Yes => {}
                BindResult::Later => {
                    self.message = (!headers.first).then_some(message);
                    return Verdict::Busy;
                }
                BindResult::Refused => {
                    // Class J: the message is complete for its sender, which gets no refusal.
                    self.fail_receive(qp, IBV_WC_REM_INV_REQ_ERR);
                    return Verdict::Broken;
                }
            }
        }
        match source.copy_piece(&ranges, message.bytes_done, message.total) {
            Ok(len) => {
                message.bytes_done += len;
                self.moved += len;
            }
            Err(Errno::EPROTO) => return self.reject(qp, Nak::Invalid),
            Err(Errno::ESTALE) => return Verdict::Stale,
            Err(Errno::ESRCH) => return Verdict::SenderDied,
            Err(_) => return self.reject(qp, Nak::Operation),
        }
        if headers.last {
            self.complete(qp, headers, IBV_WC_RECV, message.bytes_done);
        } else {
            self.message = Some(message);
        }
        Verdict::Done
    }

    /// Completes the taken receive with success.
    fn complete(&mut self, qp: &Qp, headers: &Headers, opcode: u32, len: usize) {
        self.has_unfinished_receive = false;
        let cqe = Cqe {
            wr_id: self.receive.wr_id,
            status: IBV_WC_SUCCESS,
            opcode,
            byte_len: len as u32,
            imm: headers.imm.or(headers.invalidate).unwrap_or(0),
            qp_num: qp.qpn(),
            src_qp: headers.src_qpn,
            wc_flags: if headers.imm.is_some() { IBV_WC_WITH_IMM } else { 0 }
                | if headers.invalidate.is_some() { IBV_WC_WITH_INV } else { 0 }
                | if headers.packet != 0 { IBV_WC_GRH } else { 0 },
            sl: headers.packet,
            ..Cqe::default()
        };
        self.push(qp, &cqe, headers.solicited);
    }

    /// Handles a message longer than the taken receive. A sender of datagrams is not chosen by the
    /// receiver and must not stop the QP: the datagram is dropped, and the receive serves the next
    /// datagram (class D).
    #[cold]
    fn too_long(&mut self, qp: &Qp) -> Verdict {
        if qp.qp_type() != QpType::Ud {
            return self.fail_receive_and_refuse(qp, IBV_WC_LOC_LEN_ERR, Nak::Invalid);
        }
        if let Some(srq) = qp.srq() {
            // Further QPs receive from the shared queue.
            self.has_unfinished_receive = false;
            srq.give_back(&self.receive);
        }
        Verdict::Dropped
    }

    /// Handles a WRITE that cannot be executed. If a key forbids a WRITE with immediate data, its
    /// receive completes with an error, if a receive is posted (IBTA 1.7 11.6.2: local access
    /// error). An operation that the QP forbids takes no receive.
    #[cold]
    pub(crate) fn reject_write(&mut self, qp: &Qp, immediate: bool, nak: Nak) -> Verdict {
        if immediate && nak == Nak::Access && qp.qp_type().is_reliable() {
            self.has_unfinished_receive = self.has_unfinished_receive || self.take_receive(qp);
            if self.has_unfinished_receive {
                return self.fail_receive_and_refuse(qp, IBV_WC_LOC_ACCESS_ERR, nak);
            }
        }
        self.reject(qp, nak)
    }

    /// Completes the taken receive with the error `status`, and refuses the message with `nak`.
    fn fail_receive_and_refuse(&mut self, qp: &Qp, status: u32, nak: Nak) -> Verdict {
        self.fail_receive(qp, status);
        if qp.qp_type().is_reliable() { Verdict::Refuse(nak) } else { Verdict::Broken }
    }

    /// Completes the taken receive with the error `status`.
    fn fail_receive(&mut self, qp: &Qp, status: u32) {
        self.has_unfinished_receive = false;
        let cqe = Cqe {
            wr_id: self.receive.wr_id,
            status,
            opcode: IBV_WC_RECV,
            qp_num: qp.qpn(),
            vendor_err: vendor_err(status),
            ..Cqe::default()
        };
        if let Some(cq) = self.cq(qp) {
            cq.push_failed(&cqe, false);
        }
    }

    /// Serves a piece of an RDMA WRITE: `len` bytes at `source`, or none if the initiator placed
    /// them. The first piece gives the total length.
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
            // A WRITE of several pieces is checked whole before any byte is placed. A WRITE of one
            // piece is checked when its bytes are placed.
            let allowed = if headers.total > len {
                self.check_access(qp, remote, headers.total as u64, REMOTE_WRITE)
            } else {
                self.permits(qp, REMOTE_WRITE)
            };
            if let Err(nak) = allowed {
                return self.reject_write(qp, headers.imm.is_some(), nak);
            }
        }
        if let Some(source) = source
            && len > 0
        {
            let _in_flight = announce_window_use(qp, remote);
            let placed = match self.admit(qp, remote, len as u64, REMOTE_WRITE) {
                Ok(TargetMemory::Local(here)) => !self.is_mapped(here) || source.copy_to(here),
                Ok(TargetMemory::Foreign(imported, va)) => imported.write(va, source),
                Err(nak) => return self.reject_write(qp, headers.imm.is_some(), nak),
            };
            if !placed {
                return self.reject(qp, Nak::Operation);
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

    /// As [`Inbound::write`], for bytes of a slice.
    pub(crate) fn write_bytes(
        &mut self,
        qp: &Qp,
        headers: &Headers,
        remote: RemoteAddress,
        bytes: &[u8],
    ) -> Verdict {
        // SAFETY: the slice is only read, and the range does not outlive the call.
        let from = unsafe { Range::new(bytes.as_ptr().cast_mut(), bytes.len()) };
        self.write(qp, headers, remote, bytes.len(), Some(from))
    }

    /// Serves a piece of an RDMA READ: fills `answer`.
    pub(crate) fn read(&mut self, qp: &Qp, remote: RemoteAddress, answer: Range) -> Verdict {
        let len = answer.len();
        if len == 0 {
            return match self.permits(qp, REMOTE_READ) {
                Ok(()) => Verdict::Done,
                Err(nak) => self.reject(qp, nak),
            };
        }
        let rights = self.rights(qp);
        let seen = self.check_memory.then_some(&mut self.checked_pages);
        match read_region(qp, rights, seen, remote, answer) {
            Ok(()) => {
                self.moved += len;
                Verdict::Done
            }
            Err(nak) => self.reject(qp, nak),
        }
    }

    /// Executes an atomic: applies `change` to the word at `remote`, and stores the old value in
    /// `answer`.
    pub(crate) fn atomic(
        &mut self,
        qp: &Qp,
        remote: RemoteAddress,
        change: impl Fn(u64) -> u64,
        answer: Range,
    ) -> Verdict {
        if !remote.addr.is_multiple_of(8) {
            return self.reject(qp, Nak::Invalid);
        }
        let view = &qp.adapter().view;
        let _in_flight = announce_window_use(qp, remote);
        let here = match self.admit(qp, remote, 8, REMOTE_ATOMIC) {
            Ok(TargetMemory::Local(here)) if !self.is_mapped(here) => {
                return self.reject(qp, Nak::Operation);
            }
            Ok(TargetMemory::Local(here)) => here,
            Ok(TargetMemory::Foreign(imported, va)) => {
                return self.foreign_atomic(qp, &imported, va, change, |old| _ = answer.store(old));
            }
            Err(nak) => return self.reject(qp, nak),
        };
        let own = u32::from(qp.adapter().fabric.slot()) + 1;
        let Some(_held) = AtomicLock::acquire(&view.rings_head().atomic_lock, own) else {
            return Verdict::Busy;
        };
        let Some(old) = here.update(change) else { return self.reject(qp, Nak::Operation) };
        // The store cannot fail: `answer` is a chunk or a local variable.
        let _ = answer.store(old);
        Verdict::Done
    }

    /// As [`Inbound::atomic`]; returns the old value as a number.
    pub(crate) fn atomic_value(
        &mut self,
        qp: &Qp,
        remote: RemoteAddress,
        change: impl Fn(u64) -> u64,
    ) -> (Verdict, u64) {
        let mut original = 0u64;
        let verdict = self.atomic(qp, remote, change, Range::of_word(&mut original));
        (verdict, original)
    }

    /// Executes an atomic write of `value` to `remote`.
    pub(crate) fn store(&mut self, qp: &Qp, remote: RemoteAddress, value: u64) -> Verdict {
        if !remote.addr.is_multiple_of(8) {
            return self.reject(qp, Nak::Invalid);
        }
        let _in_flight = announce_window_use(qp, remote);
        let here = match self.admit(qp, remote, 8, REMOTE_WRITE) {
            Ok(TargetMemory::Local(here)) if !self.is_mapped(here) => {
                return self.reject(qp, Nak::Operation);
            }
            Ok(TargetMemory::Local(here)) => here,
            Ok(TargetMemory::Foreign(imported, va)) => {
                return self.foreign_atomic(qp, &imported, va, |_| value, |_| ());
            }
            Err(nak) => return self.reject(qp, nak),
        };
        let own = u32::from(qp.adapter().fabric.slot()) + 1;
        let lock = &qp.adapter().view.rings_head().atomic_lock;
        let Some(_held) = AtomicLock::acquire(lock, own) else {
            return Verdict::Busy;
        };
        if here.store(value) { Verdict::Done } else { self.reject(qp, Nak::Operation) }
    }

    /// Executes an atomic on a word of an imported region.
    #[cold]
    fn foreign_atomic(
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
            Err(AccessError::Busy) => Verdict::Busy,
            Err(_) => self.reject(qp, Nak::Operation),
        }
    }

    /// Executes a flush of `len` bytes at `remote`. Written bytes are already in place, so only the
    /// rights are checked.
    pub(crate) fn flush(
        &mut self,
        qp: &Qp,
        remote: RemoteAddress,
        len: u64,
        placement: u32,
    ) -> Verdict {
        match self.admit(qp, remote, len, right_to_flush(placement)) {
            Ok(_) => Verdict::Done,
            Err(nak) => self.reject(qp, nak),
        }
    }
}

/// The memory at `remote`, if a peer with these `rights` may access it through `qp` and it is
/// mapped.
fn find_target(
    qp: &Qp,
    rights: u64,
    remote: RemoteAddress,
    len: u64,
    need: u32,
) -> Result<TargetMemory, Nak> {
    // A window is bound to the QP that the peer is connected to.
    let qpn = qp.as_stand_in().map_or(qp.qpn(), |stand| stand.home.qpn);
    let found = admit(&qp.adapter().view, qpn, rights, remote, len, need)?;
    if found.access & IMPORTED != 0 {
        // If the owner revoked its key, the region counts as unregistered.
        let imported = qp.adapter().regions.imported(remote.rkey);
        let imported = imported.filter(|imported| imported.is_there()).ok_or(Nak::Access)?;
        return Ok(TargetMemory::Foreign(imported, found.va));
    }
    let there = found.is_there(len, need & !REMOTE_READ != 0);
    // SAFETY: local memory, registered for `len` bytes. Deregistration waits for the lock of this
    // QP, or for the announcement.
    let here = unsafe { Range::at(found.va, len as usize) };
    if there { Ok(TargetMemory::Local(here)) } else { Err(Nak::Operation) }
}

/// Fills `answer` from `remote` for a peer with these rights. `seen` is given if the memory may be
/// unmapped. The caller holds the responder or requester lock of `qp`, which deregistration waits
/// for.
///
/// # Errors
/// The NAK for the request.
pub(crate) fn read_region(
    qp: &Qp,
    rights: u64,
    seen: Option<&mut MappedRange>,
    remote: RemoteAddress,
    answer: Range,
) -> Result<(), Nak> {
    let len = answer.len();
    let _in_flight = announce_window_use(qp, remote);
    let read = match find_target(qp, rights, remote, len as u64, REMOTE_READ)? {
        TargetMemory::Local(here) => {
            seen.is_none_or(|seen| seen.is_mapped(here.address(), len)) && here.copy_to(answer)
        }
        TargetMemory::Foreign(imported, va) => imported.read(va, answer),
    };
    if read { Ok(()) } else { Err(Nak::Operation) }
}

/// As [`read_region`], into a slice.
pub(crate) fn read_region_bytes(
    qp: &Qp,
    rights: u64,
    seen: &mut MappedRange,
    remote: RemoteAddress,
    answer: &mut [u8],
) -> Result<(), Nak> {
    read_region(qp, rights, Some(seen), remote, Range::of(answer))
}

/// The shared queue that an XRC request names by `number`.
fn find_srq(qp: &Qp, number: u32) -> Option<Arc<Srq>> {
    qp.adapter().registry.srq(number).filter(|srq| srq.domain == qp.role().domain())
}

/// Location of the target of a request.
enum TargetMemory {
    /// Memory of this process.
    Local(Range<'static>),
    /// An address in the process from which a region was imported.
    Foreign(Arc<Imported>, u64),
}

/// Announces an access through a window. Unbinding waits only for announcements; deregistration
/// also waits for the lock of the QP.
fn announce_window_use(qp: &Qp, remote: RemoteAddress) -> Option<Announced<'_>> {
    is_window(remote.rkey)
        .then(|| qp.adapter().in_flight.announce(qp.adapter().fabric.slot(), remote.rkey))
}
