//! News of the addresses and interfaces of this network namespace (rtnetlink(7)).

use super::errno::{Errno, check};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What is readable when an address or an interface came, went or changed.
#[derive(Debug)]
pub struct AddressNews(OwnedFd);

const GROUPS: libc::c_int = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;

impl AddressNews {
    /// From here on.
    ///
    /// # Errors
    /// Those of `socket(2)` and `bind(2)`: where programs are kept from netlink, there are no news.
    pub fn open() -> Result<Self, Errno> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain integers.
        let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
        // SAFETY: the kernel just made `fd`, and nobody else knows it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all zeros are a value of this structure of plain numbers.
        let mut name: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        name.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        name.nl_groups = GROUPS as u32;
        let size = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: the name is a live local of this size, which the kernel copies.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), size) })?;
        Ok(Self(socket))
    }

    /// Takes what there is; whether there was any. What it says in detail is not looked at: who wants to know asks the kernel how things are now.
    #[must_use]
    pub fn take(&self) -> bool {
        let mut some = false;
        // As many as a flood of them may be; what is left is news, too.
        for _ in 0..1024 {
            let mut start = [0_u8; 16];
            let fd = self.0.as_raw_fd();
            // SAFETY: the kernel writes at most the length of a live local; the rest of a message is thrown away.
            let got = unsafe { libc::recv(fd, start.as_mut_ptr().cast(), start.len(), 0) };
            match (got, Errno::last().raw()) {
                (0.., _) => some = true,
                (_, libc::EINTR) => {}
                // There were more than it could keep.
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
    fn where_nothing_changes_there_are_no_news_for_ever() {
        let news = AddressNews::open().unwrap();
        // Whatever else happens on the machine meanwhile ends.
        while news.take() {}
        assert!(!news.take());
    }
}
