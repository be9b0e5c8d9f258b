//! Posting: QP-01, QP-08, QP-12, WR-01 to WR-17 and OB-05, and what is in flight.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use abi::{
    IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPT_DRIVER, IBV_QPT_RAW_PACKET, IBV_QPT_RC,
    IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE, IBV_WR_BIND_MW, IBV_WR_FLUSH,
    IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV, IBV_WR_TSO, SendFlags, ibv_mw_bind, ibv_qp,
    ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq,
};

use crate::checks::Id;
use crate::mr::{Use, check_sge};
use crate::objects::context;
use crate::report::{Message, tell};
use crate::stack::{self, Site};
use crate::state::{AHS, Ctx, Flight, KEYS, QPS, Qp, Queue, SRQS, beneath, where_gone};
use crate::{again, overlap, transitions};

/// The opcode of a receive among those of requests: `IBV_WC_RECV`.
pub(crate) const RECEIVE: u32 = 128;
/// How long a list may be before it is looked at for a loop.
const LONG: usize = 64;

/// A send request, however it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Send<'a> {
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    /// `None`: a NULL list.
    pub(crate) sges: Option<&'a [ibv_sge]>,
    pub(crate) count: i64,
    /// Bytes that a builder copied inline.
    pub(crate) inline: Option<u64>,
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
    pub(crate) ah: usize,
}

fn opcode_name(opcode: u32) -> &'static str {
    match opcode {
        IBV_WR_RDMA_WRITE => "RDMA_WRITE",
        IBV_WR_RDMA_WRITE_WITH_IMM => "RDMA_WRITE_WITH_IMM",
        IBV_WR_SEND => "SEND",
        IBV_WR_SEND_WITH_IMM => "SEND_WITH_IMM",
        IBV_WR_RDMA_READ => "RDMA_READ",
        IBV_WR_ATOMIC_CMP_AND_SWP => "ATOMIC_CMP_AND_SWP",
        IBV_WR_ATOMIC_FETCH_AND_ADD => "ATOMIC_FETCH_AND_ADD",
        IBV_WR_LOCAL_INV => "LOCAL_INV",
        IBV_WR_BIND_MW => "BIND_MW",
        IBV_WR_SEND_WITH_INV => "SEND_WITH_INV",
        IBV_WR_TSO => "TSO",
        IBV_WR_FLUSH => "FLUSH",
        IBV_WR_ATOMIC_WRITE => "ATOMIC_WRITE",
        _ => "of a kind that this layer does not know",
    }
}

pub(crate) fn what(opcode: u8) -> &'static str {
    opcode_name(u32::from(opcode))
}

/// Whether a QP of this type can do it; `None` where nobody can tell.
fn possible(kind: u32, opcode: u32) -> bool {
    let sends = matches!(opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM);
    let writes = matches!(opcode, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM);
    let windows = matches!(opcode, IBV_WR_LOCAL_INV | IBV_WR_BIND_MW | IBV_WR_SEND_WITH_INV);
    match kind {
        IBV_QPT_UC => sends || writes || windows,
        IBV_QPT_UD => sends || opcode == IBV_WR_TSO,
        IBV_QPT_RAW_PACKET => opcode == IBV_WR_SEND || opcode == IBV_WR_TSO,
        IBV_QPT_XRC_RECV => false,
        IBV_QPT_RC | IBV_QPT_XRC_SEND => opcode != IBV_WR_TSO,
        _ => true,
    }
}

struct Say<'a> {
    qp: &'a Qp,
    call: &'static str,
    wr_id: u64,
}

impl Say<'_> {
    #[cold]
    fn say(&self, id: Id, text: String, remedy: &str) {
        self.also(id, text, remedy, None);
    }

    #[cold]
    fn also(&self, id: Id, text: String, remedy: &str, also: Option<(&str, stack::Stack)>) {
        let object = format!("{} wr_id {:#x}", self.qp.name(), self.wr_id);
        tell(
            &Message { id, call: self.call, object, text, remedy: remedy.into(), also },
            Some(self.qp),
        );
    }
}

