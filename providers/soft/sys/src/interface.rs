//! Network interfaces (`netdevice(7)`).

use super::errno::{Errno, check};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes of the packets that interface `index` carries.
///
/// # Errors
/// `ENXIO` there is no such interface; that of `socket(2)`.
pub fn mtu(index: u32) -> Result<u32, Errno> {
    // SAFETY: all zeros are a value of this structure of plain numbers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_ifru.ifru_ifindex = libc::c_int::try_from(index).map_err(|_| Errno::ENXIO)?;
    // SAFETY: plain integers.
    let fd =
        check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel just made `fd`, and nobody else knows it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // The name first, which if_indextoname(3) would ask for with a socket of its own.
    // SAFETY: the request is a live local of the type that this one takes, with a number in it.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFNAME, &raw mut request) })
        .map_err(|_| Errno::ENXIO)?;
    // SAFETY: likewise, with a name in it.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) })?;
    // SAFETY: the kernel filled in the member that this request is about.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    u32::try_from(mtu).map_err(|_| Errno::ENXIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_the_mtu_that_the_kernel_tells() {
        // SAFETY: a NUL-terminated name.
        let index = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
        let text = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
        assert_eq!(mtu(index), Ok(text.trim().parse().unwrap()));
        assert_eq!(mtu(u32::MAX), Err(Errno::ENXIO));
    }
}
