//! The state of a QP for segmented sends (`IBV_WR_TSO`, ibv_post_send(3)): limits, kept headers,
//! and the frame being built.

use super::headers::Framing;
use crate::Refused;
use crate::request::{Request, RequestOperation};
use crate::storage::filled;
use abi::*;

/// The largest payload of a segmented send.
pub const MAX_TSO: u32 = 256 * 1024;
/// The largest header of a segmented send.
pub const MAX_TSO_HEADER: u16 = 512;

/// The state of a QP for segmented sends.
#[derive(Debug, Default)]
pub struct Segmenter {
    /// The link layer of the segments.
    pub framing: Framing,
    /// The largest length of a frame or datagram.
    longest: usize,
    /// The segment being built.
    pub frame: Vec<u8>,
    /// Headers of waiting requests, one place for each request of the queue.
    headers: Vec<u8>,
    max_header: usize,
}

impl Segmenter {
    /// The state for a queue of `max_wr` requests with headers of up to `max_header` bytes, and
    /// frames or datagrams of up to `longest` bytes.
    ///
    /// `None`: out of memory.
    pub fn new(framing: Framing, longest: usize, max_wr: usize, max_header: usize) -> Option<Self> {
        // As many places as the send queue has.
        let places = max_wr.next_power_of_two();
        let headers = filled(0, places * max_header)?.into_vec();
        let frame = filled(0, longest)?.into_vec();
        Some(Self { framing, longest, frame, headers, max_header })
    }

    /// Whether a segmented send of `len` bytes is valid.
    ///
    /// # Errors
    /// `Invalid`: no header; a header too short for its link layer or longer than the QP's limit;
    /// segments without payload or too long; too much data; inline data.
    pub fn check(&self, request: &Request, len: u64) -> Result<(), Refused> {
        let RequestOperation::Segments(cut) = request.operation else {
            return Err(Refused::Invalid);
        };
        let (header, mss) = (usize::from(cut.header_len), usize::from(cut.mss));
        let good = request.flags & IBV_SEND_INLINE == 0
            && cut.header != 0
            && (self.framing.header_len()..=self.max_header).contains(&header)
            && mss > 0
            && header + mss <= self.longest
            && len <= u64::from(MAX_TSO);
        if good { Ok(()) } else { Err(Refused::Invalid) }
    }

    /// The place of a kept header.
    pub fn header_slot(&mut self, slot: usize) -> &mut [u8] {
        let at = slot * self.max_header;
        self.headers.get_mut(at..at + self.max_header).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Segments;

    const MTU: usize = 4096;

    fn tso(header: u16, mss: u16) -> Request {
        let operation =
            RequestOperation::Segments(Segments { header: 0x1000, header_len: header, mss });
        Request { opcode: IBV_WR_TSO, operation, ..Request::default() }
    }

    #[test]
    fn invalid_segmented_sends_are_refused() {
        let segmenter = Segmenter::new(Framing::Ipoib, MTU, 3, 64).expect("memory");
        let check = |request: &Request, len| segmenter.check(request, len);
        let most = u64::from(MAX_TSO);
        for (header, mss, len) in [(4, 1, 0), (64, 4032, most), (44, 4052, 1), (64, 1, most)] {
            assert_eq!(check(&tso(header, mss), len), Ok(()), "{header} {mss} {len}");
        }
        for (header, mss, len) in [
            (0, 100, 1),
            (3, 100, 1),
            (65, 100, 1),
            (44, 0, 1),
            (64, 4033, 1),
            (44, 4053, 1),
            (44, u16::MAX, 1),
            (44, 100, most + 1),
        ] {
            assert_eq!(
                check(&tso(header, mss), len),
                Err(Refused::Invalid),
                "{header} {mss} {len}"
            );
        }
        let inline = Request { flags: IBV_SEND_INLINE, ..tso(44, 100) };
        assert_eq!(check(&inline, 10), Err(Refused::Invalid));
        let operation =
            RequestOperation::Segments(Segments { header: 0, header_len: 44, mss: 100 });
        let nowhere = Request { operation, ..tso(44, 100) };
        assert_eq!(check(&nowhere, 10), Err(Refused::Invalid));
    }

    #[test]
    fn a_queue_pair_that_was_made_without_room_for_headers_takes_none() {
        for header in [0, 4, 14, 44, 54] {
            let none = Segmenter::default();
            assert_eq!(none.check(&tso(header, 100), 10), Err(Refused::Invalid));
        }
    }

    #[test]
    fn each_request_of_the_queue_has_a_place_for_its_header() {
        let mut segmenter = Segmenter::new(Framing::Ipoib, MTU, 5, 44).expect("memory");
        for slot in 0..8u8 {
            segmenter.header_slot(usize::from(slot)).fill(slot);
        }
        for slot in 0..8u8 {
            assert_eq!(segmenter.header_slot(usize::from(slot)), [slot; 44]);
        }
    }
}