/// QP-01 for a send.
#[inline]
pub(crate) fn check_send_state(qp: &Qp, call: &'static str, wr_id: u64) {
    let state = qp.state();
    if state <= IBV_QPS_RTR && qp.kind != IBV_QPT_DRIVER {
        Say { qp, call, wr_id }.say(
            Id::Qp01,
            format!(
                "the QP is in {}, requests can be posted from RTS on",
                transitions::name(state)
            ),
            "ibv_modify_qp to RTS first",
        );
    }
}

/// Whether it sends bytes of its poster.
pub(crate) fn reads_memory(opcode: u32) -> bool {
    matches!(
        opcode,
        IBV_WR_SEND
            | IBV_WR_SEND_WITH_IMM
            | IBV_WR_SEND_WITH_INV
            | IBV_WR_RDMA_WRITE
            | IBV_WR_RDMA_WRITE_WITH_IMM
    )
}

/// All checks of one send request.
pub(crate) fn check_send(qp: &Qp, call: &'static str, queue: &mut Queue, send: &Send<'_>) {
    let say = Say { qp, call, wr_id: send.wr_id };
    let Send { opcode, .. } = *send;
    if qp.kind == IBV_QPT_DRIVER {
        return;
    }
    if !possible(qp.kind, opcode) {
        let kind = transitions::kind_name(qp.kind);
        say.say(
            Id::Qp12,
            format!("{} is not possible on a QP of type {kind}", opcode_name(opcode)),
            "READ and atomics need RC or XRC_SEND, WRITE these or UC, UD can SEND",
        );
    }
    if matches!(
        opcode,
        IBV_WR_LOCAL_INV | IBV_WR_BIND_MW | IBV_WR_FLUSH | IBV_WR_ATOMIC_WRITE | IBV_WR_TSO
    ) {
        return;
    }
    let atomic = matches!(opcode, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD);
    let reads = atomic || opcode == IBV_WR_RDMA_READ;
    let flags = SendFlags::from_bits_retain(send.flags);
    let known = SendFlags::FENCE
        | SendFlags::SIGNALED
        | SendFlags::SOLICITED
        | SendFlags::INLINE
        | SendFlags::IP_CSUM;
    let unknown = flags.bits() & !known.bits();
    if unknown != 0 {
        say.say(
            Id::Wr12,
            format!("send_flags {:#x} has unknown bits {unknown:#x}", send.flags),
            "is the ibv_send_wr initialised? memset it to 0",
        );
    } else if reads && flags.contains(SendFlags::SOLICITED) {
        say.say(
            Id::Wr12,
            format!("IBV_SEND_SOLICITED has no effect on {}", opcode_name(opcode)),
            "it is for messages that complete a receive",
        );
    }
    if send.count < 0
        || send.count > i64::from(qp.cap.max_send_sge)
        || (send.count > 0 && send.sges.is_none())
    {
        let text = if send.sges.is_none() && send.count > 0 {
            format!("num_sge is {} and sg_list is NULL", send.count)
        } else {
            format!("num_sge {}, the QP was made for {}", send.count, qp.cap.max_send_sge)
        };
        say.say(Id::Wr01, text, "raise cap.max_send_sge, or use fewer elements");
        return;
    }
    let sges = send.sges.unwrap_or(&[]);
    let inline = flags.contains(SendFlags::INLINE) || send.inline.is_some();
    let bytes = send.inline.unwrap_or_else(|| sges.iter().map(|sge| u64::from(sge.length)).sum());
    if inline && reads {
        say.say(
            Id::Wr02,
            format!("{} cannot be inline", opcode_name(opcode)),
            "drop IBV_SEND_INLINE",
        );
    } else if inline && bytes > u64::from(qp.cap.max_inline_data) {
        say.say(
            Id::Wr02,
            format!("{bytes} bytes inline, the QP was made for {}", qp.cap.max_inline_data),
            "drop IBV_SEND_INLINE for longer ones, or raise cap.max_inline_data",
        );
    }
    if atomic {
        if send.remote & 7 != 0 {
            say.say(
                Id::Wr07,
                format!("remote address {:#x} is not a multiple of 8", send.remote),
                "atomics work on aligned 8 bytes",
            );
        }
        if bytes != 8 {
            say.say(
                Id::Wr07,
                format!("the local buffer has {bytes} bytes"),
                "an atomic returns 8 bytes: give it a buffer of 8",
            );
        }
    }
    if reads && qp.max_rd_atomic.load(Ordering::Relaxed) == 0 {
        say.say(
            Id::Qp08,
            format!("{} can never be sent: max_rd_atomic is 0", opcode_name(opcode)),
            "set max_rd_atomic when the QP goes to RTS",
        );
    }
    if qp.kind == IBV_QPT_UD {
        check_datagram(&say, send, bytes);
    } else {
        let port = qp.ctx.ports.first().map_or(u64::MAX, |port| u64::from(port.max_msg_sz));
        let most = qp.ctx.ports.iter().map(|port| u64::from(port.max_msg_sz)).max().unwrap_or(port);
        if bytes > most.min(1 << 31) && most != 0 {
            say.say(
                Id::Wr17,
                format!(
                    "a message of {bytes} bytes is longer than {}, what the port can",
                    most.min(1 << 31)
                ),
                "send it in parts",
            );
        }
    }
    if !inline {
        let written =
            reads.then_some(if atomic { "the atomic's result" } else { "what the READ brings" });
        let object = || format!("{} wr_id {:#x}", qp.name(), send.wr_id);
        let what = Use { call, object: &object, qp: Some(qp), pd: qp.root, written };
        for (index, sge) in sges.iter().enumerate() {
            check_sge(&qp.ctx, &mut queue.cache, index, sge, &what);
        }
    }
}

