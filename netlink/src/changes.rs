//! Notifications of changed addresses and links of this network namespace (rtnetlink(7)).

use cface::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor that is readable after an address or interface appeared, vanished or changed.
#[derive(Debug)]
pub struct AddressChanges(OwnedFd);

const GROUPS: i32 = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
/// The most notifications that one call discards; the rest are discarded next time.
const MOST: usize = 1024;

impl AddressChanges {
    /// Opens the socket; changes from now on are reported.
    ///
    /// # Errors
    /// The errno of `socket(2)` or `bind(2)`, for example where a sandbox forbids netlink.
    pub fn open() -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = rustix::net::socket_with(family, kind, flags, None).map_err(crate::errno)?;
        let groups = SocketAddrNetlink::new(0, GROUPS.cast_unsigned());
        rustix::net::bind(&socket, &groups).map_err(crate::errno)?;
        Ok(Self(socket))
    }

    /// Discards all notifications; returns whether there were any. Their content is ignored,
    /// because the caller reads the present state from the kernel.
    #[must_use]
    pub fn discard_all(&self) -> bool {
        let mut is_changed = false;
        for _ in 0..MOST {
            let mut start = [0_u8; 16];
            match rustix::net::recv(&self.0, &mut start[..], RecvFlags::empty()) {
                // The kernel dropped notifications: some changes are not told.
                Ok(_) | Err(rustix::io::Errno::NOBUFS) => is_changed = true,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => break,
            }
        }
        is_changed
    }
}

impl AsFd for AddressChanges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_changes_there_are_no_more_notifications() {
        let changes = AddressChanges::open().unwrap();
        // Unrelated changes on the machine come to an end.
        while changes.discard_all() {}
        assert!(!changes.discard_all());
    }
}
