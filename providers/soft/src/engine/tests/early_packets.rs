//! Tests of packets that arrive before their QP is ready, and of acknowledgements that a QP owes
//! when it goes. Both QPs are of this host, but their connection goes by UDP packets.

use super::*;
use soft_semantics::request::Route;
use soft_semantics::state::QpState;
use soft_sys::Errno;

#[test]
fn a_connection_survives_packets_that_arrive_before_rtr() {
    let adapter = adapter_with_port();
    let side = Side::new(&adapter, QpType::Rc, 64);
    let attr = ibv_qp_attr { port_num: 1, path_mtu: IBV_MTU_4096, ..Zeroed::zeroed() };
    side.modify(IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, attr);
    side.receive(1, &[side.sge(0, 64)]);
    let host = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    let route = Route { sgid: host, dgid: host, ..Route::default() };
    let peer_route = match adapter.wire.open_route_unchecked(&*adapter, &route, side.qp.qpn()) {
        Err(Errno::EADDRINUSE) => {
            eprintln!("skipped: processes of another fabric have UDP port 4791 on this machine");
            return;
        }
        peer_route => peer_route.expect("the port"),
    };
    // These are the steps of `ibv_modify_qp` on the way to RTR. Another thread looks at the wire
    // before the transition, and once more after it.
    let gids = Gids::of_this_host(adapter.identity.guid(), 0);
    side.qp.connect_by_wire(&gids, &attr, Some(peer_route));
    side.qp.fire_wire_timer();
    side.qp.set_connected(0);
    side.qp.fire_wire_timer();
    assert!(side.poll().is_none(), "the receive is flushed");
    assert!(side.qp.is_in(QpState::Rtr));
}

/// Two QPs of this host, connected by UDP packets. `None` if the UDP port is in use.
fn far_pair(adapter: &Arc<Adapter>) -> Option<[Side; 2]> {
    far_pair_of(adapter, QpType::Rc, 64)
}

/// As `far_pair`, with QPs of type `kind` and `bytes` bytes of memory each.
pub(super) fn far_pair_of(adapter: &Arc<Adapter>, kind: QpType, bytes: usize) -> Option<[Side; 2]> {
    let sides = [(); 2].map(|()| Side::new(adapter, kind, bytes));
    let host = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    let route = Route { sgid: host, dgid: host, ..Route::default() };
    let gids = Gids::of_this_host(adapter.identity.guid(), 0);
    for (side, other) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
        let attr = ibv_qp_attr {
            port_num: 1,
            path_mtu: IBV_MTU_4096,
            dest_qp_num: other.qp.qpn(),
            timeout: 10,
            retry_cnt: 7,
            min_rnr_timer: 1,
            qp_access_flags: ALL,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            ..Zeroed::zeroed()
        };
        side.modify(IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, attr);
        let peer_route = match adapter.wire.open_route_unchecked(&**adapter, &route, side.qp.qpn())
        {
            Err(Errno::EADDRINUSE) => return None,
            peer_route => peer_route.expect("the port"),
        };
        side.qp.connect_by_wire(&gids, &attr, Some(peer_route));
        side.qp.set_connected(other.qp.qpn());
        let needs = soft_semantics::modify::transition(kind, QpState::Rtr, QpState::Rts);
        side.modify(IBV_QPS_RTS, needs.expect("the usual way").required, attr);
    }
    Some(sides)
}

#[test]
fn the_reset_of_a_qp_sends_a_delayed_acknowledgement_first() {
    let adapter = adapter_with_port();
    let mut left = 0;
    // The service thread may send it at once, which is why the test makes many attempts.
    for _ in 0..1000 {
        let Some([a, b]) = far_pair(&adapter) else {
            eprintln!("skipped: processes of another fabric have UDP port 4791 on this machine");
            return;
        };
        b.receive(1, &[b.sge(0, 8)]);
        a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 8)]);
        let came = std::iter::repeat_with(|| b.poll()).flatten().next().expect("a message");
        assert_eq!(came.status, IBV_WC_SUCCESS);
        left += adapter.wire.drain_deferred_acks();
        b.qp.reset();
        let done = std::iter::repeat_with(|| a.poll()).flatten().next().expect("a completion");
        assert_eq!(done.status, IBV_WC_SUCCESS);
        if left == 3 {
            return;
        }
    }
    panic!("{left} of 1000 acknowledgements waited for an answer");
}

#[test]
fn an_unanswered_request_is_sent_again_from_other_ports() {
    let adapter = adapter_with_port();
    let Some([a, b]) = far_pair(&adapter) else {
        eprintln!("skipped: processes of another fabric have UDP port 4791 on this machine");
        return;
    };
    b.qp.reset();
    a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 8)]);
    let mut ports = std::collections::BTreeSet::new();
    let done = loop {
        ports.extend(a.qp.wire_source_port());
        if let Some(done) = a.poll() {
            break done;
        }
    };
    assert_eq!(done.status, IBV_WC_RETRY_EXC_ERR);
    assert!(ports.len() > 2, "{ports:?}");
}
