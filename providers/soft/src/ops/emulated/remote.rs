//! Where the QPs of emulated devices are: the adapter's own address, and whether a remote QP of
//! this host exists.

use super::numbers::adapter_number;
use super::objects::{Ah, Device};
use crate::host::counters::{ProcessCounter, WireCounters};
use abi::*;
use emulated_commands::carrier::Address;
use soft_local::shm::layout::{Life, split_qpn};
use soft_local::shm::view::look_at;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The address of the emulated device.
#[derive(Clone, Debug)]
pub(super) struct Local {
    device: Arc<Device>,
    /// The only GID of the emulated device.
    pub(super) gid: [u8; 16],
    /// The index of the GID in the table of the adapter.
    index: u8,
    /// The MTU of connections, `IBV_MTU_*`.
    pub(super) mtu: u32,
}

impl Local {
    /// Reads the adapter's GID table. The emulated device has the first GID that other hosts reach,
    /// or the GID of this host.
    pub(super) fn new(device: &Arc<Device>) -> Self {
        let state = device.state();
        let gids = state.gids();
        let own = state.adapter.identity.guid();
        let first = crate::net::link_local(own.guid(0));
        let mut found = (first, 0);
        for index in 0..=u8::MAX {
            if let Some(entry) = gids.get(index.into()) {
                found = (entry.raw, index);
                if entry.raw != first {
                    break;
                }
            }
        }
        let (gid, index) = found;
        Self { device: Arc::clone(device), gid, index, mtu: crate::host::active_mtu(&gids) }
    }

    /// Counts a datagram to an SRD QP that is no message of a handshake.
    pub(super) fn count_bad_handshake(&self) {
        let counters = WireCounters::of(self.device.state().adapter.view);
        counters.counter(ProcessCounter::BadHandshakes).fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the port is up.
    pub(super) fn is_up(&self) -> bool {
        !self.device.state().adapter.port.is_down()
    }
}

/// The address vector of an address as the program gives it.
pub(super) fn ah_attr_of(address: &Address) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: address.dgid },
            flow_label: address.flow_label,
            sgid_index: address.sgid_index,
            hop_limit: address.hop_limit,
            traffic_class: address.traffic_class,
        },
        is_global: address.is_global.into(),
        port_num: address.port,
        ..Zeroed::zeroed()
    }
}

/// The address vector to a GID.
pub(super) fn address_of(gid: [u8; 16], local: &Local) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: gid },
            flow_label: 0,
            sgid_index: local.index,
            hop_limit: 64,
            traffic_class: 0,
        },
        is_global: 1,
        port_num: 1,
        ..Zeroed::zeroed()
    }
}

/// Whether the QP with a vendor's number may exist at the address. Of other hosts nothing is known.
pub(super) fn exists(local: &Local, ah: &Ah, number: u16) -> bool {
    if ah.is_elsewhere() {
        return true;
    }
    let adapter = &local.device.state().adapter;
    let (slot, index) = split_qpn(adapter_number(number));
    if slot == adapter.fabric.slot() {
        return adapter.registry.qp(index).is_some();
    }
    if !adapter.fabric.is_occupied(slot) {
        return false;
    }
    // A process that does not answer may have the QP.
    let Ok(peer) = adapter.fabric.peer(slot) else { return true };
    let life = look_at(&peer, |view| view.qp(index).packed_life.load(Ordering::Acquire));
    Life::unpack(life).state != Life::NONE
}
