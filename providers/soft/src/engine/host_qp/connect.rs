//! Connects QPs to peers on another host.
//! Called by ibv_modify_qp on the way from INIT to RTR.
#![forbid(unsafe_code)]

use crate::engine::queues::qp::Qp;
use crate::host::connection::pmtu;
use crate::host::sockets::{V4, V6};
use crate::host::{HostConnection, PeerRoute, active_mtu};
use crate::net::Gids;
use abi::*;
use soft_semantics::state::QpType;

impl Qp {
    /// INIT to RTR. `peer_route` is the route to the peer; `None` for UD, where each request has
    /// its own route.
    pub(crate) fn connect_by_wire(
        &self,
        gids: &Gids,
        attr: &ibv_qp_attr,
        peer_route: Option<PeerRoute>,
    ) {
        let wire = &self.adapter().wire;
        let mtu = if peer_route.is_some() { attr.path_mtu } else { active_mtu(gids) };
        let payload = pmtu(mtu).bytes();
        let families = peer_route.as_ref().map_or(V4 | V6, PeerRoute::family);
        wire.add_families(&self.adapter().fabric, families);
        if let Some(peer_route) = &peer_route {
            self.report_small_mtu(peer_route, payload);
        }
        let to = peer_route
            .as_ref()
            .map(PeerRoute::peer_address)
            .filter(|_| self.qp_type() != QpType::Uc);
        let (shares, buffer) = (self.srq().is_some(), wire.receive_buffer());
        let mut connection = Box::new(HostConnection::new(
            self.qp_type(),
            self.qpn(),
            shares,
            attr,
            mtu,
            peer_route,
            buffer,
        ));
        if let Some(to) = to {
            connection.share_window(wire.join_host(to, payload));
        }
        let before = self.requester().lock().set_host_connection(Some(connection), self.qp_type());
        match before {
            Some(mut before) => wire.forget_connection(self.index(), &mut before),
            None => self.count_wire_user(true),
        }
    }

    /// Warns the user if packets with `bytes` of payload exceed the MTU of the route. Such packets
    /// are dropped, so their requests end by a timeout.
    fn report_small_mtu(&self, peer_route: &PeerRoute, bytes: u32) {
        // A missing route may appear later.
        let Some(carried) = peer_route.mtu() else { return };
        let fits = ferroverbs_net::roce_mtu(carried);
        if fits.is_none_or(|most| most < bytes) {
            self.adapter().unreachable.note_mtu(peer_route.peer_address(), bytes, carried, fits);
        }
    }

    /// Counts a QP whose polls drive the wire. The polls of UD QPs do so already, because they read
    /// datagram rings.
    pub(crate) fn count_wire_user(&self, more: bool) {
        if let Some(pair) = self.pair() {
            if self.qp_type().is_connected() {
                pair.send_cq.count_datagram_user(more);
                pair.recv_cq.count_datagram_user(more);
            }
            return;
        }
        self.adapter().xrc.count_remote(more);
        self.adapter().wire.count_xrc_receiver(more);
    }
}
