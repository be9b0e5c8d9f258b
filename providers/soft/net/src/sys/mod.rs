//! System calls. All `unsafe` code of the crate is in this module. The other modules see buffers
//! and results, and no kernel structures.

mod incoming;
pub(crate) mod option;
mod outgoing;

pub(crate) use incoming::{Incoming, Received, error_queue, read_error_datagram};
pub use outgoing::Bytes;
pub(crate) use outgoing::{DatagramPart, DatagramParts, Outgoing, send_connected, send_piece};

use std::os::fd::{AsFd, BorrowedFd};

/// The descriptor of a socket.
pub(crate) fn fd(socket: &socket2::Socket) -> BorrowedFd<'_> {
    socket.as_fd()
}
