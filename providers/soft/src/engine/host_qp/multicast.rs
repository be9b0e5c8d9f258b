//! Multicast between hosts, and packets to QP 1: one packet for several QPs of this host.
//! Stands between the dispatch of received packets and the members of a group.
//!
//! A group of `ibv_attach_mcast` is an IP multicast group (IBTA 1.7 A17.9.2). Each process
//! with members joins the group by its own sockets, and the kernel delivers a packet to all of
//! them, so processes forward no multicast. `ferroverbs_net` disables the loopback of sent packets:
//! members on the same host receive them through shared memory.

use super::forward::address_pair;
use crate::engine::adapter::Adapter;
use crate::engine::datagram::multicast::{gid_words, has_members};
use crate::host::dispatch::ReceivedPacket;
use crate::host::process::Round;
use crate::net::Gids;
use abi::GSI_GROUP;
use std::collections::BTreeSet;

impl Adapter {
    /// Joins or leaves `group` on all interfaces. Without the wire, or where an interface refuses,
    /// members receive packets of this host only, as behind a switch that does not know the group.
    pub(crate) fn set_group_membership(&self, group: &[u8; 16], join: bool) {
        if self.ensure_wire_open().is_err() {
            return;
        }
        let gids = Gids::of_this_host(self.identity.guid(), 0);
        let interfaces: BTreeSet<u32> = gids.interfaces().collect();
        self.wire.set_membership(group, interfaces, join);
    }

    /// Joins all groups with members again, because interfaces and IPv6 may be new.
    pub(crate) fn wire_interfaces_changed(&self) {
        self.wire.open_missing_sockets();
        self.join_groups_with_members();
    }

    /// Joins all groups with members in this process.
    pub(super) fn join_groups_with_members(&self) {
        for group in self.groups.with_members() {
            self.set_group_membership(&group, true);
        }
    }

    pub(super) fn deliver_to_members_of_group(
        &self,
        round: Round<'_>,
        received: &ReceivedPacket<'_>,
    ) -> bool {
        let (_, group) = address_pair(received.arrival.addresses);
        self.deliver_to_members(&group.octets(), round, received)
    }

    pub(super) fn deliver_to_all_gsi(
        &self,
        round: Round<'_>,
        received: &ReceivedPacket<'_>,
    ) -> bool {
        // A process that cannot be met now misses the packet, as on a network.
        let _lost = self.datagrams.meet_all_processes(self);
        let own = self.fabric.slot();
        let others = self.datagrams.receivers(self, |view| has_members(view, &GSI_GROUP));
        let others = others.iter().map(|outlet| outlet.peer_slot()).filter(|slot| *slot != own);
        let mut taken = false;
        for slot in others {
            taken |= self.forward_packet(slot, received);
        }
        self.deliver_to_own_gsi(round, received) || taken
    }

    /// As `deliver_to_gsi`, for QPs of this process.
    pub(super) fn deliver_to_own_gsi(
        &self,
        round: Round<'_>,
        received: &ReceivedPacket<'_>,
    ) -> bool {
        self.deliver_to_members(&GSI_GROUP, round, received)
    }

    fn deliver_to_members(
        &self,
        group: &[u8; 16],
        round: Round<'_>,
        received: &ReceivedPacket<'_>,
    ) -> bool {
        if self.is_rejected_by_limits(received.arrival.addresses) {
            return true;
        }
        let mut taken = false;
        self.groups
            .for_members(gid_words(group), |qp| taken |= qp.receive_datagram(round, received));
        taken
    }
}
