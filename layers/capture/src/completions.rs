//! Packets synthesised from completions: the peer's answer to a request, and the peer's message
//! for a receive (IBTA 1.7 9.7). Called when the program polls.

use core::sync::atomic::Ordering;

use abi::{
    IBV_QPT_RC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, IBV_WC_GENERAL_ERR,
    IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RNR_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
};
use layer_records::names;
use layer_records::pcapng::Direction;
use layer_tap::Completion;
use roce::wire::{
    Aeth, Bth, Credits, Deth, Immediate, Message, Nak, Number, OneWay, Packet, Qpn, ReadResponse,
    Request, Response, RnrTimer, Syndrome, Tail,
};

use crate::frames::{self, PacketInfo, Route};
use crate::line::CommentLine;
use crate::memory::{AddressKind, Source};
use crate::qp::{CapturedQp, InFlight, QpState, kept_bytes};
use crate::request;
use crate::settings::{Class, settings};
use crate::srq::Srq;
use crate::writer;

/// Wireshark does not show the shared receive queue that an XRC packet names.
const BY_SRQ: &str = " by shared receive queue ";

impl CapturedQp {
    /// Handles a completion that the program polled.
    pub(crate) fn completed(&self, done: &Completion, time: u64, srq: Option<&Srq>) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let status = names::status(done.status).unwrap_or("an unknown status");
        let ok = done.status == IBV_WC_SUCCESS;
        let mut begin = CommentLine::new(self.number, done.wr_id);
        begin.text(" status ").text(status);
        if ok && done.opcode & abi::IBV_WC_RECV != 0 {
            let source = match srq {
                Some(srq) => srq.take(done.wr_id),
                None => state.receives.take(done.wr_id),
            };
            let source = source.unwrap_or_default();
            self.received(state, (done, time), &source, srq, &begin);
            state.receives.give_back(source);
            return;
        }
        let is_it = |flight: &InFlight| flight.post.wr_id == done.wr_id;
        // A failed datagram does not stop the queue pair.
        state.is_broken |= !ok && self.qp_type != IBV_QPT_UD;
        if let Some(at) = state.flights.iter().position(|flight| is_it(flight)) {
            for index in 0..=at {
                let Some(flight) = state.flights.pop_front() else { break };
                if !flight.is_written {
                    // The thread that posted the request has not returned yet.
                    self.write_packets(&flight, time, state.mtu, state.peer, state.qkey);
                }
                self.answered(state, &flight, (index == at).then_some(done), time, &begin);
                state.recycle(flight);
            }
            return;
        }
        if !ok {
            let _ = state.receives.take(done.wr_id).or_else(|| srq?.take(done.wr_id));
        }
        let vendor = if ok { String::new() } else { format!(" vendor_err {:#x}", done.vendor) };
        self.event(time, Direction::In, &format!("{begin}{vendor}"), !ok);
    }

    /// Writes the peer's answer to a request. `done` is its completion. `None` means an unsignaled
    /// request whose successor has completed.
    fn answered(
        &self,
        state: &mut QpState,
        flight: &InFlight,
        done: Option<&Completion>,
        time: u64,
        begin: &CommentLine,
    ) {
        let class = request::class(flight.post.opcode);
        if !settings().wants_class(class) {
            return;
        }
        let status = done.map_or(IBV_WC_SUCCESS, |done| done.status);
        let refusal = match status {
            IBV_WC_RNR_RETRY_EXC_ERR => Some(Syndrome::Rnr(RnrTimer::new(0))),
            IBV_WC_REM_INV_REQ_ERR => Some(Syndrome::Nak(Nak::InvalidRequest)),
            IBV_WC_REM_ACCESS_ERR => Some(Syndrome::Nak(Nak::RemoteAccess)),
            IBV_WC_REM_OP_ERR | IBV_WC_GENERAL_ERR => Some(Syndrome::Nak(Nak::RemoteOperation)),
            _ => None,
        };
        let ok = status == IBV_WC_SUCCESS;
        let is_on_a_wire =
            self.is_reliable() && flight.psns > 0 && !flight.wired && !flight.is_broken;
        if !is_on_a_wire || !(ok || refusal.is_some()) {
            if let Some(done) = done {
                let vendor =
                    if ok { String::new() } else { format!(" vendor_err {:#x}", done.vendor) };
                self.event(time, Direction::In, &format!("{begin}{vendor}"), !ok);
            }
            return;
        }
        let comment = match done {
            Some(_) => {
                let mut comment = begin.clone();
                comment.text("; synthesised from the completion");
                comment
            }
            None if matches!(class, Class::Read | Class::Atomic) => {
                let mut comment = CommentLine::new(self.number, flight.post.wr_id);
                comment.text(" not signaled; synthesised from a later completion");
                comment
            }
            None => return,
        };
        let way = flight.route.back();
        if ok {
            state.peer_done = state.peer_done.wrapping_add(1);
        }
        let msn = Number::new(state.peer_done);
        let aeth = Aeth { syndrome: Syndrome::Ack(Credits::UNLIMITED), msn };
        let wrap = |response| match self.qp_type {
            IBV_QPT_XRC_SEND => Message::XrcResponse(response),
            _ => Message::RcResponse(response),
        };
        let packet = |psn, response| Packet {
            bth: Bth::new(Qpn::new(self.number), psn),
            message: wrap(response),
        };
        let about = (time, Direction::In, &*comment);
        if let Some(syndrome) = refusal {
            let packet = packet(flight.first, Response::Acknowledge(Aeth { syndrome, msn }));
            self.synthesise(about, &way, &packet, &[], 0);
            // A failing program may print nothing more, so the packets go to the file now.
            writer::flush();
            return;
        }
        match class {
            Class::Read => {
                let count = flight.psns;
                let mut bytes = core::mem::take(&mut state.bytes);
                for index in request::picks(count, settings().packets) {
                    let response = match (index == 0, index + 1 == count) {
                        (true, true) => ReadResponse::Only(aeth),
                        (true, false) => ReadResponse::First(aeth),
                        (false, true) => ReadResponse::Last(aeth),
                        (false, false) => ReadResponse::Middle,
                    };
                    let (offset, length) = request::piece(index, flight.post.bytes, state.mtu);
                    bytes.clear();
                    let _ = flight.source.read(
                        self.context,
                        AddressKind::Regions,
                        offset,
                        kept_bytes(length),
                        &mut bytes,
                    );
                    let packet = packet(flight.first.add(index), Response::Read(response));
                    self.synthesise(about, &way, &packet, &bytes, length);
                }
                state.bytes = bytes;
            }
            Class::Atomic => {
                let mut bytes = Vec::new();
                let _ = flight.source.read(self.context, AddressKind::Regions, 0, 8, &mut bytes);
                let original = bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
                let packet = packet(flight.first, Response::Atomic(aeth, original));
                self.synthesise(about, &way, &packet, &[], 0);
            }
            _ => {
                let last = flight.first.add(flight.psns - 1);
                self.synthesise(about, &way, &packet(last, Response::Acknowledge(aeth)), &[], 0);
            }
        }
    }

    /// Writes the message that the peer sent to a receive, and the acknowledgement.
    fn received(
        &self,
        state: &mut QpState,
        (done, time): (&Completion, u64),
        source: &Source,
        srq: Option<&Srq>,
        begin: &CommentLine,
    ) {
        let is_write = done.opcode == abi::IBV_WC_RECV_RDMA_WITH_IMM;
        let class = class_of(done);
        let from = state.pending_datagrams.iter().position(|number| *number == done.src_qp);
        if let Some(at) = from {
            state.pending_datagrams.remove(at);
        }
        let is_wired = self.wired.load(Ordering::Relaxed) || from.is_some();
        let is_acknowledged = matches!(self.qp_type, IBV_QPT_RC | IBV_QPT_XRC_RECV);
        let is_datagram = self.qp_type == IBV_QPT_UD;
        if !settings().wants_class(class) {
            return;
        }
        let xrc = srq.and_then(|srq| srq.xrc.as_ref());
        let has_packets = is_datagram
            || matches!(self.qp_type, abi::IBV_QPT_UC) && !is_write
            || self.qp_type == IBV_QPT_RC && !is_write
            // The addresses of a QP that another process connected are unknown.
            || self.qp_type == IBV_QPT_XRC_RECV && !is_write && xrc.is_some() && state.peer != 0;
        if is_wired || !has_packets && !self.is_frame() {
            self.event(time, Direction::In, &received_text(begin, done, srq), false);
            return;
        }
        // An XRC shared receive queue may belong to another context than the QP.
        let context = xrc.map_or(self.context, |xrc| xrc.context);
        if self.is_frame() {
            let mut bytes = Vec::new();
            let _ = source.read(
                context,
                AddressKind::Regions,
                0,
                kept_bytes(done.bytes as usize),
                &mut bytes,
            );
            let comment = format!("{begin}; a frame as it was received");
            let about = PacketInfo {
                interface: self.packets,
                time,
                direction: Direction::In,
                comment: &comment,
                at_once: false,
            };
            frames::frame(&about, &[&bytes], done.bytes as usize);
            return;
        }
        let mut way = state.route.back();
        let mut skip = 0;
        if is_datagram {
            skip = roce::wire::GRH_LEN;
            let mut grh = Vec::new();
            let _ = source.read(context, AddressKind::Regions, 0, skip, &mut grh);
            (way.source, way.destination) = ends_of(&grh).unwrap_or_default();
        }
        way.source_port = frames::source_port(if is_datagram { done.src_qp } else { state.peer });
        let bytes = u64::from(done.bytes).saturating_sub(skip as u64);
        let count = bytes.div_ceil(state.mtu.max(1).into()).max(1) as u32;
        let imm = (done.flags & abi::IBV_WC_WITH_IMM != 0)
            .then(|| Immediate::new(done.imm.to_be_bytes()));
        let mut payload = core::mem::take(&mut state.bytes);
        for index in request::picks(count, settings().packets) {
            let (is_first, is_last) = (index == 0, index + 1 == count);
            let message = match self.qp_type {
                IBV_QPT_UD => {
                    let src_qpn = Qpn::new(done.src_qp);
                    Message::Ud(Deth { qkey: state.qkey, src_qpn }, imm)
                }
                abi::IBV_QPT_UC => Message::Uc(OneWay::Send(request::part(is_first, is_last, imm))),
                _ => {
                    // The tap swapped the key's bytes as immediate data.
                    let tail = match imm {
                        Some(imm) => Tail::Immediate(imm),
                        None if done.flags & abi::IBV_WC_WITH_INV != 0 => {
                            Tail::Invalidate(done.imm.to_be())
                        }
                        None => Tail::Plain,
                    };
                    let request = Request::Send(request::part(is_first, is_last, tail));
                    match xrc {
                        Some(xrc) => Message::Xrc(Number::new(xrc.number), request),
                        None => Message::Rc(request),
                    }
                }
            };
            let (offset, length) = request::piece(index, bytes, state.mtu);
            payload.clear();
            let known = kept_bytes(length);
            let read =
                source.read(context, AddressKind::Regions, skip + offset, known, &mut payload);
            let mut bth = Bth::new(Qpn::new(self.number), state.expected.add(index));
            bth.ack_request = is_last && is_acknowledged;
            let mut comment = begin.clone();
            comment.text(" received ").dec(bytes).text(" bytes");
            if let Some(xrc) = xrc {
                comment.text(BY_SRQ).hex(xrc.number.into());
            }
            comment.text("; packet ");
            comment.dec(u64::from(index) + 1).text(" of ").dec(count.into());
            if read.is_none() {
                comment.text("; its bytes cannot be read");
            }
            comment.text("; synthesised from the completion");
            let packet = Packet { bth, message };
            self.synthesise((time, Direction::In, &comment), &way, &packet, &payload, length);
        }
        state.bytes = payload;
        let last = state.expected.add(count - 1);
        state.expected = last.add(1);
        if is_acknowledged {
            state.completed_messages = state.completed_messages.wrapping_add(1);
            let aeth = Aeth {
                syndrome: Syndrome::Ack(Credits::UNLIMITED),
                msn: Number::new(state.completed_messages),
            };
            let response = Response::Acknowledge(aeth);
            let message = match xrc {
                Some(_) => Message::XrcResponse(response),
                None => Message::RcResponse(response),
            };
            let packet = Packet { bth: Bth::new(Qpn::new(state.peer), last), message };
            let mut comment = begin.clone();
            comment.text("; acknowledged; synthesised from the completion");
            let way = Route { source_port: frames::source_port(self.number), ..way.back() };
            self.synthesise((time, Direction::Out, &comment), &way, &packet, &[], 0);
        }
    }
}

