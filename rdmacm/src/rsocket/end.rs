//! `rshutdown`, `rclose`: as shutdown(2) and close(2).
//! Entry points that end the connection of a socket.

use super::datagrams::Datagrams;
use super::numbers::Inherited;
use super::socket::{
    Phase, SOCKETS, Socket, SocketState, find_socket, remove_socket, send_control,
};
use crate::sys::descriptors;
use cface::sync::MutexGuard;
use cface::{Errno, MinusOne, verb};
use std::ffi::c_int;
use std::sync::Arc;

/// Ends one direction or both, tells the peer, and waits until the peer has received all data.
fn shut_down<'a>(
    socket: &'a Socket,
    mut state: MutexGuard<'a, SocketState>,
    how: c_int,
) -> Result<MutexGuard<'a, SocketState>, Errno> {
    let reading = matches!(how, libc::SHUT_RD | libc::SHUT_RDWR);
    let writing = matches!(how, libc::SHUT_WR | libc::SHUT_RDWR);
    if !reading && !writing {
        return Err(Errno::EINVAL);
    }
    if state.phase == Phase::Accepting && writing {
        // A message before the peer is ready would be lost.
        state = socket.wait_until(state, false, |state| {
            state.phase != Phase::Accepting || !state.is_open()
        })?;
    }
    if let Some(datagrams) = &mut state.datagrams {
        descriptors::udp_shut_down(&datagrams.udp, how)?;
        datagrams.readable &= !reading;
        datagrams.writable &= !writing;
        state.wake();
        return Ok(state);
    }
    if std::mem::take(&mut state.options.keep_alive) {
        super::keep_alive::recheck();
    }
    state.progress();
    let message = state.stream.as_mut().and_then(|stream| stream.shut_down(reading, writing));
    if let Some(message) = message {
        let has_place = |state: &SocketState| {
            state
                .stream
                .as_ref()
                .is_none_or(|stream| stream.outgoing.controls() > 0 || !stream.is_open())
        };
        state = socket.wait_until(state, false, has_place)?;
        if state.is_open() {
            send_control(&mut state, message);
        }
    }
    if writing {
        let is_done = |state: &SocketState| {
            state
                .stream
                .as_ref()
                .is_none_or(|stream| stream.outgoing.is_idle() || !stream.is_open())
        };
        state = socket.wait_until(state, false, is_done)?;
    }
    state.wake();
    Ok(state)
}

/// Destroys a socket that the application does not have.
pub(super) fn abandon(socket: &Arc<Socket>) {
    remove_socket(socket.fd());
    socket.lock().close();
}

verb! {
    /// `rshutdown(3)`.
    ///
    /// # Safety
    /// No requirements.
    pub(crate) fn rshutdown(socket: c_int, how: c_int) -> MinusOne {
        let socket = find_socket(socket)?;
        drop(shut_down(&socket, socket.lock(), how)?);
        Ok(MinusOne(0))
    }

    /// `rclose(3)`: waits until the peer has received all data, or until datagrams are sent. For a
    /// parent's socket, closes the descriptor of this process.
    ///
    /// # Safety
    /// No requirements.
    pub(crate) fn rclose(socket: c_int) -> MinusOne {
        if super::set::close(socket) || SOCKETS.close_inherited(socket) == Inherited::Closed {
            return Ok(MinusOne(0));
        }
        let socket = find_socket(socket)?;
        loop {
            let state = socket.lock();
            let shut = if state.datagrams.is_some() {
                let sent = |state: &SocketState| state.datagrams.as_ref().is_none_or(Datagrams::is_idle);
                socket.wait_until(state, false, sent).map(drop)
            } else if state.is_open() {
                shut_down(&socket, state, libc::SHUT_RDWR).map(drop)
            } else {
                break;
            };
            // A signal changes nothing: afterwards the descriptor is free.
            if shut != Err(Errno::EINTR) {
                break;
            }
        }
        // Of several threads that close a socket at once, one succeeds.
        let socket = remove_socket(socket.fd()).ok_or(Errno::EBADF)?;
        socket.lock().close();
        Ok(MinusOne(0))
    }
}
