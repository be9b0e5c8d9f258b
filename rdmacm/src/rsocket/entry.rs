//! The entry points of rsockets with pointers of the application: each converts its arguments, and
//! calls the file for the task.
//!
//! Map of this file: conversions of addresses, options and messages; entry points to connect; to
//! send; to receive; of mappings, options and polling.

use super::connect::{accept, bind, connect, own_address, peer};
use super::options::{self, OptionValue};
use super::poll::{poll, select};
use super::socket::{Socket, find_socket};
use super::transfer::{destination, receive, send};
use super::vector::{Room, Source};
use super::{mapping, set};
use crate::sys::address::GivenAddress;
use crate::sys::descriptors;
use crate::sys::objects::Region;
use cface::{Errno, MinusOne, MinusOneLong, verb};
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::time::Duration;

/// Copies an address to the application, as far as its buffer allows.
///
/// # Safety
/// `to` and `len` are NULL or writable; `to` has `*len` bytes.
unsafe fn write_address(
    address: SocketAddr,
    to: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> Result<(), Errno> {
    if to.is_null() || len.is_null() {
        return Err(Errno::EFAULT);
    }
    let given = GivenAddress::from(address);
    let bytes = given.bytes();
    // SAFETY: both are writable, and at most the smaller size is copied.
    unsafe {
        let room = (*len as usize).min(bytes.len());
        to.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), room);
        *len = bytes.len() as libc::socklen_t;
    }
    Ok(())
}

/// Copies a value to the application, as far as its buffer allows.
///
/// # Safety
/// `to` has `*len` writable bytes.
unsafe fn copy_out<T: Copy>(
    value: T,
    to: *mut c_void,
    len: *mut libc::socklen_t,
) -> Result<(), Errno> {
    if to.is_null() || len.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: by the contract above; at most the smaller size is copied.
    unsafe {
        let bytes = size_of::<T>().min(*len as usize);
        (&raw const value).cast::<u8>().copy_to_nonoverlapping(to.cast(), bytes);
        *len = bytes as libc::socklen_t;
    }
    Ok(())
}

/// Reads an `int` of the application.
///
/// # Safety
/// `value` has `len` readable bytes.
unsafe fn int(value: *const c_void, len: libc::socklen_t) -> Result<c_int, Errno> {
    if value.is_null() {
        return Err(Errno::EFAULT);
    }
    if (len as usize) < size_of::<c_int>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: by the contract above; the length is checked.
    Ok(unsafe { value.cast::<c_int>().read_unaligned() })
}

/// The pieces of a message, and their number.
///
/// # Errors
/// `EFAULT` NULL; `EOPNOTSUPP` control data; `EMSGSIZE` too many pieces.
///
/// # Safety
/// `message` is NULL or readable.
unsafe fn pieces(message: *const libc::msghdr) -> Result<(*const libc::iovec, c_int), Errno> {
    // SAFETY: by the contract above.
    let message = unsafe { message.as_ref() }.ok_or(Errno::EFAULT)?;
    if !message.msg_control.is_null() && message.msg_controllen > 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let count = c_int::try_from(message.msg_iovlen).map_err(|_| Errno::EMSGSIZE)?;
    Ok((message.msg_iov, count))
}

/// Sends the bytes of a call.
fn send_bytes(
    socket: &Socket,
    mut bytes: Source<'_>,
    flags: c_int,
    to: Option<SocketAddr>,
) -> Result<MinusOneLong, Errno> {
    send(socket, &mut bytes, flags, to).map(MinusOneLong)
}

/// Receives into the room of a call.
fn received(socket: &Socket, mut room: Room<'_>, flags: c_int) -> Result<MinusOneLong, Errno> {
    Ok(MinusOneLong(receive(socket, &mut room, flags)?.bytes))
}

