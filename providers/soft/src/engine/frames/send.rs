//! Sends frames: from a request of a RAW_PACKET QP to the datagram rings of the receiving
//! processes. The frame wire enters by `issue_waiting`.

use crate::engine::datagram::{OutgoingDatagram, PutResult};
use crate::engine::frames::MAX_FRAME;
use crate::engine::frames::steering::select_receivers;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::{Issued, Requester, Wire};
use abi::*;
use soft_local::shm::slot::*;
use soft_semantics::frames::{ETHERNET, dissect, fill};
use soft_semantics::request::RequestPhase;
use soft_sys::Errno;

/// RAW_PACKET: into datagram rings.
#[derive(Debug)]
pub(in crate::engine) struct FrameWire;

impl Wire for FrameWire {
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        issue_waiting(requester, qp);
        Issued::SoFar
    }
}

/// Checks a request that is not a segmented send.
///
/// # Errors
/// `EINVAL` the frame is too short or too long, or the opcode is not SEND.
pub(crate) fn check(opcode: u32, len: u64) -> Result<(), Errno> {
    let good = opcode == IBV_WR_SEND && (ETHERNET as u64..=MAX_FRAME as u64).contains(&len);
    if good { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Sends the waiting requests of a RAW_PACKET QP in order, until a ring is full.
fn issue_waiting(requester: &mut Requester, qp: &Qp) {
    // A process that could not be met gets no frames until a later call succeeds, like a station
    // without link.
    let _lost = qp.adapter().datagrams.meet_all_processes(qp.adapter());
    requester.datagrams.waits_for_room = false;
    let mut frame = std::mem::take(&mut requester.datagrams.segmenter.frame);
    while requester.sends.has_issuable() {
        let n = requester.sends.queue.issued;
        let tso = requester.sends.queue.entry(n).request.opcode == IBV_WR_TSO;
        let mut brought = vec![];
        let found = requester.sends.ranges(qp, n, 0).and_then(|ranges| {
            if ranges.is_abroad() {
                crate::engine::keys::access::copy_to_local(&ranges, &mut brought)
            } else {
                Some(ranges).filter(soft_memory::Ranges::is_readable)
            }
        });
        let sent = match found {
            None => {
                requester.sends.fail(n, IBV_WC_LOC_PROT_ERR);
                break;
            }
            Some(ranges) if tso => {
                requester.send_segments(n, &ranges, &mut frame, |requester, whole| {
                    send(requester, qp, whole)
                })
            }
            Some(ranges) => {
                let flags = requester.sends.queue.entry(n).request.flags;
                let len = ranges.total().min(frame.len());
                let whole = frame.get_mut(..len).unwrap_or_default();
                let _at_home = ranges.gather_bytes(0, whole);
                if flags & IBV_SEND_IP_CSUM != 0
                    && let Some((_, places)) = dissect(whole)
                {
                    fill(whole, &places);
                }
                send(requester, qp, whole)
            }
        };
        if sent == PutResult::Full {
            requester.wait_for_receivers(qp);
            break;
        }
        requester.sends.queue.entry(n).phase = RequestPhase::Done;
        requester.sends.queue.issued += 1;
    }
    requester.datagrams.segmenter.frame = frame;
}

/// Sends a frame to all its receivers. Sends to none of them if a ring is full and the sender may
/// still wait.
fn send(requester: &mut Requester, qp: &Qp, frame: &[u8]) -> PutResult {
    let adapter = qp.adapter();
    let Some((key, _)) = dissect(frame) else { return PutResult::Done };
    let (winner, receivers) = select_receivers(adapter, &key.words());
    if requester.datagrams.may_wait_for_ring() {
        let mut full = false;
        for outlet in receivers.iter().filter(|outlet| !outlet.has_room(adapter)) {
            outlet.peer().kick();
            full = true;
        }
        if full {
            return PutResult::Full;
        }
    }
    requester.datagrams.full_receivers_since = None;
    let body =
        [u64::from(frame.len() as u32), u64::from(winner.precedence), 0, winner.pattern_hash, 0, 0];
    let datagram = OutgoingDatagram {
        op: Op::Frame,
        flags: 0,
        imm: 0,
        src_qpn: qp.qpn(),
        target_index: None,
        body,
        inline: None,
    };
    for outlet in receivers.iter() {
        outlet.put_datagram(adapter, &datagram, |chunk| chunk.copy_from(frame));
        outlet.publish();
    }
    PutResult::Done
}
