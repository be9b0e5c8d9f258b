//! One completion entry: 64 bytes (`<infiniband/mlx5dv.h>`, `mlx5_cqe64` and `mlx5_err_cqe`).

use crate::Fields;
use crate::syndrome::Syndrome;

/// Bytes of an entry, without the half in front of a 128-byte entry.
pub const CQE_BYTES: usize = 64;

/// Opcodes of entries (`MLX5_CQE_*`), in the upper four bits of the last byte.
pub mod opcode {
    /// A request of a send queue succeeded.
    pub const REQUESTER: u8 = 0;
    /// A receive was taken by an RDMA WRITE with immediate data.
    pub const WRITE_IMMEDIATE: u8 = 1;
    /// A SEND arrived.
    pub const SEND: u8 = 2;
    /// A SEND with immediate data arrived.
    pub const SEND_IMMEDIATE: u8 = 3;
    /// A SEND arrived and invalidated a key.
    pub const SEND_INVALIDATE: u8 = 4;
    /// The buffer ends here; the queue goes on in the new buffer.
    pub const RESIZE: u8 = 5;
    /// A request of a send queue failed.
    pub const REQUESTER_ERROR: u8 = 13;
    /// A receive failed.
    pub const RESPONDER_ERROR: u8 = 14;
    /// No entry was ever stored here.
    pub const INVALID: u8 = 15;
}

/// The sender of a received message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Number of the sender's QP, 24 bits.
    pub qpn: u32,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Whether 40 bytes with the addresses precede the message.
    pub has_grh: bool,
    /// Source LID; 0 on Ethernet.
    pub lid: u16,
    /// Path bits of the destination LID, 7 bits.
    pub path_bits: u8,
}

/// The value that accompanies a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A SEND without a value.
    Send,
    /// A SEND with immediate data, as bytes of the message.
    SendImmediate([u8; 4]),
    /// A SEND that invalidated this rkey.
    SendInvalidate(u32),
    /// An RDMA WRITE with immediate data.
    WriteImmediate([u8; 4]),
}

/// The result that an entry reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A request of the send queue with this opcode (`segment::opcode`) succeeded.
    Sent {
        /// Opcode of the request.
        opcode: u8,
        /// Bytes that a READ or an atomic returned.
        byte_count: u32,
    },
    /// A message arrived.
    Arrived {
        /// The kind of message, and its value.
        received: Received,
        /// Bytes of the message, including 40 bytes of addresses if there are any.
        byte_count: u32,
        /// The sender.
        source: Source,
        /// Whether the sender asked for a solicited event.
        is_solicited: bool,
    },
    /// A request of the send queue failed.
    SendFailed {
        /// Opcode of the request.
        opcode: u8,
        /// The kind of error.
        syndrome: Syndrome,
        /// The origin of the error.
        vendor_err: u8,
    },
    /// A receive failed.
    ReceiveFailed {
        /// The kind of error.
        syndrome: Syndrome,
        /// The origin of the error.
        vendor_err: u8,
    },
    /// The queue goes on in another buffer.
    Resized,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The result.
    pub outcome: Outcome,
    /// Number of the QP, 24 bits.
    pub qpn: u32,
    /// User index of the QP, or of the SRQ of an XRC receive, 24 bits. With entries of version 0:
    /// number of the SRQ, or zero.
    pub user_index: u32,
    /// Send queue: index of the request's first block. Receive queue: counter of the receive. SRQ:
    /// number of the entry.
    pub counter: u16,
    /// Time by the clock of the device.
    pub timestamp: u64,
}

impl Completion {
    /// Whether the completion raises an event of a queue that is armed for solicited completions
    /// (ibv_req_notify_cq(3): failed ones count).
    #[must_use]
    pub const fn is_solicited(&self) -> bool {
        match self.outcome {
            Outcome::Arrived { is_solicited, .. } => is_solicited,
            Outcome::SendFailed { .. } | Outcome::ReceiveFailed { .. } => true,
            Outcome::Sent { .. } | Outcome::Resized => false,
        }
    }

