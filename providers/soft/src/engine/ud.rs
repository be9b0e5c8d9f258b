//! Datagrams: one ring for each pair of processes, shared by all UD QPs of the sender.
//!
//! A datagram is complete for its sender once it lies in the ring. The receiver's process sorts it out:
//! wrong key, unknown QP or no receive, and it is dropped and counted (IBTA vol 1, 9.8.3).

use super::inbound::{Piece, Source, Verdict};
use super::link::publication_fence;
use super::qp::Qp;
use super::ranges::Ranges;
use super::request::{Destination, Phase, Route};
use super::requester::Requester;
use super::state::Kind;
use crate::adapter::Adapter;
use crate::fabric::Peer;
use crate::shm::layout::{ATTENTION_ACKS, ATTENTION_REQUESTS, RING_SLOTS, split_qpn};
use crate::shm::slot::*;
use crate::shm::view::{Ring, View};
use crate::sys::{Errno, membarrier};
use abi::*;
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Largest datagram payload (`max_msg_sz` of UD: the MTU).
pub(crate) const MTU: u32 = 4096;
/// Bytes of the global route header at the start of every UD receive buffer.
const GRH: usize = 40;
/// Datagrams handled in one go.
const BUDGET: usize = 256;
/// Peers whose rings are looked at without a bell.
const HOT: usize = 16;
/// A remote key with this bit stands for the QP's own (IBTA vol 1, 10.2.5).
const QKEY_OWN: u32 = 1 << 31;

/// All datagram traffic of a process.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    to: RwLock<HashMap<u16, Arc<Outlet>>>,
    from: Mutex<Inlets>,
    /// Datagrams that arrived and were dropped.
    pub(crate) dropped: AtomicU64,
}

/// Where we put datagrams for one process.
#[derive(Debug)]
struct Outlet {
    peer: Arc<Peer>,
    view: View,
    ring: Ring,
    own_slot: u16,
    state: Mutex<OutletState>,
}

#[derive(Debug)]
struct OutletState {
    /// Next sequence number and the first one not gone past; once the receiver has made the ring ready for us.
    place: Option<(u32, u32)>,
    lent: VecDeque<(u32, u32)>,
    unpublished: bool,
}

/// Where datagrams come from.
#[derive(Debug, Default)]
struct Inlets {
    known: HashMap<u16, Inlet>,
    hot: Vec<u16>,
    oldest: usize,
}

#[derive(Clone, Debug)]
struct Inlet {
    peer: Arc<Peer>,
    view: View,
    ring: Ring,
    next: u32,
}

/// What became of one datagram at the sender.
enum Sent {
    Gone,
    Full,
}

impl Datagrams {
    /// The outlet to process `slot`; connects when there is none. `None`: nobody is there.
    fn outlet(&self, adapter: &Adapter, slot: u16) -> Option<Arc<Outlet>> {
        if let Some(outlet) = self.to.read().get(&slot)
            && !outlet.peer.is_dead()
        {
            return Some(Arc::clone(outlet));
        }
        let peer = adapter.fabric.peer(slot).ok()?;
        // SAFETY: fabric segments have the lengths of shm::layout; the Arc beside the view keeps them.
        let view = unsafe { View::new(peer.tables().base(), peer.rings().base()) };
        let own_slot = adapter.fabric.slot();
        let ring = view.peer_ring(own_slot);
        let state = OutletState { place: None, lent: VecDeque::new(), unpublished: false };
        let outlet = Arc::new(Outlet { peer, view, ring, own_slot, state: Mutex::new(state) });
        self.to.write().insert(slot, Arc::clone(&outlet));
        Some(outlet)
    }

    /// Says something to process `slot`, which is woken. It is lost where nobody is, or where there is no room.
    pub(crate) fn tell(&self, adapter: &Adapter, slot: u16, what: Op, about: u32, word: u64) {
        let Some(outlet) = self.outlet(adapter, slot) else { return };
        let mut state = outlet.state.lock();
        let Some(seq) = state.room(&outlet, adapter) else { return };
        let head = Head {
            seq,
            op: what,
            flags: FIRST | LAST,
            carrier: Carrier::Inline,
            count: 8,
            imm: 0,
            src_qpn: about,
            ack: 0,
        };
        outlet.ring.put(&head, &[word]);
        if let Some((next, _)) = &mut state.place {
            *next = next.wrapping_add(1);
        }
        state.unpublished = true;
        drop(state);
        outlet.publish();
        outlet.peer.kick();
    }

