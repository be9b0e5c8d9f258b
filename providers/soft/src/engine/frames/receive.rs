//! Delivers an arrived frame to the queues named by steering rules. Called for each frame in a
//! datagram ring; ends in a completion of a QP or work queue.

use crate::engine::adapter::{Adapter, SteeringRule};
use crate::engine::datagram::{Delivery, Inlet};
use crate::engine::frames::MAX_FRAME;
use crate::engine::keys::regions::LOCAL_WRITE;
use crate::engine::queues::cq::Cq;
use crate::engine::queues::qp::{Qp, Role};
use crate::engine::queues::wq::Wq;
use crate::engine::ring::link::chunk_of;
use abi::*;
use soft_local::shm::slot::*;
use soft_memory::Ranges;
use soft_semantics::completion::{Cqe, RareFields};
use soft_semantics::frames::steer::StoppingRule;
use soft_semantics::frames::{ETHERNET, Key, Places, VLAN, are_right, dissect, frame_check};
use soft_semantics::receive::Receive;

/// A frame in private memory.
pub(crate) struct IncomingFrame<'a> {
    frame: &'a [u8],
    places: Places,
    checksums_are_right: bool,
    tag: u32,
    /// The value of the inlet.
    careful: bool,
}

/// The queue that gets a frame: the owner of the receive and the form of the completion.
pub(crate) struct FrameTarget<'a> {
    pub(crate) adapter: &'a Adapter,
    /// Protection domain of the receive.
    pub(crate) pd: u32,
    pub(crate) cq: &'a Cq,
    /// Number of the QP or work queue.
    pub(crate) number: u32,
    pub(crate) strips_vlan: bool,
    pub(crate) appends_fcs: bool,
}

/// Delivers a frame to all its queues. Delivers to no queue if one of them may still get a receive.
#[inline(never)]
pub(crate) fn deliver(adapter: &Adapter, inlet: &mut Inlet, head: &Head, body: &Body) -> Delivery {
    let len = body.low(0).at_most(MAX_FRAME).filter(|len| *len >= ETHERNET);
    let chunk = body.low(2).check(|chunk| chunk_of(&inlet.view, chunk));
    let (Some(len), Some(chunk), PayloadLocation::Chunk) = (len, chunk, head.carrier) else {
        return Delivery::Dropped;
    };
    // A private copy, because the sender could change the frame during the checks.
    inlet.frame.resize(MAX_FRAME, 0);
    let Some(frame) = inlet.frame.get_mut(..len) else { return Delivery::Dropped };
    // The copy cannot fail: a chunk is always mapped.
    let _ = chunk.get(frame);
    let frame = &*frame;
    let Some((key, places)) = dissect(frame) else { return Delivery::Dropped };
    let (precedence, shape) = (body.low(1).unchecked(), body.word(3).unchecked());
    let winner = StoppingRule { precedence, pattern_hash: shape, created_ns: 0 };
    let takers = adapter.steering.matching_rules(&key.words(), &winner);
    if takers.is_empty() {
        return Delivery::Dropped;
    }
    // Checked before the first delivery: no queue gets the frame twice.
    if takers.iter().any(|rule| !rule.drop && must_wait(rule, &key)) {
        return Delivery::Later;
    }
    let checksums_are_right = are_right(frame, &places);
    let careful = inlet.careful;
    let mut incoming = IncomingFrame { frame, places, checksums_are_right, tag: 0, careful };
    let mut taken = false;
    for rule in &takers {
        rule.counters.iter().for_each(|counters| counters.count(len as u64));
        if rule.drop {
            taken = true;
            continue;
        }
        let Some(qp) = rule.qp.upgrade() else { continue };
        if key.is_multicast() && qp.blocks_own_multicast() && qp.qpn() == head.src_qpn {
            continue;
        }
        incoming.tag = rule.tag;
        taken |= deliver_to_qp(&qp, &key, &incoming);
    }
    taken.into()
}