    /// The entry with this owner bit. The last byte must be stored after the others.
    #[must_use]
    pub fn encode(&self, owner: bool) -> [u8; CQE_BYTES] {
        let mut cqe = Fields([0; CQE_BYTES]);
        cqe.set::<32, 4>((self.user_index & 0xff_ffff).to_be_bytes());
        cqe.set::<48, 8>(self.timestamp.to_be_bytes());
        let mut sent_opcode = 0;
        let code = match self.outcome {
            Outcome::Sent { opcode, byte_count } => {
                sent_opcode = opcode;
                cqe.set::<44, 4>(byte_count.to_be_bytes());
                opcode::REQUESTER
            }
            Outcome::Arrived { received, byte_count, source, .. } => {
                cqe.set::<17, 1>([source.path_bits & 0x7f]);
                cqe.set::<22, 2>(source.lid.to_be_bytes());
                let flags = u32::from(source.has_grh) << 28
                    | u32::from(source.service_level & 0xf) << 24
                    | source.qpn & 0xff_ffff;
                cqe.set::<24, 4>(flags.to_be_bytes());
                cqe.set::<44, 4>(byte_count.to_be_bytes());
                let (value, code) = match received {
                    Received::Send => ([0; 4], opcode::SEND),
                    Received::SendImmediate(value) => (value, opcode::SEND_IMMEDIATE),
                    Received::SendInvalidate(key) => (key.to_be_bytes(), opcode::SEND_INVALIDATE),
                    Received::WriteImmediate(value) => (value, opcode::WRITE_IMMEDIATE),
                };
                cqe.set::<36, 4>(value);
                code
            }
            Outcome::SendFailed { opcode, syndrome, vendor_err } => {
                sent_opcode = opcode;
                cqe.set::<48, 8>([0, 0, 0, 0, 0, 0, vendor_err, syndrome as u8]);
                opcode::REQUESTER_ERROR
            }
            Outcome::ReceiveFailed { syndrome, vendor_err } => {
                cqe.set::<48, 8>([0, 0, 0, 0, 0, 0, vendor_err, syndrome as u8]);
                opcode::RESPONDER_ERROR
            }
            Outcome::Resized => opcode::RESIZE,
        };
        let qpn = u32::from(sent_opcode) << 24 | self.qpn & 0xff_ffff;
        cqe.set::<56, 4>(qpn.to_be_bytes());
        cqe.set::<60, 2>(self.counter.to_be_bytes());
        let solicited = matches!(self.outcome, Outcome::Arrived { is_solicited: true, .. });
        cqe.set::<63, 1>([code << 4 | u8::from(solicited) << 1 | u8::from(owner)]);
        cqe.0
    }

