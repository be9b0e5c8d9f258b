//! The record of a queue pair: the route and PSNs of its packets, requests in flight, waiting
//! receives. Posting and polling enter here.
//!
//! Map of this file: `CapturedQp`, `QpState` and `InFlight`; `posting`, `posted` and
//! `write_packets`, the way of a request; comments and kept bytes. Threads: application threads.
//! Lock: each QP's `state`, a leaf.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;

use abi::{IBV_QPT_RC, IBV_QPT_UD, IBV_QPT_XRC_SEND};
use layer_records::names;
use layer_records::pcapng::{Direction, Link};
use layer_tap::life::{HasLocks, Lock};
use layer_tap::spin::Spin;
use layer_tap::{Call, Post, Qp};
use roce::wire::{Bth, Packet, Psn, Qpn};

use crate::frames::{self, PacketInfo, Route};
use crate::line::CommentLine;
use crate::memory::{AddressKind, Source};
use crate::request;
use crate::settings::{Class, settings};
use crate::srq::{MAX_REQUESTS, PostedReceives};
use crate::writer;

/// Descriptions of interfaces.
const SYNTHESISED: &str =
    "synthesised from verbs calls: what requests and completions say, no packet of a wire";
pub(crate) const EVENTS: &str =
    "requests and completions that have no packet of their own, as text";

/// Datagrams of a wire that wait for their completion.
const MAX_PENDING_DATAGRAMS: usize = 1024;
/// Unused flights that are kept for later requests.
const SPARE: usize = 64;

/// A queue pair.
pub(crate) struct CapturedQp {
    pub(crate) number: u32,
    pub(crate) qp_type: u32,
    pub(crate) context: usize,
    /// Whether the QP passes the filters.
    pub(crate) passes_filters: bool,
    /// Address of the shared receive queue; 0 for a QP with its own receive queue.
    pub(crate) srq: usize,
    max_requests: usize,
    /// Most bytes of an inline request.
    inline: u64,
    pub(crate) packets: u32,
    events: u32,
    /// Whether the packets of a connected QP use a wire.
    pub(crate) wired: AtomicBool,
    /// Lock order: before the lock of the file.
    pub(crate) state: Spin<QpState>,
}

pub(crate) struct QpState {
    pub(crate) route: Route,
    pub(crate) mtu: u32,
    pub(crate) peer: u32,
    pub(crate) qkey: u32,
    /// PSN of the next request, and of the next expected message.
    pub(crate) next: Psn,
    pub(crate) expected: Psn,
    /// Messages that this end and the peer have completed.
    pub(crate) completed_messages: u32,
    pub(crate) peer_done: u32,
    /// Whether a request failed, so that no further packets are sent.
    pub(crate) is_broken: bool,
    pub(crate) flights: VecDeque<Box<InFlight>>,
    #[allow(clippy::vec_box, reason = "they move between the two")]
    spare: Vec<Box<InFlight>>,
    /// A buffer for the bytes of a message.
    pub(crate) bytes: Vec<u8>,
    pub(crate) receives: PostedReceives,
    /// Source QPs of datagrams that came by a wire and have no completion yet.
    pub(crate) pending_datagrams: VecDeque<u32>,
}

/// A posted request.
pub(crate) struct InFlight {
    pub(crate) post: Post,
    pub(crate) route: Route,
    /// Whether the packets of the request use a wire.
    pub(crate) wired: bool,
    pub(crate) first: Psn,
    pub(crate) psns: u32,
    pub(crate) source: Source,
    /// The known bytes of the payloads, one packet after the other.
    payload: Vec<u8>,
    is_readable: bool,
    pub(crate) is_written: bool,
    /// Whether the QP was in error, so that the request has no packets.
    pub(crate) is_broken: bool,
}

impl HasLocks for CapturedQp {
    fn each(&self, turn: usize, act: &mut dyn FnMut(&dyn Lock)) {
        if turn == 1 {
            act(&self.state);
        }
    }
}

impl CapturedQp {
    /// Makes the record of a new QP, whose larger queue takes `most` requests with `inline` bytes
    /// inline.
    pub(crate) fn new(qp: &Qp, srq: usize, most: usize, inline: u32) -> Self {
        let wanted = settings().passes(&qp.ctx.device, qp.number);
        let (mut packets, mut events) = (0, 0);
        if wanted {
            packets = writer::interface(Link::Ethernet, &qp.ctx.device, SYNTHESISED);
            events = writer::interface(Link::UpperPdu, &qp.ctx.device, EVENTS);
        }
        let state = QpState {
            route: Route { source_port: frames::source_port(qp.number), ..Route::default() },
            mtu: 4096,
            peer: 0,
            qkey: 0,
            next: Psn::new(0),
            expected: Psn::new(0),
            completed_messages: 0,
            peer_done: 0,
            is_broken: false,
            flights: VecDeque::new(),
            spare: Vec::new(),
            bytes: Vec::new(),
            receives: PostedReceives::default(),
            pending_datagrams: VecDeque::new(),
        };
        Self {
            number: qp.number,
            qp_type: qp.kind,
            context: qp.ctx.at,
            passes_filters: wanted,
            srq,
            max_requests: if most == 0 { MAX_REQUESTS } else { most },
            inline: inline.into(),
            packets,
            events,
            wired: AtomicBool::new(false),
            state: Spin::new(state),
        }
    }

