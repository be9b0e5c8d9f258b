//! A queue of records with one descriptor: a datagram socket that is connected to itself
//! (`unix(7)`).
//!
//! The application reads, polls and sets flags of the descriptor as of a kernel's event descriptor.
//! The library needs calls that never block, regardless of the application's flags. A socket has
//! them (`MSG_DONTWAIT`); a pipe has them only by a second description, from `/proc`.

use super::errno::{Errno, check, check_len};
use libc::{c_int, c_void, sock_filter, sock_fprog, sockaddr_un, socklen_t};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Both ends of a queue of records. Each read returns a whole record.
#[derive(Debug)]
pub struct LoopSocket {
    socket: OwnedFd,
    /// The writing end, if the system forbids a socket connected to itself.
    write_end: Option<OwnedFd>,
}

impl LoopSocket {
    /// An empty queue. Only this process, and processes to which it passes the descriptor, can add
    /// records.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: the system has no more resources.
    pub fn new() -> Result<Self, Errno> {
        let connected = Self::deaf().and_then(|socket| {
            connect_to_itself(&socket)?;
            Ok(Self { socket, write_end: None })
        });
        match connected {
            // A security module may forbid names, or the system may lack filters.
            Err(errno) if !matches!(errno, Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) => {
                Self::pair()
            }
            result => result,
        }
    }

    /// A socket with a name that drops all received datagrams. Names of this kind are visible to
    /// all users, and an unconnected socket accepts datagrams from all of them.
    fn deaf() -> Result<OwnedFd, Errno> {
        // SAFETY: plain integers.
        let fd = check(unsafe {
            libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0)
        })?;
        // SAFETY: the kernel just made `fd`, which has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // `BPF_RET | BPF_K` with 0: no byte of any datagram is kept (socket(7), SO_ATTACH_FILTER).
        let mut keep_nothing = [sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 }];
        // The kernel reads all bytes, including padding. Written in place, the padding stays zero.
        let mut program = mem::MaybeUninit::<sock_fprog>::zeroed();
        // SAFETY: members of a local structure.
        unsafe {
            (&raw mut (*program.as_mut_ptr()).len).write(1);
            (&raw mut (*program.as_mut_ptr()).filter).write(keep_nothing.as_mut_ptr());
        }
        set(&socket, libc::SO_ATTACH_FILTER, &program)?;
        // SAFETY: all zeros are a valid value of `sockaddr_un`, a structure of integers.
        let mut address: sockaddr_un = unsafe { mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let family_only = size_of::<libc::sa_family_t>() as socklen_t;
        // SAFETY: `address` is a live address of which `family_only` bytes count: the kernel
        // chooses a name.
        check(unsafe { libc::bind(fd, (&raw const address).cast(), family_only) })?;
        Ok(socket)
    }

    /// The same queue with two descriptors.
    fn pair() -> Result<Self, Errno> {
        let mut fds: [c_int; 2] = [0; 2];
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: `fds` has room for the two descriptors.
        check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
        // SAFETY: the kernel just made both, which have no other owner.
        let (socket, other) =
            unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
        Ok(Self { socket, write_end: Some(other) })
    }

    /// Appends one record; `false`: no room. Never blocks.
    pub fn append(&self, record: &[u8]) -> bool {
        let end = self.write_end.as_ref().unwrap_or(&self.socket);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: `record` is readable for its length.
        let sent = unsafe {
            libc::send(end.as_raw_fd(), record.as_ptr().cast::<c_void>(), record.len(), flags)
        };
        sent == record.len() as isize
    }

    /// Removes the first record; `false`: no record of this length. Never blocks.
    pub fn remove_first(&self, record: &mut [u8]) -> bool {
        let len = record.len();
        // SAFETY: `record` is writable for its length.
        let got = check_len(unsafe {
            let buffer = record.as_mut_ptr().cast::<c_void>();
            libc::recv(self.socket.as_raw_fd(), buffer, len, libc::MSG_DONTWAIT)
        });
        got.is_ok_and(|got| got == len)
    }

    /// Whether a read of the descriptor sleeps while there is no record.
    pub fn blocks(&self) -> bool {
        // SAFETY: F_GETFL takes no argument, and the descriptor is open.
        let flags = check(unsafe { libc::fcntl(self.socket.as_raw_fd(), libc::F_GETFL) });
        flags.is_ok_and(|flags| flags & libc::O_NONBLOCK == 0)
    }

    /// Another descriptor of the reading end.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: no descriptors left.
    pub fn duplicate(&self) -> Result<OwnedFd, Errno> {
        self.socket.try_clone().map_err(Errno::from)
    }
}

impl AsFd for LoopSocket {
    /// The reading end.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Connects the socket to its own name. A connected socket accepts only datagrams of its peer
/// (`unix(7)`).
fn connect_to_itself(socket: &OwnedFd) -> Result<(), Errno> {
    let fd = socket.as_raw_fd();
    // SAFETY: all zeros are a valid value of `sockaddr_un`, a structure of integers.
    let mut address: sockaddr_un = unsafe { mem::zeroed() };
    let mut len = size_of::<sockaddr_un>() as socklen_t;
    // SAFETY: `address` has `len` bytes, of which the kernel writes as many as the name has.
    check(unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) })?;
    // SAFETY: `address` is the live address of `len` bytes that the kernel wrote.
    check(unsafe { libc::connect(fd, (&raw const address).cast(), len) })?;
    set(socket, libc::SO_DETACH_FILTER, &0)
}

fn set<T>(socket: &OwnedFd, option: c_int, value: &T) -> Result<(), Errno> {
    let len = size_of::<T>() as socklen_t;
    // SAFETY: `value` is a live value of `len` bytes.
    check(unsafe {
        let value = std::ptr::from_ref(value).cast::<c_void>();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, len)
    })
    .map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    fn takes(queue: &LoopSocket) -> Option<[u8; 8]> {
        let mut record = [0; 8];
        queue.remove_first(&mut record).then_some(record)
    }

    #[test]
    fn records_are_received_whole_and_in_order_until_there_are_none() {
        for queue in [LoopSocket::new().expect("a socket"), LoopSocket::pair().expect("a pair")] {
            assert_eq!(takes(&queue), None, "an empty queue does not block");
            let mut sent = 0_u64;
            while queue.append(&sent.to_ne_bytes()) {
                sent += 1;
            }
            assert!(sent >= 100, "there is room for {sent} records");
            for n in 0..sent {
                assert_eq!(takes(&queue), Some(n.to_ne_bytes()));
            }
            assert_eq!(takes(&queue), None);
        }
    }

    #[test]
    fn a_queue_needs_one_descriptor() {
        assert!(LoopSocket::new().expect("a socket").write_end.is_none());
    }

    #[test]
    fn no_other_socket_can_send_a_record_to_the_queue() {
        let stranger = UnixDatagram::unbound().expect("a socket");
        let address = |socket: &OwnedFd| -> SocketAddr {
            let socket = UnixDatagram::from(socket.try_clone().expect("a descriptor"));
            socket.local_addr().expect("a name")
        };
        let socket = LoopSocket::deaf().expect("a socket");
        let name = address(&socket);
        stranger.send_to_addr(b"not ours", &name).expect("the filter drops it silently");
        connect_to_itself(&socket).expect("a connection");
        let refused = stranger.send_to_addr(b"not ours", &name).expect_err("a refusal");
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        let queue = LoopSocket { socket, write_end: None };
        assert_eq!(takes(&queue), None);
        assert!(queue.append(b"is ours."));
        assert_eq!(takes(&queue), Some(*b"is ours."));
    }
}
