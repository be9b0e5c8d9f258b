//! `rshutdown`, `rclose`: as shutdown(2) and close(2).

use super::socket::{Phase, Socket, State, find, forget, tell};
use cface::{Errno, MinusOne, verb};
use parking_lot::MutexGuard;
use std::ffi::c_int;
use std::sync::Arc;

/// Ends one direction or both, tells the peer, and waits until all that was sent is with it.
fn shut_down<'a>(
    socket: &'a Socket,
    mut state: MutexGuard<'a, State>,
    how: c_int,
) -> Result<MutexGuard<'a, State>, Errno> {
    let reading = matches!(how, libc::SHUT_RD | libc::SHUT_RDWR);
    let writing = matches!(how, libc::SHUT_WR | libc::SHUT_RDWR);
    if !reading && !writing {
        return Err(Errno::EINVAL);
    }
    if state.phase == Phase::Accepting && writing {
        // What is said now would be lost.
        state = socket
            .until(state, false, |state| state.phase != Phase::Accepting || !state.is_open())?;
    }
    state.progress();
    let message = state.stream.as_mut().and_then(|stream| stream.shut_down(reading, writing));
    if let Some(message) = message {
        let has_place = |state: &State| {
            state
                .stream
                .as_ref()
                .is_none_or(|stream| stream.outgoing.controls() > 0 || !stream.is_open())
        };
        state = socket.until(state, false, has_place)?;
        if state.is_open() {
            tell(&mut state, message);
        }
    }
    if writing {
        let is_done = |state: &State| {
            state
                .stream
                .as_ref()
                .is_none_or(|stream| stream.outgoing.is_idle() || !stream.is_open())
        };
        state = socket.until(state, false, is_done)?;
    }
    state.wake();
    Ok(state)
}

/// Nobody has the socket yet, and nobody will.
pub(super) fn abandon(socket: &Arc<Socket>) {
    forget(socket.fd());
    socket.lock().close();
}

verb! {
    /// `rshutdown(3)`.
    ///
    /// # Safety
    /// Nothing is asked.
    pub(crate) fn rshutdown(socket: c_int, how: c_int) -> MinusOne {
        let socket = find(socket)?;
        drop(shut_down(&socket, socket.lock(), how)?);
        Ok(MinusOne(0))
    }

    /// `rclose(3)`: waits until the peer has what was sent.
    ///
    /// # Safety
    /// Nothing is asked.
    pub(crate) fn rclose(socket: c_int) -> MinusOne {
        let socket = find(socket)?;
        loop {
            let state = socket.lock();
            if !state.is_open() {
                break;
            }
            // A signal changes nothing: the number is free afterwards.
            match shut_down(&socket, state, libc::SHUT_RDWR) {
                Err(Errno::EINTR) => {}
                _ => break,
            }
        }
        // One of several threads that close it at once.
        let socket = forget(socket.fd()).ok_or(Errno::EBADF)?;
        socket.lock().close();
        Ok(MinusOne(0))
    }
}
