//! From a send queue to packets, and from what the transport says of them to completions.

use super::connection::{Connection, Far, Whose};
use super::sockets::{LazyOutbox, Ports};
use super::window_share::Share;
use crate::engine::inbound::read_region_bytes;
use crate::engine::objects::connection::Requester;
use crate::engine::objects::qp::Qp;
use crate::engine::onesided::read_from_srq_owner;
use crate::engine::regions::LOCAL_WRITE;
use crate::engine::request::{Phase, RemoteAddress, Request, What};
use abi::*;
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::{Event, Op, Payload, Refusal, Status, Transmit, Work};
use ferroverbs_roce::wire::{AtomicOp, Feth, Immediate, Number, Tail};
use soft_memory::Ranges;
use soft_memory::careful::Seen;
use soft_semantics::inbound::Nak;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What came of a look at the transport, besides what was done already.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// The QP is in error, for this.
    pub(super) failed: Option<Status>,
    /// The message that was coming will not end.
    pub(super) cut: bool,
}

impl Outcome {
    /// Both, this one first.
    pub(super) fn and(self, later: Self) -> Self {
        Self { failed: self.failed.or(later.failed), cut: self.cut || later.cut }
    }
}

/// What becomes of an acknowledgement that nothing else waits with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owed {
    Goes,
    /// The application is about to post something that it can go with.
    Stays,
}

impl Requester {
    /// Hands all requests that wait to the transport, and sends what may go.
    #[cold]
    pub(crate) fn issue_remote(&mut self, qp: &Qp) {
        let Some(ports) = qp.adapter.wire.ports() else { return };
        let Some(mut connection) = self.remote.take() else { return };
        while self.queue.issued != self.queue.posted && self.fate.is_going() {
            let n = self.queue.issued;
            let entry = self.queue.entry(n);
            // The buffer of one that had to wait is the application's again.
            if entry.has(IBV_SEND_INLINE) && !entry.kept {
                self.keep_inline(n);
            }
            self.queue.issued += 1;
            match self.work(qp, n) {
                Ok(work) if connection.transport.post(work).is_ok() => {}
                Ok(_) => self.fail(n, IBV_WC_LOC_QP_OP_ERR),
                Err(status) => self.fail(n, status),
            }
        }
        let mut outbox = ports.lazy_outbox();
        let now = ports.now();
        // Nothing came: what fails now fails with a request.
        let _ = self.pump(qp, &mut connection, &mut outbox, now, Owed::Goes);
        outbox.flush();
        drop(outbox);
        ports.counts.add(&mut connection);
        qp.adapter.wire.set_alarm(qp, &mut connection);
        self.remote = Some(connection);
    }

    /// Puts the acknowledgement that is owed where the next `flush` sends it, unless it went along with a request.
    pub(super) fn pay(&mut self, qp: &Qp, ports: &Ports, now: Time) {
        let Some(mut connection) = self.remote.take() else { return };
        connection.owing = false;
        if connection.transport.owes_acknowledgement() {
            let _ = self.pump(qp, &mut connection, &mut ports.lazy_outbox(), now, Owed::Goes);
            qp.adapter.wire.set_alarm(qp, &mut connection);
        }
        // What came before it was left for later, too.
        ports.counts.add(&mut connection);
        self.remote = Some(connection);
    }

    /// Sends what waited for room, as far as there is some.
    pub(super) fn feed(&mut self, qp: &Qp, ports: &Ports, now: Time) {
        let Some(mut connection) = self.remote.take() else { return };
        // It may have been made anew since.
        if let Some(share) = connection.share.as_mut().filter(|share| share.waits()) {
            share.end_to_wait();
            let _ = self.pump(qp, &mut connection, &mut ports.lazy_outbox(), now, Owed::Stays);
            ports.counts.add(&mut connection);
            qp.adapter.wire.set_alarm(qp, &mut connection);
        }
        self.remote = Some(connection);
    }

    /// Whether it waits for room.
    pub(super) fn waits_for_room(&self) -> bool {
        let connection = self.remote.as_ref();
        connection.and_then(|connection| connection.share.as_ref()).is_some_and(Share::waits)
    }

    /// Whether work on our own windows is to be tried again, though nothing comes.
    pub(crate) fn waits_for_window(&self) -> bool {
        self.remote.as_ref().is_some_and(|connection| connection.local.is_some())
    }

