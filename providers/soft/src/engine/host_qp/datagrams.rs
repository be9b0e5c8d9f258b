//! UD between hosts: from the send queue to a datagram, and from a datagram to a receive.
//! Stands between `engine::datagram::ud` and the QP's connection (`host::connection::datagram`).
#![forbid(unsafe_code)]

use super::forward::address_pair;
use crate::engine::datagram::ud;
use crate::engine::queues::qp::Qp;
use crate::engine::queues::qp::Requester;
use crate::engine::queues::served_by::ServedBy;
use crate::host::connection::datagram::Datagram;
use crate::host::dispatch::ReceivedPacket;
use crate::host::process::Round;
use abi::*;
use ferroverbs_roce::engine::{Op, Work};
use ferroverbs_roce::wire::{Immediate, Qpn};
use soft_memory::Ranges;
use soft_semantics::inbound::Headers;
use soft_semantics::request::{Request, Route};

impl Requester {
    /// Queues the datagram of `request` for another host; its payload is in `ranges`. A datagram
    /// that cannot be sent is lost, as on a network.
    #[cold]
    pub(crate) fn send_datagram_by_wire(&mut self, qp: &Qp, request: &Request, ranges: &Ranges) {
        let (Some(sockets), Some(connection), Some(route)) = (
            qp.adapter().wire.sockets(),
            self.host_connection.as_deref_mut(),
            request.destination.grh,
        ) else {
            return;
        };
        if qp.adapter().port.is_down() {
            return;
        }
        let with_immediate = request.opcode == IBV_WR_SEND_WITH_IMM;
        let immediate = with_immediate.then_some(Immediate::new(request.imm.to_ne_bytes()));
        let (qpn, qkey) = (Qpn::new(request.destination.qpn), request.destination.qkey);
        let op = Op::Datagram { qpn, qkey, immediate };
        let work = Work {
            solicited: request.flags & IBV_SEND_SOLICITED != 0,
            ..Work::new(0, op, ranges.total() as u32)
        };
        let destination = (&route, request.destination.qpn);
        connection
            .send_datagram(sockets, qp.qpn(), destination, work, |to| ranges.gather_bytes(0, to));
    }
}

impl Qp {
    /// Delivers a datagram to this QP. Returns false if the datagram is dropped.
    pub(super) fn receive_datagram(&self, round: Round<'_>, received: &ReceivedPacket<'_>) -> bool {
        if !self.is_receiving() {
            return false;
        }
        let datagram = {
            let mut requester = self.requester().lock();
            let Some(connection) = requester.host_connection.as_deref_mut() else { return false };
            connection.receive_datagram(round.sockets, round.now, &received.arrival)
        };
        let Some(Datagram { src_qpn, payload, immediate, solicited }) = datagram else {
            return false;
        };
        let Some(bytes) = received.arrival.packet.get(payload) else { return false };
        let (from, to) = address_pair(received.arrival.addresses);
        let route = Route {
            sgid: from.octets(),
            dgid: to.octets(),
            flow_label: 0,
            hop_limit: received.hop_limit,
            traffic_class: received.traffic_class,
        };
        let headers = Headers {
            first: true,
            last: true,
            imm: immediate.map(|imm| u32::from_ne_bytes(imm.bytes())),
            invalidate: None,
            solicited,
            total: 0,
            src_qpn: src_qpn.get(),
            packet: 0,
        };
        let is_careful = round.served_by == ServedBy::Library;
        ud::receive_from_other_host(self, headers, &route, bytes, is_careful)
    }
}
