//! QP-01, QP-08, QP-12, WR-01, WR-02, WR-07, WR-08, WR-12, WR-17: checks of a send request, and of
//! its memory (MR-01 to MR-04).

use core::sync::atomic::Ordering;

use abi::{
    IBV_QPS_RTR, IBV_QPT_DRIVER, IBV_QPT_RAW_PACKET, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD,
    IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_ATOMIC_WRITE, IBV_WR_BIND_MW, IBV_WR_FLUSH, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
    IBV_WR_SEND_WITH_INV, IBV_WR_TSO, SendFlags,
};

use super::request::{RequestReport, SendRequest, opcode_name};
use crate::checks::Id;
use crate::mr::{MemoryUse, check_sge};
use crate::state::{AHS, Qp, Queue, destroyed_at};
use crate::transitions;

/// Whether a QP of this type supports the operation. True for an unknown type.
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

/// QP-01: checks the state of the QP for a send.
#[inline]
pub(crate) fn check_send_state(qp: &Qp, call: &'static str, wr_id: u64) {
    let state = qp.state();
    if state <= IBV_QPS_RTR && qp.kind != IBV_QPT_DRIVER {
        RequestReport { qp, call, wr_id }.say(
            Id::Qp01,
            format!(
                "the QP is in {}, requests can be posted from RTS on",
                transitions::name(state)
            ),
            "ibv_modify_qp to RTS first",
        );
    }
}

/// Whether an operation sends bytes of its poster.
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

/// Checks one send request.
pub(crate) fn check_send(qp: &Qp, call: &'static str, queue: &mut Queue, send: &SendRequest<'_>) {
    let say = RequestReport { qp, call, wr_id: send.wr_id };
    let SendRequest { opcode, .. } = *send;
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
        let what = MemoryUse { call, object: &object, qp: Some(qp), pd: qp.root, written };
        for (index, sge) in sges.iter().enumerate() {
            check_sge(&qp.ctx, &mut queue.cache, index, sge, &what);
        }
    }
}

/// The bit of a Q_Key that selects the QP's own Q_Key (ibv_post_send(3)).
const QKEY_OWN: u32 = 1 << 31;
/// Q_Keys with the bit that programs use on purpose: the bit alone, and the key of QP 1.
const MEANT: [u32; 2] = [QKEY_OWN, 0x8001_0000];

/// WR-08: checks a datagram.
fn check_datagram(say: &RequestReport<'_>, send: &SendRequest<'_>, bytes: u64) {
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
            if let Some(stack) = destroyed_at("ah", send.ah) {
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
    if send.qkey & QKEY_OWN != 0 && !MEANT.contains(&send.qkey) {
        let own = qp.qkey.load(Ordering::Relaxed);
        if own != send.qkey {
            let text = format!(
                "remote_qkey {:#x} has its highest bit set: the Q_Key of the QP itself, {own:#x}, is sent instead",
                send.qkey
            );
            let remedy = "use Q_Keys below 0x80000000, or 0x80000000 where that of the QP is meant";
            say.say(Id::Wr08, text, remedy);
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
