//! The packets of a request (IBTA 1.7 9.3, 9.4). Pure functions, used for requests and for
//! completions.

use abi::{
    IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND, IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE, IBV_WR_FLUSH, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
    IBV_WR_SEND_WITH_INV,
};
use layer_tap::Post;
use roce::wire::{
    Atomic, AtomicOp, Deth, Immediate, Message, Number, OneWay, Qpn, Request, Reth, Send, Tail,
    Write,
};

use crate::settings::Class;

/// The kind of operation of a request.
pub(crate) fn class(opcode: u32) -> Class {
    match opcode {
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV => Class::Send,
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_ATOMIC_WRITE => Class::Write,
        IBV_WR_RDMA_READ => Class::Read,
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => Class::Atomic,
        _ => Class::Other,
    }
}

/// The kind of operation of a packet, by the low bits of its opcode. `None` for an
/// acknowledgement.
pub(crate) fn class_of_packet(opcode: u8) -> Option<Class> {
    match (opcode & 0xe0, opcode & 0x1f) {
        (0x80 | 0xc0 | 0xe0, _) => Some(Class::Other),
        (_, 0x00..=0x05 | 0x16 | 0x17) => Some(Class::Send),
        (_, 0x06..=0x0b | 0x1d) => Some(Class::Write),
        (_, 0x0c..=0x10) => Some(Class::Read),
        (_, 0x12..=0x14) => Some(Class::Atomic),
        (_, 0x11) => None,
        _ => Some(Class::Other),
    }
}

/// The number of PSNs that a request of `bytes` uses.
pub(crate) fn psns(opcode: u32, bytes: u64, mtu: u32) -> u32 {
    let packets = bytes.div_ceil(mtu.max(1).into()).max(1);
    match class(opcode) {
        Class::Send | Class::Read => packets as u32,
        Class::Write if opcode != IBV_WR_ATOMIC_WRITE => packets as u32,
        _ if opcode == IBV_WR_FLUSH => 1,
        Class::Write | Class::Atomic => 1,
        // The request stays within the device.
        Class::Other => 0,
    }
}

/// The number of request packets; 0 if none is synthesised.
pub(crate) fn packets(opcode: u32, bytes: u64, mtu: u32) -> u32 {
    match class(opcode) {
        Class::Read | Class::Atomic => 1,
        Class::Send => psns(opcode, bytes, mtu),
        Class::Write if opcode != IBV_WR_ATOMIC_WRITE => psns(opcode, bytes, mtu),
        _ => 0,
    }
}

/// Whether request packets carry the bytes.
pub(crate) fn has_payload(opcode: u32) -> bool {
    matches!(class(opcode), Class::Send | Class::Write)
}

/// Packet `index` of `count` of a request, for a QP with this type and number.
pub(crate) fn message(
    post: &Post,
    kind: u32,
    number: u32,
    qkey: u32,
    index: u32,
    count: u32,
) -> Option<Message> {
    let (is_first, is_last) = (index == 0, index + 1 == count);
    let immediate = || Immediate::new(post.imm.to_be_bytes());
    let reth = Reth { va: post.remote, rkey: post.rkey, len: post.bytes as u32 };
    let request = match post.opcode {
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV => {
            let tail = match post.opcode {
                IBV_WR_SEND_WITH_IMM => Tail::Immediate(immediate()),
                IBV_WR_SEND_WITH_INV => Tail::Invalidate(post.rkey),
                _ => Tail::Plain,
            };
            if kind == IBV_QPT_UD {
                let own = post.opcode == IBV_WR_SEND_WITH_IMM;
                // IBTA 1.7 10.2.5: with the highest bit set, the QP's own Q_Key is sent.
                let qkey = if post.qkey >> 31 != 0 { qkey } else { post.qkey };
                let deth = Deth { qkey, src_qpn: Qpn::new(number) };
                return Some(Message::Ud(deth, own.then(immediate)));
            }
            Request::Send(part(is_first, is_last, tail))
        }
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => {
            let immediate = (post.opcode == IBV_WR_RDMA_WRITE_WITH_IMM).then(immediate);
            Request::Write(match (is_first, is_last) {
                (true, true) => Write::Only(reth, immediate),
                (true, false) => Write::First(reth),
                (false, true) => Write::Last(immediate),
                (false, false) => Write::Middle,
            })
        }
        IBV_WR_RDMA_READ => Request::Read(reth),
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            let (first, swap) = post.atomic;
            let op = match post.opcode {
                IBV_WR_ATOMIC_CMP_AND_SWP => AtomicOp::CompareSwap { compare: first, swap },
                _ => AtomicOp::FetchAdd { add: first },
            };
            Request::Atomic(Atomic { va: post.remote, rkey: post.rkey, op })
        }
        _ => return None,
    };
    match kind {
        IBV_QPT_UC => OneWay::try_from(request).ok().map(Message::Uc),
        IBV_QPT_XRC_SEND => Some(Message::Xrc(Number::new(post.remote_srq), request)),
        _ => Some(Message::Rc(request)),
    }
}

