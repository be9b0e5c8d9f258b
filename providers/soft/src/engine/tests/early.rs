//! What comes from another host before the QP is ready for it.

use super::*;
use crate::engine::request::Route;
use crate::engine::state::State;
use soft_sys::Errno;

#[test]
fn a_connection_survives_what_comes_before_the_qp_is_in_rtr() {
    let adapter = adapter(true);
    let side = Side::new(&adapter, Kind::Rc, 64);
    let attr = ibv_qp_attr { port_num: 1, path_mtu: IBV_MTU_4096, ..Zeroed::zeroed() };
    side.modify(IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, attr);
    side.receive(1, &[side.sge(0, 64)]);
    let host = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    let route = Route { sgid: host, dgid: host, ..Route::default() };
    let far = match adapter.wire.way_anyway(&adapter, &route, side.qp.qpn) {
        Err(Errno::EADDRINUSE) => {
            eprintln!("skipped: processes of another fabric have UDP port 4791 on this machine");
            return;
        }
        far => far.expect("the port"),
    };
    // What `ibv_modify_qp` does on the way to RTR, with a look at the wire by another thread in between, and one after it.
    let gids = Gids::of_this_host(adapter.identity, 0);
    side.qp.connect_far(&gids, &attr, Some(far));
    adapter.wire.ring(&side.qp);
    side.qp.set_connected(0);
    adapter.wire.ring(&side.qp);
    assert!(side.poll().is_none(), "the receive is flushed");
    assert!(side.qp.is_in(State::Rtr));
}
