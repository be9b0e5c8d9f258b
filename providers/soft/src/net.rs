//! Addresses of this host as GIDs (RoCE v2, IBTA 1.7 A17): the GID table.
//! Read by verbs that answer GIDs, and by the wire `host` for routes.
//!
//! Map of this file: `Gid` and `Gids`; `GidTable`, the table of a context with indices that stay;
//! `Gids` from the interfaces of the host; questions about one GID; reading the interfaces; tests.
//! Threads: any. Locks: `indices` of the adapter and `known` of a context, both leaves.

use crate::config;
use crate::gid_indices::GidIndices;
use crate::guid::{AdapterGuid, DEVICES};
use cface::sync::Mutex;
use soft_semantics::gid_order::GidEntries;
use soft_sys::interface::{self, Address, Interface};
use std::net::Ipv6Addr;
use std::sync::Arc;

pub(crate) use soft_semantics::gid_order::GID_TABLE;

/// A GID, and the index of its network interface (0: none).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gid {
    pub(crate) raw: [u8; 16],
    pub(crate) ifindex: u32,
}

/// An unused entry: no host has the address (RFC 4291, 2.5.2).
const EMPTY: Gid = Gid { raw: [0; 16], ifindex: 0 };

/// The GID table. Entry 0 is link-local with the device's GUID (IBTA 1.7 4.1.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gids {
    identity: AdapterGuid,
    entries: Vec<Gid>,
}

/// The table of device 0 that applications were last told of. `None` if the interfaces are not
/// watched.
pub(crate) type ReportedGids = Mutex<Option<Gids>>;

/// The GID table of a context. The table shows the host at the last reported change (`interfaces`,
/// or `gid-change` by a user), so each change of the table has an event. A table that was read
/// later could show an address that had appeared and vanished unreported, for ever.
#[derive(Debug)]
pub(crate) struct GidTable {
    identity: AdapterGuid,
    device: usize,
    /// The table, and the number of changes reported by then.
    table_and_changes: Mutex<(u32, Arc<Gids>)>,
}

impl GidTable {
    /// The table after `changes` reported changes, for device number `device` of an adapter.
    /// `reported` is the table of the last report, and `indices` are the indices of its addresses.
    pub(crate) fn new(
        changes: u32,
        identity: AdapterGuid,
        device: usize,
        reported: &ReportedGids,
        indices: &Mutex<GidIndices>,
    ) -> Self {
        let now = Self::read(identity, device, reported, indices);
        Self { identity, device, table_and_changes: Mutex::new((changes, now)) }
    }

    /// The table after `changes` reported changes.
    pub(crate) fn after_changes(
        &self,
        changes: u32,
        reported: &ReportedGids,
        indices: &Mutex<GidIndices>,
    ) -> Arc<Gids> {
        let mut known = self.table_and_changes.lock();
        if known.0 != changes {
            *known = (changes, Self::read(self.identity, self.device, reported, indices));
        }
        Arc::clone(&known.1)
    }

    fn read(
        identity: AdapterGuid,
        device: usize,
        reported: &ReportedGids,
        indices: &Mutex<GidIndices>,
    ) -> Arc<Gids> {
        let reported = reported.lock().clone();
        // Without notifications the interfaces are read now.
        let reported = reported.unwrap_or_else(|| Gids::of_this_host(identity, device));
        Arc::new(indices.lock().assign(&reported.of_device(device)))
    }
}

impl Gids {
    /// Reads the interfaces that are up. Loopback addresses count only without any different
    /// address.
    pub(crate) fn of_this_host(identity: AdapterGuid, device: usize) -> Self {
        Self::from_interfaces(identity, device, &interfaces())
    }

    fn from_interfaces(identity: AdapterGuid, device: usize, all: &[Interface]) -> Self {
        let hardware = all.iter().find_map(|i| match i.address {
            Address::Hardware(mac) if !i.loopback && mac != [0; 6] => Some(i.index),
            _ => None,
        });
        let ifindex = hardware.unwrap_or(0);
        let mut gids = vec![Gid { raw: link_local(identity.guid(device)), ifindex }];
        let mut add = |raw: [u8; 16], ifindex| {
            if gids.len() < GID_TABLE && !gids.iter().any(|g| g.raw == raw) {
                gids.push(Gid { raw, ifindex });
            }
        };
        let usable = |want_loopback: bool| {
            all.iter().filter(move |i| i.loopback == want_loopback).filter_map(|i| {
                let raw = match i.address {
                    Address::V4(v4) => v4.to_ipv6_mapped().octets(),
                    Address::V6(v6) => v6.octets(),
                    Address::Hardware(_) => return None,
                };
                Some((raw, i.index))
            })
        };
        let mut found = false;
        for (raw, index) in usable(false) {
            add(raw, index);
            found = true;
        }
        for (raw, index) in usable(true).filter(|_| !found) {
            add(raw, index);
        }
        Self { identity, entries: gids }
    }

