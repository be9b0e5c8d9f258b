//! Netlink sockets (netlink(7)): one request, and the kernel's answer.
//! `neighbour_table` and `kernel::node` ask through here.

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt,
};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A netlink socket of one protocol.
#[derive(Debug)]
pub(crate) struct Netlink(OwnedFd);

/// The time limit of an answer, which normally arrives at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

impl Netlink {
    /// Opens the socket; `None` after an error. Protocol 0 is rtnetlink(7).
    pub(crate) fn open(protocol: u32) -> Option<Self> {
        let protocol = NonZeroU32::new(protocol).map(Protocol::from_raw);
        let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, kind, flags, protocol).ok()?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_TIMEOUT)).ok()?;
        Some(Self(socket))
    }

    /// Sends a request and reads the answer of up to `room` bytes. `waits`: the kernel may answer
    /// after send(2) has returned.
    pub(crate) fn query(&self, request: &[u8], room: usize, waits: bool) -> Option<Vec<u8>> {
        let flags = if waits { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        rustix::net::send(&self.0, request, SendFlags::empty()).ok()?;
        let mut answer = vec![0; room];
        let (len, _) = rustix::net::recv(&self.0, &mut answer[..], flags).ok()?;
        answer.truncate(len);
        Some(answer)
    }
}