verb! {
    /// `rbind(3)`.
    ///
    /// # Safety
    /// `addr` is NULL, or readable with the size of its family and with `len` bytes.
    pub(crate) fn rbind(socket: c_int, addr: *const libc::sockaddr, len: libc::socklen_t) -> MinusOne {
        let socket = find_socket(socket)?;
        // SAFETY: by the contract above.
        let (sized, to) =
            unsafe { (GivenAddress::read_sized(addr, len), GivenAddress::read(addr)) };
        bind(&socket, sized, &to)?;
        Ok(MinusOne(0))
    }

    /// `raccept(3)`: the new socket has the options of the listener.
    ///
    /// # Safety
    /// `addr` and `len` are NULL or writable; `addr` has `*len` bytes.
    pub(crate) fn raccept(
        socket: c_int,
        addr: *mut libc::sockaddr,
        len: *mut libc::socklen_t,
    ) -> MinusOne {
        let new = accept(&*find_socket(socket)?)?;
        if !addr.is_null() && !len.is_null() {
            // SAFETY: by the contract above.
            unsafe { write_address(peer(&new)?, addr, len)? };
        }
        Ok(MinusOne(new.fd()))
    }

    /// `rconnect(3)`: `EINPROGRESS` on a non-blocking socket.
    ///
    /// # Safety
    /// `addr` is NULL, or readable with the size of its family and with `len` bytes.
    pub(crate) fn rconnect(
        socket: c_int,
        addr: *const libc::sockaddr,
        len: libc::socklen_t,
    ) -> MinusOne {
        let socket = find_socket(socket)?;
        // SAFETY: by the contract above.
        let (sized, to) =
            unsafe { (GivenAddress::read_sized(addr, len), GivenAddress::read(addr)) };
        connect(&socket, sized, &to)?;
        Ok(MinusOne(0))
    }

    /// `rgetpeername(3)`.
    ///
    /// # Safety
    /// `addr` and `len` are NULL or writable; `addr` has `*len` bytes.
    pub(crate) fn rgetpeername(
        socket: c_int,
        addr: *mut libc::sockaddr,
        len: *mut libc::socklen_t,
    ) -> MinusOne {
        let address = peer(&*find_socket(socket)?)?;
        // SAFETY: by the contract above.
        unsafe { write_address(address, addr, len)? };
        Ok(MinusOne(0))
    }

    /// `rgetsockname(3)`.
    ///
    /// # Safety
    /// `addr` and `len` are NULL or writable; `addr` has `*len` bytes.
    pub(crate) fn rgetsockname(
        socket: c_int,
        addr: *mut libc::sockaddr,
        len: *mut libc::socklen_t,
    ) -> MinusOne {
        let address = own_address(&*find_socket(socket)?)?;
        // SAFETY: by the contract above.
        unsafe { write_address(address, addr, len)? };
        Ok(MinusOne(0))
    }

    /// `rsend(3)`.
    ///
    /// # Safety
    /// `buf` has `len` readable bytes.
    pub(crate) fn rsend(socket: c_int, buf: *const c_void, len: usize, flags: c_int) -> MinusOneLong {
        let socket = find_socket(socket)?;
        // SAFETY: by the contract above.
        send_bytes(&socket, unsafe { Source::single(buf.cast(), len) }, flags, None)
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
        let socket = find_socket(socket)?;
        // SAFETY: by the contract above.
        let (to, bytes) =
            unsafe { (GivenAddress::read_sized(to, to_len), Source::single(buf.cast(), len)) };
        let to = destination(&socket, to, to_len)?;
        send_bytes(&socket, bytes, flags, to)
    }

    /// `rsendmsg(3)`: `EOPNOTSUPP` with control data.
    ///
    /// # Safety
    /// `message` is NULL or readable, with its pieces.
    pub(crate) fn rsendmsg(socket: c_int, message: *const libc::msghdr, flags: c_int) -> MinusOneLong {
        let socket = find_socket(socket)?;
        // SAFETY: by the contract above; `pieces` refuses NULL.
        let (bytes, to, len) = unsafe {
            let (vector, count) = pieces(message)?;
            let (name, len) = ((*message).msg_name.cast(), (*message).msg_namelen);
            (Source::of(vector, count)?, GivenAddress::read_sized(name, len), len)
        };
        let has_datagrams = socket.lock().datagrams.is_some();
        // A stream ignores the address.
        let to = if has_datagrams { destination(&socket, to, len)? } else { None };
        send_bytes(&socket, bytes, flags, to)
    }

    /// `rwrite(3)`.
    ///
    /// # Safety
    /// `buf` has `len` readable bytes.
    pub(crate) fn rwrite(socket: c_int, buf: *const c_void, len: usize) -> MinusOneLong {
        let socket = find_socket(socket)?;
        // SAFETY: by the contract above.
        send_bytes(&socket, unsafe { Source::single(buf.cast(), len) }, 0, None)
    }

    /// `rwritev(3)`.
    ///
    /// # Safety
    /// `vector` has `count` readable entries, whose bytes are readable.
    pub(crate) fn rwritev(socket: c_int, vector: *const libc::iovec, count: c_int) -> MinusOneLong {
        let socket = find_socket(socket)?;
        // SAFETY: by the contract above.
        send_bytes(&socket, unsafe { Source::of(vector, count)? }, 0, None)
    }

    /// `rrecv(3)`.
    ///
    /// # Safety
    /// `buf` has `len` writable bytes.
    pub(crate) fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> MinusOneLong {
        let socket = find_socket(socket)?;
        // SAFETY: by the contract above.
        received(&socket, unsafe { Room::single(buf.cast(), len) }, flags)
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
        let socket = find_socket(socket)?;
        // SAFETY: by the contract above.
        let mut room = unsafe { Room::single(buf.cast(), len) };
        let received = receive(&socket, &mut room, flags)?;
        if !from.is_null() {
            let who = match received.sender {
                None if received.bytes > 0 => Some(peer(&socket)?),
                who => who,
            };
            if let Some(who) = who {
                // SAFETY: by the contract above.
                unsafe { write_address(who, from, from_len)? };
            }
        }
        Ok(MinusOneLong(received.bytes))
    }

    /// `rrecvmsg(3)`: `EOPNOTSUPP` with room for control data.
    ///
    /// # Safety
    /// `message` is NULL, or readable and writable, with writable pieces.
    pub(crate) fn rrecvmsg(socket: c_int, message: *mut libc::msghdr, flags: c_int) -> MinusOneLong {
        let socket = find_socket(socket)?;
        // SAFETY: by the contract above; `pieces` refuses NULL.
        unsafe {
            let (vector, count) = pieces(message)?;
            let received = receive(&socket, &mut Room::of(vector, count)?, flags)?;
            (*message).msg_flags = if received.is_truncated { libc::MSG_TRUNC } else { 0 };
            match received.sender {
                Some(who) if !(*message).msg_name.is_null() => {
                    let (to, len) = ((*message).msg_name, &raw mut (*message).msg_namelen);
                    write_address(who, to.cast(), len)?;
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
        let socket = find_socket(socket)?;
        // SAFETY: by the contract above.
        received(&socket, unsafe { Room::single(buf.cast(), len) }, 0)
    }

    /// `rreadv(3)`.
    ///
    /// # Safety
    /// `vector` has `count` readable entries, whose bytes are writable.
    pub(crate) fn rreadv(socket: c_int, vector: *const libc::iovec, count: c_int) -> MinusOneLong {
        let socket = find_socket(socket)?;
        // SAFETY: by the contract above.
        received(&socket, unsafe { Room::of(vector, count)? }, 0)
    }

    /// `riomap(3)`: `EINVAL` unsupported rights, or no device yet; `ENOMEM` the peer's table is
    /// full.
    ///
    /// # Safety
    /// `buf` has `len` bytes, which live until `riounmap`.
    pub(crate) fn riomap(
        socket: c_int,
        buf: *mut c_void,
        len: usize,
        prot: c_int,
        _flags: c_int,
        offset: libc::off_t,
    ) -> MinusOneLong {
        let socket = find_socket(socket)?;
        // SAFETY: by the contract above.
        let register = |pd, access| unsafe { Region::new(pd, buf.cast(), len, access) };
        let offset = mapping::map(&socket, (buf as u64, len), prot, offset, register)?;
        Ok(MinusOneLong(offset as isize))
    }

    /// `riounmap(3)`: `EINVAL` the buffer is not mapped.
    ///
    /// # Safety
    /// No requirements.
    pub(crate) fn riounmap(socket: c_int, buf: *mut c_void, len: usize) -> MinusOne {
        mapping::unmap(&*find_socket(socket)?, buf as u64, len)?;
        Ok(MinusOne(0))
    }

    /// `riowrite(3)`: the number of bytes written, which is smaller if the peer has no mapping.
    ///
    /// # Safety
    /// `buf` has `count` readable bytes.
    pub(crate) fn riowrite(
        socket: c_int,
        buf: *const c_void,
        count: usize,
        offset: libc::off_t,
        flags: c_int,
    ) -> MinusOneLong {
        let socket = find_socket(socket)?;
        // SAFETY: by the contract above.
        let mut bytes = unsafe { Source::single(buf.cast(), count) };
        mapping::write(&socket, &mut bytes, offset.cast_unsigned(), flags).map(MinusOneLong)
    }

    /// `rsetsockopt(3)`: `EOPNOTSUPP` an unknown option.
    ///
    /// # Safety
    /// `value` is NULL or has `len` readable bytes.
    pub(crate) fn rsetsockopt(
        socket: c_int,
        level: c_int,
        option: c_int,
        value: *const c_void,
        len: libc::socklen_t,
    ) -> MinusOne {
        let socket = find_socket(socket)?;
        let (udp, stored) = {
            let state = socket.lock();
            (options::told_to_udp(&state, level), options::stored_by_udp(&state, level, option))
        };
        if let Some(udp) = udp {
            // SAFETY: by the contract above.
            unsafe { descriptors::set_option(udp, level, option, value, len)? };
            if stored.is_some() {
                return Ok(MinusOne(0));
            }
        }
        // The value is the name of an algorithm, and is ignored.
        let value = if (level, option) == (libc::IPPROTO_TCP, libc::TCP_CONGESTION) {
            0
        } else {
            // SAFETY: by the contract above. The first member of `struct linger` is also an int.
            unsafe { int(value, len)? }
        };
        options::change(&socket, (level, option), value)?;
        Ok(MinusOne(0))
    }

    /// `rgetsockopt(3)`: `EOPNOTSUPP` an unknown option.
    ///
    /// # Safety
    /// `value` and `len` are NULL or writable; `value` has `*len` bytes.
    pub(crate) fn rgetsockopt(
        socket: c_int,
        level: c_int,
        option: c_int,
        value: *mut c_void,
        len: *mut libc::socklen_t,
    ) -> MinusOne {
        let socket = find_socket(socket)?;
        let mut state = socket.lock();
        // SAFETY: by the contract above.
        unsafe {
            if let Some(udp) = options::stored_by_udp(&state, level, option) {
                descriptors::option(udp, level, option, value, len)?;
                return Ok(MinusOne(0));
            }
            match options::read(&mut state, level, option)? {
                OptionValue::Number(number) => copy_out(number, value, len)?,
                OptionValue::Linger(linger) => copy_out(linger, value, len)?,
                OptionValue::TcpInfo(info) => copy_out(info, value, len)?,
            }
        }
        Ok(MinusOne(0))
    }

    /// `rpoll(3)`.
    ///
    /// # Safety
    /// `fds` has `count` entries that are readable and writable.
    pub(crate) fn rpoll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> MinusOne {
        let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        let mut none = [];
        // SAFETY: by the contract above.
        let entries = if count == 0 { &mut none[..] } else { unsafe { std::slice::from_raw_parts_mut(fds, count) } };
        let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
        Ok(MinusOne(c_int::try_from(poll(entries, limit)?).unwrap_or(c_int::MAX)))
    }

    /// `rselect(3)`.
    ///
    /// # Safety
    /// The sets and the time are NULL, or readable and writable.
    pub(crate) fn rselect(
        count: c_int,
        readable: *mut libc::fd_set,
        writable: *mut libc::fd_set,
        special: *mut libc::fd_set,
        timeout: *mut libc::timeval,
    ) -> MinusOne {
        if !(0..=libc::FD_SETSIZE as c_int).contains(&count) {
            return Err(Errno::EINVAL);
        }
        let sets = [readable, writable, special];
        // SAFETY: by the contract above.
        let limit = unsafe { timeout.as_ref() }.map(|time| {
            let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::EINVAL)?;
            let rest = u64::try_from(time.tv_usec).map_err(|_| Errno::EINVAL)?;
            Ok::<_, Errno>(Duration::from_secs(seconds) + Duration::from_micros(rest))
        });
        let is_wanted = |set: usize, fd| {
            let set: *mut libc::fd_set = sets[set];
            // SAFETY: by the contract above; descriptors are below FD_SETSIZE.
            !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
        };
        let ready = select(count, is_wanted, limit.transpose()?)?;
        let mut found = 0;
        for (set, ready) in sets.into_iter().zip(ready).filter(|(set, _)| !set.is_null()) {
            // SAFETY: by the contract above; descriptors are below FD_SETSIZE.
            unsafe {
                libc::FD_ZERO(set);
                for fd in ready {
                    libc::FD_SET(fd, set);
                    found += 1;
                }
            }
        }
        Ok(MinusOne(found))
    }

    /// `repoll_ctl(3)`: errors as epoll_ctl(2).
    ///
    /// # Safety
    /// `event` is NULL or readable.
    pub(crate) fn repoll_ctl(
        epfd: c_int,
        op: c_int,
        fd: c_int,
        event: *mut libc::epoll_event,
    ) -> MinusOne {
        // SAFETY: by the contract above; the structure is packed.
        let event = (!event.is_null()).then(|| unsafe {
            let (events, data) = (&raw const (*event).events, &raw const (*event).u64);
            (events.read_unaligned(), data.read_unaligned())
        });
        set::control((epfd, op, fd), event)?;
        Ok(MinusOne(0))
    }

    /// `repoll_wait(3)`: as epoll_wait(2).
    ///
    /// # Safety
    /// `events` has room for `most` entries.
    pub(crate) fn repoll_wait(
        epfd: c_int,
        events: *mut libc::epoll_event,
        most: c_int,
        timeout: c_int,
    ) -> MinusOne {
        if events.is_null() {
            // An error of the other arguments comes first.
            set::check_wait(epfd, most)?;
            return Err(Errno::EFAULT);
        }
        let ready = set::wait(epfd, most, timeout)?;
        for (at, &(events_of, data)) in ready.iter().enumerate() {
            // SAFETY: the array has room for `most` entries, and `ready` has no more.
            unsafe { events.add(at).write_unaligned(libc::epoll_event { events: events_of, u64: data }) };
        }
        Ok(MinusOne(c_int::try_from(ready.len()).unwrap_or(c_int::MAX)))
    }
}
