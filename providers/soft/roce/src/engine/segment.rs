//! Segmentation of a message into packets (IBTA 1.7 9.3.4, 9.4): headers and byte ranges.
//!
//! The requester and the unreliable sender call [`Work::segment`] for each packet.

use super::{Op, Pmtu, Work};
use crate::wire::{Atomic, Request, Reth, Send, Tail, Write};

/// One packet of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) request: Request,
    /// Offset of the packet's bytes in the message.
    pub(super) offset: u32,
    /// Number of the packet's bytes; 0: the packet has only headers.
    pub(super) len: u32,
    /// Whether the packet ends the message.
    pub(super) last: bool,
}

impl Work {
    /// Number of packets of the message, or of PSNs of its response.
    pub(super) const fn packets(&self, pmtu: Pmtu) -> u32 {
        match self.op {
            Op::Send(_) | Op::Write { .. } | Op::Read { .. } => pmtu.packets(self.len),
            Op::Atomic { .. } | Op::Flush { .. } | Op::AtomicWrite { .. } | Op::Datagram { .. } => {
                1
            }
            Op::Local => 0,
        }
    }

    /// Whether the response carries a result. Then later responses cannot acknowledge the request,
    /// and it takes one of the responder's resources.
    pub(super) const fn wants_answer(&self) -> bool {
        matches!(
            self.op,
            Op::Read { .. } | Op::Atomic { .. } | Op::Flush { .. } | Op::AtomicWrite { .. }
        )
    }

    /// Whether the request consumes a receive.
    pub(super) const fn takes_receive(&self) -> bool {
        matches!(self.op, Op::Send(_) | Op::Write { immediate: Some(_), .. })
    }

    /// Packet `index` of a SEND or WRITE, or `count` response packets of a READ from `index`, or
    /// the single packet of another operation; `None`: no request of a connection.
    pub(super) fn segment(&self, pmtu: Pmtu, index: u32, count: u32) -> Option<Segment> {
        let total = self.packets(pmtu);
        let offset = index.checked_mul(pmtu.bytes())?;
        let rest = self.len.checked_sub(offset)?;
        let (first, last) = (index == 0, index + count >= total);
        let bytes = rest.min(pmtu.bytes());
        let segment = |request, len| Segment { request, offset, len, last };
        Some(match self.op {
            Op::Send(tail) => segment(Request::Send(send(first, last, tail)), bytes),
            Op::Write { va, rkey, immediate } => {
                let reth = Reth { va, rkey, len: self.len };
                let write = match (first, last) {
                    (true, true) => Write::Only(reth, immediate),
                    (true, false) => Write::First(reth),
                    (false, true) => Write::Last(immediate),
                    (false, false) => Write::Middle,
                };
                segment(Request::Write(write), bytes)
            }
            Op::Read { va, rkey } => {
                let len = rest.min(count.saturating_mul(pmtu.bytes()));
                let reth = Reth { va: va.wrapping_add(u64::from(offset)), rkey, len };
                segment(Request::Read(reth), 0)
            }
            Op::Atomic { va, rkey, op } => segment(Request::Atomic(Atomic { va, rkey, op }), 0),
            Op::Flush { va, rkey, flush_scope: how } => {
                segment(Request::Flush(how, Reth { va, rkey, len: self.len }), 0)
            }
            Op::AtomicWrite { va, rkey } => {
                segment(Request::AtomicWrite(Reth { va, rkey, len: 8 }), 8)
            }
            Op::Datagram { .. } | Op::Local => return None,
        })
    }
}

fn send(first: bool, last: bool, tail: Tail) -> Send<Tail> {
    match (first, last) {
        (true, true) => Send::Only(tail),
        (true, false) => Send::First,
        (false, true) => Send::Last(tail),
        (false, false) => Send::Middle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBTA 1.7 9.3.4, 9.4.
    #[test]
    fn a_send_is_cut_at_the_path_mtu() {
        let work = Work::new(1, Op::Send(Tail::Plain), 600);
        let segment = |index| work.segment(Pmtu::B256, index, 1).expect("a part");
        assert_eq!(work.packets(Pmtu::B256), 3);
        let expected =
            [(0, 256, Send::First), (256, 256, Send::Middle), (512, 88, Send::Last(Tail::Plain))];
        for (index, (offset, len, send)) in (0..).zip(expected) {
            let last = index == 2;
            assert_eq!(segment(index), Segment { request: Request::Send(send), offset, len, last });
        }
    }

    #[test]
    fn the_rest_of_a_read_begins_where_its_packets_do() {
        let work = Work::new(1, Op::Read { va: 0x1000, rkey: 7 }, 600);
        let segment = work.segment(Pmtu::B256, 1, 2).expect("a part");
        let reth = Reth { va: 0x1100, rkey: 7, len: 344 };
        assert_eq!(segment.request, Request::Read(reth));
        let segment = work.segment(Pmtu::B256, 0, 2).expect("a part");
        assert_eq!(segment.request, Request::Read(Reth { va: 0x1000, rkey: 7, len: 512 }));
        assert!(!segment.last);
    }

    /// IBTA 1.7 9.4.
    #[test]
    fn an_empty_write_is_one_packet_with_its_header() {
        let write = Op::Write { va: 1, rkey: 2, immediate: None };
        let segment = Work::new(1, write, 0).segment(Pmtu::B256, 0, 1).expect("one");
        let reth = Reth { va: 1, rkey: 2, len: 0 };
        assert_eq!(segment.request, Request::Write(Write::Only(reth, None)));
        assert!(segment.last && segment.len == 0);
    }
}