    /// A process can send to us from now on.
    pub(crate) fn add_peer(&self, peer: &Arc<Peer>, own: &View) {
        // SAFETY: as in `outlet`.
        let view = unsafe { View::new(peer.tables().base(), peer.rings().base()) };
        let ring = own.peer_ring(peer.slot);
        let mut from = self.from.lock();
        if from.known.get(&peer.slot).is_some_and(|old| Arc::ptr_eq(&old.peer, peer)) {
            return;
        }
        let next = from.known.get(&peer.slot).map_or(0, |old| old.next).max(RING_SLOTS);
        // A lap ahead of whatever a former owner of the slot left in the ring.
        let next = next.wrapping_add(RING_SLOTS);
        ring.acked().store(next, Ordering::Relaxed);
        // Pairs with the Acquire in OutletState::room: who finds its identity finds where to begin.
        ring.nak().store(view.tables_head().identity.load(Ordering::Relaxed), Ordering::Release);
        from.known.insert(peer.slot, Inlet { peer: Arc::clone(peer), view, ring, next });
    }

    /// A process is dead: what it sent before still counts, then nothing more comes.
    pub(crate) fn remove_peer(&self, adapter: &Adapter, slot: u16) {
        if let Some(outlet) = self.to.write().remove(&slot) {
            for (_, chunk) in outlet.state.lock().lent.drain(..) {
                adapter.chunks.give(chunk);
            }
        }
        let mut from = self.from.lock();
        while from.serve(self, adapter, slot) == BUDGET {}
        from.hot.retain(|s| *s != slot);
    }

    /// Serves what lies in the datagram rings.
    pub(crate) fn look(&self, adapter: &Adapter) {
        let Some(mut from) = self.from.try_lock() else { return };
        for at in 0..from.hot.len() {
            let slot = from.hot[at];
            from.serve(self, adapter, slot);
        }
        adapter.view.take_peer_bells(|slot| {
            from.heat(&adapter.view, slot);
            from.serve(self, adapter, slot);
        });
    }
}

impl Inlets {
    /// Makes the ring of `slot` one that is looked at without a bell.
    fn heat(&mut self, own: &View, slot: u16) {
        let Some(inlet) = self.known.get(&slot) else { return };
        if self.hot.contains(&slot) {
            return;
        }
        inlet.ring.hot().store(1, Ordering::Relaxed);
        if self.hot.len() < HOT {
            self.hot.push(slot);
        } else {
            let at = self.oldest % HOT;
            self.oldest += 1;
            let cold = std::mem::replace(&mut self.hot[at], slot);
            if let Some(inlet) = self.known.get(&cold) {
                inlet.ring.hot().store(0, Ordering::Relaxed);
                membarrier::heavy();
                if inlet.ring.ready(inlet.next) {
                    // Not forgotten: the bell rings for it.
                    own.ring_peer_bell(cold);
                }
            }
        }
    }

    /// Serves the ring of `slot`; returns how many datagrams there were.
    fn serve(&mut self, all: &Datagrams, adapter: &Adapter, slot: u16) -> usize {
        let Some(inlet) = self.known.get_mut(&slot) else { return 0 };
        let mut count = 0;
        while count < BUDGET {
            let Some((words, body)) = inlet.ring.take(inlet.next) else { break };
            if !deliver(adapter, inlet, words, &body) {
                all.dropped.fetch_add(1, Ordering::Relaxed);
            }
            inlet.next = inlet.next.wrapping_add(1);
            count += 1;
        }
        if count > 0 {
            inlet.ring.acked().store(inlet.next, Ordering::Release);
            publication_fence(&inlet.view);
            let attention = &inlet.view.tables_head().attention;
            if attention.load(Ordering::Relaxed) & ATTENTION_ACKS != 0 {
                inlet.peer.kick();
            }
        }
        count
    }
}

