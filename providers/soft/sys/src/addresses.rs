//! Notifications of changed addresses and interfaces of this network namespace (rtnetlink(7)). The
//! ports of the adapter compute their GIDs anew when a notification arrives.

use super::errno::{Errno, check};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A descriptor that is readable after an address or interface appeared, vanished or changed.
#[derive(Debug)]
pub struct AddressNews(OwnedFd);

const GROUPS: libc::c_int = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;

impl AddressNews {
    /// Opens the socket; changes from now on are reported.
    ///
    /// # Errors
    /// The errno of `socket(2)` or `bind(2)`, for example where a sandbox forbids netlink.
    pub fn open() -> Result<Self, Errno> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain integers.
        let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
        // SAFETY: the kernel just made `fd`, which has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all zeros are a valid value of this structure of integers.
        let mut name: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        name.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        name.nl_groups = GROUPS as u32;
        let size = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: the name is a live local of this size, which the kernel copies.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), size) })?;
        Ok(Self(socket))
    }

    /// Discards all notifications; returns whether there were any. Their content is ignored,
    /// because the caller reads the present state from the kernel.
    #[must_use]
    pub fn discard_all(&self) -> bool {
        let mut some = false;
        // Bound the loop; remaining notifications are reported next time.
        for _ in 0..1024 {
            let mut start = [0_u8; 16];
            let fd = self.0.as_raw_fd();
            // SAFETY: the kernel writes at most the length of a live local; the rest of a message
            // is discarded.
            let got = unsafe { libc::recv(fd, start.as_mut_ptr().cast(), start.len(), 0) };
            match (got, Errno::last().raw()) {
                (0.., _) => some = true,
                (_, libc::EINTR) => {}
                // The kernel dropped notifications.
                (_, libc::ENOBUFS) => some = true,
                _ => break,
            }
        }
        some
    }
}

impl AsFd for AddressNews {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_changes_there_are_no_more_notifications() {
        let news = AddressNews::open().unwrap();
        // Unrelated changes on the machine come to an end.
        while news.discard_all() {}
        assert!(!news.discard_all());
    }
}