/// WR-08.
fn check_datagram(say: &Say<'_>, send: &Send<'_>, bytes: u64) {
    let qp = say.qp;
    match AHS.get(send.ah) {
        Some(ah) if ah.pd == qp.pd || crate::objects::root_of(ah.pd) == qp.root => {}
        Some(ah) => say.say(
            Id::Wr08,
            format!("ah {:#x} is of PD {:#x}, the QP is in PD {:#x}", ah.at, ah.pd, qp.pd),
            "make the address handle in the QP's PD",
        ),
        None if send.ah == 0 => {
            say.say(Id::Wr08, "wr.ud.ah is NULL".into(), "a datagram needs an address handle")
        }
        None => {
            if let Some(stack) = where_gone("ah", send.ah) {
                let also = Some(("it was destroyed", stack));
                say.also(
                    Id::Wr08,
                    format!("ah {:#x} was destroyed", send.ah),
                    "keep it until the send completed",
                    also,
                );
            }
        }
    }
    let mtu = u64::from(qp.mtu.load(Ordering::Relaxed));
    if mtu != 0 && bytes > mtu {
        say.say(
            Id::Wr08,
            format!("a datagram of {bytes} bytes is longer than the MTU, {mtu}"),
            "a datagram is one packet: send less, or use RC",
        );
    }
}