    /// A table with these addresses from index 1 on.
    #[cfg(test)]
    pub(crate) fn with_addresses(addresses: impl Iterator<Item = [u8; 16]>) -> Self {
        let identity = AdapterGuid::of(&soft_local::fabric::FabricConfig::new("/run/one"));
        let raw = link_local(identity.guid(0));
        let entries = std::iter::once(raw).chain(addresses).map(|raw| Gid { raw, ifindex: 1 });
        Self { identity, entries: entries.collect() }
    }

    /// The same table for device number `device` of the adapter.
    fn of_device(mut self, device: usize) -> Self {
        if let Some(first) = self.entries.first_mut() {
            first.raw = link_local(self.identity.guid(device));
        }
        self
    }

    /// Entry `index`, if in use.
    pub(crate) fn get(&self, index: usize) -> Option<&Gid> {
        self.entries.get(index).filter(|entry| **entry != EMPTY)
    }

    /// The same table with the addresses of `indices` from index 1 on. An address that the host
    /// lacks leaves a gap.
    pub(crate) fn with_indices(&self, indices: &GidEntries) -> Self {
        let mut entries: Vec<Gid> = self.entries.iter().copied().take(1).collect();
        for (index, raw) in indices.iter() {
            let Some(found) = self.entries.iter().find(|entry| entry.raw == *raw) else { continue };
            entries.resize(index.max(entries.len()), EMPTY);
            entries.push(*found);
        }
        Self { identity: self.identity, entries }
    }

    /// Whether `raw` is in the table.
    pub(crate) fn has_entry(&self, raw: &[u8; 16]) -> bool {
        self.entries().any(|entry| entry == raw)
    }

    /// Whether `gid` has the GUID of a device of the adapter whose GID 0 is `first`.
    pub(crate) fn is_of_one_adapter(gid: &[u8; 16], first: &[u8; 16]) -> bool {
        let bits = !(u128::from(DEVICES) - 1);
        u128::from_be_bytes(*gid) & bits == u128::from_be_bytes(*first) & bits
    }

    /// All entries in use.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &[u8; 16]> {
        self.entries.iter().filter(|entry| **entry != EMPTY).map(|entry| &entry.raw)
    }

    /// The interfaces of the addresses, each once.
    pub(crate) fn interfaces(&self) -> impl Iterator<Item = u32> {
        let of = |at: usize| self.entries.get(at).map_or(0, |entry| entry.ifindex);
        let is_first = move |at: usize| of(at) != 0 && (0..at).all(|before| of(before) != of(at));
        (0..self.entries.len()).filter(move |at| is_first(*at)).map(of)
    }

    /// Whether `raw` is an address of this host, or of a device of this adapter.
    pub(crate) fn contains(&self, raw: &[u8; 16]) -> bool {
        let [prefix @ .., a, b, c, d, e, f, g, h] = *raw;
        self.has_entry(raw)
            || is_loopback(raw)
            || prefix == LINK_LOCAL && self.identity.has_device([a, b, c, d, e, f, g, h])
    }
}

/// Whether a GID names a multicast group: ff00::/8, or a mapped IPv4 group (224.0.0.0/4) (RFC 4291,
/// IBTA 1.7 A17.9.2).
pub(crate) fn is_multicast(raw: &[u8; 16]) -> bool {
    let v6 = Ipv6Addr::from(*raw);
    v6.to_ipv4_mapped().map_or_else(|| v6.is_multicast(), |v4| v4.is_multicast())
}

/// Whether the limits permit packets to `gid`, the address of a host or a group.
pub(crate) fn may_send_to(gid: &[u8; 16]) -> bool {
    is_multicast(gid) || config::limits().may_meet(Ipv6Addr::from(*gid).into())
}

/// The interface with the address `raw`; 0 if none has the address.
pub(crate) fn interface_of(raw: &[u8; 16]) -> u32 {
    let is_its = |interface: &Interface| match interface.address {
        Address::V4(v4) => v4.to_ipv6_mapped().octets() == *raw,
        Address::V6(v6) => v6.octets() == *raw,
        Address::Hardware(_) => false,
    };
    interfaces().iter().find(|interface| is_its(interface)).map_or(0, |interface| interface.index)
}