    /// Number of the QP's own receives that are kept.
    pub(crate) fn max_kept_receives(&self) -> usize {
        self.max_requests
    }

    pub(crate) fn is_reliable(&self) -> bool {
        matches!(self.qp_type, IBV_QPT_RC | IBV_QPT_XRC_SEND)
    }

    pub(crate) fn event(&self, time: u64, direction: Direction, text: &str, at_once: bool) {
        let about = PacketInfo { interface: self.events, time, direction, comment: text, at_once };
        frames::event(&about);
    }

    pub(crate) fn synthesise(
        &self,
        about: (u64, Direction, &str),
        way: &Route,
        packet: &Packet,
        payload: &[u8],
        length: usize,
    ) {
        let (time, direction, comment) = about;
        let about =
            PacketInfo { interface: self.packets, time, direction, comment, at_once: false };
        frames::synthesise(&about, way, packet, payload, length);
    }

    /// Keeps a request that is about to be posted, and the bytes for its packets. `can_send` tells
    /// whether the QP's state permits sending.
    pub(crate) fn posting(
        &self,
        post: &Post,
        source: &mut Source,
        to: Option<(Route, bool)>,
        can_send: bool,
    ) {
        let (mut flight, mtu, way) = {
            let mut state = self.state.lock();
            (
                state.spare.pop().unwrap_or_else(|| Box::new(InFlight::empty())),
                state.mtu,
                state.route,
            )
        };
        let source_port = frames::source_port(self.number);
        (flight.route, flight.wired) = match to {
            Some((way, wired)) => (Route { source_port, ..way }, wired),
            None => (way, self.wired.load(Ordering::Relaxed)),
        };
        flight.post = *post;
        (flight.is_written, flight.is_readable) = (false, true);
        std::mem::swap(&mut flight.source, source);
        source.clear();
        flight.payload.clear();
        let is_frame = self.is_frame();
        if !flight.wired && (is_frame || request::has_payload(post.opcode)) {
            let kind = match post.flags & abi::SendFlags::INLINE.bits() {
                0 => AddressKind::Regions,
                // The provider refuses other inline requests, and reads no byte of them.
                _ if can_send && post.bytes <= self.inline => AddressKind::Copied,
                _ => AddressKind::Ranges,
            };
            flight.gather(self.context, if is_frame { u32::MAX } else { mtu }, kind);
        }
        let mut state = self.state.lock();
        flight.first = state.next;
        flight.psns = request::psns(post.opcode, post.bytes, mtu);
        flight.is_broken = state.is_broken;
        state.next = state.next.add(flight.psns);
        if state.flights.len() >= self.max_requests.max(16) {
            // The oldest request was unsignaled, and its completion never came.
            let old = state.flights.pop_front();
            state.spare.extend(old);
        }
        state.flights.push_back(flight);
    }

    /// Writes a request that was posted, or forgets a refused one.
    pub(crate) fn posted(&self, post: &Post, time: u64, error: i32) {
        let mut state = self.state.lock();
        let is_it = |flight: &InFlight| !flight.is_written && flight.post.wr_id == post.wr_id;
        let Some(at) = state.flights.iter().position(|flight| is_it(flight)) else { return };
        if error == 0 {
            let (mtu, peer, qkey) = (state.mtu, state.peer, state.qkey);
            if let Some(flight) = state.flights.get_mut(at) {
                flight.is_written = true;
                self.write_packets(flight, time, mtu, peer, qkey);
            }
        } else if let Some(flight) = state.flights.remove(at) {
            // All later requests of the list are refused as well.
            if state.next.since(flight.first) > 0 {
                state.next = flight.first;
            }
            state.recycle(flight);
        }
    }

    /// Whether the QP sends and receives Ethernet frames.
    pub(crate) fn is_frame(&self) -> bool {
        self.qp_type == abi::IBV_QPT_RAW_PACKET
    }

