//! Segmented sends (`IBV_WR_TSO`, ibv_post_send(3)): one request becomes many frames or datagrams.
//! `frames` and `ud` call `send_segments`. Each segment is a copy of the header, adjusted, and a
//! piece of the data.

use crate::engine::datagram::PutResult;
use crate::engine::queues::qp::Requester;
use crate::engine::queues::qp::send_requests::posted_bytes;
use crate::engine::refused::errno;
use abi::*;
use soft_memory::Ranges;
use soft_semantics::frames::{Segment, make_segment};
use soft_semantics::request::{Request, RequestOperation};
use soft_sys::Errno;

impl Requester {
    /// As `check`, for a segmented send.
    ///
    /// # Errors
    /// As `check`.
    #[cold]
    pub(in crate::engine) fn check_segmented(
        &self,
        request: &Request,
        list: &[ibv_sge],
    ) -> Result<u32, Errno> {
        if list.len() > self.sends.queue.max_sge {
            return Err(Errno::EINVAL);
        }
        let len = list.iter().map(|s| u64::from(s.length)).sum();
        self.datagrams.segmenter.check(request, len).map_err(errno)?;
        // The length is at most MAX_TSO.
        Ok(len as u32)
    }

    /// Copies the header of a waiting segmented send, because the application may reuse its buffer
    /// after the post.
    pub(in crate::engine) fn keep_tso_header(&mut self, n: u64) {
        let RequestOperation::Segments(cut) = self.sends.queue.entry(n).request.operation else {
            return;
        };
        let slot = self.sends.queue.index_of(n);
        let to = self.datagrams.segmenter.header_slot(slot);
        let _ = posted_bytes(cut.header, cut.header_len.into()).get(to);
        self.sends.queue.entry(n).inline_is_copied = true;
    }

    /// Sends the rest of request `n` by `send`, segment by segment, built in `frame`. Stops when a
    /// ring is full.
    pub(in crate::engine) fn send_segments(
        &mut self,
        n: u64,
        ranges: &Ranges,
        frame: &mut [u8],
        mut send: impl FnMut(&mut Self, &mut [u8]) -> PutResult,
    ) -> PutResult {
        let entry = *self.sends.queue.entry(n);
        let RequestOperation::Segments(cut) = entry.request.operation else {
            return PutResult::Done;
        };
        let (header, mss) = (usize::from(cut.header_len), usize::from(cut.mss));
        let framing = self.datagrams.segmenter.framing;
        let slot = self.sends.queue.index_of(n);
        let total = ranges.total();
        loop {
            let offset = self.sends.queue.entry(n).offset as usize;
            let len = (total - offset).min(mss);
            let Some(whole) = frame.get_mut(..header + len) else { return PutResult::Done };
            let (start, rest) = whole.split_at_mut(header);
            if entry.inline_is_copied {
                let kept =
                    self.datagrams.segmenter.header_slot(slot).get(..header).unwrap_or_default();
                start.copy_from_slice(kept);
            } else {
                // After the post a kept copy is used.
                let _ = posted_bytes(cut.header, header).get(start);
            }
            let _at_home = ranges.gather_bytes(offset, rest);
            let last = offset + len == total;
            let index = (offset / mss) as u32;
            make_segment(whole, framing, Segment { index, offset: offset as u32, last });
            if send(self, whole) == PutResult::Full {
                return PutResult::Full;
            }
            self.sends.queue.entry(n).offset += len as u32;
            if last {
                return PutResult::Done;
            }
        }
    }
}
