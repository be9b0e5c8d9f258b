//! Drops and counts packets that the configured limits exclude (`limits`).
//! Stands in front of the dispatch of received packets to QPs and groups.
#![forbid(unsafe_code)]

use crate::config;
use crate::engine::adapter::Adapter;
use crate::host::counters::{ProcessCounter, WireCounters};
use crate::limits::Limits;
use crate::net::Gids;
use ferroverbs_roce::wire::Addresses;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

impl Adapter {
    /// Whether the limits exclude a packet with these addresses. Counts the packet if so.
    /// (Multicast groups are joined only on permitted interfaces.)
    #[inline]
    pub(super) fn is_rejected_by_limits(&self, addresses: Addresses) -> bool {
        let limits = config::limits();
        let is_unlimited = limits.interfaces.is_none() && limits.peers.is_none();
        if is_unlimited || self.admits_under(limits, addresses) {
            return false;
        }
        WireCounters::of(self.view)
            .counter(ProcessCounter::NotAdmitted)
            .fetch_add(1, Ordering::Relaxed);
        true
    }

    #[cold]
    fn admits_under(&self, limits: &Limits, addresses: Addresses) -> bool {
        let (from, to): (IpAddr, IpAddr) = match addresses {
            Addresses::V4 { src, dst } => (src.into(), dst.into()),
            Addresses::V6 { src, dst } => (src.into(), dst.into()),
        };
        limits.may_meet(from)
            && (limits.interfaces.is_none() || to.is_multicast() || self.is_reported(to))
    }

    /// Whether an address is in the GID table that applications were last told of.
    fn is_reported(&self, address: IpAddr) -> bool {
        let raw = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let reported = self.interfaces.reported.lock();
        // Without a notification of changes the interfaces are read now.
        let look = || Gids::of_this_host(self.identity.guid(), 0).has_entry(&raw);
        reported.as_ref().map_or_else(look, |gids| gids.has_entry(&raw))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{Names, parse_networks};
    use soft_local::fabric::FabricConfig;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn packets_to_foreign_addresses_are_not_admitted() {
        let name = format!("ferroverbs-limits-{}", std::process::id());
        let mut config = FabricConfig::new(std::env::temp_dir().join(name));
        config.dir_is_ours = true;
        let adapter = Adapter::join(config).expect("a fabric in the temporary directory");
        let own = Gids::of_this_host(adapter.identity.guid(), 0);
        let own = own.get(1).map_or(Ipv6Addr::LOCALHOST, |gid| gid.raw.into());
        let from = IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
        let from =
            if own.to_ipv4_mapped().is_some() { Ipv4Addr::new(10, 0, 0, 1).into() } else { from };
        let to = |address: IpAddr| Addresses::new(from, address).expect("of one family");
        let family =
            |v4: Ipv4Addr, v6: Ipv6Addr| if from.is_ipv4() { IpAddr::V4(v4) } else { v6.into() };
        let other =
            family(Ipv4Addr::new(192, 0, 2, 1), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));
        let group = family(Ipv4Addr::new(239, 1, 2, 3), Ipv6Addr::new(0xff1e, 0, 0, 0, 0, 0, 0, 1));
        let limits = Limits { interfaces: Names::parse("*"), ..Limits::default() };
        assert!(adapter.admits_under(&limits, to(own.into())));
        assert!(adapter.admits_under(&limits, to(group)));
        assert!(!adapter.admits_under(&limits, to(other)));
        assert!(adapter.admits_under(&Limits::default(), to(other)), "no limit");
        let limits = Limits { peers: parse_networks("198.51.100.1"), ..Limits::default() };
        assert!(!adapter.admits_under(&limits, to(own.into())), "of a stranger");
    }
}
