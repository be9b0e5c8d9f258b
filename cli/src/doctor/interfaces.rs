//! Network interfaces and their addresses (getifaddrs(3)), in the order of the GID table of soft.

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use std::net::IpAddr;

/// An address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) interface: String,
    pub(super) is_loopback: bool,
    pub(super) address: IpAddr,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NetworkLink {
    pub(super) name: String,
    pub(super) is_loopback: bool,
    pub(super) is_up: bool,
}

/// The interfaces of this network namespace.
pub(super) fn links() -> Vec<NetworkLink> {
    let mut links: Vec<NetworkLink> = Vec::new();
    for entry in getifaddrs().into_iter().flatten() {
        if !links.iter().any(|link| link.name == entry.interface_name) {
            links.push(NetworkLink {
                is_loopback: entry.flags.contains(InterfaceFlags::IFF_LOOPBACK),
                is_up: entry.flags.contains(InterfaceFlags::IFF_UP),
                name: entry.interface_name,
            });
        }
    }
    links
}

/// The addresses of the interfaces that are up.
pub(super) fn addresses() -> Vec<Address> {
    let all = getifaddrs().into_iter().flatten();
    let up = all.filter(|one| one.flags.contains(InterfaceFlags::IFF_UP));
    up.filter_map(|one| {
        let storage = one.address.as_ref()?;
        let four = storage.as_sockaddr_in().map(|four| IpAddr::from(four.ip()));
        let address = four.or_else(|| storage.as_sockaddr_in6().map(|six| six.ip().into()))?;
        let is_loopback = one.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        Some(Address { interface: one.interface_name, is_loopback, address })
    })
    .collect()
}
