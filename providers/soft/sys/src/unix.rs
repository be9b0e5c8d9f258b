//! Unix sockets that keep message boundaries and carry descriptors (`unix(7)`, SOCK_SEQPACKET): the
//! meeting point of processes.

use std::{
    io::IoSlice,
    mem::{self, MaybeUninit},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    ptr,
};

use libc::{c_int, c_void, gid_t, pid_t, sockaddr_un, socklen_t, uid_t};

use super::{
    closing::{Passed, close_aside},
    dir::Dir,
    errno::{Errno, check, check_len, retry},
};

/// A socket whose calls never block.
#[derive(Debug)]
pub struct Socket(OwnedFd);

/// For tests: another descriptor that poses as a socket.
#[cfg(any(test, feature = "testing"))]
impl From<OwnedFd> for Socket {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

/// The identity of the other end at the time of connection (`unix(7)` SO_PEERCRED).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process in our pid namespace; 0: not visible there.
    pub pid: pid_t,
    /// The effective user.
    pub uid: uid_t,
    /// The effective group.
    pub gid: gid_t,
}

/// One message.
#[derive(Debug)]
pub struct Received {
    /// Number of bytes in the buffer; 0: the other end is closed.
    pub len: usize,
    /// The descriptors of the message.
    pub fds: Passed,
    /// Whether bytes or descriptors did not fit and are lost.
    pub truncated: bool,
}

/// The largest number of descriptors of a message that this library sends.
pub const MAX_FDS: usize = 4;

/// The largest number of descriptors of any message (`SCM_MAX_FD` of unix(7)). The buffer has room
/// for all, because the kernel closes a descriptor without room in the receiving thread.
const MOST_FDS: usize = 253;

impl Socket {
    /// A socket that listens at the file `name` in `dir`, whose path is `path`.
    pub fn listen(dir: &Dir, path: &Path, name: &Path, backlog: c_int) -> Result<Self, Errno> {
        let socket = Self::new()?;
        let (address, len) = address(&reachable(dir, path, name))?;
        let fd = socket.0.as_raw_fd();
        // SAFETY: `address` is a live `sockaddr_un` of which `len` bytes count.
        check(unsafe { libc::bind(fd, (&raw const address).cast(), len) })?;
        // SAFETY: plain integers.
        check(unsafe { libc::listen(fd, backlog) })?;
        Ok(socket)
    }

    /// Connects to the socket that listens at the file `name` in `dir`, whose path is `path`.
    ///
    /// # Errors
    /// `EAGAIN`: the backlog is full. `ECONNREFUSED`, `ENOENT`: no process listens.
    pub fn connect(dir: &Dir, path: &Path, name: &Path) -> Result<Self, Errno> {
        let socket = Self::new()?;
        let (address, len) = address(&reachable(dir, path, name))?;
        retry(|| {
            // SAFETY: `address` is a live `sockaddr_un` of which `len` bytes count.
            check(unsafe { libc::connect(socket.0.as_raw_fd(), (&raw const address).cast(), len) })
        })?;
        Ok(socket)
    }

    /// Two connected sockets.
    pub fn pair() -> Result<(Self, Self), Errno> {
        let mut fds = [0; 2];
        // SAFETY: `fds` has room for the two descriptors.
        check(unsafe { libc::socketpair(libc::AF_UNIX, SOCKET_TYPE, 0, fds.as_mut_ptr()) })?;
        // SAFETY: the kernel just made both, which have no other owner.
        Ok(unsafe { (Self(OwnedFd::from_raw_fd(fds[0])), Self(OwnedFd::from_raw_fd(fds[1]))) })
    }