/// The table of device 0, and whether a cable leads to different hosts: an interface with an
/// address is up and running. One read of the interfaces, which takes ten system calls.
pub(crate) fn gids_and_cable(identity: AdapterGuid) -> (Gids, bool) {
    let all = interfaces();
    (Gids::from_interfaces(identity, 0, &all), leads_out(&all))
}

fn leads_out(all: &[Interface]) -> bool {
    let has_address = |interface: &Interface| !matches!(interface.address, Address::Hardware(_));
    all.iter().any(|interface| !interface.loopback && interface.running && has_address(interface))
}

fn is_loopback(raw: &[u8; 16]) -> bool {
    let v6 = Ipv6Addr::from(*raw);
    v6.is_loopback() || v6.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback())
}

/// fe80::/64 (RFC 4291), the default GID prefix.
const LINK_LOCAL: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];

/// The GID of a GUID with the default prefix.
pub(crate) fn link_local(guid: [u8; 8]) -> [u8; 16] {
    let mut raw = [0; 16];
    raw[..8].copy_from_slice(&LINK_LOCAL);
    raw[8..].copy_from_slice(&guid);
    raw
}

/// All addresses of permitted interfaces that are up.
fn interfaces() -> Vec<Interface> {
    interface::addresses(|name| config::limits().has_interface(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use soft_local::fabric::FabricConfig;
    use soft_semantics::gid_order::GidOrder;
    use std::net::Ipv4Addr;

    fn identity() -> AdapterGuid {
        AdapterGuid::of(&FabricConfig::new("/run/one"))
    }

    fn interface(index: u32, address: Address) -> Interface {
        Interface { index, loopback: index == 1, running: true, address }
    }

    /// IBTA 1.7 4.1.1, A17.
    #[test]
    fn entry_zero_is_link_local_and_addresses_follow() {
        let all = [
            interface(1, Address::V4(Ipv4Addr::LOCALHOST)),
            interface(2, Address::Hardware([0x52, 0x54, 0, 1, 2, 3])),
            interface(2, Address::V4(Ipv4Addr::new(10, 0, 0, 7))),
        ];
        let identity = identity();
        let gids = Gids::from_interfaces(identity, 3, &all);
        let first = gids.get(0).expect("always there");
        assert_eq!(first.raw[..8], LINK_LOCAL);
        assert_eq!(first.raw[8..], identity.guid(3));
        assert_eq!(first.ifindex, 2);
        assert!(gids.contains(&link_local(identity.guid(0))), "another device of the adapter");
        let other = AdapterGuid::of(&FabricConfig::new("/run/another"));
        assert!(!gids.contains(&link_local(other.guid(3))), "another adapter");
        let second = gids.get(1).map(|g| Ipv6Addr::from(g.raw).to_string());
        assert_eq!(second.as_deref(), Some("::ffff:10.0.0.7"));
        assert_eq!(gids.get(2), None);
        assert!(gids.contains(&Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets()));
        assert!(!gids.contains(&Ipv4Addr::new(10, 0, 0, 8).to_ipv6_mapped().octets()));
    }

    #[test]
    fn an_interface_with_several_addresses_is_named_once() {
        let at =
            |index, last| interface(index, Address::V4(Ipv4Addr::new(10, 0, index as u8, last)));
        let all = [at(2, 1), at(3, 1), at(2, 2), at(4, 1), at(3, 2)];
        let gids = Gids::from_interfaces(identity(), 0, &all);
        assert_eq!(gids.entries().count(), 6);
        assert_eq!(gids.interfaces().collect::<Vec<_>>(), [2, 3, 4]);
    }

    #[test]
    fn a_context_keeps_its_table_until_a_change_is_reported() {
        let (reported, indices) = (ReportedGids::default(), Mutex::default());
        let table = GidTable::new(3, identity(), 0, &reported, &indices);
        let first = table.after_changes(3, &reported, &indices);
        assert!(Arc::ptr_eq(&first, &table.after_changes(3, &reported, &indices)));
        let second = table.after_changes(4, &reported, &indices);
        assert!(!Arc::ptr_eq(&first, &second), "read again");
        assert!(Arc::ptr_eq(&second, &table.after_changes(4, &reported, &indices)));
    }

    #[test]
    fn a_table_has_the_reported_addresses_and_no_later_ones() {
        let (reported, indices) = (ReportedGids::default(), Mutex::default());
        let address = interface(2, Address::V4(Ipv4Addr::new(192, 0, 2, 7)));
        *reported.lock() = Some(Gids::from_interfaces(identity(), 0, &[address]));
        let gids = GidTable::new(1, identity(), 3, &reported, &indices)
            .after_changes(2, &reported, &indices);
        assert_eq!(gids.get(0).map(|gid| gid.raw), Some(link_local(identity().guid(3))));
        assert_eq!(gids.get(1).map(|gid| gid.raw[12..] == [192, 0, 2, 7]), Some(true));
        assert_eq!(gids.get(2), None, "whatever this host has");
    }

    /// The tables of a host whose interfaces have these addresses (10.0.0.x), one after the next.
    fn indices(tables: &[&[u8]]) -> Vec<Vec<Option<u8>>> {
        indices_of(GidOrder::Soft, tables)
    }

    fn indices_of(order: GidOrder, tables: &[&[u8]]) -> Vec<Vec<Option<u8>>> {
        let mut indices = GidIndices::of(order);
        let index = |last: &&[u8]| {
            let all = last.iter().map(|last| {
                interface(u32::from(*last) + 2, Address::V4(Ipv4Addr::new(10, 0, 0, *last)))
            });
            let all: Vec<_> = all.collect();
            let gids = indices.assign(&Gids::from_interfaces(identity(), 0, &all));
            assert!(gids.get(0).is_some() && !gids.contains(&EMPTY.raw));
            assert_eq!(gids.entries().count(), last.len() + 1);
            (1..GID_TABLE).map(|index| gids.get(index).map(|gid| gid.raw[15])).collect()
        };
        tables.iter().map(index).collect()
    }

    #[test]
    fn addresses_keep_their_indices() {
        let begin = |table: &[Option<u8>]| table[..4].to_vec();
        let all = indices(&[&[1, 2], &[2], &[7, 2], &[1, 7, 2]]);
        assert_eq!(begin(&all[0]), [Some(1), Some(2), None, None]);
        assert_eq!(begin(&all[1]), [None, Some(2), None, None], "the first is gone");
        assert_eq!(begin(&all[2]), [None, Some(2), Some(7), None], "its place is not another's");
        assert_eq!(begin(&all[3]), [Some(1), Some(2), Some(7), None], "it is back");
    }

    #[test]
    fn in_the_order_of_mlx5_the_first_ipv4_address_has_index_3() {
        let all = indices_of(GidOrder::Mlx5, &[&[1], &[1, 2], &[2]]);
        let begin = |table: &[Option<u8>]| table[..5].to_vec();
        assert_eq!(begin(&all[0]), [None, None, Some(1), None, None]);
        assert_eq!(begin(&all[1]), [None, None, Some(1), None, Some(2)]);
        assert_eq!(begin(&all[2]), [None, None, None, None, Some(2)]);
    }

    #[test]
    fn a_full_table_reuses_the_indices_of_addresses_that_are_gone() {
        let full: Vec<u8> = (1..GID_TABLE as u8).collect();
        let all = indices(&[&full, &full[1..], &[&[100], &full[1..]].concat(), &full]);
        let whole =
            |first| -> Vec<_> { [first].into_iter().chain(full[1..].iter().copied()).collect() };
        let some = |table: &[Option<u8>]| -> Vec<u8> { table.iter().flatten().copied().collect() };
        assert_eq!(some(&all[0]), full);
        assert_eq!(all[1][0], None);
        assert_eq!(some(&all[2]), whole(100));
        assert_eq!(some(&all[3]), full);
    }

    #[test]
    fn a_host_with_only_loopback_has_gids() {
        let all = [interface(1, Address::V4(Ipv4Addr::LOCALHOST))];
        let gids = Gids::from_interfaces(identity(), 0, &all);
        assert!(gids.get(0).is_some() && gids.get(1).is_some());
    }

    #[test]
    fn a_cable_is_that_of_an_interface_with_an_address() {
        let lo = interface(1, Address::V4(Ipv4Addr::LOCALHOST));
        let bare = interface(2, Address::Hardware([0x52, 0x54, 0, 1, 2, 3]));
        let good = interface(3, Address::V4(Ipv4Addr::new(10, 0, 0, 7)));
        assert!(!leads_out(&[lo.clone(), bare.clone()]));
        assert!(leads_out(&[lo, bare, good.clone()]));
        assert!(!leads_out(&[Interface { running: false, ..good }]), "without a cable");
    }

    #[test]
    fn addresses_have_the_number_of_their_interface() {
        let number = interface::index(c"lo");
        let all = interfaces();
        let of_loopback: Vec<_> = all.iter().filter(|i| i.index == number).collect();
        assert!(of_loopback.iter().all(|i| i.loopback), "{all:?}");
        assert!(all.iter().filter(|i| i.loopback).all(|i| i.index != 0), "{all:?}");
        for one in all.iter().filter(|i| matches!(i.address, Address::V4(v4) if v4.is_loopback())) {
            assert_eq!(one.index, number, "{all:?}");
        }
    }
}
