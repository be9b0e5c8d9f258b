//! Network interfaces (`netdevice(7)`).

use super::errno::{Errno, check};
use std::ffi::c_char;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes of the packets that interface `index` carries.
///
/// # Errors
/// `ENXIO` there is no such interface; that of `socket(2)`.
pub fn mtu(index: u32) -> Result<u32, Errno> {
    // SAFETY: all zeros are a value of this structure of plain numbers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name: *mut c_char = request.ifr_name.as_mut_ptr();
    // SAFETY: the array has the IF_NAMESIZE bytes that this function wants.
    if unsafe { libc::if_indextoname(index, name) }.is_null() {
        return Err(Errno::ENXIO);
    }
    // SAFETY: plain integers.
    let fd =
        check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the kernel just made `fd`, and nobody else knows it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the request is a live local of the type that this one takes, with a name in it.
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