/// Puts a request among those in flight.
#[inline]
pub(crate) fn push(qp: &Qp, call: &'static str, queue: &mut Queue, send: &Send<'_>, site: Site) {
    let due = qp.sig_all || send.flags & SendFlags::SIGNALED.bits() != 0;
    let inline = send.inline.is_some() || send.flags & SendFlags::INLINE.bits() != 0;
    let mut flight = flight_of(send, due, site);
    if inline {
        // The buffer is the program's again.
        flight.count = 0;
    }
    if queue.flights.len() >= queue.most {
        // More than there can be: whatever it is that completes them, we do not see it.
        if let Some(flight) = queue.flights.pop_front() {
            overlap::over(queue, &flight);
        }
        qp.failed.store(true, Ordering::Relaxed);
    }
    queue.flights.push_back(flight);
    crate::digest::posted(qp, send, site);
    overlap::sends(qp, call, queue, send, inline, site);
    if due {
        (queue.unsignaled, queue.due) = (0, queue.due + 1);
        if let Some(cq) = &qp.send_cq
            && queue.due > cq.cqe.load(Ordering::Relaxed)
            && !qp.failed.load(Ordering::Relaxed)
        {
            crate::cq::too_many(qp, call, send.wr_id, queue.due);
        }
    } else {
        queue.unsignaled += 1;
        if queue.unsignaled == qp.cap.max_send_wr && qp.kind != IBV_QPT_DRIVER {
            Say { qp, call, wr_id: send.wr_id }.say(
                Id::Wr04,
                format!("all {} entries of the send queue hold unsignaled requests", qp.cap.max_send_wr),
                "set IBV_SEND_SIGNALED on every n-th, n below max_send_wr: only its completion frees them",
            );
        }
    }
}

fn flight_of(send: &Send<'_>, due: bool, site: Site) -> Flight {
    let sges = send.sges.unwrap_or(&[]);
    let (mut keys, mut count) = ([0; KEYS], 0);
    // Of an element without bytes nobody looks at the key.
    for (key, sge) in keys.iter_mut().zip(sges.iter().filter(|sge| sge.length != 0)) {
        (*key, count) = (sge.lkey, count + 1);
    }
    Flight {
        wr_id: send.wr_id,
        site,
        remote: send.remote,
        ah: send.ah,
        keys,
        rkey: send.rkey,
        bytes: sges.iter().fold(0, |sum: u32, sge| sum.saturating_add(sge.length)),
        opcode: send.opcode as u8,
        count,
        due,
    }
}

/// Takes back what was put there and was not posted after all. Other threads may have put theirs behind it.
pub(crate) fn take_back(queue: &mut Queue, ids: &[u64]) {
    for id in ids.iter().rev() {
        let place = queue.flights.iter().rposition(|flight| flight.wr_id == *id);
        if let Some(flight) = place.and_then(|place| queue.flights.remove(place)) {
            overlap::over(queue, &flight);
            if flight.due {
                queue.due = queue.due.saturating_sub(1);
            } else {
                queue.unsignaled = queue.unsignaled.saturating_sub(1);
            }
        }
    }
}

/// The request as the program wrote it.
///
/// # Safety
/// `wr` is live, and its list is as long as it says.
unsafe fn read<'a>(qp: &Qp, wr: &'a ibv_send_wr) -> Send<'a> {
    let count = wr.num_sge;
    let sges = (!wr.sg_list.is_null() && count >= 0).then(|| {
        // More than the QP takes is not looked at.
        let most = (count as usize).min(qp.cap.max_send_sge as usize);
        // SAFETY: the program's list.
        unsafe { core::slice::from_raw_parts(wr.sg_list, most) }
    });
    // SAFETY: all views have only integers.
    let (remote, rkey) = unsafe {
        match wr.opcode {
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                (wr.wr.atomic.remote_addr, wr.wr.atomic.rkey)
            }
            IBV_WR_SEND_WITH_INV => (0, wr.imm.invalidate_rkey),
            // What is there was left by another request, or by nobody.
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => (0, 0),
            _ => (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey),
        }
    };
    // SAFETY: a request on a UD queue pair has this member of the union; for any other it is not read.
    let ah = if qp.kind == IBV_QPT_UD { unsafe { wr.wr.ud.ah as usize } } else { 0 };
    Send {
        wr_id: wr.wr_id,
        opcode: wr.opcode,
        flags: wr.send_flags,
        sges,
        count: count.into(),
        inline: None,
        remote,
        rkey,
        ah,
    }
}