    /// Decodes an entry as libmlx5 does, and its owner bit. None if the opcode is unknown, the
    /// entry invalid, or the syndrome unknown.
    #[must_use]
    pub fn decode(entry: &[u8; CQE_BYTES]) -> Option<(Self, bool)> {
        let cqe = Fields(*entry);
        let (sent, last) = (cqe.be32::<56>(), cqe.byte::<63>());
        let (flags, value, byte_count) = (cqe.be32::<24>(), cqe.bytes::<36, 4>(), cqe.be32::<44>());
        let opcode = (sent >> 24) as u8;
        let arrived = |received| Outcome::Arrived {
            received,
            byte_count,
            source: Source {
                qpn: flags & 0xff_ffff,
                service_level: (flags >> 24 & 0xf) as u8,
                has_grh: flags >> 28 & 3 != 0,
                lid: cqe.be16::<22>(),
                path_bits: cqe.byte::<17>() & 0x7f,
            },
            is_solicited: last & 2 != 0,
        };
        let (vendor_err, syndrome) = (cqe.byte::<54>(), Syndrome::from_raw(cqe.byte::<55>()));
        let outcome = match last >> 4 {
            opcode::REQUESTER => Outcome::Sent { opcode, byte_count },
            opcode::WRITE_IMMEDIATE => arrived(Received::WriteImmediate(value)),
            opcode::SEND => arrived(Received::Send),
            opcode::SEND_IMMEDIATE => arrived(Received::SendImmediate(value)),
            opcode::SEND_INVALIDATE => arrived(Received::SendInvalidate(u32::from_be_bytes(value))),
            opcode::RESIZE => Outcome::Resized,
            opcode::REQUESTER_ERROR => {
                Outcome::SendFailed { opcode, syndrome: syndrome?, vendor_err }
            }
            opcode::RESPONDER_ERROR => Outcome::ReceiveFailed { syndrome: syndrome?, vendor_err },
            _ => return None,
        };
        let is_error = matches!(last >> 4, opcode::REQUESTER_ERROR | opcode::RESPONDER_ERROR);
        let completion = Self {
            outcome,
            qpn: sent & 0xff_ffff,
            user_index: cqe.be32::<32>() & 0xff_ffff,
            counter: cqe.be16::<60>(),
            timestamp: if is_error { 0 } else { cqe.be64::<48>() },
        };
        Some((completion, last & 1 != 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment;

    fn completion(outcome: Outcome) -> Completion {
        Completion { outcome, qpn: 0x0a_0b0c, user_index: 0x01_0203, counter: 0x4567, timestamp: 0 }
    }

    fn outcomes() -> Vec<Outcome> {
        let source = Source {
            qpn: 0x11_2233,
            service_level: 5,
            has_grh: true,
            lid: 0x4455,
            path_bits: 0x66,
        };
        let arrived = |received, is_solicited| Outcome::Arrived {
            received,
            byte_count: 1000,
            source,
            is_solicited,
        };
        let (syndrome, vendor_err) = (Syndrome::RemoteAccess, 0x88);
        vec![
            Outcome::Sent { opcode: segment::opcode::READ, byte_count: 4096 },
            arrived(Received::Send, true),
            arrived(Received::SendImmediate([1, 2, 3, 4]), false),
            arrived(Received::SendInvalidate(0x0102_0304), true),
            arrived(Received::WriteImmediate([5, 6, 7, 8]), false),
            Outcome::SendFailed { opcode: segment::opcode::WRITE, syndrome, vendor_err },
            Outcome::ReceiveFailed { syndrome: Syndrome::Flushed, vendor_err },
            Outcome::Resized,
        ]
    }

    #[test]
    fn each_kind_of_completion_comes_back() {
        for outcome in outcomes() {
            for owner in [false, true] {
                let completion = completion(outcome);
                let encoded = completion.encode(owner);
                assert_eq!(Completion::decode(&encoded), Some((completion, owner)));
            }
        }
    }

    #[test]
    fn a_requester_entry_has_the_bytes_of_the_header() {
        let sent = Outcome::Sent { opcode: segment::opcode::SEND, byte_count: 0x0102_0304 };
        let entry =
            Completion { timestamp: 0x1122_3344_5566_7788, ..completion(sent) }.encode(true);
        assert_eq!(entry[..32], [0; 32]);
        assert_eq!(entry[32..36], [0, 1, 2, 3]);
        assert_eq!(entry[44..48], [1, 2, 3, 4]);
        assert_eq!(entry[48..56], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        assert_eq!(entry[56..], [0x0a, 0x0a, 0x0b, 0x0c, 0x45, 0x67, 0, 0x01]);
    }

    #[test]
    fn an_error_entry_has_its_syndromes_at_54() {
        let entry = completion(outcomes()[5]).encode(false);
        assert_eq!(entry[54..60], [0x88, 0x13, 0x08, 0x0a, 0x0b, 0x0c]);
        assert_eq!(entry[63], 0xd0);
    }

    #[test]
    fn a_responder_entry_tells_sender_and_solicited_event() {
        let entry = completion(outcomes()[1]).encode(false);
        assert_eq!(entry[24..28], [0x15, 0x11, 0x22, 0x33]);
        assert_eq!((entry[17], entry[22], entry[23], entry[63]), (0x66, 0x44, 0x55, 0x22));
    }

    #[test]
    fn failed_and_solicited_completions_raise_solicited_events() {
        let solicited: Vec<_> =
            outcomes().into_iter().map(|outcome| completion(outcome).is_solicited()).collect();
        assert_eq!(solicited, [false, true, false, true, false, true, true, false]);
    }

    #[test]
    fn unknown_entries_are_no_completions() {
        let mut entry = [0; CQE_BYTES];
        for code in 6..=15u8 {
            entry[63] = code << 4;
            // Both error opcodes lack a syndrome here.
            assert_eq!(Completion::decode(&entry), None, "{code}");
        }
    }
}
