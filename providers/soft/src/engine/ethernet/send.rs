//! Sending frames: from a request of a RAW_PACKET QP to the rings of those whose rules take them.

use super::checksum::{Segment, fill, make_segment};
use super::headers::dissect;
use super::segment::contest;
use super::{ETHERNET, MAX_FRAME, MAX_TSO};
use crate::engine::datagrams::{Letter, Sent};
use crate::engine::qp::Qp;
use crate::engine::ranges::Ranges;
use crate::engine::request::{Phase, Request};
use crate::engine::requester::Requester;
use crate::shm::slot::*;
use crate::sys::Errno;
use abi::*;

/// What a RAW_PACKET QP has for sending besides its queue.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// The frame that is being made.
    frame: Vec<u8>,
    /// Headers of segmented sends that wait, one place for each request of the queue.
    headers: Vec<u8>,
    max_header: usize,
}

impl Frames {
    /// For a queue of `max_wr` requests with headers of up to `max_header` bytes.
    pub(crate) fn new(max_wr: usize, max_header: usize) -> Self {
        // As many places as the send queue has.
        let places = max_wr.next_power_of_two();
        Self { frame: vec![0; MAX_FRAME], headers: vec![0; places * max_header], max_header }
    }

    /// Whether a request makes frames that can be sent.
    ///
    /// # Errors
    /// `EINVAL` a frame that is too short or too long, or another opcode.
    pub(crate) fn check(&self, request: &Request, len: u64) -> Result<(), Errno> {
        let good = match request.opcode {
            IBV_WR_SEND => (ETHERNET as u64..=MAX_FRAME as u64).contains(&len),
            IBV_WR_TSO => {
                let (header, mss) = (request.tso_header_len(), request.tso_segment());
                request.flags & IBV_SEND_INLINE == 0
                    && (ETHERNET..=self.max_header).contains(&header)
                    && mss > 0
                    && header + mss <= MAX_FRAME
                    && len <= u64::from(MAX_TSO)
            }
            _ => false,
        };
        if good { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// The place of a kept header.
    fn place(&mut self, slot: usize) -> &mut [u8] {
        let at = slot * self.max_header;
        self.headers.get_mut(at..at + self.max_header).unwrap_or_default()
    }
}

impl Requester {
    /// Copies the header of a segmented send that has to wait: the application's is its own again after the post.
    pub(crate) fn keep_tso_header(&mut self, n: u64) {
        let request = self.queue.entry(n).request;
        let slot = self.queue.at(n);
        let to = self.frames.place(slot);
        let len = request.tso_header_len().min(to.len());
        // SAFETY: the header has so many bytes (ibv_post_send(3)).
        unsafe {
            to.as_mut_ptr().copy_from_nonoverlapping(request.remote_addr as *const u8, len);
        }
        self.queue.entry(n).kept = true;
    }
}

/// Sends waiting requests of a RAW_PACKET QP, in order, until one finds a ring full.
pub(crate) fn issue_waiting(requester: &mut Requester, qp: &Qp) {
    qp.adapter.datagrams.meet_everyone(&qp.adapter);
    requester.datagrams_wait = false;
    let mut frame = std::mem::take(&mut requester.frames.frame);
    while requester.queue.issued != requester.queue.posted && !requester.failed {
        let n = requester.queue.issued;
        let tso = requester.queue.entry(n).request.opcode == IBV_WR_TSO;
        let mut brought = vec![];
        let found = requester.ranges(qp, n, 0).and_then(|ranges| {
            if ranges.is_abroad() { ranges.brought_home(&mut brought) } else { Some(ranges) }
        });
        let sent = match found {
            None => {
                requester.fail(n, IBV_WC_LOC_PROT_ERR);
                break;
            }
            Some(ranges) if tso => send_segments(requester, qp, n, &ranges, &mut frame),
            Some(ranges) => {
                let flags = requester.queue.entry(n).request.flags;
                let len = ranges.total().min(frame.len());
                // SAFETY: the frame has so many bytes.
                let _at_home = unsafe { ranges.gather(0, frame.as_mut_ptr(), len) };
                let whole = frame.get_mut(..len).unwrap_or_default();
                if flags & IBV_SEND_IP_CSUM != 0
                    && let Some((_, places)) = dissect(whole)
                {
                    fill(whole, &places);
                }
                send(requester, qp, whole)
            }
        };
        if sent == Sent::Full {
            requester.wait_for_receivers(qp);
            break;
        }
        requester.queue.entry(n).phase = Phase::Done;
        requester.queue.issued += 1;
    }
    requester.frames.frame = frame;
}

/// Sends what is left of request `n`, frame by frame.
fn send_segments(
    requester: &mut Requester,
    qp: &Qp,
    n: u64,
    ranges: &Ranges,
    frame: &mut [u8],
) -> Sent {
    let entry = *requester.queue.entry(n);
    let (header, mss) = (entry.request.tso_header_len(), entry.request.tso_segment());
    let slot = requester.queue.at(n);
    let total = ranges.total();
    loop {
        let offset = requester.queue.entry(n).offset as usize;
        let len = (total - offset).min(mss);
        let from = if entry.kept {
            requester.frames.place(slot).as_ptr()
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
        make_segment(whole, Segment { index, offset: offset as u32, last });
        if send(requester, qp, whole) == Sent::Full {
            return Sent::Full;
        }
        requester.queue.entry(n).offset += len as u32;
        if last {
            return Sent::Gone;
        }
    }
}

/// Sends one frame to everyone who gets it; to nobody if one of them has no room and there is time to wait.
fn send(requester: &mut Requester, qp: &Qp, frame: &[u8]) -> Sent {
    let adapter = &qp.adapter;
    let Some((key, _)) = dissect(frame) else { return Sent::Gone };
    let (winner, receivers) = contest(adapter, &key.words());
    if requester.is_patient() {
        let mut full = false;
        for outlet in receivers.iter().filter(|outlet| !outlet.has_room(adapter)) {
            outlet.peer.kick();
            full = true;
        }
        if full {
            return Sent::Full;
        }
    }
    requester.receivers_waited_for = None;
    let body = [u64::from(frame.len() as u32), u64::from(winner.precedence), 0, winner.shape, 0, 0];
    let letter =
        Letter { op: Op::Frame, flags: 0, imm: 0, src_qpn: qp.qpn, to: None, body, inline: None };
    for outlet in &receivers {
        outlet.put(adapter, &letter, |base| {
            // SAFETY: a chunk has more bytes than a frame, and is ours until acknowledged.
            unsafe { base.copy_from_nonoverlapping(frame.as_ptr(), frame.len()) };
        });
        outlet.publish();
    }
    Sent::Gone
}