/// The part of a SEND in one packet.
pub(crate) fn part<T>(is_first: bool, is_last: bool, tail: T) -> Send<T> {
    match (is_first, is_last) {
        (true, true) => Send::Only(tail),
        (true, false) => Send::First,
        (false, true) => Send::Last(tail),
        (false, false) => Send::Middle,
    }
}

/// The packets that are written out of `count`: the first ones, and the last.
pub(crate) fn picks(count: u32, most: usize) -> impl Iterator<Item = u32> {
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let first = if count > most { most - 1 } else { count };
    (0..first).chain((first < count).then(|| count - 1))
}

/// Offset and length of packet `index` in a message of `bytes`.
pub(crate) fn piece(index: u32, bytes: u64, mtu: u32) -> (usize, usize) {
    let offset = u64::from(index) * u64::from(mtu);
    (offset as usize, bytes.saturating_sub(offset).min(mtu.into()) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_packets_and_the_last_are_written() {
        let of = |count, most| picks(count, most).collect::<Vec<_>>();
        assert_eq!(of(3, 16), [0, 1, 2]);
        assert_eq!(of(10, 3), [0, 1, 9]);
        assert_eq!(of(10, 1), [9]);
        assert_eq!(of(1, 1), [0]);
        assert_eq!(of(0, 4), [] as [u32; 0]);
    }

    /// IBTA 1.7 9.4.
    #[test]
    fn requests_take_the_numbers_that_the_specification_says() {
        assert_eq!(psns(IBV_WR_SEND, 0, 1024), 1);
        assert_eq!(psns(IBV_WR_RDMA_WRITE, 1025, 1024), 2);
        assert_eq!(
            (psns(IBV_WR_RDMA_READ, 4096, 1024), packets(IBV_WR_RDMA_READ, 4096, 1024)),
            (4, 1)
        );
        assert_eq!(psns(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 256), 1);
        assert_eq!(psns(IBV_WR_FLUSH, 8, 256), 1);
        assert_eq!(psns(abi::IBV_WR_LOCAL_INV, 0, 256), 0);
        assert_eq!(piece(2, 2500, 1024), (2048, 452));
        assert_eq!(piece(0, 0, 1024), (0, 0));
    }

    #[test]
    fn packets_are_about_what_their_requests_are() {
        assert_eq!(class_of_packet(0x04), Some(Class::Send));
        assert_eq!(class_of_packet(0x2a), Some(Class::Write));
        assert_eq!(class_of_packet(0x64), Some(Class::Send));
        assert_eq!(class_of_packet(0x10), Some(Class::Read));
        assert_eq!(class_of_packet(0x11), None);
        assert_eq!(class_of_packet(0x81), Some(Class::Other));
    }
}