    /// Accepts the next connection of a listening socket; `EAGAIN`: none.
    pub fn accept(&self) -> Result<Self, Errno> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let fd = retry(|| {
            // SAFETY: NULL addresses are not written.
            check(unsafe {
                libc::accept4(self.0.as_raw_fd(), ptr::null_mut(), ptr::null_mut(), flags)
            })
        })?;
        // SAFETY: the kernel just made `fd`, which has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends one message with descriptors, completely or not at all.
    ///
    /// # Errors
    /// `EAGAIN`: the other end reads too slowly. `EPIPE`: the other end is closed. `ETOOMANYREFS`:
    /// too many descriptors of this user are in transit.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let mut control = Control::new();
        let mut parts = [IoSlice::new(bytes)];
        // SAFETY: all zeros are a valid value of `msghdr`, a structure of integers and pointers.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        // An IoSlice is laid out as an iovec (its documentation).
        message.msg_iov = parts.as_mut_ptr().cast();
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            let len = control.write_fds(fds).ok_or(Errno::EINVAL)?;
            message.msg_control = control.as_mut_ptr();
            message.msg_controllen = len as _;
        }
        let sent = retry(|| {
            // SAFETY: every pointer of `message` is to a live local, with its length.
            check_len(unsafe {
                libc::sendmsg(self.0.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
            })
        })?;
        if sent == bytes.len() { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Receives the next message; `EAGAIN`: none.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
        let mut control = [0_u64; ROOM / 8];
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: all zeros are a valid value of `msghdr`, a structure of integers and pointers.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = ROOM as _;
        let len = retry(|| {
            // SAFETY: every pointer of `message` is to a live local, with its length.
            check_len(unsafe {
                libc::recvmsg(self.0.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC)
            })
        })?;
        // SAFETY: the call succeeded, so `message` describes the content of `control`.
        let fds = Passed::from(unsafe { take_fds(&message) });
        let truncated = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
        Ok(Received { len, fds, truncated })
    }

    /// The identity of the other end.
    pub fn credentials(&self) -> Result<Credentials, Errno> {
        let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as socklen_t;
        self.option(libc::SO_PEERCRED, (&raw mut cred).cast(), &mut len)?;
        Ok(Credentials { pid: cred.pid, uid: cred.uid, gid: cred.gid })
    }

    /// The supplementary groups of the other end (Linux 4.13), at most 1024.
    pub fn peer_groups(&self) -> Result<Vec<gid_t>, Errno> {
        let mut groups = vec![0; 1024];
        let mut len = (groups.len() * size_of::<gid_t>()) as socklen_t;
        self.option(libc::SO_PEERGROUPS, groups.as_mut_ptr().cast(), &mut len)?;
        groups.truncate(len as usize / size_of::<gid_t>());
        Ok(groups)
    }

    /// A pidfd of the process at the other end (Linux 6.5), readable after its death.
    pub fn peer_pidfd(&self) -> Result<OwnedFd, Errno> {
        let mut fd: RawFd = -1;
        let mut len = size_of::<RawFd>() as socklen_t;
        self.option(SO_PEERPIDFD, (&raw mut fd).cast(), &mut len)?;
        check(fd)?;
        // SAFETY: the kernel just made `fd` (with close-on-exec), which has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Ends the connection or the listening. A closing thread ([`close_aside`]) closes the socket
    /// and the messages in its receive queue.
    pub fn close(self) {
        self.shut_down();
        close_aside(vec![self.0]);
    }

    /// Ends the connection for both ends, even if a forked child holds a copy of the socket.
    pub fn shut_down(&self) {
        // SAFETY: plain integers. The call only fails if the connection has ended.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_RDWR) };
    }

    fn new() -> Result<Self, Errno> {
        // SAFETY: plain integers.
        let fd = check(unsafe { libc::socket(libc::AF_UNIX, SOCKET_TYPE, 0) })?;
        // SAFETY: the kernel just made `fd`, which has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn option(&self, name: c_int, value: *mut c_void, len: &mut socklen_t) -> Result<(), Errno> {
        let fd = self.0.as_raw_fd();
        // SAFETY: the callers in this file pass a value with room for `len` bytes.
        check(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, value, len) })?;
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Bytes of a control message with [`MOST_FDS`] descriptors: a 16-byte header, 4 bytes for each,
/// rounded up to words.
const ROOM: usize = (16 + MOST_FDS * size_of::<RawFd>()).next_multiple_of(8);

/// Room for the control message with descriptors, aligned for `cmsghdr`.
struct Control([u64; 8]);

impl Control {
    /// Length of a message with [`MAX_FDS`] descriptors: a 16-byte header and 4 bytes for each.
    const LEN: usize = 16 + MAX_FDS * size_of::<RawFd>();

    fn new() -> Self {
        Self([0; 8])
    }

    fn as_mut_ptr(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    /// Writes the control message for `fds` and returns its length; `None`: too many descriptors.
    fn write_fds(&mut self, fds: &[BorrowedFd<'_>]) -> Option<usize> {
        if fds.len() > MAX_FDS {
            return None;
        }
        let bytes = size_of_val(fds) as u32;
        let header: *mut libc::cmsghdr = self.0.as_mut_ptr().cast();
        // SAFETY: `header` is at the start of 64 aligned bytes, of which the message takes at most
        // LEN (count checked above); a BorrowedFd is laid out as its number.
        unsafe {
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            for (index, fd) in fds.iter().enumerate() {
                data.add(index).write_unaligned(fd.as_raw_fd());
            }
            Some(libc::CMSG_LEN(bytes) as usize)
        }
    }
}

const _: () = assert!(Control::LEN <= size_of::<Control>());

/// Takes ownership of all descriptors in a received message, so that none leaks.
///
/// # Safety
/// `recvmsg` has just filled `message`, whose control buffer is still live; called once per
/// message.
unsafe fn take_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel wrote whole control messages and their total length, and their descriptors
    // have no owner yet (contract).
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes =
                    ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for index in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    fds
}

/// A path of the socket file that fits into an address: its own, or through our descriptor of its
/// directory.
fn reachable(dir: &Dir, path: &Path, name: &Path) -> PathBuf {
    if path.as_os_str().len() < PATH_ROOM {
        return path.into();
    }
    Path::new("/proc/self/fd").join(dir.as_fd().as_raw_fd().to_string()).join(name)
}

fn address(path: &Path) -> Result<(sockaddr_un, socklen_t), Errno> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: all zeros are a valid value of `sockaddr_un`, a structure of integers.
    let mut address: sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if bytes.len() >= PATH_ROOM {
        return Err(Errno::ENAMETOOLONG);
    }
    for (to, &from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from as libc::c_char;
    }
    let len = mem::offset_of!(sockaddr_un, sun_path) + bytes.len() + 1;
    Ok((address, len as socklen_t))
}

const SOCKET_TYPE: c_int = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;

/// `sizeof(sun_path)` in `<linux/un.h>`, including the final zero byte.
const PATH_ROOM: usize = 108;

/// `SO_PEERPIDFD` of `<asm-generic/socket.h>`, Linux 6.5.
const SO_PEERPIDFD: c_int = 77;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{dir, dir::Links, eventfd::EventFd, process};

    #[test]
    fn a_message_arrives_whole_with_its_descriptors() {
        let (one, two) = Socket::pair().unwrap();
        let event = EventFd::new().unwrap();
        one.send(b"hello", &[event.as_fd(), event.as_fd()]).unwrap();
        let mut buffer = [0; 16];
        let got = two.receive(&mut buffer).unwrap();
        assert_eq!((&buffer[..got.len], got.fds.len(), got.truncated), (&b"hello"[..], 2, false));
        event.notify();
        for fd in got.fds.into_array::<2>().unwrap() {
            assert!(EventFd::verify(fd).is_ok());
        }
        assert_eq!(two.receive(&mut buffer).map(|_| ()), Err(Errno::EAGAIN));
    }

    #[test]
    fn a_message_that_does_not_fit_says_so_and_leaks_nothing() {
        let (one, two) = Socket::pair().unwrap();
        one.send(&[1; 20], &[]).unwrap();
        let got = two.receive(&mut [0; 16]).unwrap();
        assert!(got.truncated);
        let five = [one.as_fd(); 5];
        assert_eq!(one.send(b"x", &five), Err(Errno::EINVAL));
    }

    #[test]
    fn a_closed_end_reads_as_an_empty_message_and_breaks_sending_without_a_signal() {
        let (one, two) = Socket::pair().unwrap();
        drop(one);
        assert_eq!(two.receive(&mut [0; 16]).unwrap().len, 0);
        assert_eq!(two.send(b"x", &[]), Err(Errno::EPIPE));
    }

    #[test]
    fn a_path_of_any_length_can_be_listened_at() {
        let base = std::env::temp_dir().join(format!("fv-{}-{}", process::id(), "x".repeat(120)));
        dir::make_dir(&base, 0o700).unwrap();
        let dir = Dir::open(&base, Links::Refuse).unwrap();
        let name = Path::new("1.sock");
        let path = base.join(name);
        let listener = Socket::listen(&dir, &path, name, 8).unwrap();
        let client = Socket::connect(&dir, &path, name).unwrap();
        let server = listener.accept().unwrap();
        assert_eq!(server.credentials().unwrap().pid, process::id());
        assert_eq!(client.credentials().unwrap().uid, process::user());
        assert_eq!(listener.accept().map(|_| ()), Err(Errno::EAGAIN));
        dir.unlink(name).unwrap();
        dir::remove_dir(&base).unwrap();
    }
}
