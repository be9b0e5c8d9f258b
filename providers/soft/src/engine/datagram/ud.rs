//! Datagrams of UD QPs, to a QP or to a multicast group (IBTA 1.7 9.8.3, 10.5). The datagram
//! wire enters by `issue_waiting`; datagram rings and the wire between hosts deliver here, into
//! `inbound`.
//!
//! The receiver drops and counts a datagram with a wrong Q_Key, an unknown QP or no receive.
//!
//! Map of the file:
//!
//! - Threads: posts and polls of the sender by `issue_waiting` (requester lock). Polls and the
//!   service thread of the receiver by `deliver` (under `inlets`), the driver of the wire between
//!   hosts by `receive_from_other_host`.
//! - Locks: requester > state of an outlet; `inlets` > groups (copied, then unlocked) and
//!   responder.
//! - Mirrors: `datagrams_wait` of the tables tells receivers that this process waits for room.

use crate::engine::adapter::Adapter;
use crate::engine::datagram::{Inlet, OutgoingDatagram, Outlet, PutResult};
use crate::engine::keys::access::copy_to_local;
use crate::engine::queues::inbound::Source;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::{Issued, Requester, Wire};
use crate::engine::ring::link::chunk_of;
use crate::net::is_multicast;
use abi::*;
use soft_local::shm::layout::split_qpn;
use soft_local::shm::slot::*;
use soft_memory::range::bytes_of_mut;
use soft_memory::{Range, Ranges};
use soft_semantics::inbound::{Headers, Verdict};
use soft_semantics::request::{Destination, Request, RequestPhase, Route};
use soft_semantics::state::QpType;
use soft_sys::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Largest datagram payload in bytes (`max_msg_sz` of UD).
pub(crate) const MTU: u32 = 4096;
/// Bytes of the global route header at the start of every UD receive buffer.
const GRH: usize = 40;
/// A remote Q_Key with this bit selects the Q_Key of the QP (IBTA 1.7 10.2.5).
const QKEY_OWN: u32 = 1 << 31;
/// Kinds of packets with a route header, in `ibv_wc.sl` as mlx5 reports them: bit 3 for a UDP
/// header (RoCE v2), and the version of the IP header. A receiver must know the kind
/// (IBTA 1.7 A17.4.5.1), and verbs have no further field. UCX selects its GID by this value.
const IPV6: u32 = 8 | 1;
const IPV4: u32 = 8 | 2;
/// The destination QP number of datagrams to a multicast group (IBTA 1.7 10.5.2).
const MULTICAST_QPN: u32 = 0xff_ffff;
/// The QP of connection management, implemented as a group ([`GSI_GROUP`]). The number belongs to
/// no process, because process slots begin at 1.
const GSI_QPN: u32 = 1;

/// UD: into datagram rings, and to other hosts.
#[derive(Debug)]
pub(in crate::engine) struct DatagramWire;

impl Wire for DatagramWire {
    fn issue(&mut self, requester: &mut Requester, qp: &Qp) -> Issued {
        issue_waiting(requester, qp);
        Issued::SoFar
    }
}

