//! The kernel's RDMA netlink family (`<rdma/rdma_netlink.h>`, `netlink(7)`).

use core::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::ffi::Errno;

const NETLINK_RDMA: c_int = 20;
/// `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_SYS_GET)`.
const CMD_SYS_GET: u16 = 5 << 10 | 6;
const ATTR_COPY_ON_FORK: u16 = 93;
const HEADER: usize = 16;

/// Whether the kernel copies registered pages when a process forks, so that no care is needed.
pub(crate) fn copies_on_fork() -> bool {
    let Ok(reply) = ask(CMD_SYS_GET) else { return false };
    let Some(attributes) = payload(&reply, CMD_SYS_GET) else { return false };
    attribute(attributes, ATTR_COPY_ON_FORK)
        .and_then(<[u8]>::first)
        .is_some_and(|&copies| copies != 0)
}

/// Sends a request without attributes and returns the first datagram that comes back.
fn ask(command: u16) -> Result<Vec<u8>, Errno> {
    // SAFETY: socket has no requirements.
    let raw = unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, NETLINK_RDMA)
    };
    if raw < 0 {
        return Err(Errno::last());
    }
    // SAFETY: a fresh descriptor that is ours.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    let mut request = Vec::with_capacity(HEADER);
    request.extend_from_slice(&(HEADER as u32).to_ne_bytes());
    request.extend_from_slice(&command.to_ne_bytes());
    request.extend_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request.extend_from_slice(&[0; 8]);
    // SAFETY: reads as many bytes as the request has.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 {
        return Err(Errno::last());
    }
    let mut reply = vec![0_u8; 4096];
    // SAFETY: room for as many bytes as we say.
    let received =
        unsafe { libc::recv(socket.as_raw_fd(), reply.as_mut_ptr().cast(), reply.len(), 0) };
    reply.truncate(usize::try_from(received).map_err(|_| Errno::last())?);
    Ok(reply)
}

/// The attributes of the first message, when it answers `command`.
fn payload(datagram: &[u8], command: u16) -> Option<&[u8]> {
    let header = datagram.first_chunk::<HEADER>()?;
    let [l0, l1, l2, l3, t0, t1, ..] = *header;
    if u16::from_ne_bytes([t0, t1]) != command {
        return None;
    }
    let len = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).ok()?;
    datagram.get(HEADER..len)
}

/// The value of an attribute: `{u16 len, u16 type}`, value, padding to 4 bytes.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some(&[l0, l1, t0, t1]) = attributes.first_chunk() {
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = attributes.get(4..len)?;
        // The two upper bits of the type are flags.
        if u16::from_ne_bytes([t0, t1]) & 0x3fff == wanted {
            return Some(value);
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(attributes: &[u8]) -> Vec<u8> {
        let len = u32::try_from(HEADER + attributes.len()).unwrap_or(0);
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&CMD_SYS_GET.to_ne_bytes());
        bytes.extend_from_slice(&[0; 10]);
        bytes.extend_from_slice(attributes);
        bytes
    }

    #[test]
    fn an_attribute_is_found_behind_others() {
        let attributes = [
            [5_u16.to_ne_bytes(), 66_u16.to_ne_bytes(), [1, 0], [0, 0]].concat(),
            [5_u16.to_ne_bytes(), ATTR_COPY_ON_FORK.to_ne_bytes(), [1, 0], [0, 0]].concat(),
        ]
        .concat();
        let bytes = reply(&attributes);
        let found = payload(&bytes, CMD_SYS_GET).and_then(|all| attribute(all, ATTR_COPY_ON_FORK));
        assert_eq!(found, Some([1].as_slice()));
    }

    #[test]
    fn a_cut_or_looping_reply_has_no_attribute() {
        let attributes =
            [5_u16.to_ne_bytes(), ATTR_COPY_ON_FORK.to_ne_bytes(), [1, 0], [0, 0]].concat();
        let whole = reply(&attributes);
        for len in 0..whole.len() - 3 {
            let found = payload(&whole[..len], CMD_SYS_GET)
                .and_then(|all| attribute(all, ATTR_COPY_ON_FORK));
            assert_eq!(found, None, "{len} bytes");
        }
        assert_eq!(attribute(&[0; 8], 7), None);
    }
}