    /// Request `n` as the transport takes it.
    ///
    /// # Errors
    /// The status with which it completes instead.
    fn work(&mut self, qp: &Qp, n: u64) -> Result<Work, u32> {
        let entry = self.queue.entry(n);
        let (request, mut len) = (&entry.request, entry.len);
        let writes = matches!(
            request.what,
            What::Read(_) | What::Fetch(..) | What::FetchAdd { .. } | What::CompareSwap { .. }
        );
        let is_word = matches!(
            request.what,
            What::FetchAdd { .. } | What::CompareSwap { .. } | What::Store { word: None, .. }
        );
        // On purpose (`engine::faulty`). A packet that has any other end say so is not to be had.
        if let What::Refused(nak) = request.what {
            return Err(nak.requester_status());
        }
        let has_own_word = matches!(request.what, What::Store { word: Some(_), .. });
        if !request.what.is_local() && !has_own_word {
            let need = if writes { LOCAL_WRITE } else { 0 };
            let mut ranges = Ranges::new();
            if !self.ranges_into(&mut ranges, qp, n, need) {
                return Err(IBV_WC_LOC_PROT_ERR);
            }
            len = ranges.total() as u32;
        }
        if is_word && len != 8 {
            return Err(IBV_WC_LOC_LEN_ERR);
        }
        let entry = self.queue.entry(n);
        let (op, len) = operation(&entry.request, len).ok_or(IBV_WC_LOC_QP_OP_ERR)?;
        Ok(Work {
            solicited: entry.has(IBV_SEND_SOLICITED),
            fence: entry.has(IBV_SEND_FENCE),
            srq: Number::new(entry.request.srqn),
            ..Work::new(n, op, len)
        })
    }

    /// Does what the transport says, and puts what may go into `outbox`.
    pub(super) fn pump(
        &mut self,
        qp: &Qp,
        connection: &mut Connection,
        outbox: &mut LazyOutbox<'_>,
        now: Time,
        owed: Owed,
    ) -> Outcome {
        // Taken meanwhile: a clone would be two more writes to what all processors share.
        let Some(far) = connection.far.take() else { return Outcome::default() };
        let outcome = self.pump_to(qp, &far, connection, outbox, now, owed);
        if let Some(share) = &mut connection.share {
            share.tell(connection.transport.flying());
        }
        connection.far = Some(far);
        outcome
    }

    fn pump_to(
        &mut self,
        qp: &Qp,
        far: &Arc<Far>,
        connection: &mut Connection,
        outbox: &mut LazyOutbox<'_>,
        now: Time,
        owed: Owed,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        // Once each time, as what goes is told at the end.
        let mut allowed = false;
        connection.seen = Seen::default();
        if connection.transport.is_greeted() {
            far.short.is_to_ours();
        }
        self.retry_local(qp, connection);
        loop {
            while let Some(event) = connection.transport.poll_event() {
                self.take_event(qp, connection, event, &mut outcome);
            }
            let transport = &mut connection.transport;
            if transport.has_nothing_to_send(owed == Owed::Stays) {
                return outcome;
            }
            if !std::mem::replace(&mut allowed, true)
                && let Some(share) = &mut connection.share
            {
                let bytes = share.allowance(transport.flying());
                transport.allow(bytes);
                if bytes == 0 && share.begin_to_wait() {
                    qp.adapter.wire.wait_for_room(qp);
                }
            }
            let transmit = match owed {
                Owed::Goes => transport.poll_transmit(now),
                Owed::Stays => transport.poll_transmit_before_acknowledgement(now),
            };
            let Some(transmit) = transmit else {
                match connection.transport.poll_event() {
                    Some(event) => self.take_event(qp, connection, event, &mut outcome),
                    None => return outcome,
                }
                continue;
            };
            self.put_packet(qp, connection, far, outbox, &transmit);
        }
    }

    fn take_event(
        &mut self,
        qp: &Qp,
        connection: &mut Connection,
        event: Event,
        outcome: &mut Outcome,
    ) {
        match event {
            Event::Completed { work, status } => self.transport_completed(work, status),
            Event::Perform { work } => {
                connection.local = Some(work);
                self.retry_local(qp, connection);
            }
            Event::Failed(status) => outcome.failed = Some(status),
            Event::Cut => outcome.cut = true,
            // The send queue knows itself what was begun.
            Event::Drained => {}
        }
    }