/// WR-11: follows a list that is suspiciously long; whether it comes back to where it was.
///
/// # Safety
/// `first` starts a list of live requests, or a ring of them.
unsafe fn is_ring<T>(first: *mut T, next: impl Fn(*mut T) -> *mut T) -> bool {
    // Brent: the tortoise jumps to the hare at powers of two.
    let (mut tortoise, mut hare, mut power, mut length) = (first, next(first), 1_u64, 1_u64);
    while !hare.is_null() && hare != tortoise {
        if power == length {
            (tortoise, power, length) = (hare, power * 2, 0);
        }
        hare = next(hare);
        length += 1;
    }
    !hare.is_null()
}

#[cold]
fn ring(call: &'static str, qp: Option<&Qp>, object: String) {
    if let Some(qp) = qp {
        // Nobody knows how many of them the provider will take.
        qp.failed.store(true, Ordering::Relaxed);
    }
    let message = Message {
        id: Id::Wr11,
        call,
        object,
        text: "the list of requests returns to where it was".into(),
        remedy: "set next = NULL on the last one".into(),
        also: None,
    };
    tell(&message, qp);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ferroverbs_validate_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
    caller: *mut c_void,
    frame: *mut c_void,
) -> c_int {
    const CALL: &str = "ibv_post_send";
    let Some(known) = QPS.get(qp as usize) else {
        // SAFETY: the caller's QP is live.
        let Some(ctx) = context(unsafe { (*qp).context }) else { return libc::EINVAL };
        // SAFETY: the caller's arguments, passed on.
        return unsafe { beneath!(ctx, post_send)(qp, wr, bad) };
    };
    let site = stack::site(caller as usize, frame as usize);
    let _user = known.single.then(|| crate::cq::enter(&known.user, CALL, known.name()));
    let mut count = 0;
    {
        let mut queue = known.send.lock();
        let mut at = wr;
        // SAFETY: the program's list of live requests.
        while let Some(this) = unsafe { at.as_ref() } {
            count += 1;
            // SAFETY: the requests of the program's list are live for the whole call.
            if count == LONG && unsafe { is_ring(wr, |wr| (*wr).next) } {
                ring(CALL, Some(known), known.name());
                break;
            }
            // SAFETY: live, per the caller.
            let send = unsafe { read(known, this) };
            if count == 1 {
                check_send_state(known, CALL, send.wr_id);
                again::begins(known, CALL, &mut queue, &send);
            }
            check_send(known, CALL, &mut queue, &send);
            push(known, CALL, &mut queue, &send, site);
            at = this.next;
        }
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(known.ctx, post_send)(qp, wr, bad) };
    if result != 0 {
        // SAFETY: `bad` was filled; the list is as it was.
        let ids = unsafe { refused(wr, *bad, count, |wr| (*wr).next, |wr| (*wr).wr_id) };
        not_posted(known, CALL, result, &ids);
        // SAFETY: NULL, or the first of the program's list.
        if let Some(first) = unsafe { wr.as_ref() } {
            // SAFETY: live, per the caller.
            let first = unsafe { read(known, first) };
            again::refused(&mut known.send.lock(), &first, &ids, count, result, site);
        }
    }
    result
}

/// The ids of those requests of a list that were not posted: from `bad` on.
///
/// # Safety
/// A live list, of `count` at least, and `bad` is in it.
unsafe fn refused<T>(
    first: *mut T,
    bad: *mut T,
    count: usize,
    next: impl Fn(*mut T) -> *mut T,
    id: impl Fn(*mut T) -> u64,
) -> Vec<u64> {
    let mut at = first;
    let mut ids = Vec::new();
    let mut is_refused = false;
    for _ in 0..count {
        if at.is_null() {
            break;
        }
        is_refused |= at == bad;
        if is_refused {
            ids.push(id(at));
        }
        at = next(at);
    }
    ids
}