/// Handles a completion of an XRC QP in another process. If `is_sure`, the message came by this
/// shared receive queue; otherwise by any queue with the same CQ.
pub(crate) fn of_other_process(srq: &Srq, is_sure: bool, done: &Completion, time: u64) {
    let Some(xrc) = &srq.xrc else { return };
    if !settings().passes(&xrc.device, done.qp) || !settings().wants_class(class_of(done)) {
        return;
    }
    let mut begin = CommentLine::new(done.qp, done.wr_id);
    begin.text(" status ").text(names::status(done.status).unwrap_or("an unknown status"));
    let ok = done.status == IBV_WC_SUCCESS;
    let text = match ok {
        true => received_text(&begin, done, is_sure.then_some(srq)),
        false => format!("{} vendor_err {:#x}", &*begin, done.vendor),
    };
    let about = PacketInfo {
        interface: xrc.events(),
        time,
        direction: Direction::In,
        comment: &text,
        at_once: !ok,
    };
    frames::event(&about);
}

/// The kind of operation that consumed a receive.
fn class_of(done: &Completion) -> Class {
    if done.opcode == abi::IBV_WC_RECV_RDMA_WITH_IMM { Class::Write } else { Class::Send }
}

/// The text of a received message without a packet.
fn received_text(begin: &CommentLine, done: &Completion, srq: Option<&Srq>) -> String {
    let xrc = srq.and_then(|srq| srq.xrc.as_ref());
    let by = xrc.map_or(String::new(), |xrc| format!("{BY_SRQ}{:#x}", xrc.number));
    format!("{} received {} bytes{}{by}", &**begin, done.bytes, immediate_of(done))
}