    /// Request `n` is done, as far as the transport is concerned.
    fn transport_completed(&mut self, n: u64, status: Status) {
        if n < self.queue.completed || n >= self.queue.posted {
            return;
        }
        let entry = self.queue.entry(n);
        match (status, entry.phase) {
            // It is flushed with all others, or failed here.
            (Status::Flushed, _) | (_, Phase::Failed(_)) => {}
            (Status::Success, _) => entry.phase = Phase::Done,
            (status, _) => self.fail(n, wc_status(status)),
        }
    }

    /// Work on our own windows whose turn has come.
    fn retry_local(&mut self, qp: &Qp, connection: &mut Connection) {
        let Some(n) = connection.local else { return };
        if n < self.queue.completed {
            connection.local = None;
        } else if self.issue_local(qp, n) {
            connection.local = None;
            let good = self.queue.entry(n).phase == Phase::Done;
            let status = if good { Status::Success } else { Status::LocalOperation };
            connection.transport.performed(n, status);
        }
    }

    /// Puts one packet into `outbox`. Memory that is gone fails its request, or the peer's READ.
    fn put_packet(
        &mut self,
        qp: &Qp,
        connection: &mut Connection,
        far: &Arc<Far>,
        outbox: &mut LazyOutbox<'_>,
        transmit: &Transmit,
    ) {
        if qp.adapter.port.is_down() {
            // As with a cable that leads nowhere.
            return;
        }
        let Transmit { head, payload, padding, ecn_capable } = transmit;
        let mut put = |len: usize, fill: &mut dyn FnMut(&mut [u8]) -> bool| {
            outbox.open().put(far, head, len, *padding, *ecn_capable, fill)
        };
        match *payload {
            Payload::None => {
                put(0, &mut |_| true);
            }
            Payload::Work { id, offset, len } => {
                let len = len as usize;
                if !put(len, &mut |to| self.gather_request(qp, id, offset as usize, to)) {
                    connection.transport.fail_work(id, Status::LocalProtection);
                }
            }
            Payload::Region { read, part } => {
                let len = part.len as usize;
                let whose = connection.origin_of_read(read);
                let mut outcome = Ok(());
                let seen = &mut connection.seen;
                put(len, &mut |to| {
                    outcome = qp.read_region(whose, seen, part.va, part.rkey, to);
                    outcome.is_ok()
                });
                if let Err(nak) = outcome {
                    connection.transport.read_failed(read, refusal_of(nak));
                }
            }
        }
    }

    /// Fills `to` from `offset` of request `n`; `false`: its memory is gone.
    fn gather_request(&mut self, qp: &Qp, n: u64, offset: usize, to: &mut [u8]) -> bool {
        if let What::Store { word: Some(word), .. } = self.queue.entry(n).request.what {
            let word = word.to_ne_bytes();
            let part = word.get(offset..offset + to.len());
            return part.inspect(|part| to.copy_from_slice(part)).is_some();
        }
        let mut ranges = Ranges::new();
        self.ranges_into(&mut ranges, qp, n, 0) && ranges.gather_bytes(offset, to)
    }

    /// Places `bytes`, which a READ or an atomic wanted, at `offset` of request `n`; `false`: its memory is gone.
    pub(super) fn place_answer(
        &mut self,
        qp: &Qp,
        n: u64,
        offset: usize,
        bytes: &[u8],
        careful: bool,
    ) -> bool {
        if n < self.queue.completed || n >= self.queue.posted {
            return true;
        }
        let mut ranges = Ranges::new();
        if !self.ranges_into(&mut ranges, qp, n, LOCAL_WRITE) {
            return false;
        }
        ranges.take_care(careful);
        ranges.scatter_packet(offset, bytes)
    }

    /// The answer to request `n` had nowhere to go. For the transport the request may be complete, as its last packet came.
    #[cold]
    pub(super) fn lose_answer(&mut self, connection: &mut Connection, n: u64) {
        self.fail(n, IBV_WC_LOC_PROT_ERR);
        connection.transport.fail_work(n, Status::LocalProtection);
    }
}