/// Brings one datagram to its receive; `false`: dropped.
fn deliver(adapter: &Adapter, inlet: &Inlet, words: [u64; 2], body: &[u64; BODY_WORDS]) -> bool {
    let Some(head) = Head::parse(words) else { return false };
    if head.op != Op::Datagram {
        return adapter.xrc.hear(adapter, inlet.peer.slot, &head, body[0]);
    }
    let (_, index) = split_qpn(low(body[0]));
    let len = low(body[1]) as usize;
    let routed = high(body[1]) & 1 != 0;
    let Some(qp) = adapter.qp(index).filter(|qp| qp.kind == Kind::Ud && qp.qpn == low(body[0]))
    else {
        return false;
    };
    if !qp.is_receiving() || qp.qkey.load(Ordering::Relaxed) != high(body[0]) || len > MTU as usize
    {
        return false;
    }
    let source = match head.carrier {
        Carrier::Inline if len <= ADDRESSED_INLINE && !routed => body[2..].as_ptr().cast::<u8>(),
        Carrier::Chunk => match inlet.view.chunk(low(body[2])) {
            Some(chunk) => chunk.cast_const(),
            None => return false,
        },
        _ => return false,
    };
    let piece = Piece {
        first: true,
        last: true,
        imm: head.has(IMM).then_some(head.imm),
        solicited: head.has(SOLICITED),
        total: len + GRH,
        src_qpn: head.src_qpn,
        routed,
    };
    // The responder's lock keeps deregistration and RESET away while we write.
    let mut responder = qp.responder.lock();
    let verdict = responder.inbound.send(&qp, &piece, &Datagram { source, routed, len });
    drop(responder);
    if let Verdict::Refuse(_) = verdict {
        qp.enter_error();
    }
    verdict != Verdict::Dropped
}

/// Payload, with a route header before it if it is `routed`, in readable memory.
struct Datagram {
    source: *const u8,
    routed: bool,
    len: usize,
}

impl Source for Datagram {
    fn bring(&self, ranges: &Ranges, _offset: usize, total: usize) -> Result<usize, Errno> {
        // SAFETY: `deliver` checked that there are so many bytes.
        unsafe {
            if self.routed {
                ranges.scatter(0, self.source, GRH + self.len);
            } else {
                ranges.scatter(GRH, self.source, self.len);
            }
        }
        Ok(total)
    }
}

/// Sends waiting requests of a UD QP, in order, until one finds its ring full.
pub(super) fn issue_waiting(requester: &mut Requester, qp: &Qp) {
    let mut used: Option<Arc<Outlet>> = None;
    requester.datagrams_wait = false;
    while requester.queue.issued != requester.queue.posted && !requester.failed {
        let n = requester.queue.issued;
        let Some(ranges) = requester.ranges(qp, n, 0) else {
            requester.fail(n, IBV_WC_LOC_PROT_ERR);
            break;
        };
        let to = requester.queue.entry(n).request.to;
        let (slot, _) = split_qpn(to.qpn);
        if used.as_ref().is_none_or(|o| o.peer.slot != slot) {
            used.inspect(|o| o.publish());
            used = if to.elsewhere { None } else { qp.adapter.datagrams.outlet(&qp.adapter, slot) };
        }
        let entry = *requester.queue.entry(n);
        // What nobody is there to take is lost, as on a wire.
        if let Some(outlet) = &used
            && let Sent::Full = outlet.send(qp, &to, &ranges, &entry.request)
        {
            outlet.publish();
            outlet.peer.kick();
            requester.datagrams_wait = true;
            qp.adapter.watch(qp);
            return;
        }
        requester.queue.entry(n).phase = Phase::Done;
        requester.queue.issued += 1;
    }
    used.inspect(|o| o.publish());
}

