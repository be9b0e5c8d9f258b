//! UD: each datagram has its own route, and names its sender.
//! Stands between `engine::host_qp::datagrams` and the outbox.
#![forbid(unsafe_code)]

use super::{HostConnection, PeerRoute};
use crate::host::sockets::Sockets;
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::{Arrival, ResponderReply, ResponderRequest, Step, Work};
use ferroverbs_roce::wire::{Immediate, Qpn};
use soft_semantics::request::Route;
use std::ops::Range;
use std::sync::Arc;

/// A received datagram.
#[derive(Debug)]
pub(crate) struct Datagram {
    pub(crate) src_qpn: Qpn,
    /// Range of the payload in the packet.
    pub(crate) payload: Range<usize>,
    pub(crate) immediate: Option<Immediate>,
    pub(crate) solicited: bool,
}

impl HostConnection {
    /// Queues a datagram of `len` bytes, which `fill` writes, from QP `own_qpn` to QP `qpn` on
    /// `route`. A datagram that cannot be sent is lost, as on a network.
    pub(crate) fn send_datagram(
        &mut self,
        sockets: &Sockets,
        own_qpn: u32,
        (route, qpn): (&Route, u32),
        work: Work,
        fill: impl Fn(&mut [u8]) -> bool,
    ) {
        let (now, len) = (sockets.now(), work.len as usize);
        self.select_route(sockets, own_qpn, route, qpn, now);
        let Self { transport, last_route, .. } = self;
        let Some((_, peer_route)) = last_route else { return };
        if transport.post(work).is_ok() {
            let mut outbox = sockets.outbox().lock();
            while let Some(transmit) = transport.poll_transmit(now) {
                let (padding, ecn) = (transmit.padding, transmit.ecn_capable);
                outbox.put_packet(peer_route, &transmit.head, len, padding, ecn, &fill);
            }
        }
        // The send queue completes datagrams itself.
        while transport.poll_event().is_some() {}
        sockets.counters.add_connection(self);
    }

    /// Checks a packet that has arrived. Returns `None` if the packet is no valid datagram.
    pub(crate) fn receive_datagram(
        &mut self,
        sockets: &Sockets,
        now: Time,
        arrival: &Arrival<'_>,
    ) -> Option<Datagram> {
        let step = self.transport.receive(now, arrival);
        sockets.counters.add_connection(self);
        let Step::AskCaller(ResponderRequest::Datagram { src_qpn, payload, immediate, solicited }) =
            step
        else {
            return None;
        };
        // UD sends no acknowledgement: the sender does not learn whether a receive was posted.
        self.transport.answer(ResponderReply::Accepted);
        Some(Datagram { src_qpn, payload, immediate, solicited })
    }

    /// Sets `last_route` to the route of `route`, for a datagram to `qpn`, or to `None` without
    /// such a route.
    fn select_route(
        &mut self,
        sockets: &Sockets,
        own_qpn: u32,
        route: &Route,
        qpn: u32,
        now: Time,
    ) {
        let port_changed = qpn == Qpn::GSI.get() && self.port_rotation.advance_on_send(now);
        if port_changed || self.last_route.as_ref().is_none_or(|(known, _)| known != route) {
            let from = own_qpn.wrapping_add(self.port_rotation.offset());
            let peer_route = PeerRoute::new(sockets, route, from).ok();
            self.last_route = peer_route.map(|peer_route| (*route, Arc::new(peer_route)));
        }
    }
}
