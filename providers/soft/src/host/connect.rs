//! The MTU of the port, and whether a route uses the wire.
//! Asked by queries of the port, and when a QP or an address handle gets a route.
#![forbid(unsafe_code)]

use crate::config::{self, Wiring};
use crate::net::Gids;
use abi::*;
use soft_semantics::request::Route;
use soft_sys::interface;

/// Whether packets to this host also use the wire, as tests ask for. Only addresses of interfaces
/// qualify.
pub(crate) fn is_wire_forced(route: &Route) -> bool {
    let link_local = |gid: &[u8; 16]| gid[..8] == [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
    config::wire() == Wiring::Always && !link_local(&route.sgid) && !link_local(&route.dgid)
}

/// `ibv_mtu` of the port: the largest payload that the interfaces behind the GIDs carry, because
/// RoCE packets are never fragmented. Without such an interface the answer is `IBV_MTU_4096`.
pub(crate) fn active_mtu(gids: &Gids) -> u32 {
    if config::wire() == Wiring::Off {
        return IBV_MTU_4096;
    }
    let carried = gids.interfaces().filter_map(|index| interface::mtu(index).ok());
    match carried.min().and_then(ferroverbs_net::roce_mtu) {
        Some(4096..) | None => IBV_MTU_4096,
        Some(2048..) => IBV_MTU_2048,
        Some(1024..) => IBV_MTU_1024,
        Some(512..) => IBV_MTU_512,
        Some(_) => IBV_MTU_256,
    }
}