impl Outlet {
    fn send(
        &self,
        qp: &Qp,
        to: &Destination,
        ranges: &Ranges,
        request: &super::request::Request,
    ) -> Sent {
        let mut state = self.state.lock();
        let Some(seq) = state.room(self, &qp.adapter) else {
            return if self.peer.is_dead() { Sent::Gone } else { Sent::Full };
        };
        let len = ranges.total();
        let imm = if request.opcode == IBV_WR_SEND_WITH_IMM { IMM } else { 0 };
        let solicited = if request.flags & IBV_SEND_SOLICITED != 0 { SOLICITED } else { 0 };
        let qkey = if to.qkey & QKEY_OWN != 0 { qp.qkey.load(Ordering::Relaxed) } else { to.qkey };
        let mut body = [0u64; BODY_WORDS];
        body[0] = halves(to.qpn, qkey);
        body[1] = halves(len as u32, u32::from(to.grh.is_some()));
        let carrier = if len <= ADDRESSED_INLINE && to.grh.is_none() {
            // SAFETY: four words are left behind the address: ADDRESSED_INLINE bytes.
            unsafe { ranges.gather(0, body[2..].as_mut_ptr().cast(), len) };
            (Carrier::Inline, len as u8)
        } else {
            let Some(chunk) = qp.adapter.chunks.take() else { return Sent::Full };
            let Some(base) = qp.adapter.view.chunk(chunk) else { return Sent::Gone };
            state.lent.push_back((seq, chunk));
            let header = to.grh.map(|route| route_header(&route, len));
            let skip = if header.is_some() { GRH } else { 0 };
            // SAFETY: a chunk holds a route header and an MTU; it is ours until acknowledged.
            unsafe {
                if let Some(header) = header {
                    base.copy_from_nonoverlapping(header.as_ptr(), GRH);
                }
                ranges.gather(0, base.add(skip), len);
            }
            body[2] = halves(chunk, 0);
            (Carrier::Chunk, 0)
        };
        let head = Head {
            seq,
            op: Op::Datagram,
            flags: FIRST | LAST | imm | solicited,
            carrier: carrier.0,
            count: carrier.1,
            imm: request.imm,
            src_qpn: qp.qpn,
            ack: 0,
        };
        self.ring.put(&head, &body);
        if let Some((next, _)) = &mut state.place {
            *next = next.wrapping_add(1);
        }
        state.unpublished = true;
        Sent::Gone
    }

    /// Makes sure that somebody looks.
    fn publish(&self) {
        if !std::mem::replace(&mut self.state.lock().unpublished, false) {
            return;
        }
        // As in Link::requests_published.
        publication_fence(&self.view);
        if self.ring.hot().load(Ordering::Relaxed) == 0 {
            self.view.ring_peer_bell(self.own_slot);
        }
        let attention = self.view.tables_head().attention.load(Ordering::Relaxed);
        if attention & ATTENTION_REQUESTS != 0 {
            self.peer.kick();
        }
    }
}

impl OutletState {
    /// The next sequence number, if there is a free slot.
    fn room(&mut self, outlet: &Outlet, adapter: &Adapter) -> Option<u32> {
        let Some((next, acked)) = self.place else {
            let own = adapter.view.tables_head().identity.load(Ordering::Relaxed);
            if outlet.ring.nak().load(Ordering::Acquire) != own {
                return None;
            }
            let first = outlet.ring.acked().load(Ordering::Relaxed);
            self.place = Some((first, first));
            return Some(first);
        };
        if next.wrapping_sub(acked) < RING_SLOTS / 2 {
            return Some(next);
        }
        let acked = outlet.ring.acked().load(Ordering::Acquire);
        if next.wrapping_sub(acked) > RING_SLOTS {
            // Not a number that a sane receiver writes.
            return None;
        }
        self.place = Some((next, acked));
        while let Some(&(seq, chunk)) = self.lent.front()
            && acked.wrapping_sub(seq) as i32 > 0
        {
            self.lent.pop_front();
            adapter.chunks.give(chunk);
        }
        (next.wrapping_sub(acked) < RING_SLOTS).then_some(next)
    }
}

/// The route header as a receiver finds it: an IPv6-shaped header (IBTA vol 1, 8.3), next header 0x1b, or
/// an IPv4 header in the last 20 bytes (RoCE v2 annex A17).
fn route_header(route: &Route, len: usize) -> [u8; GRH] {
    let mut header = [0u8; GRH];
    let mapped = |gid: &[u8; 16]| gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    // UDP header, BTH, DETH, payload and ICRC.
    let below = (8 + 12 + 8 + len.next_multiple_of(4) + 4) as u16;
    if mapped(&route.sgid) && mapped(&route.dgid) {
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
    fn an_ipv4_route_has_a_valid_checksum_where_receivers_look() {
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

    #[test]
    fn an_ipv6_route_keeps_both_addresses() {
        let route = Route { sgid: [1; 16], dgid: [2; 16], ..Route::default() };
        let header = route_header(&route, 0);
        assert_eq!(header[0] >> 4, 6);
        assert_eq!((header[8..24].to_vec(), header[24..].to_vec()), (vec![1; 16], vec![2; 16]));
    }
}