/// WR-03, and the rest of a list that was refused.
#[cold]
pub(crate) fn not_posted(qp: &Qp, call: &'static str, error: c_int, ids: &[u64]) {
    let mut queue = qp.send.lock();
    let wr_id = ids.first().copied().unwrap_or(0);
    take_back(&mut queue, ids);
    crate::digest::take_back(qp, ids);
    let (all, due) = (queue.flights.len(), queue.due);
    drop(queue);
    if error != libc::ENOMEM || all < qp.cap.max_send_wr as usize {
        return;
    }
    let (why, remedy) = if due == 0 {
        (
            "none of them signaled",
            "set IBV_SEND_SIGNALED on every n-th request and poll its completion",
        )
    } else {
        (
            "their completions not polled",
            "poll the send CQ before posting more, or raise cap.max_send_wr",
        )
    };
    Say { qp, call, wr_id }.say(
        Id::Wr03,
        format!("the send queue is full: {all} requests outstanding ({due} signaled), {why}"),
        remedy,
    );
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ferroverbs_validate_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    caller: *mut c_void,
    frame: *mut c_void,
) -> c_int {
    const CALL: &str = "ibv_post_recv";
    let Some(known) = QPS.get(qp as usize) else {
        // SAFETY: the caller's QP is live.
        let Some(ctx) = context(unsafe { (*qp).context }) else { return libc::EINVAL };
        // SAFETY: the caller's arguments, passed on.
        return unsafe { beneath!(ctx, post_recv)(qp, wr, bad) };
    };
    let site = stack::site(caller as usize, frame as usize);
    // SAFETY: the caller's list.
    let wr_id = unsafe { wr.as_ref() }.map_or(0, |wr| wr.wr_id);
    let say = Say { qp: known, call: CALL, wr_id };
    if let Some(srq) = &known.srq {
        say.say(Id::Ob05, format!("the QP receives from srq {:#x}", srq.at), "ibv_post_srq_recv");
    } else if known.is_reset() && known.kind != IBV_QPT_DRIVER {
        say.say(
            Id::Qp01,
            "the QP is in RESET, receives can be posted from INIT on".into(),
            "ibv_modify_qp to INIT first",
        );
    }
    let mut count = 0;
    // What goes to the wrong queue is not looked at any closer.
    if known.srq.is_none() {
        let mut queue = known.recv.lock();
        let mut at = wr;
        // SAFETY: the program's list of live requests.
        while let Some(this) = unsafe { at.as_ref() } {
            count += 1;
            // SAFETY: the requests of the program's list are live for the whole call.
            if count == LONG && unsafe { is_ring(wr, |wr| (*wr).next) } {
                ring(CALL, Some(known), known.name());
                break;
            }
            let object = || format!("{} wr_id {:#x}", known.name(), this.wr_id);
            let what = Use {
                call: CALL,
                object: &object,
                qp: Some(known),
                pd: known.root,
                written: Some("what arrives"),
            };
            // SAFETY: live, per the caller.
            let sges = unsafe { receive(this, known.cap.max_recv_sge, &what) };
            for (index, sge) in sges.iter().enumerate() {
                check_sge(&known.ctx, &mut queue.cache, index, sge, &what);
            }
            if known.kind == IBV_QPT_UD {
                let bytes = sges.iter().map(|sge| u64::from(sge.length)).sum();
                crate::advice::datagram(CALL, known, this.wr_id, bytes);
            }
            if queue.flights.len() >= queue.most {
                if let Some(flight) = queue.flights.pop_front() {
                    overlap::over(&mut queue, &flight);
                }
                known.failed.store(true, Ordering::Relaxed);
            }
            let send = as_send(this.wr_id, sges);
            if count == 1 {
                again::begins(known, CALL, &mut queue, &send);
            }
            let flight = flight_of(&send, true, site);
            queue.flights.push_back(flight);
            overlap::receives(known, CALL, &mut queue, this.wr_id, sges, site);
            at = this.next;
        }
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(known.ctx, post_recv)(qp, wr, bad) };
    if result != 0 {
        // SAFETY: `bad` was filled; the list is as it was.
        let ids = unsafe { refused(wr, *bad, count, |wr| (*wr).next, |wr| (*wr).wr_id) };
        let mut queue = known.recv.lock();
        take_back(&mut queue, &ids);
        // SAFETY: NULL, or the first of the program's list.
        if let Some(first) = unsafe { wr.as_ref() } {
            let most = known.cap.max_recv_sge;
            // SAFETY: live, per the caller.
            let sges = unsafe { elements(first, most) };
            let first = as_send(first.wr_id, sges.unwrap_or(&[]));
            again::refused(&mut queue, &first, &ids, count, result, site);
        }
        let all = queue.flights.len();
        drop(queue);
        if result == libc::ENOMEM && all >= known.cap.max_recv_wr as usize {
            say.say(
                Id::Wr05,
                format!("the receive queue is full: all {all} receives are posted"),
                "poll the receive CQ before posting more, or raise cap.max_recv_wr",
            );
        }
    }
    result
}

