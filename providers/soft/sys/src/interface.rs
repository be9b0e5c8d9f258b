//! Network interfaces (`netdevice(7)`): their addresses and MTU, for the wire between hosts.

use super::errno::{Errno, check};
use std::ffi::CStr;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The MTU of interface `index` in bytes.
///
/// # Errors
/// `ENXIO`: no such interface. Otherwise the errno of `socket(2)`.
pub fn mtu(index: u32) -> Result<u32, Errno> {
    // SAFETY: all zeros are a valid value of this structure of integers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_ifindex = libc::c_int::try_from(index).map_err(|_| Errno::ENXIO)?;
    // SAFETY: plain integers.
    let fd =
        check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel just made `fd`, which has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // Get the name first; if_indextoname(3) would open a socket of its own.
    // SAFETY: the request is a live local of the type that the call takes, with an index in it.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFNAME, &raw mut request) })
        .map_err(|_| Errno::ENXIO)?;
    // SAFETY: likewise, with a name in it.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) })?;
    // SAFETY: the kernel filled in this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| Errno::ENXIO)
}

/// An address of an interface, or its hardware address.
#[derive(Clone, Debug)]
pub enum Address {
    /// The first six bytes of the address of the link layer.
    Hardware([u8; 6]),
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 address.
    V6(Ipv6Addr),
}

/// An interface with one of its addresses.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Number of the interface; 0: unknown.
    pub index: u32,
    /// Whether the interface is the loopback interface.
    pub loopback: bool,
    /// Whether the interface has a cable or an equivalent (`IFF_RUNNING`).
    pub running: bool,
    /// One address; an interface with several addresses occurs several times.
    pub address: Address,
}

/// All addresses of interfaces that are up (getifaddrs(3)): of loopback, and of interfaces with a
/// permitted name.
pub fn addresses(is_permitted: impl Fn(&[u8]) -> bool) -> Vec<Interface> {
    let mut first = std::ptr::null_mut();
    // SAFETY: getifaddrs fills in the head of a list, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return vec![];
    }
    let mut all = vec![];
    // Link entries precede addresses and contain the interface index; a look-up takes three system
    // calls.
    let mut numbers: Vec<(&CStr, u32)> = vec![];
    let mut at = first;
    // SAFETY: a node of the list, or NULL at its end.
    while let Some(node) = unsafe { at.as_ref() } {
        at = node.ifa_next;
        let flags = node.ifa_flags as i32;
        if flags & libc::IFF_UP == 0 || node.ifa_addr.is_null() || node.ifa_name.is_null() {
            continue;
        }
        // SAFETY: a NUL-terminated name, by getifaddrs(3).
        let name = unsafe { CStr::from_ptr(node.ifa_name) };
        let is_loopback = flags & libc::IFF_LOOPBACK != 0;
        if !is_loopback && !is_permitted(label_of(name)) {
            continue;
        }
        // SAFETY: every socket address begins with its family.
        let address = match i32::from(unsafe { (*node.ifa_addr).sa_family }) {
            libc::AF_INET => {
                // SAFETY: the family names the structure.
                let v4 = unsafe { node.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
                Address::V4(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()))
            }
            libc::AF_INET6 => {
                // SAFETY: the family says `sockaddr_in6`. getifaddrs made the address, which stays
                // until the list is freed below.
                let v6 = unsafe { node.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                Address::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr))
            }
            libc::AF_PACKET => {
                // SAFETY: the family says `sockaddr_ll`. getifaddrs made the address, which stays
                // until the list is freed below.
                let ll = unsafe { node.ifa_addr.cast::<libc::sockaddr_ll>().read_unaligned() };
                numbers.push((name, u32::try_from(ll.sll_ifindex).unwrap_or(0)));
                let [a, b, c, d, e, f, ..] = ll.sll_addr;
                Address::Hardware([a, b, c, d, e, f])
            }
            _ => continue,
        };
        let known = numbers.iter().find(|(of, _)| *of == name).map(|(_, number)| *number);
        // Only the kernel resolves the label of an address such as eth0:1.
        let index = known.unwrap_or_else(|| index(name));
        let running = flags & libc::IFF_RUNNING != 0;
        all.push(Interface { index, loopback: is_loopback, running, address });
    }
    // SAFETY: the list from getifaddrs, no longer in use.
    unsafe { libc::freeifaddrs(first) };
    all
}

/// The interface's name within the label of an address (eth0 in eth0:1).
fn label_of(name: &CStr) -> &[u8] {
    name.to_bytes().split(|letter| *letter == b':').next().unwrap_or_default()
}

/// The number of the interface with this name or label; 0: none.
pub fn index(name: &CStr) -> u32 {
    // SAFETY: a NUL-terminated name.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_the_mtu_that_sysfs_shows() {
        let index = index(c"lo");
        let text = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
        assert_eq!(mtu(index), Ok(text.trim().parse().unwrap()));
        assert_eq!(mtu(u32::MAX), Err(Errno::ENXIO));
    }
}