/// Delivers a datagram to its QP, or to the members of a group. Returns false if no QP took it. Not
/// inlined, like its siblings, to bound the stack of a poll.
#[inline(never)]
pub(in crate::engine) fn deliver(
    adapter: &Adapter,
    inlet: &Inlet,
    head: &Head,
    body: &Body,
) -> bool {
    // A process must not send in the name of another process's QP.
    if split_qpn(head.src_qpn).0 != inlet.peer().slot {
        return false;
    }
    let (qpn, qkey) = (body.low(0).unchecked(), body.high(0).unchecked());
    let packet = match body.high(1).unchecked() {
        0 => 0,
        IPV4 => IPV4 as u8,
        _ => IPV6 as u8,
    };
    let routed = packet != 0;
    let Some(len) = body.low(1).at_most(MTU as usize) else { return false };
    let source = match head.carrier {
        PayloadLocation::Inline if len <= ADDRESSED_INLINE && !routed => {
            DatagramBytes::Slot(body.bytes(2).get(..len).unwrap_or_default())
        }
        PayloadLocation::Chunk => match body.low(2).check(|chunk| chunk_of(&inlet.view, chunk)) {
            Some(chunk) => DatagramBytes::Chunk(chunk.first(if routed { GRH + len } else { len })),
            None => return false,
        },
        _ => return false,
    };
    let headers = Headers {
        invalidate: None,
        first: true,
        last: true,
        imm: head.has_flag(IMM).then_some(head.imm),
        solicited: head.has_flag(SOLICITED),
        total: len + GRH,
        src_qpn: head.src_qpn,
        packet,
    };
    let datagram = Datagram { source, routed };
    if matches!(qpn, MULTICAST_QPN | GSI_QPN) {
        if !routed {
            return false;
        }
        let mut taken = false;
        let careful = inlet.careful;
        let group = match qpn {
            GSI_QPN => crate::engine::datagram::multicast::gid_words(&GSI_GROUP),
            _ => [3, 4].map(|at| body.word(at).unchecked()),
        };
        adapter.groups.for_members(group, |qp| {
            if !(qp.blocks_own_multicast() && qp.qpn() == head.src_qpn) {
                taken |= place_datagram(qp, qkey, &headers, &datagram, careful);
            }
        });
        return taken;
    }
    let (_, index) = split_qpn(qpn);
    let qp = adapter.registry.qp(index).filter(|qp| qp.qp_type() == QpType::Ud && qp.qpn() == qpn);
    qp.is_some_and(|qp| place_datagram(&qp, qkey, &headers, &datagram, inlet.careful))
}

/// Delivers a datagram from another host, which arrived by `route`. Returns false if it was
/// dropped.
pub(crate) fn receive_from_other_host(
    qp: &Qp,
    headers: Headers,
    route: &Route,
    payload: &[u8],
    careful: bool,
) -> bool {
    let len = payload.len();
    if len > MTU as usize {
        return false;
    }
    let header = route_header(route, len);
    let packet = if uses_ipv4(route) { IPV4 } else { IPV6 } as u8;
    let headers = Headers { total: len + GRH, packet, ..headers };
    let datagram = Datagram { source: DatagramBytes::Packet(&header, payload), routed: true };
    // The transport compared the Q_Key.
    place_datagram(qp, qp.unconnected().qkey.load(Ordering::Relaxed), &headers, &datagram, careful)
}

/// Returns false if the datagram was dropped.
fn place_datagram(
    qp: &Qp,
    qkey: u32,
    headers: &Headers,
    datagram: &Datagram<'_>,
    careful: bool,
) -> bool {
    if !qp.is_receiving() || qp.unconnected().qkey.load(Ordering::Relaxed) != qkey {
        return false;
    }
    // The responder lock keeps out deregistration and RESET during the copy.
    let mut responder = qp.responder().lock();
    responder.inbound.begin_serving(careful);
    let verdict = responder.inbound.send(qp, headers, datagram);
    drop(responder);
    if verdict == Verdict::Broken {
        qp.enter_error();
    }
    verdict != Verdict::Dropped
}

/// The location of a datagram's bytes.
enum DatagramBytes<'a> {
    Slot(&'a [u8]),
    Chunk(Range<'static>),
    /// The route header, and the payload in the buffer of the socket.
    Packet(&'a [u8; GRH], &'a [u8]),
}

/// A payload, preceded by a route header if `routed`.
struct Datagram<'a> {
    source: DatagramBytes<'a>,
    routed: bool,
}

impl Source for Datagram<'_> {
    fn copy_piece(&self, ranges: &Ranges, _offset: usize, total: usize) -> Result<usize, Errno> {
        let at = if self.routed { 0 } else { GRH };
        let placed = match self.source {
            DatagramBytes::Slot(bytes) => ranges.scatter_bytes(at, bytes),
            DatagramBytes::Chunk(chunk) => ranges.scatter(at, chunk),
            DatagramBytes::Packet(header, payload) => {
                ranges.scatter_bytes(0, header) && ranges.scatter_bytes(GRH, payload)
            }
        };
        if placed { Ok(total) } else { Err(Errno::EFAULT) }
    }
}

