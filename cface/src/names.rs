//! Names of a network namespace: abstract Unix sockets (`unix(7)`), whose names are unique, visible
//! to all users in `/proc/net/unix`, and free again after the close of the socket's last
//! descriptor.
//!
//! Every process of the namespace, of any user, can send to an abstract socket. A message can carry
//! a descriptor whose last close takes arbitrarily long (`SO_LINGER` of `socket(7)`), and the
//! thread that closes the name would wait. Hence these sockets receive no messages.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, sockaddr_un, socklen_t};

use crate::Errno;

/// A name of this process; dropping it frees the name.
#[derive(Debug)]
pub struct Name(OwnedFd);

impl Name {
    /// Takes `name`, which has at most 107 bytes.
    ///
    /// # Errors
    /// `EADDRINUSE`: another socket has the name; `ENAMETOOLONG`; other errnos of the system.
    pub fn take(name: &str) -> Result<Self, Errno> {
        let (address, len) = address(name)?;
        let socket = socket()?;
        let fd = socket.as_raw_fd();
        // The shutdown precedes the bind, so the named socket never receives.
        // SAFETY: plain integers on a socket of ours. Linux always accepts the call.
        unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
        // SAFETY: `address` is a live `sockaddr_un` of which `len` bytes count.
        check(unsafe { libc::bind(fd, (&raw const address).cast(), len) })?;
        Ok(Self(socket))
    }
}

impl AsFd for Name {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether a process of this network namespace has `name`.
///
/// # Errors
/// The errno of the system; the answer is unknown then.
pub fn is_taken(name: &str) -> Result<bool, Errno> {
    let (address, len) = address(name)?;
    let socket = socket()?;
    // SAFETY: `address` is a live `sockaddr_un` of which `len` bytes count.
    match check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) }) {
        // EPERM: the socket of the name is connected to another socket.
        Ok(_) | Err(Errno::EPERM) => Ok(true),
        Err(why) if why.raw() == libc::ECONNREFUSED => Ok(false),
        Err(why) => Err(why),
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain integers.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: the kernel just made `fd`, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The address of an abstract socket: its name behind a zero byte.
fn address(name: &str) -> Result<(sockaddr_un, socklen_t), Errno> {
    let mut address =
        sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    if name.len() >= address.sun_path.len() {
        return Err(Errno::ENAMETOOLONG);
    }
    for (to, from) in address.sun_path.iter_mut().skip(1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let len = std::mem::offset_of!(sockaddr_un, sun_path) + 1 + name.len();
    Ok((address, len as socklen_t))
}

fn check(ret: c_int) -> Result<c_int, Errno> {
    if ret < 0 { Err(Errno::last()) } else { Ok(ret) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    fn name(what: &str) -> String {
        format!("ferroverbs-test/{}/{what}", std::process::id())
    }

    #[test]
    fn a_name_has_one_owner_and_is_visible_until_dropped() {
        let name = name("owned");
        assert_eq!(is_taken(&name), Ok(false));
        let owned = Name::take(&name).expect("free");
        assert_eq!(is_taken(&name), Ok(true));
        assert_eq!(Name::take(&name).map(drop), Err(Errno::from_raw(libc::EADDRINUSE)));
        drop(owned);
        assert_eq!(is_taken(&name), Ok(false));
        assert!(Name::take(&"x".repeat(107)).is_ok());
        assert_eq!(Name::take(&"x".repeat(108)).map(drop), Err(Errno::ENAMETOOLONG));
    }

    #[test]
    fn a_name_receives_no_messages() {
        let name = name("deaf");
        let _owned = Name::take(&name).expect("free");
        let to = SocketAddr::from_abstract_name(&name).expect("short");
        let stranger = UnixDatagram::unbound().expect("a socket");
        let unconnected = stranger.send_to_addr(b"x", &to).map_err(|why| why.kind());
        assert_eq!(unconnected, Err(ErrorKind::BrokenPipe));
        stranger.connect_addr(&to).expect("it is seen by this");
        assert_eq!(stranger.send(b"x").map_err(|why| why.kind()), Err(ErrorKind::BrokenPipe));
    }
}
