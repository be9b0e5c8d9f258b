//! Multicast between hosts: a group of `ibv_attach_mcast` is an IP multicast group, in which this host takes part while it has members
//! (RoCE v2, annex A17.9.2).
//!
//! Each process with members joins by its own sockets. The kernel gives what comes for a group to all sockets of the port, so nothing is
//! passed on, and who has no members drops it. What this host sends does not come back to it (`ferroverbs_net` sees to that): its own
//! members get it through shared memory.

use super::forward::ends;
use super::state::{Came, Wire};
use crate::engine::multicast::words;
use crate::engine::objects::adapter::Adapter;
use crate::engine::objects::who::Who;
use crate::net::Gids;
use ferroverbs_roce::Time;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

impl Wire {
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

    /// As `take_part`, in all groups that have members here: there may be interfaces that were not there before.
    pub(crate) fn take_part_again(&self, adapter: &Adapter) {
        for group in adapter.groups.all() {
            self.take_part(adapter, &group, true);
        }
    }

    /// Brings a packet to the members of its group; `false`: there are none, or it is dropped by all of them.
    pub(super) fn deliver_to_group(
        &self,
        adapter: &Adapter,
        came: &Came<'_>,
        now: Time,
        who: Who,
    ) -> bool {
        let (_, group) = ends(came.arrival.addresses);
        let mut taken = false;
        adapter.groups.for_members(words(&group.octets()), |qp| {
            taken |= qp.datagram_arrived(now, came, who);
        });
        taken
    }
}