/// The bytes of request `n`. `copied` gets those that were copied when the request began to wait,
/// and those of imported regions. None if the memory is unmapped. Not inlined, because a list is
/// large and must occur once on the stack of the sender.
#[inline(never)]
fn request_bytes<'a>(
    requester: &mut Requester,
    qp: &Qp,
    n: u64,
    copied: &'a mut Vec<u8>,
) -> Option<Ranges<'a>> {
    if requester.datagrams.waiting.take(n, copied) {
        return Some(Ranges::of(Range::of(copied)));
    }
    let found = requester.sends.ranges(qp, n, 0);
    match &found {
        Some(ranges) if ranges.is_abroad() => copy_to_local(ranges, copied),
        Some(ranges) if !ranges.is_readable() => None,
        _ => found,
    }
}

/// Sends the waiting requests of a UD QP in order, until a ring is full.
fn issue_waiting(requester: &mut Requester, qp: &Qp) {
    let mut used: Option<Arc<Outlet>> = None;
    requester.datagrams.waits_for_room = false;
    while requester.sends.has_issuable() {
        let n = requester.sends.queue.issued;
        let mut copied = vec![];
        let Some(ranges) = request_bytes(requester, qp, n, &mut copied) else {
            requester.sends.fail(n, IBV_WC_LOC_PROT_ERR);
            break;
        };
        let request = requester.sends.queue.entry(n).request;
        let is_segmented = request.opcode == IBV_WR_TSO;
        if ranges.total() > requester.datagram_limit(&request) && !is_segmented {
            requester.sends.fail(n, IBV_WC_LOC_LEN_ERR);
            break;
        }
        let sent = if is_segmented {
            send_segments(requester, qp, n, &ranges, &mut used)
        } else {
            send_datagram(requester, qp, &request, &ranges, &mut used)
        };
        drop(ranges);
        if sent == PutResult::Full {
            requester.datagrams.waiting.put_back(n, copied);
            break;
        }
        requester.datagrams.waiting.reuse(copied);
        requester.sends.queue.entry(n).phase = RequestPhase::Done;
        requester.sends.queue.issued += 1;
    }
    used.inspect(|o| o.publish());
    qp.adapter().wire.flush();
}

impl Requester {
    /// Length in bytes of the longest datagram to the destination of `request`.
    fn datagram_limit(&self, request: &Request) -> usize {
        let far =
            if request.destination.elsewhere { self.host_connection.as_deref() } else { None };
        far.map_or(MTU as usize, |connection| connection.mtu())
    }
}

/// Copies request `n`, which must wait.
#[cold]
pub(in crate::engine) fn copy_waiting(requester: &mut Requester, qp: &Qp, n: u64) {
    let is_segmented = requester.sends.queue.entry(n).request.opcode == IBV_WR_TSO;
    // A datagram longer than the MTU fails when it is issued, so it is not copied.
    let fits = |ranges: &Ranges| ranges.total() <= MTU as usize || is_segmented;
    if let Some(ranges) = requester.sends.ranges(qp, n, 0).filter(fits) {
        requester.datagrams.waiting.copy(n, &ranges);
    }
}

/// Sends the rest of segmented send `n`, a datagram for each segment.
#[cold]
#[inline(never)]
fn send_segments(
    requester: &mut Requester,
    qp: &Qp,
    n: u64,
    ranges: &Ranges,
    used: &mut Option<Arc<Outlet>>,
) -> PutResult {
    let request = requester.sends.queue.entry(n).request;
    let mut datagram = std::mem::take(&mut requester.datagrams.segmenter.frame);
    let sent = requester.send_segments(n, ranges, &mut datagram, |requester, whole| {
        send_datagram(requester, qp, &request, &Ranges::of(Range::of(whole)), used)
    });
    requester.datagrams.segmenter.frame = datagram;
    sent
}