/// WR-01 for a receive; its elements, as far as they may be looked at.
///
/// # Safety
/// `wr` is live, and its list is as long as it says.
unsafe fn receive<'a>(wr: &'a ibv_recv_wr, most: u32, what: &Use<'_>) -> &'a [ibv_sge] {
    // SAFETY: per the caller.
    unsafe { elements(wr, most) }.unwrap_or_else(|| {
        let text = format!(
            "num_sge {} (sg_list {:#x}), the queue was made for {most}",
            wr.num_sge, wr.sg_list as usize
        );
        let remedy = "raise max_recv_sge (max_sge of an SRQ), or use fewer elements".into();
        tell(
            &Message {
                id: Id::Wr01,
                call: what.call,
                object: (what.object)(),
                text,
                remedy,
                also: None,
            },
            what.qp,
        );
        &[]
    })
}

/// The elements of a receive; `None` if there are more than the queue takes, or no list of them.
///
/// # Safety
/// `wr` is live, and its list is as long as it says.
unsafe fn elements(wr: &ibv_recv_wr, most: u32) -> Option<&[ibv_sge]> {
    let count = usize::try_from(wr.num_sge).ok()?;
    match count {
        0 => Some(&[]),
        _ if count > most as usize || wr.sg_list.is_null() => None,
        // SAFETY: the program's list.
        _ => Some(unsafe { core::slice::from_raw_parts(wr.sg_list, count) }),
    }
}

