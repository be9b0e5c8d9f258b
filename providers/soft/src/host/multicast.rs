//! Multicast between hosts: a group of `ibv_attach_mcast` is an IP multicast group, in which this host takes part while it has members
//! (RoCE v2, annex A17.9.2).
//!
//! Each process with members joins by its own sockets. The kernel gives what comes for a group to all sockets of the port, so nothing is
//! passed on, and who has no members drops it. What this host sends does not come back to it (`ferroverbs_net` sees to that): its own
//! members get it through shared memory.

use super::forward::ends;
use super::state::{Came, Network};
use crate::engine::multicast::{gid_words, has_members};
use crate::engine::objects::adapter::Adapter;
use crate::engine::objects::served_by::ServedBy;
use crate::net::Gids;
use abi::GSI_GROUP;
use ferroverbs_roce::Time;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

impl Network {
    /// Has the interfaces of this host take part in `group`, or not any more. Where there is no wire, or one of them cannot, members hear of this
    /// host alone, as they would behind a switch that does not know the group.
    pub(crate) fn take_part(&self, adapter: &Adapter, group: &[u8; 16], join: bool) {
        if self.begin(adapter).is_err() {
            return;
        }
        let Some(ports) = self.ports() else { return };
        let address = IpAddr::V6(Ipv6Addr::from(*group)).to_canonical();
        let gids = Gids::of_this_host(adapter.identity, 0);
        let interfaces: BTreeSet<u32> = gids.interfaces().collect();
        let inbox = ports.inbox.lock();
        let receiver = if address.is_ipv4() { &inbox.v4 } else { &inbox.v6 };
        let Some(receiver) = receiver else { return };
        for interface in interfaces {
            // An interface that is in already, or went away meanwhile, is none the worse.
            let _ = receiver.join(address, interface, join);
        }
    }

    /// As `take_part`, in all groups that have members here: there may be interfaces that were not there before, and IPv6 with them.
    pub(crate) fn take_part_again(&self, adapter: &Adapter) {
        if let Some(ports) = self.ports() {
            self.listen_later(ports);
        }
        self.take_part_in_all(adapter);
    }

    /// As `take_part`, in all groups that have members here.
    pub(super) fn take_part_in_all(&self, adapter: &Adapter) {
        for group in adapter.groups.with_members() {
            self.take_part(adapter, &group, true);
        }
    }

    /// Brings a packet to the members of its group; `false`: there are none, or it is dropped by all of them.
    pub(super) fn deliver_to_group(
        &self,
        adapter: &Adapter,
        came: &Came<'_>,
        now: Time,
        who: ServedBy,
    ) -> bool {
        let (_, group) = ends(came.arrival.addresses);
        deliver(adapter, &group.octets(), came, now, who)
    }

    /// Brings a packet for QP 1 of this host, which the kernel gave to us, to all who stand for that; `false`: nobody does, or all drop it.
    pub(super) fn deliver_to_managers(
        &self,
        adapter: &Adapter,
        came: &Came<'_>,
        now: Time,
        who: ServedBy,
    ) -> bool {
        // Whom it could not meet for now hears nothing, as on a wire, until it could.
        let _lost = adapter.datagrams.meet_all_processes(adapter);
        let own = adapter.fabric.slot();
        let others = adapter.datagrams.receivers(adapter, |view| has_members(view, &GSI_GROUP));
        let others = others.iter().map(|outlet| outlet.slot()).filter(|slot| *slot != own);
        let mut taken = false;
        for slot in others {
            taken |= self.forward(adapter, slot, came);
        }
        deliver_to_own_managers(adapter, came, now, who) || taken
    }
}

/// As `deliver_to_managers`, to those of this process.
pub(super) fn deliver_to_own_managers(
    adapter: &Adapter,
    came: &Came<'_>,
    now: Time,
    who: ServedBy,
) -> bool {
    deliver(adapter, &GSI_GROUP, came, now, who)
}

fn deliver(adapter: &Adapter, group: &[u8; 16], came: &Came<'_>, now: Time, who: ServedBy) -> bool {
    let mut taken = false;
    if adapter.turns_away(came.arrival.addresses) {
        return true;
    }
    adapter.groups.for_members(gid_words(group), |qp| taken |= qp.datagram_arrived(now, came, who));
    taken
}
