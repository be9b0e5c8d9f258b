//! recvmsg(2) and recvmmsg(2) into reusable buffers, and the error queue. `receive.rs` uses the
//! batches, and `batch.rs` reads the error queue of a sending socket.

use crate::control::{CONTROL_MAX, Control};
use crate::name::{NAME_MAX, Name};
use libc::{c_int, iovec, mmsghdr};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Received datagrams and their buffers.
pub(crate) struct Incoming {
    buffers: Box<[u8]>,
    /// Length of each buffer in bytes.
    size: usize,
    names: Box<[Name]>,
    controls: Box<[Control]>,
    headers: Box<[mmsghdr]>,
    iovecs: Box<[iovec]>,
    /// Number of datagrams of the last call.
    count: usize,
    /// Number of datagrams that the next call requests: a caller that waits for one packet should
    /// not pay for many.
    room: usize,
    /// Whether the last call received as many as requested.
    was_full: bool,
}

// SAFETY: its pointers are written and used within one call of `receive`, and point into its own
// boxes.
unsafe impl Send for Incoming {}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) name: &'a [u8],
    pub(crate) control: &'a [u8],
    pub(crate) flags: c_int,
}

impl Incoming {
    /// Room for `count` datagrams of `size` bytes.
    pub(crate) fn new(count: usize, size: usize) -> Self {
        // SAFETY: all zeros are a valid value of this structure of integers and pointers.
        let header: mmsghdr = unsafe { std::mem::zeroed() };
        let iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self {
            buffers: vec![0; count * size].into(),
            size,
            names: vec![Name::default(); count].into(),
            controls: vec![Control::EMPTY; count].into(),
            headers: vec![header; count].into(),
            iovecs: vec![iovec; count].into(),
            count: 0,
            room: 1,
            was_full: false,
        }
    }

    /// Receives the waiting datagrams, without blocking. Returns their number.
    ///
    /// # Errors
    /// None waits ([`WouldBlock`](io::ErrorKind::WouldBlock)), or the socket's error.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let room = self.room.clamp(1, self.headers.len());
        (self.count, self.room, self.was_full) = (0, 1, false);
        let Self { buffers, size, names, controls, headers, iovecs, .. } = self;
        let mut buffers = buffers.chunks_exact_mut(*size);
        for (index, header) in headers.iter_mut().enumerate().take(room) {
            let (Some(buffer), Some(iovec)) = (buffers.next(), iovecs.get_mut(index)) else {
                break;
            };
            let (Some(name), Some(control)) = (names.get_mut(index), controls.get_mut(index))
            else {
                break;
            };
            (iovec.iov_base, iovec.iov_len) = (buffer.as_mut_ptr().cast(), buffer.len());
            let header = &mut header.msg_hdr;
            header.msg_iov = iovec;
            header.msg_iovlen = 1;
            header.msg_name = name.bytes.as_mut_ptr().cast();
            header.msg_namelen = NAME_MAX as u32;
            header.msg_control = control.bytes.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_MAX as _;
        }
        self.count = if room == 1 { self.take_one(fd)? } else { self.take_several(fd, room)? };
        self.was_full = self.count == room;
        self.room = if self.was_full { 2 * room } else { self.count };
        Ok(self.count)
    }

    /// recvmsg(2) with the first header, which `receive` has set.
    fn take_one(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let Some(header) = self.headers.first_mut() else { return Ok(0) };
        let (fd, flags) = (fd.as_raw_fd(), libc::MSG_DONTWAIT);
        // Call by number: the C library's function is a cancellation point, and checks twice per
        // call whether the thread is cancelled. ibv_poll_cq(3) is no cancellation point.
        // SAFETY: the caller set the header: it names a buffer, a name and control bytes with their
        // lengths, which are boxed here and borrowed exclusively.
        let taken = unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut header.msg_hdr, flags) };
        header.msg_len = u32::try_from(taken).map_err(|_| io::Error::last_os_error())?;
        Ok(1)
    }

    /// recvmmsg(2) with the first `room` headers, which `receive` has set.
    fn take_several(&mut self, fd: BorrowedFd<'_>, room: usize) -> io::Result<usize> {
        let (fd, headers) = (fd.as_raw_fd(), self.headers.as_mut_ptr());
        let (flags, no_time) = (libc::MSG_DONTWAIT, std::ptr::null_mut::<libc::timespec>());
        // Call by number, as in `take_one`.
        // SAFETY: there are at least `room` headers, and each names a buffer, a name and control
        // bytes as in `take_one`.
        let taken = unsafe { libc::syscall(libc::SYS_recvmmsg, fd, headers, room, flags, no_time) };
        usize::try_from(taken).map_err(|_| io::Error::last_os_error())
    }

    /// Whether the last call received as many as requested, so that more may wait.
    pub(crate) fn was_full(&self) -> bool {
        self.was_full
    }

    /// A datagram of the last call.
    pub(crate) fn get(&self, index: usize) -> Option<Received<'_>> {
        let header = self.headers.get(..self.count)?.get(index)?;
        let buffer = self.buffers.get(index * self.size..)?;
        let len = (header.msg_len as usize).min(self.size);
        let name = &self.names.get(index)?.bytes;
        let control = &self.controls.get(index)?.bytes;
        Some(Received {
            bytes: buffer.get(..len)?,
            name: name.get(..header.msg_hdr.msg_namelen as usize)?,
            control: control.get(..header.msg_hdr.msg_controllen as _)?,
            flags: header.msg_hdr.msg_flags,
        })
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (buffers, size) = (self.headers.len(), self.size);
        f.debug_struct("Incoming").field("buffers", &buffers).field("size", &size).finish()
    }
}

/// The oldest entry of a socket's error queue: the datagram's destination, and the control
/// messages.
///
/// # Errors
/// None ([`WouldBlock`](io::ErrorKind::WouldBlock)), or the socket's error.
pub(crate) fn error_queue(fd: BorrowedFd<'_>) -> io::Result<(Name, Control)> {
    let (mut name, mut control) = (Name::default(), Control::EMPTY);
    // SAFETY: all zeros are a valid value of this structure of integers and pointers.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = name.bytes.as_mut_ptr().cast();
    header.msg_namelen = NAME_MAX as u32;
    header.msg_control = control.bytes.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_MAX as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the header names local buffers with their lengths, and no datagram bytes are
    // requested.
    if unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    name.len = (header.msg_namelen as usize).min(NAME_MAX);
    control.len = (header.msg_controllen as usize).min(CONTROL_MAX);
    Ok((name, control))
}
/// Reads a sent datagram from a socket's error queue into `bytes`, truncated if necessary. Returns
/// the number of bytes.
///
/// # Errors
/// None ([`WouldBlock`](io::ErrorKind::WouldBlock)), or the socket's error.
pub(crate) fn read_error_datagram(fd: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<usize> {
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: an exclusively borrowed slice, with its length.
    let len = unsafe { libc::recv(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), flags) };
    usize::try_from(len).map_err(|_| io::Error::last_os_error())
}
