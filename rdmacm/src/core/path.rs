//! The path record of an id, which the program reads from the C object.
//! `arrivals` and `calls::resolve` fill it in once both addresses are known.

use crate::core::id::{Id, RdmaIdState};
use abi::*;

/// The packet lifetime that the kernel assumes for RoCE, as a time code (IBTA 1.7 12.7.34).
const LIFETIME: u8 = 18;

/// The packet lifetime of an id: half of its acknowledgement timeout, if the program has set a
/// finite timeout (`cma_resolve_iboe_route`).
pub(crate) fn lifetime(state: &RdmaIdState) -> u8 {
    state.ack_timeout.and_then(|timeout| timeout.checked_sub(1)).unwrap_or(LIFETIME)
}

/// Fills in the path record of an id with both addresses.
pub(crate) fn publish_path(id: &Id, state: &RdmaIdState) {
    let (Some(local), Some(dgid)) = (state.local, Id::peer_gid(state)) else { return };
    let record = ibv_sa_path_rec {
        sgid: ibv_gid { raw: local.gid },
        dgid: ibv_gid { raw: dgid },
        hop_limit: 64,
        traffic_class: state.type_of_service,
        reversible: 1,
        numb_path: 1,
        pkey: 0xffff,
        mtu_selector: 2,
        mtu: local.device.mtu() as u8,
        rate_selector: 2,
        packet_life_time_selector: 2,
        packet_life_time: lifetime(state),
        ..Zeroed::zeroed()
    };
    // Without memory, the program finds no path.
    let _full = id.c().set_paths(&[record]);
}