/// Sends a datagram to a QP or to a group. `used` is the outlet of the previous datagram; one
/// announcement covers all datagrams to it. If the ring is full, the service thread tries again.
#[inline(always)]
fn send_datagram(
    requester: &mut Requester,
    qp: &Qp,
    request: &Request,
    ranges: &Ranges,
    used: &mut Option<Arc<Outlet>>,
) -> PutResult {
    let to = &request.destination;
    if let Some(group) = to.grh.map(|grh| grh.dgid).filter(is_multicast) {
        used.take().inspect(|o| o.publish());
        // Every receiver would drop a multicast datagram with another QP number.
        if to.qpn != MULTICAST_QPN {
            return PutResult::Done;
        }
        if send_to_group(requester, qp, to, &group, ranges, request) == PutResult::Full {
            return PutResult::Full;
        }
        // Members on other hosts.
        requester.send_datagram_by_wire(qp, request, ranges);
        return PutResult::Done;
    }
    if to.elsewhere {
        used.take().inspect(|o| o.publish());
        requester.send_datagram_by_wire(qp, request, ranges);
        return PutResult::Done;
    }
    let (slot, _) = split_qpn(to.qpn);
    if used.as_ref().is_none_or(|o| o.peer().slot != slot) {
        used.take().inspect(|o| o.publish());
        if to.qpn == GSI_QPN {
            return send_to_group(requester, qp, to, &GSI_GROUP, ranges, request);
        }
        *used = outlet(qp.adapter(), slot, to.qpn);
    }
    // A datagram without a receiver is lost, as on a network.
    if let Some(outlet) = &*used
        && send(qp, outlet, to, ranges, request) == PutResult::Full
    {
        outlet.publish();
        outlet.peer().kick();
        requester.wait_for_room(qp);
        return PutResult::Full;
    }
    PutResult::Done
}

/// The outlet to QP `qpn` of process `slot`. A failure is reported to the user.
fn outlet(adapter: &Adapter, slot: u16, qpn: u32) -> Option<Arc<Outlet>> {
    let found = adapter.datagrams.outlet(adapter, slot);
    found.inspect_err(|why| adapter.unreachable.note_failure(adapter, qpn, *why)).ok()
}

impl Requester {
    /// Begins the wait for a full ring among several receivers.
    pub(in crate::engine) fn wait_for_receivers(&mut self, qp: &Qp) {
        self.datagrams.full_receivers_since.get_or_insert_with(Instant::now);
        self.wait_for_room(qp);
    }

    /// Begins the wait for a full ring.
    fn wait_for_room(&mut self, qp: &Qp) {
        self.datagrams.waits_for_room = true;
        qp.adapter().view.tables_head().datagrams_wait.store(1, Ordering::Relaxed);
        qp.adapter().service.watch_qp(qp);
    }
}

/// Sends to every process with a member of `group`. Sends to none of them if a ring is full and the
/// sender may still wait.
#[cold]
fn send_to_group(
    requester: &mut Requester,
    qp: &Qp,
    to: &Destination,
    group: &[u8; 16],
    ranges: &Ranges,
    request: &Request,
) -> PutResult {
    let adapter = qp.adapter();
    // A process that could not be met gets no multicast until a later call succeeds, like a station
    // without link.
    let _lost = adapter.datagrams.meet_all_processes(adapter);
    let receivers = adapter
        .datagrams
        .receivers(adapter, |view| crate::engine::datagram::multicast::has_members(view, group));
    if requester.datagrams.may_wait_for_ring() {
        let mut full = false;
        for outlet in receivers.iter().filter(|outlet| !outlet.has_room(adapter)) {
            outlet.peer().kick();
            full = true;
        }
        if full {
            requester.wait_for_receivers(qp);
            return PutResult::Full;
        }
    }
    requester.datagrams.full_receivers_since = None;
    for outlet in receivers.iter() {
        send(qp, outlet, to, ranges, request);
        outlet.publish();
    }
    PutResult::Done
}

