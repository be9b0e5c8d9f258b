//! Netlink sockets (netlink(7)): one request, and the kernel's answer.
//! `neighbour_table` and `kernel::node` ask through here.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A netlink socket of one protocol.
#[derive(Debug)]
pub(crate) struct Netlink(OwnedFd);

/// The time limit of an answer, which normally arrives at once.
static ANSWER_TIMEOUT: libc::timeval = libc::timeval { tv_sec: 3, tv_usec: 0 };

impl Netlink {
    /// Opens the socket; `None` after an error.
    pub(crate) fn open(protocol: libc::c_int) -> Option<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: socket has no requirements; the new descriptor has no other owner. Eight bytes of
        // the time limit are read.
        unsafe {
            let fd = libc::socket(libc::AF_NETLINK, kind, protocol);
            let socket = (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))?;
            let size = size_of::<libc::timeval>() as libc::socklen_t;
            let timeout = (&raw const ANSWER_TIMEOUT).cast();
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, timeout, size);
            Some(Self(socket))
        }
    }

    /// Sends a request and reads the answer of up to `room` bytes; `flags` are those of recv(2).
    pub(crate) fn ask(&self, request: &[u8], room: usize, flags: libc::c_int) -> Option<Vec<u8>> {
        let mut answer = vec![0; room];
        // SAFETY: both buffers have the stated lengths.
        let got = unsafe {
            let fd = self.0.as_raw_fd();
            if libc::send(fd, request.as_ptr().cast(), request.len(), 0) < 0 {
                return None;
            }
            libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), flags)
        };
        answer.truncate(usize::try_from(got).ok()?);
        Some(answer)
    }
}
