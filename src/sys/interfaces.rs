//! Finds the network interface that owns an IP address (`getifaddrs(3)`). `front::eth` needs the
//! number of the interface.

use std::ffi::CStr;
use std::net::IpAddr;

/// The number of the interface that owns `address`.
pub(crate) fn with_address(address: IpAddr) -> Option<u32> {
    let mut list = core::ptr::null_mut();
    // SAFETY: stores a list for us to free.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return None;
    }
    let mut next: *const libc::ifaddrs = list;
    let mut found = None;
    // SAFETY: a NULL-terminated list that is freed only below.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: the address of an entry is NULL or a complete sockaddr of its family.
        if unsafe { ip_of(entry.ifa_addr) } == Some(address) {
            // SAFETY: a C string of the list.
            found = Some(unsafe { libc::if_nametoindex(CStr::from_ptr(entry.ifa_name).as_ptr()) });
            break;
        }
        next = entry.ifa_next;
    }
    // SAFETY: from getifaddrs, freed once; nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    found.filter(|&index| index != 0)
}

/// # Safety
/// `address` is NULL or a complete sockaddr of its family.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: NULL, which ends here, or a complete sockaddr of the list, which getifaddrs aligned
    // and nobody changes.
    let family = i32::from(unsafe { address.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: of that family, and complete.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(v4.sin_addr.s_addr.to_ne_bytes().into())
        }
        libc::AF_INET6 => {
            // SAFETY: of that family, and complete.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(v6.sin6_addr.s6_addr.into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unowned_address_is_on_no_interface() {
        assert_eq!(with_address(IpAddr::from([192, 0, 2, 77])), None);
    }
}
