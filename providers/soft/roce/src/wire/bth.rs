//! The base transport header, with which every packet begins (IBTA 1.7 9.2). `packet.rs` combines
//! it with the extended headers and the payload.

use super::{Malformed, Psn, Qpn, split_first};

/// The base transport header without opcode and pad count. These follow from the message and the
/// payload length, so they cannot contradict them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// The receiver should raise an event for this message (SE).
    pub solicited: bool,
    /// Partition key, with the full-member bit.
    pub pkey: u16,
    /// Congestion on the way here; only meaningful where switches set it.
    pub fecn: bool,
    /// Congestion on the way back; set in CNPs.
    pub becn: bool,
    /// The destination QP.
    pub dest_qpn: Qpn,
    /// The requester asks for an acknowledgement.
    pub ack_request: bool,
    /// Packet sequence number.
    pub psn: Psn,
    /// The 13 reserved bits: 6 in the byte of FECN and BECN, 7 in the byte of the acknowledge
    /// request. They are zero towards peers that have not proved to speak the extension
    /// ([`Nonce::proof`](super::Nonce::proof)), and other receivers ignore them.
    pub proof: u16,
}

/// Bytes of the header.
pub const BTH_LEN: usize = 12;

/// Full membership in the default partition.
pub const DEFAULT_PKEY: u16 = 0xffff;

const SOLICITED: u8 = 0x80;
const MIGRATED: u8 = 0x40;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQUEST: u8 = 0x80;
/// The reserved bits in the byte of FECN and BECN, and in the byte of the acknowledge request.
const RESERVED_6: u8 = 0x3f;
const RESERVED_7: u8 = 0x7f;
/// Number of values of the reserved bits.
pub(super) const PROOFS: u16 = 1 << 13;

impl Bth {
    /// A header for `dest_qpn` without flags, in the default partition.
    #[must_use]
    pub const fn new(dest_qpn: Qpn, psn: Psn) -> Self {
        let (solicited, fecn, becn, ack_request) = (false, false, false, false);
        Self { solicited, pkey: DEFAULT_PKEY, fecn, becn, dest_qpn, ack_request, psn, proof: 0 }
    }

    /// Parses the header; returns it, its opcode, its pad count, and the remaining bytes.
    pub(super) fn parse(packet: &[u8]) -> Result<(Self, u8, u8, &[u8]), Malformed> {
        let (&[opcode, flags, k1, k0, ecn, q2, q1, q0, ack, p2, p1, p0], rest) =
            split_first(packet)?;
        if flags & 0x0f != 0 {
            return Err(Malformed::Version);
        }
        let bth = Self {
            solicited: flags & SOLICITED != 0,
            pkey: u16::from_be_bytes([k1, k0]),
            fecn: ecn & FECN != 0,
            becn: ecn & BECN != 0,
            dest_qpn: Qpn::from_bytes([q2, q1, q0]),
            ack_request: ack & ACK_REQUEST != 0,
            psn: Psn::from_bytes([p2, p1, p0]),
            proof: u16::from(ecn & RESERVED_6) << 7 | u16::from(ack & RESERVED_7),
        };
        Ok((bth, opcode, flags >> 4 & 3, rest))
    }

    /// The header's bytes. The migration bit is always set, as adapters do.
    pub(super) fn emit(&self, opcode: u8, pad: u8) -> [u8; BTH_LEN] {
        let bit = |set, bit| if set { bit } else { 0 };
        let flags = bit(self.solicited, SOLICITED) | MIGRATED | (pad & 3) << 4;
        let [k1, k0] = self.pkey.to_be_bytes();
        let [upper, lower] = (self.proof << 1).to_be_bytes();
        let ecn = bit(self.fecn, FECN) | bit(self.becn, BECN) | upper & RESERVED_6;
        let ack = bit(self.ack_request, ACK_REQUEST) | lower >> 1;
        let [q2, q1, q0] = self.dest_qpn.to_bytes();
        let [p2, p1, p0] = self.psn.to_bytes();
        [opcode, flags, k1, k0, ecn, q2, q1, q0, ack, p2, p1, p0]
    }
}

/// Whether two partition keys permit communication: same partition, and at least one full member
/// (IBTA 1.7 10.9.1.2).
#[must_use]
pub const fn pkeys_match(ours: u16, theirs: u16) -> bool {
    ours & 0x7fff == theirs & 0x7fff && ours & 0x7fff != 0 && (ours | theirs) & 0x8000 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IBTA 1.7 10.9.1.2.
    #[test]
    fn partition_keys_match_when_one_is_a_full_member() {
        assert!(pkeys_match(0xffff, 0x7fff));
        assert!(pkeys_match(0x7fff, 0xffff));
        assert!(!pkeys_match(0x7fff, 0x7fff), "two limited members");
        assert!(!pkeys_match(0xffff, 0x8001), "another partition");
        assert!(!pkeys_match(0x8000, 0x8000), "no partition at all");
    }

    #[test]
    fn the_reserved_bits_are_told_apart_from_the_flags_beside_them() {
        for proof in (0..13).map(|bit| 1 << bit).chain([0, PROOFS - 1]) {
            for flag in [false, true] {
                let header = Bth::new(Qpn::new(1), Psn::new(2));
                let bth = Bth { proof, fecn: flag, becn: flag, ack_request: flag, ..header };
                let bytes = bth.emit(4, 0);
                assert_eq!(Bth::parse(&bytes).map(|(parsed, ..)| parsed), Ok(bth));
                let bits = bytes[4].count_ones() + bytes[8].count_ones();
                assert_eq!(bits, proof.count_ones() + 3 * u32::from(flag));
            }
        }
    }

    /// IBTA 1.7 9.2.
    #[test]
    fn another_transport_version_is_malformed() {
        let mut bytes = Bth::new(Qpn::new(1), Psn::new(2)).emit(4, 0);
        bytes[1] |= 1;
        assert_eq!(Bth::parse(&bytes), Err(Malformed::Version));
    }
}
