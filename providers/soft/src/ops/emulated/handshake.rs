//! The messages by which two SRD QPs make a connection of the adapter: a request, and its answer.
//! The messages are datagrams between the UD QPs that have the numbers of the SRD QPs. A datagram
//! may be lost, and any process of the fabric can send one with any bytes.
#![forbid(unsafe_code)]

/// Bytes of a message.
pub(super) const LEN: usize = 32;
/// The Q_Key of the datagrams. The upper bit is set, so that a work request cannot name the key by
/// mistake (IBTA 1.7 3.5.3).
pub(super) const QKEY: u32 = 0xf5d0_e0fa;

const MAGIC: [u8; 4] = *b"fvSR";
const VERSION: u8 = 1;

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Names the connection; chosen by the requesting process.
    pub(super) token: u64,
    pub(super) body: Body,
}

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// Asks for a connection with this RC QP, on behalf of requests with this Q_Key.
    Request { qpn: u32, qkey: u32 },
    /// The RC QP at the other end is ready to receive.
    Accept { qpn: u32 },
    /// The Q_Key differs from that of the QP.
    WrongKey,
    /// The receiving process has no resources for a connection.
    NoResources,
    /// The receiving QP ended the connection, because it left its state.
    Closed,
}

impl Message {
    /// The bytes of the message.
    pub(super) fn encode(&self) -> [u8; LEN] {
        let (kind, qpn, qkey) = match self.body {
            Body::Request { qpn, qkey } => (1, qpn, qkey),
            Body::Accept { qpn } => (2, qpn, 0),
            Body::WrongKey => (3, 0, 0),
            Body::NoResources => (4, 0, 0),
            Body::Closed => (5, 0, 0),
        };
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = kind;
        bytes[8..16].copy_from_slice(&self.token.to_be_bytes());
        bytes[16..20].copy_from_slice(&qpn.to_be_bytes());
        bytes[20..24].copy_from_slice(&qkey.to_be_bytes());
        bytes
    }

    /// The message in `bytes`; None if they are no message of this version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        let &[m0, m1, m2, m3, VERSION, kind, 0, 0, ref rest @ ..] = bytes else { return None };
        if [m0, m1, m2, m3] != MAGIC {
            return None;
        }
        let (token, rest) = rest.split_first_chunk()?;
        let (qpn, rest) = rest.split_first_chunk()?;
        let (qkey, rest) = rest.split_first_chunk()?;
        let qpn = u32::from_be_bytes(*qpn);
        if qpn > 0xff_ffff || rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        let body = match kind {
            1 => Body::Request { qpn, qkey: u32::from_be_bytes(*qkey) },
            2 => Body::Accept { qpn },
            3 => Body::WrongKey,
            4 => Body::NoResources,
            5 => Body::Closed,
            _ => return None,
        };
        Some(Self { token: u64::from_be_bytes(*token), body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire_and_no_other_bytes_are_messages() {
        let bodies = [
            Body::Request { qpn: 0x12_3456, qkey: 0x1111_1111 },
            Body::Accept { qpn: 0xff_fffe },
            Body::WrongKey,
            Body::NoResources,
            Body::Closed,
        ];
        for body in bodies {
            let message = Message { token: 0x0102_0304_0506_0708, body };
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Some(message));
            for len in 0..LEN {
                assert_eq!(Message::decode(&bytes[..len]), None, "{len} bytes");
            }
            for at in [0, 1, 2, 3, 4, 6, 7, 24, 31] {
                let mut wrong = bytes;
                wrong[at] ^= 0x40;
                assert_eq!(Message::decode(&wrong), None, "byte {at}");
            }
        }
        let mut wrong = Message { token: 1, body: Body::WrongKey }.encode();
        wrong[5] = 6;
        assert_eq!(Message::decode(&wrong), None, "an unknown kind");
        wrong[5] = 2;
        wrong[16] = 1;
        assert_eq!(Message::decode(&wrong), None, "a number of more than 24 bits");
    }
}
