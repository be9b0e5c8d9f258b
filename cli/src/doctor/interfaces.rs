//! Network interfaces that are up, and their addresses (getifaddrs(3)), in the order in which the software adapter meets them.

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

/// Those of the machine that this process runs on.
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