/// A receive among requests.
fn as_send(wr_id: u64, sges: &[ibv_sge]) -> Send<'_> {
    Send {
        wr_id,
        opcode: RECEIVE,
        flags: 0,
        sges: Some(sges),
        count: 0,
        inline: None,
        remote: 0,
        rkey: 0,
        ah: 0,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ferroverbs_validate_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    _caller: *mut c_void,
    _frame: *mut c_void,
) -> c_int {
    const CALL: &str = "ibv_post_srq_recv";
    let Some(known) = SRQS.get(srq as usize) else {
        // SAFETY: the caller's SRQ is live.
        let Some(ctx) = context(unsafe { (*srq).context }) else { return libc::EINVAL };
        // SAFETY: the caller's arguments, passed on.
        return unsafe { beneath!(ctx, post_srq_recv)(srq, wr, bad) };
    };
    let mut count = 0;
    {
        let mut cache = known.cache.lock();
        let mut at = wr;
        // SAFETY: the program's list of live requests.
        while let Some(this) = unsafe { at.as_ref() } {
            count += 1;
            // SAFETY: the requests of the program's list are live for the whole call.
            if count == LONG && unsafe { is_ring(wr, |wr| (*wr).next) } {
                ring(CALL, None, format!("srq {:#x}", known.at));
                break;
            }
            let object = || format!("srq {:#x} wr_id {:#x}", known.at, this.wr_id);
            let pd = crate::objects::root_of(known.pd);
            let what =
                Use { call: CALL, object: &object, qp: None, pd, written: Some("what arrives") };
            // SAFETY: live, per the caller.
            let sges = unsafe { receive(this, known.max_sge, &what) };
            for (index, sge) in sges.iter().enumerate() {
                check_sge(&known.ctx, &mut cache, index, sge, &what);
            }
            if known.basic {
                overlap::shared_receives(&known.ctx, &mut cache, CALL, known.at, this.wr_id, sges);
            }
            at = this.next;
        }
    }
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { beneath!(known.ctx, post_srq_recv)(srq, wr, bad) };
    if result == 0 {
        known.posted.fetch_add(count as u64, Ordering::Relaxed);
    } else {
        // SAFETY: `bad` was filled; the list is as it was.
        let ids = unsafe { refused(wr, *bad, count, |wr| (*wr).next, |wr| (*wr).wr_id) };
        ids.iter().for_each(|id| overlap::shared_over(known.at, *id));
        let posted = (count - ids.len()) as u64;
        let all = known.posted.fetch_add(posted, Ordering::Relaxed) + posted;
        let there = all.saturating_sub(known.taken.load(Ordering::Relaxed));
        if result == libc::ENOMEM && there >= u64::from(known.max_wr.load(Ordering::Relaxed)) {
            let message = Message {
                id: Id::Wr05,
                call: CALL,
                object: format!("srq {:#x}", known.at),
                text: format!("the shared receive queue is full: {there} receives are posted"),
                remedy: "poll the receive CQs before posting more, or raise max_wr".into(),
                also: None,
            };
            tell(&message, None);
        }
    }
    result
}

/// A bind takes a place in the send queue.
pub(crate) fn bind_starts(qp: *mut ibv_qp, bind: &ibv_mw_bind) {
    let Some(known) = QPS.get(qp as usize) else { return };
    let send = Send {
        wr_id: bind.wr_id,
        opcode: IBV_WR_BIND_MW,
        flags: bind.send_flags,
        sges: None,
        count: 0,
        inline: None,
        remote: 0,
        rkey: 0,
        ah: 0,
    };
    let mut queue = known.send.lock();
    push(known, "ibv_bind_mw", &mut queue, &send, 0);
}

/// It was refused.
pub(crate) fn bind_failed(qp: *mut ibv_qp, wr_id: u64) {
    if let Some(known) = QPS.get(qp as usize) {
        take_back(&mut known.send.lock(), &[wr_id]);
    }
}

/// WR-09.
pub(crate) fn check_ah_in_flight(ctx: &Ctx, ah: usize) {
    for qp in QPS.all().iter().filter(|qp| qp.kind == IBV_QPT_UD && qp.ctx.at == ctx.at) {
        if qp.failed.load(Ordering::Relaxed) || (IBV_QPS_RESET..=IBV_QPS_INIT).contains(&qp.state())
        {
            continue;
        }
        let uses = |flight: &&Flight| flight.due && flight.ah == ah;
        let first = qp.send.lock().flights.iter().find(uses).copied();
        let Some(first) = first else { continue };
        let message = Message {
            id: Id::Wr09,
            call: "ibv_destroy_ah",
            object: format!("ah {ah:#x}"),
            text: format!(
                "a send of {} with wr_id {:#x} uses it and has not completed",
                qp.name(),
                first.wr_id
            ),
            remedy: "poll the send's completion first".into(),
            also: stack::of(first.site).map(|stack| ("which was posted", stack)),
        };
        tell(&message, Some(qp));
    }
}