/// What a request does, and its length, in the transport's words; `None`: no such thing goes by this wire.
fn operation(request: &Request, len: u32) -> Option<(Op, u32)> {
    let immediate = Immediate::new(request.imm.to_ne_bytes());
    Some(match request.what {
        What::Send => {
            let tail = match request.opcode {
                IBV_WR_SEND_WITH_IMM => Tail::Immediate(immediate),
                IBV_WR_SEND_WITH_INV => Tail::Invalidate(request.imm),
                _ => Tail::Plain,
            };
            (Op::Send(tail), len)
        }
        What::Write(RemoteAddress { addr, rkey }) => {
            let with_immediate = request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
            let immediate = with_immediate.then_some(immediate);
            (Op::Write { va: addr, rkey, immediate }, len)
        }
        // A rendezvous reads the message and sends its end.
        What::Read(RemoteAddress { addr, rkey }) | What::Fetch(RemoteAddress { addr, rkey }, _) => {
            (Op::Read { va: addr, rkey }, len)
        }
        What::Finish(_) => (Op::Send(Tail::Plain), len),
        What::CompareSwap { remote: RemoteAddress { addr, rkey }, compare, swap } => {
            (Op::Atomic { va: addr, rkey, op: AtomicOp::CompareSwap { compare, swap } }, 8)
        }
        What::FetchAdd { remote: RemoteAddress { addr, rkey }, add } => {
            (Op::Atomic { va: addr, rkey, op: AtomicOp::FetchAdd { add } }, 8)
        }
        What::Store { remote: RemoteAddress { addr, rkey }, .. } => {
            (Op::AtomicWrite { va: addr, rkey }, 8)
        }
        What::Flush { remote: RemoteAddress { addr, rkey }, len, placement } => {
            let how = Feth {
                whole_region: len == 0,
                global: placement & IBV_FLUSH_GLOBAL != 0,
                persistent: placement & IBV_FLUSH_PERSISTENT != 0,
            };
            (Op::Flush { va: addr, rkey, how }, u32::try_from(len).ok()?)
        }
        What::Bind(_) | What::Invalidate { .. } => (Op::Local, 0),
        What::Segments(_) | What::Refused(_) => return None,
    })
}

/// `ibv_wc_status` of what the transport says.
pub(super) const fn wc_status(status: Status) -> u32 {
    match status {
        Status::Success => IBV_WC_SUCCESS,
        Status::Flushed => IBV_WC_WR_FLUSH_ERR,
        Status::LocalLength => IBV_WC_LOC_LEN_ERR,
        Status::LocalOperation => IBV_WC_LOC_QP_OP_ERR,
        Status::LocalProtection => IBV_WC_LOC_PROT_ERR,
        Status::BadResponse => IBV_WC_BAD_RESP_ERR,
        Status::RemoteInvalidRequest => IBV_WC_REM_INV_REQ_ERR,
        Status::RemoteAccess => IBV_WC_REM_ACCESS_ERR,
        Status::RemoteOperation => IBV_WC_REM_OP_ERR,
        Status::RetryExceeded => IBV_WC_RETRY_EXC_ERR,
        Status::RnrRetryExceeded => IBV_WC_RNR_RETRY_EXC_ERR,
        Status::LocalAccess => IBV_WC_LOC_ACCESS_ERR,
    }
}

/// What is said of it on the wire.
pub(super) const fn refusal_of(nak: Nak) -> Refusal {
    match nak {
        Nak::Access => Refusal::RemoteAccess,
        Nak::Operation => Refusal::RemoteOperation,
        _ => Refusal::InvalidRequest,
    }
}

impl Qp {
    /// Fills `to` with bytes that a peer reads, and `whose` if the QP's own protection domain does not say it.
    ///
    /// # Errors
    /// It may not, or they are gone.
    fn read_region(
        &self,
        whose: Option<Whose>,
        seen: &mut Seen,
        va: u64,
        rkey: u32,
        to: &mut [u8],
    ) -> Result<(), Nak> {
        let mut rights = self.entry().rights.load(Ordering::Relaxed);
        let remote = RemoteAddress { addr: va, rkey };
        match whose {
            None => {}
            Some(Whose::Domain(pd)) => {
                rights = u64::from(pd) << 32 | rights & u64::from(u32::MAX);
            }
            Some(Whose::Queue(number)) => return read_from_srq_owner(self, number, remote, to),
        }
        // Whoever drives the wire may be the service thread.
        read_region_bytes(self, rights, seen, remote, to)
    }
}
