//! Properties of network interfaces (`netdevice(7)`). The provider's network side asks for the MTU
//! of an interface.

use super::errno::{Errno, check};
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_the_mtu_that_sysfs_shows() {
        // SAFETY: a NUL-terminated name.
        let index = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
        let text = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
        assert_eq!(mtu(index), Ok(text.trim().parse().unwrap()));
        assert_eq!(mtu(u32::MAX), Err(Errno::ENXIO));
    }
}
