//! QP-06 and QP-07: the GIDs of an address. QP-06 is about the source GID, QP-07 about the families
//! of both GIDs.

use core::net::Ipv6Addr;

use abi::{IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2};

use super::Id;
use super::finding::Finding;

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GidEntry {
    pub(crate) address: Ipv6Addr,
    /// `ibv_gid_type`.
    pub(crate) gid_type: u32,
}

/// The address family of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// The family of an address.
pub(crate) fn family(address: Ipv6Addr) -> Family {
    if address.to_ipv4_mapped().is_some() { Family::V4 } else { Family::V6 }
}

/// The defect of a source GID.
fn defect(entry: Option<&GidEntry>) -> Option<String> {
    let Some(GidEntry { address, gid_type: kind }) = entry else { return Some("is empty".into()) };
    if address.is_unspecified() {
        Some("is empty".into())
    } else if *kind == IBV_GID_TYPE_ROCE_V1 {
        Some(format!("is of RoCE v1, {address}: no router passes it on"))
    } else if address.is_unicast_link_local() {
        Some(format!("is link-local, {address}: no router passes it on, and peers may have none"))
    } else {
        None
    }
}

/// Whether an entry is suitable as the source of packets to a GID of this family.
pub(crate) fn is_suitable(entry: &GidEntry, wanted: Option<Family>) -> bool {
    defect(Some(entry)).is_none()
        && entry.gid_type == IBV_GID_TYPE_ROCE_V2
        && wanted.is_none_or(|wanted| wanted == family(entry.address))
}

/// The remedy: a suitable entry with its index, if the table has one.
pub(crate) fn remedy(better: Option<(u8, GidEntry)>) -> String {
    match better {
        Some((index, entry)) => {
            let address = entry.address;
            format!("sgid_index {index} is {address}; ibv_devinfo -v shows all there are")
        }
        None => "the port has no better one: give its network device an address".into(),
    }
}

/// QP-06: a source GID without a route.
pub(crate) fn source(
    index: u8,
    entry: Option<&GidEntry>,
    better: impl FnOnce() -> String,
) -> Option<Finding> {
    let defect = defect(entry)?;
    Some(Finding::new(Id::Qp06, format!("sgid_index {index} {defect}"), better()))
}

/// QP-07: a source and a destination of different families.
pub(crate) fn families(
    index: u8,
    from: Ipv6Addr,
    to: Ipv6Addr,
    better: impl FnOnce(Family) -> String,
) -> Option<Finding> {
    // A multicast group has an IPv6 address for both families.
    let is_host = !to.is_unspecified() && !to.is_multicast();
    if from.is_unspecified() || !is_host || family(from) == family(to) {
        return None;
    }
    let text = format!(
        "{to} cannot be reached from sgid_index {index}, {from}: one is of IPv4, the other of IPv6"
    );
    Some(Finding::new(Id::Qp07, text, better(family(to))))
}

/// The reason why a destination GID is not the GID of a peer.
pub(crate) fn no_peer(to: Ipv6Addr) -> Option<&'static str> {
    if to.is_unspecified() {
        Some("no address")
    } else if to.is_multicast() {
        Some("a group, which no connection has")
    } else if !is_unicast(to) {
        Some("of no family: fe80::/10, a unicast IPv6 address, or ::ffff: and IPv4")
    } else {
        None
    }
}

/// Whether an address is a unicast IPv6 address, or an IPv4 address in its mapped form.
fn is_unicast(to: Ipv6Addr) -> bool {
    match to.to_ipv4_mapped() {
        Some(v4) => !v4.is_unspecified() && !v4.is_multicast() && !v4.is_broadcast(),
        // An address with 16 leading zero bits is an obsolete form of an IPv4 address.
        None => to.segments()[0] != 0 || to.is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Ipv6Addr {
        text.parse().expect("an address")
    }

    fn entry(text: &str, kind: u32) -> GidEntry {
        GidEntry { address: address(text), gid_type: kind }
    }

    fn told(entry: Option<GidEntry>) -> Option<String> {
        source(3, entry.as_ref(), || "better".into()).map(|found| found.text)
    }

    #[test]
    fn an_empty_entry_leads_nowhere() {
        assert_eq!(told(None).as_deref(), Some("sgid_index 3 is empty"));
        let zero = entry("::", IBV_GID_TYPE_ROCE_V2);
        assert_eq!(told(Some(zero)).as_deref(), Some("sgid_index 3 is empty"));
    }

    #[test]
    fn a_link_local_entry_reaches_only_the_link() {
        let found = told(Some(entry("fe80::1", IBV_GID_TYPE_ROCE_V2))).expect("a finding");
        assert!(found.contains("is link-local, fe80::1"), "{found}");
    }

    #[test]
    fn an_entry_of_roce_v1_is_not_routed() {
        let found = told(Some(entry("::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V1))).expect("a finding");
        assert!(found.contains("is of RoCE v1"), "{found}");
    }

    #[test]
    fn a_routed_entry_is_good() {
        assert_eq!(told(Some(entry("::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V2))), None);
        assert_eq!(told(Some(entry("fd00::1", IBV_GID_TYPE_ROCE_V2))), None);
    }

    #[test]
    fn a_suitable_entry_has_no_defect_and_the_wanted_family() {
        let v4 = entry("::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V2);
        assert!(is_suitable(&v4, None) && is_suitable(&v4, Some(Family::V4)));
        assert!(!is_suitable(&v4, Some(Family::V6)));
        assert!(!is_suitable(&entry("fe80::1", IBV_GID_TYPE_ROCE_V2), None));
    }

    #[test]
    fn the_remedy_names_a_suitable_entry() {
        let better = remedy(Some((2, entry("fd00::1", IBV_GID_TYPE_ROCE_V2))));
        assert!(better.starts_with("sgid_index 2 is fd00::1"), "{better}");
        assert!(remedy(None).contains("give its network device an address"));
    }

    #[test]
    fn a_mapped_address_is_of_ipv4() {
        assert_eq!(family(address("::ffff:10.0.0.1")), Family::V4);
        assert_eq!(
            (family(address("fe80::1")), family(address("fd00::1"))),
            (Family::V6, Family::V6)
        );
    }

    #[test]
    fn both_gids_are_of_one_family() {
        let found = families(0, address("::ffff:10.0.0.1"), address("fd00::2"), |family| {
            assert_eq!(family, Family::V6);
            "better".into()
        });
        assert_eq!(found.map(|found| found.id), Some(Id::Qp07));
        let same = families(0, address("fd00::1"), address("fd00::2"), |_| String::new());
        assert_eq!(same, None);
    }

    #[test]
    fn a_group_may_be_reached_from_both_families() {
        let group = families(0, address("::ffff:10.0.0.1"), address("ff0e::1"), |_| String::new());
        assert_eq!(group, None);
    }

    #[test]
    fn an_unspecified_gid_has_no_family() {
        let none = address("::");
        assert_eq!(families(0, none, address("fd00::2"), |_| String::new()), None);
        assert_eq!(families(0, address("fd00::1"), none, |_| String::new()), None);
    }

    #[test]
    fn a_peer_has_a_unicast_address() {
        for (text, good) in [
            ("::ffff:10.0.0.1", true),
            ("fe80::1", true),
            ("fd00::2", true),
            ("::1", true),
            ("::10.0.0.1", false),
            ("::ffff:0.0.0.0", false),
            ("::ffff:224.0.0.1", false),
            ("ff02::1", false),
            ("::", false),
        ] {
            assert_eq!(no_peer(address(text)).is_none(), good, "{text}");
        }
    }
}
