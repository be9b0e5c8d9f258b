//! The path record of an id, which the program reads from the C object.
//! `arrivals` and `calls::resolve` fill it in once both addresses are known.

use crate::core::id::{Id, RdmaIdState};
use abi::*;
use cface::mem;

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
    // SAFETY: the program reads these members only after the event that announces them; the record
    // belongs to the id, and is freed with it.
    unsafe {
        let route = &raw mut (*id.as_c()).route;
        if (*route).path_rec.is_null() {
            let Ok(record) = mem::calloc_bytes(size_of::<ibv_sa_path_rec>()) else { return };
            (*route).path_rec = record.cast().as_ptr();
        }
        let record = (*route).path_rec;
        (*record).sgid.raw = local.gid;
        (*record).dgid.raw = dgid;
        (*record).hop_limit = 64;
        (*record).traffic_class = state.type_of_service;
        (*record).reversible = 1;
        (*record).numb_path = 1;
        (*record).pkey = 0xffff;
        (*record).mtu_selector = 2;
        (*record).mtu = local.device.mtu() as u8;
        (*record).rate_selector = 2;
        (*record).packet_life_time_selector = 2;
        (*record).packet_life_time = lifetime(state);
        (*route).num_paths = 1;
    }
}
