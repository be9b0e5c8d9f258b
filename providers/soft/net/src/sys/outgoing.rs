//! sendmsg(2) and sendmmsg(2) with scattered datagrams. `batch.rs` collects the datagrams that one
//! call sends.

use crate::control::Control;
use crate::name::Name;
use libc::{iovec, mmsghdr};
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Borrowed bytes to send, which only the kernel reads.
#[derive(Clone, Copy)]
pub struct Bytes<'a> {
    start: *const u8,
    len: usize,
    lifetime: PhantomData<&'a [u8]>,
}

// SAFETY: a shared slice of bytes that no code here reads; only the kernel gets its address.
unsafe impl Send for Bytes<'_> {}

impl Bytes<'_> {
    /// Memory without a Rust reference, because others may write it. If it is unmapped at sending,
    /// the kernel refuses the datagram (EFAULT).
    ///
    /// # Safety
    /// While the memory is mapped during `'a`, the kernel may read it and send it to the peer.
    #[must_use]
    pub const unsafe fn new(start: *const u8, len: usize) -> Self {
        Self { start, len, lifetime: PhantomData }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { start: bytes.as_ptr(), len: bytes.len(), lifetime: PhantomData }
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

/// A part of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DatagramPart<'a> {
    /// Bytes of the batch itself: offset and length.
    Copied(u32, u32),
    /// Borrowed bytes.
    Outside(Bytes<'a>),
}

/// One datagram of a call: destination, control messages, and parts.
#[derive(Debug)]
pub(crate) struct DatagramParts<'a, 'p> {
    pub(crate) name: &'a Name,
    pub(crate) control: &'a Control,
    pub(crate) parts: &'a [DatagramPart<'p>],
}

/// The structures of a system call.
pub(crate) struct Outgoing {
    headers: Vec<mmsghdr>,
    iovecs: Vec<iovec>,
}

// SAFETY: its pointers are written and used within one call of `send`, and meaningless between
// calls.
unsafe impl Send for Outgoing {}

impl Outgoing {
    /// Room for so many messages and parts in a call.
    pub(crate) fn new(messages: usize, parts: usize) -> Self {
        Self { headers: Vec::with_capacity(messages), iovecs: Vec::with_capacity(parts) }
    }

    /// Sends messages; [`DatagramPart::Copied`] refers to `copied_bytes`. Returns how many the
    /// kernel accepted, at least one.
    ///
    /// # Errors
    /// The error of the first message.
    pub(crate) fn send<'a, 'p: 'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        datagrams: impl Iterator<Item = DatagramParts<'a, 'p>>,
        own: &[u8],
    ) -> io::Result<usize> {
        self.headers.clear();
        self.iovecs.clear();
        for datagram in datagrams {
            let fits = self.iovecs.capacity() - self.iovecs.len() >= datagram.parts.len();
            if !fits || self.headers.len() == self.headers.capacity() {
                break;
            }
            let first = self.iovecs.len();
            let mut end = std::ptr::null();
            for part in datagram.parts {
                let (start, len) = match *part {
                    DatagramPart::Copied(at, len) => {
                        let bytes = own.get(at as usize..).and_then(|own| own.get(..len as usize));
                        let bytes = bytes.unwrap_or_default();
                        (bytes.as_ptr(), bytes.len())
                    }
                    DatagramPart::Outside(bytes) => (bytes.start, bytes.len),
                };
                match self.iovecs.last_mut() {
                    // Adjacent packets become one piece.
                    Some(last) if end == start => last.iov_len += len,
                    _ => {
                        self.iovecs.push(iovec { iov_base: start.cast_mut().cast(), iov_len: len })
                    }
                }
                end = start.wrapping_add(len);
            }
            // SAFETY: all zeros are a valid value of this structure of integers and pointers.
            let mut header: mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_name = datagram.name.bytes.as_ptr().cast_mut().cast();
            header.msg_hdr.msg_namelen = datagram.name.len as u32;
            header.msg_hdr.msg_control = datagram.control.bytes.as_ptr().cast_mut().cast();
            header.msg_hdr.msg_controllen = datagram.control.len as _;
            // The vector has capacity for all parts, so it does not move.
            header.msg_hdr.msg_iov = self.iovecs.as_mut_ptr().wrapping_add(first);
            header.msg_hdr.msg_iovlen = (self.iovecs.len() - first) as _;
            self.headers.push(header);
        }
        let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT);
        // Call by number: the C library's functions are cancellation points, and check twice per
        // call whether the thread is cancelled. ibv_post_send(3) and ibv_poll_cq(3) are no
        // cancellation points.
        let taken = if let [header] = self.headers.as_mut_slice() {
            // SAFETY: the header's name, control bytes and own parts are borrowed until the end of
            // this function; other parts live for `'p`, which is longer (contract of `Bytes`). The
            // call only reads them.
            let sent =
                unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw mut header.msg_hdr, flags) };
            sent.min(1)
        } else {
            let (headers, count) = (self.headers.as_mut_ptr(), self.headers.len());
            // SAFETY: `headers` are `count` structures, whose names, control bytes and parts live
            // as in the case of one. The call reads what they name, and only writes the structures.
            unsafe { libc::syscall(libc::SYS_sendmmsg, fd, headers, count, flags) }
        };
        usize::try_from(taken).map_err(|_| io::Error::last_os_error())
    }
}

/// Sends a datagram that is one piece.
///
/// # Errors
/// The socket's.
pub(crate) fn send_piece(
    fd: BorrowedFd<'_>,
    name: &Name,
    control: &Control,
    piece: &[u8],
) -> io::Result<()> {
    let mut iovec = iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
    // SAFETY: all zeros are a valid value of this structure of integers and pointers.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = name.bytes.as_ptr().cast_mut().cast();
    header.msg_namelen = name.len as u32;
    header.msg_control = control.bytes.as_ptr().cast_mut().cast();
    header.msg_controllen = control.len as _;
    header.msg_iov = &raw mut iovec;
    header.msg_iovlen = 1;
    let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT);
    // Call by number, as in `Outgoing::send`.
    // SAFETY: all memory that the header names is borrowed until the end of this function. The call
    // only reads it.
    let taken = unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw mut header, flags) };
    usize::try_from(taken).map(drop).map_err(|_| io::Error::last_os_error())
}

/// Sends a datagram on a connected socket.
///
/// # Errors
/// The socket's.
pub(crate) fn send_connected(fd: BorrowedFd<'_>, piece: &[u8]) -> io::Result<()> {
    let (fd, at, flags) = (fd.as_raw_fd(), piece.as_ptr(), libc::MSG_DONTWAIT);
    let nobody = std::ptr::null::<libc::c_void>();
    // Call by number, as in `Outgoing::send`.
    // SAFETY: a slice that is borrowed until the end of this function, with its length, and no
    // name. The call only reads it.
    let taken = unsafe { libc::syscall(libc::SYS_sendto, fd, at, piece.len(), flags, nobody, 0) };
    usize::try_from(taken).map(drop).map_err(|_| io::Error::last_os_error())
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing").field("messages", &self.headers.capacity()).finish()
    }
}
