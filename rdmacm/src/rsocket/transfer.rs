//! Sending and receiving: `rsend`, `rrecv` and related calls, as send(2) and recv(2).
//! Entry points for streams and datagrams. No call raises SIGPIPE.

use super::connect::read_address;
use super::datagrams;
use super::socket::{Phase, Socket, SocketState, find};
use super::vector::Vector;
use cface::sync::MutexGuard;
use cface::{Errno, MinusOneLong, verb};
use ferroverbs_cm::stream::{Message, StreamState};
use std::ffi::{c_int, c_void};
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

/// # Safety
/// The pieces are readable.
unsafe fn send_stream(socket: &Socket, bytes: &mut Vector, flags: c_int) -> Result<isize, Errno> {
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
        let posted = endpoint.write(write, Some(Message::Data(write.bytes)), |to, len| {
            bytes.each(len, |from, behind, some| {
                // SAFETY: the pieces are valid by the caller's contract; the slot has room for
                // `len` bytes, and the application has no access to it.
                unsafe { to.add(behind).copy_from_nonoverlapping(from, some) };
            });
        });
        if let Err(why) = posted {
            stream.fail();
            return Err(why);
        }
    }
    Ok(all.wrapping_sub(bytes.left()).cast_signed())
}

/// # Safety
/// The pieces are writable.
unsafe fn receive_stream(
    socket: &Socket,
    bytes: &mut Vector,
    flags: c_int,
) -> Result<isize, Errno> {
    let mut state = connected(socket)?;
    let all = bytes.left();
    let peek = flags & libc::MSG_PEEK != 0;
    while bytes.left() > 0 {
        let at_once = at_once(&state, flags);
        state = match socket.until(state, at_once, SocketState::has_data) {
            Ok(state) => state,
            Err(_) if bytes.left() < all => return Ok((all - bytes.left()).cast_signed()),
            Err(why) => return Err(why),
        };
        let now = &mut *state;
        let (Some(endpoint), Some(stream)) = (&now.endpoint, &mut now.stream) else {
            return Err(now.error.take().unwrap_or(Errno::ENOTCONN));
        };
        if stream.incoming.unread() == 0 {
            if stream.life() == StreamState::Broken && bytes.left() == all {
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
            let mut taken = Ok(());
            bytes.each(some as usize, |to, behind, len| {
                // SAFETY: the pieces are valid by the caller's contract. Both lengths are part of
                // `some`, which fits in 32 bits.
                let done = unsafe { endpoint.read(at + behind as u32, to, len) };
                taken = taken.and(done);
            });
            taken?;
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
/// # Safety
/// The pieces are readable.
unsafe fn send(
    socket: &Socket,
    bytes: &mut Vector,
    flags: c_int,
    to: Option<SocketAddr>,
) -> Result<MinusOneLong, Errno> {
    let state = socket.lock();
    // SAFETY: by the contract above.
    let sent = unsafe {
        if state.datagrams.is_some() {
            datagrams::send(socket, state, bytes, to, flags)?
        } else {
            drop(state);
            send_stream(socket, bytes, flags)?
        }
    };
    Ok(MinusOneLong(sent))
}

/// The result of a receive call.
struct Received {
    /// The return value.
    bytes: isize,
    /// The sender of a datagram.
    from: Option<SocketAddr>,
    /// True: the datagram was longer than the buffer.
    is_truncated: bool,
}

/// Receives bytes of a stream, or a datagram.
///
/// # Safety
/// The pieces are writable.
unsafe fn receive(socket: &Socket, bytes: &mut Vector, flags: c_int) -> Result<Received, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let state = socket.lock();
    if state.datagrams.is_none() {
        drop(state);
        // SAFETY: by the contract above.
        let bytes = unsafe { receive_stream(socket, bytes, flags)? };
        return Ok(Received { bytes, from: None, is_truncated: false });
    }
    let room = bytes.left();
    // SAFETY: by the contract above.
    let datagram = unsafe { datagrams::receive(socket, state, bytes, flags)? };
    let len = datagram.map_or(0, |(_, len)| len);
    let told = if flags & libc::MSG_TRUNC != 0 { len } else { len.min(room) };
    Ok(Received {
        bytes: told.cast_signed(),
        from: datagram.map(|(from, _)| from),
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
        let mut state = self.until(state, at_once, SocketState::has_room)?;
        match &state.stream {
            Some(stream) if stream.is_writable() => Ok(state),
            Some(_) => Err(Errno::ECONNRESET),
            None => Err(state.error.take().unwrap_or(Errno::ENOTCONN)),
        }
    }
}

/// The destination address of a call; a stream accepts none.
///
/// # Safety
/// `to` is NULL or has `len` readable bytes.
unsafe fn destination(
    socket: &Socket,
    to: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<Option<SocketAddr>, Errno> {
    if to.is_null() && len == 0 {
        return Ok(None);
    }
    if socket.lock().datagrams.is_none() {
        return Err(Errno::from_raw(libc::EISCONN));
    }
    if to.is_null() {
        return Ok(None);
    }
    // SAFETY: by the contract above.
    unsafe { read_address(to, len) }.map(Some)
}

/// The pieces of a message.
///
/// # Safety
/// `message` is NULL or readable, with its pieces.
unsafe fn pieces(message: *const libc::msghdr) -> Result<Vector, Errno> {
    // SAFETY: by the contract above.
    unsafe {
        let message = message.as_ref().ok_or(Errno::EFAULT)?;
        if !message.msg_control.is_null() && message.msg_controllen > 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let count = c_int::try_from(message.msg_iovlen).map_err(|_| Errno::EMSGSIZE)?;
        Vector::of(message.msg_iov, count)
    }
}

verb! {
    /// `rsend(3)`.
    ///
    /// # Safety
    /// `buf` has `len` readable bytes.
    pub(crate) fn rsend(socket: c_int, buf: *const c_void, len: usize, flags: c_int) -> MinusOneLong {
        // SAFETY: by the contract above.
        unsafe { send(&*find(socket)?, &mut Vector::one(buf.cast_mut().cast(), len), flags, None) }
    }

    /// `rsendto(3)`: `EISCONN` a stream, with an address.
    ///
    /// # Safety
    /// `buf` has `len` readable bytes, and `to` is NULL or has `to_len` readable bytes.
    pub(crate) fn rsendto(
        socket: c_int,
        buf: *const c_void,
        len: usize,
        flags: c_int,
        to: *const libc::sockaddr,
        to_len: libc::socklen_t,
    ) -> MinusOneLong {
        let socket = find(socket)?;
        // SAFETY: by the contract above.
        unsafe {
            let to = destination(&socket, to, to_len)?;
            send(&socket, &mut Vector::one(buf.cast_mut().cast(), len), flags, to)
        }
    }

    /// `rsendmsg(3)`: `EOPNOTSUPP` with control data.
    ///
    /// # Safety
    /// `message` is NULL or readable, with its pieces.
    pub(crate) fn rsendmsg(socket: c_int, message: *const libc::msghdr, flags: c_int) -> MinusOneLong {
        let socket = find(socket)?;
        // SAFETY: by the contract above.
        unsafe {
            let mut pieces = pieces(message)?;
            let to = match socket.lock().datagrams {
                Some(_) => destination(&socket, (*message).msg_name.cast(), (*message).msg_namelen)?,
                None => None,
            };
            send(&socket, &mut pieces, flags, to)
        }
    }

    /// `rwrite(3)`.
    ///
    /// # Safety
    /// `buf` has `len` readable bytes.
    pub(crate) fn rwrite(socket: c_int, buf: *const c_void, len: usize) -> MinusOneLong {
        // SAFETY: by the contract above.
        unsafe { send(&*find(socket)?, &mut Vector::one(buf.cast_mut().cast(), len), 0, None) }
    }

    /// `rwritev(3)`.
    ///
    /// # Safety
    /// `vector` has `count` readable entries, whose bytes are readable.
    pub(crate) fn rwritev(socket: c_int, vector: *const libc::iovec, count: c_int) -> MinusOneLong {
        let socket = find(socket)?;
        // SAFETY: by the contract above.
        unsafe { send(&socket, &mut Vector::of(vector, count)?, 0, None) }
    }

    /// `rrecv(3)`.
    ///
    /// # Safety
    /// `buf` has `len` writable bytes.
    pub(crate) fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> MinusOneLong {
        // SAFETY: by the contract above.
        Ok(MinusOneLong(unsafe { receive(&*find(socket)?, &mut Vector::one(buf.cast(), len), flags)?.bytes }))
    }

    /// `rrecvfrom(3)`.
    ///
    /// # Safety
    /// `buf` has `len` writable bytes; `from` and `from_len` are NULL or writable.
    pub(crate) fn rrecvfrom(
        socket: c_int,
        buf: *mut c_void,
        len: usize,
        flags: c_int,
        from: *mut libc::sockaddr,
        from_len: *mut libc::socklen_t,
    ) -> MinusOneLong {
        let socket = find(socket)?;
        // SAFETY: by the contract above.
        unsafe {
            let received = receive(&socket, &mut Vector::one(buf.cast(), len), flags)?;
            if !from.is_null() {
                if let Some(who) = received.from {
                    super::connect::write_address(who, from, from_len)?;
                } else if received.bytes > 0 {
                    super::connect::write_address(super::connect::peer(&socket)?, from, from_len)?;
                }
            }
            Ok(MinusOneLong(received.bytes))
        }
    }

    /// `rrecvmsg(3)`: `EOPNOTSUPP` with room for control data.
    ///
    /// # Safety
    /// `message` is NULL, or readable and writable, with writable pieces.
    pub(crate) fn rrecvmsg(socket: c_int, message: *mut libc::msghdr, flags: c_int) -> MinusOneLong {
        let socket = find(socket)?;
        // SAFETY: by the contract above.
        unsafe {
            let received = receive(&socket, &mut pieces(message)?, flags)?;
            (*message).msg_flags = if received.is_truncated { libc::MSG_TRUNC } else { 0 };
            match received.from {
                Some(who) if !(*message).msg_name.is_null() => {
                    let (to, len) = ((*message).msg_name, &raw mut (*message).msg_namelen);
                    super::connect::write_address(who, to.cast(), len)?;
                }
                _ => (*message).msg_namelen = 0,
            }
            Ok(MinusOneLong(received.bytes))
        }
    }

    /// `rread(3)`.
    ///
    /// # Safety
    /// `buf` has `len` writable bytes.
    pub(crate) fn rread(socket: c_int, buf: *mut c_void, len: usize) -> MinusOneLong {
        // SAFETY: by the contract above.
        Ok(MinusOneLong(unsafe { receive(&*find(socket)?, &mut Vector::one(buf.cast(), len), 0)?.bytes }))
    }

    /// `rreadv(3)`.
    ///
    /// # Safety
    /// `vector` has `count` readable entries, whose bytes are writable.
    pub(crate) fn rreadv(socket: c_int, vector: *const libc::iovec, count: c_int) -> MinusOneLong {
        let socket = find(socket)?;
        // SAFETY: by the contract above.
        Ok(MinusOneLong(unsafe { receive(&socket, &mut Vector::of(vector, count)?, 0)?.bytes }))
    }
}
