//! Headers of tagged messages, big-endian: `struct ibv_tmh` and `struct ibv_rvh` of
//! `<infiniband/tm_types.h>`.

use abi::{IBV_TMH_EAGER, IBV_TMH_FIN, IBV_TMH_RNDV};

/// Bytes of a tag matching header.
pub const TMH_LEN: usize = 16;
/// Bytes of a rendezvous header.
pub const RVH_LEN: usize = 16;
/// Bytes of a message that matching needs.
pub const HEADERS_LEN: usize = TMH_LEN + RVH_LEN;

/// The tag of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tagged {
    /// The value to match.
    pub tag: u64,
    /// Data that the receiver gets unchanged.
    pub app_ctx: u32,
}

/// The location of a rendezvous' data in the sender's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Remote address.
    pub va: u64,
    /// The rkey.
    pub rkey: u32,
    /// Length in bytes.
    pub len: u32,
}

/// The headers of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagHeaders {
    /// Not to be matched: the sender requests that, or the message answers a rendezvous, or its
    /// headers are invalid. Software gets it.
    Untagged,
    /// The payload follows the header.
    Eager(Tagged),
    /// The receiver reads the payload from the sender.
    Rendezvous(Tagged, Offer),
}

impl TagHeaders {
    /// Parses the headers of a message. `start` holds its first [`HEADERS_LEN`] bytes, or all of a
    /// shorter message.
    pub fn parse(start: &[u8]) -> Self {
        let Some((&[opcode, _, _, _, a, b, c, d, ref tag @ ..], rest)) =
            start.split_first_chunk::<TMH_LEN>()
        else {
            return Self::Untagged;
        };
        let tagged =
            Tagged { tag: u64::from_be_bytes(*tag), app_ctx: u32::from_be_bytes([a, b, c, d]) };
        match (u32::from(opcode), Offer::parse(rest)) {
            (IBV_TMH_EAGER, _) => Self::Eager(tagged),
            (IBV_TMH_RNDV, Some(offer)) => Self::Rendezvous(tagged, offer),
            // NO_TAG requests no matching. A FIN ends a rendezvous of the software above. A
            // rendezvous without the data's location cannot be served. Other opcodes are undefined.
            _ => Self::Untagged,
        }
    }
}

impl Offer {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (&[a, b, c, d, e, f, g, h, r, s, t, u, l, m, n, o], _) =
            bytes.split_first_chunk::<RVH_LEN>()?;
        Some(Self {
            va: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            rkey: u32::from_be_bytes([r, s, t, u]),
            len: u32::from_be_bytes([l, m, n, o]),
        })
    }
}

/// The message that tells a rendezvous' sender that its data was read.
pub fn fin(tagged: Tagged, offer: Offer) -> [u8; HEADERS_LEN] {
    headers(IBV_TMH_FIN as u8, tagged, offer)
}

fn headers(opcode: u8, tagged: Tagged, offer: Offer) -> [u8; HEADERS_LEN] {
    let mut bytes = [0; HEADERS_LEN];
    let mut rest = bytes.as_mut_slice();
    for field in [
        &[opcode, 0, 0, 0][..],
        &tagged.app_ctx.to_be_bytes(),
        &tagged.tag.to_be_bytes(),
        &offer.va.to_be_bytes(),
        &offer.rkey.to_be_bytes(),
        &offer.len.to_be_bytes(),
    ] {
        let (place, behind) = rest.split_at_mut(field.len());
        place.copy_from_slice(field);
        rest = behind;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAGGED: Tagged = Tagged { tag: 0x1112_1314_1516_1718, app_ctx: 0x0102_0304 };
    const OFFER: Offer = Offer { va: 0x2122_2324_2526_2728, rkey: 0x3132_3334, len: 0x4142_4344 };

    #[test]
    fn headers_have_the_bytes_of_tm_types_h() {
        let golden = [
            2, 0, 0, 0, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22,
            0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x31, 0x32, 0x33, 0x34, 0x41, 0x42, 0x43, 0x44,
        ];
        assert_eq!(fin(TAGGED, OFFER), golden);
    }

    #[test]
    fn headers_round_trip_and_reserved_bytes_are_ignored() {
        let mut bytes = headers(IBV_TMH_RNDV as u8, TAGGED, OFFER);
        assert_eq!(TagHeaders::parse(&bytes), TagHeaders::Rendezvous(TAGGED, OFFER));
        bytes[1..4].fill(0xee);
        assert_eq!(TagHeaders::parse(&bytes), TagHeaders::Rendezvous(TAGGED, OFFER));
        bytes[0] = IBV_TMH_EAGER as u8;
        assert_eq!(TagHeaders::parse(&bytes), TagHeaders::Eager(TAGGED));
        assert_eq!(TagHeaders::parse(&bytes[..TMH_LEN]), TagHeaders::Eager(TAGGED));
    }

    #[test]
    fn headers_without_a_tag_or_too_short_are_untagged() {
        let eager = headers(IBV_TMH_EAGER as u8, TAGGED, OFFER);
        for len in 0..TMH_LEN {
            assert_eq!(TagHeaders::parse(&eager[..len]), TagHeaders::Untagged, "{len} bytes");
        }
        let request = headers(IBV_TMH_RNDV as u8, TAGGED, OFFER);
        for len in 0..HEADERS_LEN {
            assert_eq!(TagHeaders::parse(&request[..len]), TagHeaders::Untagged, "{len} bytes");
        }
        for opcode in (0..=255).filter(|o| ![IBV_TMH_EAGER, IBV_TMH_RNDV].contains(&u32::from(*o)))
        {
            assert_eq!(TagHeaders::parse(&headers(opcode, TAGGED, OFFER)), TagHeaders::Untagged);
        }
    }
}
