//! Segmented sends (`IBV_WR_TSO`, ibv_post_send(3)): one request of a RAW_PACKET or UD QP becomes many frames or datagrams, each a copy of its
//! header, made to fit, and a piece of its data.

use super::datagrams::Sent;
use super::ethernet::{Framing, Segment, make_segment};
use super::ranges::Ranges;
use super::request::Request;
use super::requester::Requester;
use super::state::Kind;
use abi::*;
use soft_sys::Errno;

/// Payload of a segmented send.
pub(crate) const MAX_TSO: u32 = 256 * 1024;
/// Headers of a segmented send.
pub(crate) const MAX_TSO_HEADER: u16 = 512;

/// What a QP makes segments with.
#[derive(Debug, Default)]
pub(crate) struct Segmenter {
    framing: Framing,
    /// Bytes that a frame or a datagram may have.
    longest: usize,
    /// The one that is being made.
    pub(super) frame: Vec<u8>,
    /// Headers of requests that wait, one place for each request of the queue.
    headers: Vec<u8>,
    max_header: usize,
}

impl Segmenter {
    /// For a queue of `max_wr` requests with headers of up to `max_header` bytes, which become frames or datagrams of up to `longest` bytes.
    pub(crate) fn new(framing: Framing, longest: usize, max_wr: usize, max_header: usize) -> Self {
        // As many places as the send queue has.
        let places = max_wr.next_power_of_two();
        let headers = vec![0; places * max_header];
        Self { framing, longest, frame: vec![0; longest], headers, max_header }
    }

    /// Whether a segmented send of `len` bytes can be carried out.
    ///
    /// # Errors
    /// `EINVAL` no header, or one that is too short for its link layer or longer than the QP was made for; segments of no bytes, or of
    /// more than there is room for; too much data, or inline data.
    pub(crate) fn check(&self, request: &Request, len: u64) -> Result<(), Errno> {
        let (header, mss) = (request.tso_header_len(), request.tso_segment());
        let good = request.flags & IBV_SEND_INLINE == 0
            && request.remote_addr != 0
            && (self.framing.len()..=self.max_header).contains(&header)
            && mss > 0
            && header + mss <= self.longest
            && len <= u64::from(MAX_TSO);
        if good { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// The place of a kept header.
    fn place(&mut self, slot: usize) -> &mut [u8] {
        let at = slot * self.max_header;
        self.headers.get_mut(at..at + self.max_header).unwrap_or_default()
    }
}

impl Requester {
    /// As `check`, of a request that is not one of the usual ones of its kind of QP: segmented sends of UD QPs, and what is none.
    ///
    /// # Errors
    /// As `check`.
    #[cold]
    pub(super) fn check_rare(
        &self,
        kind: Kind,
        request: &Request,
        list: &[ibv_sge],
    ) -> Result<u32, Errno> {
        let known = kind == Kind::Ud && request.opcode == IBV_WR_TSO;
        if !known || list.len() > self.queue.max_sge {
            return Err(Errno::EINVAL);
        }
        let len = list.iter().map(|s| u64::from(s.length)).sum();
        self.segmenter.check(request, len)?;
        // It is MAX_TSO at most.
        Ok(len as u32)
    }

    /// Whether a request of a RAW_PACKET QP with `len` bytes makes frames that can be sent.
    ///
    /// # Errors
    /// `EINVAL` it does not.
    pub(super) fn check_frame(&self, request: &Request, len: u64) -> Result<(), Errno> {
        match request.opcode {
            IBV_WR_TSO => self.segmenter.check(request, len),
            opcode => super::ethernet::check(opcode, len),
        }
    }

    /// Copies the header of a segmented send that has to wait: the application's is its own again after the post.
    pub(super) fn keep_tso_header(&mut self, n: u64) {
        let request = self.queue.entry(n).request;
        let slot = self.queue.at(n);
        let to = self.segmenter.place(slot);
        let len = request.tso_header_len().min(to.len());
        // SAFETY: the header has so many bytes (ibv_post_send(3)).
        unsafe {
            to.as_mut_ptr().copy_from_nonoverlapping(request.remote_addr as *const u8, len);
        }
        self.queue.entry(n).kept = true;
    }

    /// Has what is left of request `n` sent by `send`, segment by segment, which are made in `frame`; stops where there is no room.
    pub(super) fn send_segments(
        &mut self,
        n: u64,
        ranges: &Ranges,
        frame: &mut [u8],
        mut send: impl FnMut(&mut Self, &mut [u8]) -> Sent,
    ) -> Sent {
        let entry = *self.queue.entry(n);
        let (header, mss) = (entry.request.tso_header_len(), entry.request.tso_segment());
        let framing = self.segmenter.framing;
        let slot = self.queue.at(n);
        let total = ranges.total();
        loop {
            let offset = self.queue.entry(n).offset as usize;
            let len = (total - offset).min(mss);
            let from = if entry.kept {
                self.segmenter.place(slot).as_ptr()
            } else {
                entry.request.remote_addr as *const u8
            };
            let Some(whole) = frame.get_mut(..header + len) else { return Sent::Gone };
            // SAFETY: header and segment fit (checked when the request was posted, and by the slice just taken); the header is the
            // application's until the post returns, and ours after that.
            unsafe {
                whole.as_mut_ptr().copy_from_nonoverlapping(from, header);
                let _at_home = ranges.gather(offset, whole.as_mut_ptr().add(header), len);
            }
            let last = offset + len == total;
            let index = (offset / mss) as u32;
            make_segment(whole, framing, Segment { index, offset: offset as u32, last });
            if send(self, whole) == Sent::Full {
                return Sent::Full;
            }
            self.queue.entry(n).offset += len as u32;
            if last {
                return Sent::Gone;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ud::MTU;

    fn tso(header: u16, mss: u16) -> Request {
        let mut request = Request { opcode: IBV_WR_TSO, ..Request::default() };
        request.set_tso(0x1000, header, mss);
        request
    }

    #[test]
    fn what_makes_no_datagrams_is_refused() {
        let segmenter = Segmenter::new(Framing::Ipoib, MTU as usize, 3, 64);
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
            assert_eq!(check(&tso(header, mss), len), Err(Errno::EINVAL), "{header} {mss} {len}");
        }
        let inline = Request { flags: IBV_SEND_INLINE, ..tso(44, 100) };
        assert_eq!(check(&inline, 10), Err(Errno::EINVAL));
        let nowhere = Request { remote_addr: 0, ..tso(44, 100) };
        assert_eq!(check(&nowhere, 10), Err(Errno::EINVAL));
    }

    #[test]
    fn a_queue_pair_that_was_made_without_room_for_headers_takes_none() {
        for header in [0, 4, 14, 44, 54] {
            let none = Segmenter::default();
            assert_eq!(none.check(&tso(header, 100), 10), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn each_request_of_the_queue_has_a_place_for_its_header() {
        let mut segmenter = Segmenter::new(Framing::Ipoib, MTU as usize, 5, 44);
        for slot in 0..8u8 {
            segmenter.place(usize::from(slot)).fill(slot);
        }
        for slot in 0..8u8 {
            assert_eq!(segmenter.place(usize::from(slot)), [slot; 44]);
        }
    }
}