fn send(
    qp: &Qp,
    outlet: &Outlet,
    to: &Destination,
    ranges: &Ranges,
    request: &Request,
) -> PutResult {
    let len = ranges.total();
    let imm = if request.opcode == IBV_WR_SEND_WITH_IMM { IMM } else { 0 };
    let solicited = if request.flags & IBV_SEND_SOLICITED != 0 { SOLICITED } else { 0 };
    let qkey = if to.qkey & QKEY_OWN != 0 {
        qp.unconnected().qkey.load(Ordering::Relaxed)
    } else {
        to.qkey
    };
    let mut body = [0u64; BODY_WORDS];
    body[0] = halves(to.qpn, qkey);
    let packet = to.grh.map_or(0, |route| if uses_ipv4(&route) { IPV4 } else { IPV6 });
    body[1] = halves(len as u32, packet);
    let mut inline = None;
    if let Some(grh) = &to.grh {
        [body[3], body[4]] = crate::engine::datagram::multicast::gid_words(&grh.dgid);
    } else if len <= ADDRESSED_INLINE {
        let words = bytes_of_mut(&mut body[2..]).get_mut(..len).unwrap_or_default();
        let _at_home = ranges.gather_bytes(0, words);
        inline = Some(len as u8);
    }
    let datagram = OutgoingDatagram {
        op: Op::Datagram,
        flags: imm | solicited,
        imm: request.imm,
        src_qpn: qp.qpn(),
        target_index: (!matches!(to.qpn, MULTICAST_QPN | GSI_QPN)).then(|| split_qpn(to.qpn).1),
        body,
        inline,
    };
    outlet.put_datagram(qp.adapter(), &datagram, |chunk| {
        let header = to.grh.map(|route| route_header(&route, len));
        let skip = if header.is_some() { GRH } else { 0 };
        if let Some(header) = header {
            chunk.copy_from(&header);
        }
        let _at_home = ranges.gather(0, chunk.part(skip, len));
    })
}

/// Whether packets of a route are IPv4.
fn uses_ipv4(route: &Route) -> bool {
    let mapped = |gid: &[u8; 16]| gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    mapped(&route.sgid) && mapped(&route.dgid)
}

/// The route header in a receive buffer: an IPv6-shaped header (IBTA 1.7 8.3) with next header
/// 0x1b, or an IPv4 header in the last 20 bytes (IBTA 1.7 A17).
fn route_header(route: &Route, len: usize) -> [u8; GRH] {
    let mut header = [0u8; GRH];
    // UDP header, BTH, DETH, payload and ICRC.
    let below = (8 + 12 + 8 + len.next_multiple_of(4) + 4) as u16;
    if uses_ipv4(route) {
        let ip = &mut header[20..];
        ip[0] = 0x45;
        ip[1] = route.traffic_class;
        ip[2..4].copy_from_slice(&(20 + below).to_be_bytes());
        ip[6] = 0x40;
        ip[8] = route.hop_limit;
        ip[9] = 17;
        ip[12..16].copy_from_slice(&route.sgid[12..]);
        ip[16..20].copy_from_slice(&route.dgid[12..]);
        let sum: u32 =
            ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let check = !((folded & 0xffff) + (folded >> 16)) as u16;
        ip[10..12].copy_from_slice(&check.to_be_bytes());
    } else {
        let first = 6 << 28 | u32::from(route.traffic_class) << 20 | route.flow_label & 0xf_ffff;
        header[..4].copy_from_slice(&first.to_be_bytes());
        header[4..6].copy_from_slice(&below.to_be_bytes());
        header[6] = 17;
        header[7] = route.hop_limit;
        header[8..24].copy_from_slice(&route.sgid);
        header[24..].copy_from_slice(&route.dgid);
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_header_has_a_valid_checksum_at_the_offset_of_the_standard() {
        let mut gid = [0; 16];
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&[10, 0, 0, 1]);
        let route = Route { sgid: gid, dgid: gid, hop_limit: 64, ..Route::default() };
        let header = route_header(&route, 100);
        let sum: u32 =
            header[20..].chunks(2).map(|p| u32::from(u16::from_be_bytes([p[0], p[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
        assert_eq!(header[..20], [0; 20]);
    }

    /// IBTA 1.7 8.3.
    #[test]
    fn an_ipv6_route_keeps_both_addresses() {
        let route = Route { sgid: [1; 16], dgid: [2; 16], ..Route::default() };
        let header = route_header(&route, 0);
        assert_eq!(header[0] >> 4, 6);
        assert_eq!((header[8..24].to_vec(), header[24..].to_vec()), (vec![1; 16], vec![2; 16]));
    }
}
