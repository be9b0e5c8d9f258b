//! Sending and receiving for streams and datagrams, as send(2) and recv(2).
//! Entry points (`entry`) call these functions. No call raises SIGPIPE.

use super::datagrams;
use super::socket::{Phase, Socket, SocketState};
use super::vector::{Room, Source};
use crate::sys::address::GivenAddress;
use cface::Errno;
use cface::sync::MutexGuard;
use ferroverbs_cm::stream::{Message, StreamState};
use std::ffi::c_int;
use std::net::SocketAddr;

/// Whether a call must not block.
pub(super) fn at_once(state: &SocketState, flags: c_int) -> bool {
    state.options.nonblocking || flags & libc::MSG_DONTWAIT != 0
}

/// The locked state of a socket that is connected or connecting.
fn connected(socket: &Socket) -> Result<MutexGuard<'_, SocketState>, Errno> {
    let state = socket.lock();
    match state.phase {
        Phase::Connecting | Phase::Accepting | Phase::Connected => Ok(state),
        Phase::Closed => Err(Errno::EBADF),
        _ => Err(Errno::ENOTCONN),
    }
}

fn send_stream(socket: &Socket, bytes: &mut Source<'_>, flags: c_int) -> Result<isize, Errno> {
    let mut state = connected(socket)?;
    let all = bytes.left();
    if all > 0 && state.mapped.is_pending() {
        state = super::mapping::announce(socket, state, flags)?;
    }
    while bytes.left() > 0 {
        let next = match socket.until_room(state, flags) {
            Ok(next) => next,
            // A partial send is the result.
            Err(_) if bytes.left() < all => return Ok((all - bytes.left()).cast_signed()),
            Err(why) => return Err(why),
        };
        state = next;
        let now = &mut *state;
        let (Some(endpoint), Some(stream)) = (&mut now.endpoint, &mut now.stream) else { break };
        let Some(write) = stream.outgoing.write(bytes.left()) else { continue };
        let posted = endpoint.write(write, Some(Message::Data(write.bytes)), bytes);
        if let Err(why) = posted {
            stream.fail();
            return Err(why);
        }
    }
    Ok(all.wrapping_sub(bytes.left()).cast_signed())
}

fn receive_stream(socket: &Socket, bytes: &mut Room<'_>, flags: c_int) -> Result<isize, Errno> {
    let mut state = connected(socket)?;
    let all = bytes.left();
    let peek = flags & libc::MSG_PEEK != 0;
    while bytes.left() > 0 {
        let at_once = at_once(&state, flags);
        state = match socket.wait_until(state, at_once, SocketState::has_data) {
            Ok(state) => state,
            Err(_) if bytes.left() < all => return Ok((all - bytes.left()).cast_signed()),
            Err(why) => return Err(why),
        };
        let now = &mut *state;
        let (Some(endpoint), Some(stream)) = (&now.endpoint, &mut now.stream) else {
            return Err(now.error.take().unwrap_or(Errno::ENOTCONN));
        };
        if stream.incoming.unread() == 0 {
            if stream.state() == StreamState::Broken && bytes.left() == all {
                return Err(Errno::ECONNRESET);
            }
            break;
        }
        let mut skip = 0;
        while let Some((at, some)) = stream.incoming.piece(skip) {
            let some = u32::try_from(bytes.left()).unwrap_or(u32::MAX).min(some);
            if some == 0 {
                break;
            }
            endpoint.read(at, bytes, some as usize)?;
            if peek {
                skip += some;
            } else {
                stream.incoming.consume(some);
            }
        }
        if peek || flags & libc::MSG_WAITALL == 0 {
            break;
        }
    }
    // Returned credits let the sender continue.
    state.progress();
    Ok(all.wrapping_sub(bytes.left()).cast_signed())
}

/// Sends bytes of a stream, or a datagram to `to` if given.
///
/// # Errors
/// As `rsendto(3)`.
pub(super) fn send(
    socket: &Socket,
    bytes: &mut Source<'_>,
    flags: c_int,
    to: Option<SocketAddr>,
) -> Result<isize, Errno> {
    let state = socket.lock();
    if state.datagrams.is_some() {
        return datagrams::send(socket, state, bytes, to, flags);
    }
    drop(state);
    send_stream(socket, bytes, flags)
}

/// The result of a receive call.
pub(super) struct Received {
    /// The return value.
    pub(super) bytes: isize,
    /// The sender of a datagram.
    pub(super) sender: Option<SocketAddr>,
    /// True: the datagram was longer than the buffer.
    pub(super) is_truncated: bool,
}

/// Receives bytes of a stream, or a datagram.
///
/// # Errors
/// As `rrecvmsg(3)`.
pub(super) fn receive(
    socket: &Socket,
    bytes: &mut Room<'_>,
    flags: c_int,
) -> Result<Received, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let state = socket.lock();
    if state.datagrams.is_none() {
        drop(state);
        let bytes = receive_stream(socket, bytes, flags)?;
        return Ok(Received { bytes, sender: None, is_truncated: false });
    }
    let room = bytes.left();
    let datagram = datagrams::receive(socket, state, bytes, flags)?;
    let len = datagram.map_or(0, |(_, len)| len);
    let told = if flags & libc::MSG_TRUNC != 0 { len } else { len.min(room) };
    Ok(Received {
        bytes: told.cast_signed(),
        sender: datagram.map(|(from, _)| from),
        is_truncated: len > room,
    })
}

impl Socket {
    /// Waits until data can be sent.
    ///
    /// # Errors
    /// `ECONNRESET` no data can be sent any more; as `until`.
    pub(super) fn until_room<'a>(
        &'a self,
        state: MutexGuard<'a, SocketState>,
        flags: c_int,
    ) -> Result<MutexGuard<'a, SocketState>, Errno> {
        let ready = |state: &SocketState| {
            state.phase == Phase::Connected
                && state.stream.as_ref().is_some_and(|s| s.outgoing.has_room() && s.is_writable())
        };
        if ready(&state) {
            return Ok(state);
        }
        let at_once = at_once(&state, flags);
        let mut state = self.wait_until(state, at_once, SocketState::has_room)?;
        match &state.stream {
            Some(stream) if stream.is_writable() => Ok(state),
            Some(_) => Err(Errno::ECONNRESET),
            None => Err(state.error.take().unwrap_or(Errno::ENOTCONN)),
        }
    }
}

/// The destination of a call that names an address with `len` bytes; a stream accepts none.
///
/// # Errors
/// `EISCONN` a stream; `EINVAL` too few bytes or an unsupported family.
pub(super) fn destination(
    socket: &Socket,
    to: Result<GivenAddress, Errno>,
    len: libc::socklen_t,
) -> Result<Option<SocketAddr>, Errno> {
    if to.as_ref().is_ok_and(GivenAddress::is_null) && len == 0 {
        return Ok(None);
    }
    if socket.lock().datagrams.is_none() {
        return Err(Errno::from_raw(libc::EISCONN));
    }
    let to = to?;
    if to.is_null() { Ok(None) } else { to.ip().map(Some) }
}