    /// Writes the packets of a request.
    pub(crate) fn write_packets(
        &self,
        flight: &InFlight,
        time: u64,
        mtu: u32,
        peer: u32,
        qkey: u32,
    ) {
        let post = &flight.post;
        if !settings().wants_class(request::class(post.opcode)) {
            return;
        }
        let name = names::opcode(post.opcode).unwrap_or("an unknown operation");
        let mut begin = CommentLine::new(self.number, post.wr_id);
        begin.text(" posted ").text(name);
        if !flight.wired && self.is_frame() && is_frame_of(post.opcode) {
            begin.text("; a frame as it was posted");
            if post.opcode == abi::IBV_WR_TSO {
                begin.text(", which the device cuts into segments");
            }
            let about = PacketInfo {
                interface: self.packets,
                time,
                direction: Direction::Out,
                comment: &begin,
                at_once: false,
            };
            let header = flight.source.header();
            let length = header.len() + post.bytes as usize;
            frames::frame(&about, &[header, &flight.payload], length);
            return;
        }
        let count = request::packets(post.opcode, post.bytes, mtu);
        if flight.is_broken && !flight.wired {
            self.event(time, Direction::Out, begin.text(" after an error: not sent"), false);
            return;
        }
        begin.text(", ").dec(post.bytes).text(" bytes");
        if self.qp_type == IBV_QPT_XRC_SEND && post.remote_srq != 0 {
            begin.text(" to shared receive queue ").hex(post.remote_srq.into());
        }
        if flight.wired || count == 0 {
            self.event(time, Direction::Out, &begin, false);
            return;
        }
        begin.text("; packet ");
        let peer = if self.qp_type == IBV_QPT_UD { post.remote_qp } else { peer };
        let mut payload = flight.payload.as_slice();
        for index in request::picks(count, settings().packets) {
            let Some(message) =
                request::message(post, self.qp_type, self.number, qkey, index, count)
            else {
                return;
            };
            let is_last = index + 1 == count;
            let mut bth = Bth::new(Qpn::new(peer), flight.first.add(index));
            bth.ack_request = is_last && self.is_reliable();
            bth.solicited = is_last && post.flags & abi::SendFlags::SOLICITED.bits() != 0;
            let length = match request::has_payload(post.opcode) {
                true => request::piece(index, post.bytes, mtu).1,
                false => 0,
            };
            let known = if flight.is_readable { kept_bytes(length) } else { 0 };
            let (piece, rest) = payload.split_at_checked(known).unwrap_or((&[], &[]));
            payload = rest;
            let mut comment = begin.clone();
            comment.dec(u64::from(index) + 1).text(" of ").dec(count.into());
            if !flight.is_readable {
                comment.text("; its bytes cannot be read");
            }
            comment.text("; synthesised from the request");
            let packet = Packet { bth, message };
            self.synthesise(
                (time, Direction::Out, &comment),
                &flight.route,
                &packet,
                piece,
                length,
            );
        }
    }

    /// Notes a datagram from QP `number` that came by a wire.
    pub(crate) fn note_datagram(&self, number: u32) {
        let mut state = self.state.lock();
        if state.pending_datagrams.len() >= MAX_PENDING_DATAGRAMS {
            state.pending_datagrams.pop_front();
        }
        state.pending_datagrams.push_back(number);
    }

    /// The comment for a packet of a wire, which names the request, and the kind of the request.
    pub(crate) fn comment_of(&self, psn: Psn) -> Option<(CommentLine, Class)> {
        let state = self.state.lock();
        let is_it =
            |flight: &InFlight| psn.after(flight.first).is_some_and(|after| after < flight.psns);
        let flight =
            state.flights.iter().filter(|flight| flight.wired).find(|flight| is_it(flight))?;
        let comment = CommentLine::new(self.number, flight.post.wr_id);
        Some((comment, request::class(flight.post.opcode)))
    }
}

impl QpState {
    /// Keeps the memory of an ended request for a later one.
    pub(crate) fn recycle(&mut self, flight: Box<InFlight>) {
        if self.spare.len() < SPARE {
            self.spare.push(flight);
        }
    }

    /// Forgets all requests and receives.
    pub(crate) fn reset(&mut self) {
        self.flights.clear();
        self.receives = PostedReceives::default();
        self.pending_datagrams.clear();
        (self.completed_messages, self.peer_done, self.is_broken) = (0, 0, false);
    }
}

impl InFlight {
    fn empty() -> Self {
        Self {
            post: Post::new(Call::post_send, 0),
            route: Route::default(),
            wired: false,
            first: Psn::new(0),
            psns: 0,
            source: Source::default(),
            payload: Vec::new(),
            is_readable: true,
            is_written: false,
            is_broken: false,
        }
    }

    /// Copies the bytes that the packets of the request need.
    fn gather(&mut self, context: usize, mtu: u32, kind: AddressKind) {
        let count = request::psns(self.post.opcode, self.post.bytes, mtu).max(1);
        for index in request::picks(count, settings().packets) {
            let (offset, length) = request::piece(index, self.post.bytes, mtu);
            let read =
                self.source.read(context, kind, offset, kept_bytes(length), &mut self.payload);
            if read.is_none() {
                self.is_readable = false;
                self.payload.clear();
                return;
            }
        }
    }
}

/// Whether the request of a RAW_PACKET QP is a frame.
fn is_frame_of(opcode: u32) -> bool {
    matches!(opcode, abi::IBV_WR_SEND | abi::IBV_WR_TSO)
}

/// Bytes of a payload that are kept; the snap length limits them.
pub(crate) fn kept_bytes(length: usize) -> usize {
    match settings().snap {
        0 => length,
        snap => length.min(snap),
    }
}