fn immediate_of(done: &Completion) -> String {
    match done.flags & abi::IBV_WC_WITH_IMM {
        0 => String::new(),
        _ => format!(" imm_data {:#x}", done.imm),
    }
}

/// Source and destination from the 40 bytes before a datagram: an IPv6 header, or an IPv4 header
/// in the last 20 bytes.
fn ends_of(grh: &[u8]) -> Option<([u8; 16], [u8; 16])> {
    let gid = |at: usize| grh.get(at..).and_then(|rest| rest.first_chunk::<16>()).copied();
    let v4 = |at: usize| {
        let bytes = grh.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied()?;
        Some(std::net::Ipv4Addr::from(bytes).to_ipv6_mapped().octets())
    };
    match (grh.first()? >> 4, grh.get(20)?) {
        (6, _) => Some((gid(8)?, gid(24)?)),
        (_, 0x45) => Some((v4(32)?, v4(36)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_datagram_are_in_front_of_it() {
        let mut v6 = [0; 40];
        v6[0] = 0x60;
        v6[8..24].fill(1);
        v6[24..40].fill(2);
        assert_eq!(ends_of(&v6), Some(([1; 16], [2; 16])));
        let mut v4 = [0; 40];
        v4[20] = 0x45;
        v4[32..36].copy_from_slice(&[10, 0, 0, 1]);
        let (source, _) = ends_of(&v4).expect("an IPv4 header");
        assert_eq!(source[10..], [0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(ends_of(&[0; 40]), None);
        assert_eq!(ends_of(&[]), None);
    }
}