/// Whether the queue of a rule has no receive, but may get one soon.
fn must_wait(rule: &SteeringRule, key: &Key) -> bool {
    let Some(qp) = rule.qp.upgrade() else { return false };
    match qp.role() {
        Role::Rss(rss) => rss.pick(key).is_some_and(|wq| wq.must_wait()),
        Role::Pair(pair) => qp.is_receiving() && pair.shortage.frame_waits(qp.has_receive()),
        // Steering rules never name an XRC receiver.
        Role::Receiver(_) | Role::StandIn(_) | Role::Opened(_) => false,
    }
}

fn deliver_to_qp(qp: &Qp, key: &Key, incoming: &IncomingFrame<'_>) -> bool {
    let pair = match qp.role() {
        Role::Rss(rss) => {
            return rss.pick(key).is_some_and(|wq| deliver_to_wq(qp.adapter(), wq, incoming));
        }
        Role::Pair(pair) if qp.is_receiving() => pair,
        _ => return false,
    };
    // The responder lock keeps out deregistration and RESET during the copy.
    let responder = qp.responder().lock();
    let mut receive = Receive::default();
    if !qp.take_receive(&mut receive) {
        return false;
    }
    let sink = FrameTarget {
        adapter: qp.adapter(),
        pd: qp.receive_pd(),
        cq: &pair.recv_cq,
        number: qp.qpn(),
        strips_vlan: pair.create_flags & IBV_QP_CREATE_CVLAN_STRIPPING != 0,
        appends_fcs: pair.create_flags & IBV_QP_CREATE_SCATTER_FCS != 0,
    };
    let good = sink.deliver(&receive, incoming);
    drop(responder);
    if !good {
        qp.enter_error();
    }
    true
}

fn deliver_to_wq(adapter: &Adapter, wq: &Wq, incoming: &IncomingFrame<'_>) -> bool {
    let mut receive = Receive::default();
    if !wq.take_receive(&mut receive) {
        return false;
    }
    if !wq.frame_target(adapter).deliver(&receive, incoming) {
        wq.fail();
    }
    true
}

impl FrameTarget<'_> {
    /// Puts a frame into a receive and completes it. Returns false if the receive completed with an
    /// error; the queue then fails.
    fn deliver(&self, receive: &Receive, incoming: &IncomingFrame<'_>) -> bool {
        let IncomingFrame { frame, places, .. } = incoming;
        let stripped = places.vlan.filter(|_| self.strips_vlan);
        let removed = if stripped.is_some() { VLAN } else { 0 };
        let fcs = if self.appends_fcs { frame_check(frame).to_vec() } else { vec![] };
        let len = frame.len() - removed + fcs.len();
        let (mut ranges, list) = (Ranges::new(), &receive.sges);
        let regions = &self.adapter.regions;
        let placed = if len > receive.room() {
            IBV_WC_LOC_LEN_ERR
        } else if !regions.resolve_first(&mut ranges, self.pd, list, LOCAL_WRITE, len) {
            IBV_WC_LOC_PROT_ERR
        } else {
            ranges.take_care(incoming.careful);
            // Without the VLAN tag: the addresses, then the bytes behind the tag.
            let (addresses, rest) = frame.split_at(ETHERNET - 2);
            let rest = rest.get(removed..).unwrap_or_default();
            let good = ranges.scatter_bytes(0, addresses)
                && ranges.scatter_bytes(addresses.len(), rest)
                && ranges.scatter_bytes(len - fcs.len(), &fcs);
            if good { IBV_WC_SUCCESS } else { IBV_WC_LOC_PROT_ERR }
        };
        let good = placed == IBV_WC_SUCCESS;
        let right = good && incoming.checksums_are_right;
        let cqe = Cqe {
            wr_id: receive.wr_id,
            status: placed,
            opcode: IBV_WC_RECV,
            byte_len: if good { len as u32 } else { 0 },
            qp_num: self.number,
            wc_flags: if right { IBV_WC_IP_CSUM_OK } else { 0 },
            ..Cqe::default()
        };
        let rare = RareFields {
            flow_tag: incoming.tag,
            cvlan: stripped.unwrap_or(0),
            ..RareFields::default()
        };
        self.cq.push_with(&cqe, Some(&rare), false);
        good
    }
}
