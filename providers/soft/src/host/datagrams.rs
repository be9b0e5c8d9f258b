//! UD between hosts: each request says where it goes, and each datagram where it comes from.

use super::connection::Connection;
use super::forward::ends;
use super::sockets::Ports;
use super::state::Came;
use crate::engine::objects::connection::Requester;
use crate::engine::objects::datagrams::PutResult;
use crate::engine::objects::qp::Qp;
use crate::engine::objects::served_by::ServedBy;
use crate::engine::request::{Request, Route};
use crate::engine::ud;
use abi::*;
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::{Answer, Ask, Op, Step, Work};
use ferroverbs_roce::wire::{Immediate, Qpn};
use soft_memory::Ranges;
use soft_semantics::inbound::Headers;
use std::sync::Arc;

impl Requester {
    /// Puts the datagram of `request`, whose bytes are `ranges`, where the wire's next `flush` sends it to another host. What cannot go
    /// is lost, as on any wire.
    #[cold]
    pub(crate) fn send_far(&mut self, qp: &Qp, request: &Request, ranges: &Ranges) -> PutResult {
        let (Some(ports), Some(connection), Some(route)) =
            (qp.adapter.wire.ports(), self.remote.as_deref_mut(), request.to.grh)
        else {
            return PutResult::Done;
        };
        let (to, now) = (request.to.qpn, ports.now());
        if qp.adapter.port.is_down() || !connection.leads_to(qp, ports, &route, to, now) {
            return PutResult::Done;
        }
        let len = ranges.total();
        let with_immediate = request.opcode == IBV_WR_SEND_WITH_IMM;
        let immediate = with_immediate.then_some(Immediate::new(request.imm.to_ne_bytes()));
        let (qpn, qkey) = (Qpn::new(to), request.to.qkey);
        let work = Work {
            solicited: request.flags & IBV_SEND_SOLICITED != 0,
            ..Work::new(0, Op::Datagram { qpn, qkey, immediate }, len as u32)
        };
        let Connection { transport, last, .. } = connection;
        let Some((_, far)) = last else { return PutResult::Done };
        if transport.post(work).is_ok() {
            let mut outbox = ports.outbox();
            while let Some(transmit) = transport.poll_transmit(now) {
                let (padding, ecn) = (transmit.padding, transmit.ecn_capable);
                outbox.put(far, &transmit.head, len, padding, ecn, |to| ranges.gather_bytes(0, to));
            }
        }
        // The send queue completes by itself what went.
        while transport.poll_event().is_some() {}
        ports.counts.add(connection);
        PutResult::Done
    }
}

impl Connection {
    /// Has `last` be the way that `route` says, for a datagram to `qpn`; `false`: there is none.
    fn leads_to(&mut self, qp: &Qp, ports: &Ports, route: &Route, qpn: u32, now: Time) -> bool {
        let turned = qpn == Qpn::GSI.get() && self.turns.turn(now);
        if turned || self.last.as_ref().is_none_or(|(known, _)| known != route) {
            let far = super::Far::new(ports, route, qp.qpn.wrapping_add(self.turns.number()));
            self.last = far.ok().map(|far| (*route, Arc::new(far)));
        }
        self.last.is_some()
    }
}

impl Qp {
    /// A datagram for this QP came; `false`: it is dropped.
    pub(super) fn datagram_arrived(&self, now: Time, came: &Came<'_>, who: ServedBy) -> bool {
        if !self.is_receiving() {
            return false;
        }
        let ask = {
            let mut requester = self.requester.lock();
            let Some(connection) = requester.remote.as_deref_mut() else { return false };
            let step = connection.transport.receive(now, &came.arrival);
            if let Some(ports) = self.adapter.wire.ports() {
                ports.counts.add(connection);
            }
            match step {
                Step::Ask(Ask::Datagram { src_qpn, payload, immediate, solicited }) => {
                    // Whether a receive takes it is nobody's business but ours.
                    connection.transport.answer(Answer::Accepted);
                    (src_qpn, payload, immediate, solicited)
                }
                _ => return false,
            }
        };
        let (src_qpn, payload, immediate, solicited) = ask;
        let Some(bytes) = came.arrival.packet.get(payload) else { return false };
        let (from, to) = ends(came.arrival.addresses);
        let route = Route {
            sgid: from.octets(),
            dgid: to.octets(),
            flow_label: 0,
            hop_limit: came.hop_limit,
            traffic_class: came.traffic_class,
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
        ud::receive_from_other_host(self, headers, &route, bytes, who == ServedBy::Library)
    }
}
