//! Mappings: `riomap`, `riounmap`, `riowrite` (rsocket(7)).
//! Entry points that register application memory and write to the peer's memory.

use super::socket::{Phase, Socket, SocketState, find};
use super::vector::Vector;
use crate::sys::verbs;
use abi::*;
use cface::sync::MutexGuard;
use cface::{Errno, MinusOne, MinusOneLong, verb};
use ferroverbs_cm::stream::{Area, Mapping, Message};
use std::ffi::{c_int, c_void};

/// A mapped buffer of the application.
#[derive(Debug)]
struct Buffer {
    addr: u64,
    bytes: usize,
    mr: *mut ibv_mr,
    /// The entry in the peer's table; None if the peer may not write to the buffer.
    index: Option<u16>,
}

/// The mapped buffers of a socket.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    known: Vec<Buffer>,
    /// Entries that the peer has not received yet.
    pending: Vec<(u16, Mapping)>,
    /// The number of entries in the peer's table.
    pub(super) room: u16,
}

// SAFETY: any thread may use memory regions.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Whether entries must be sent to the peer.
    pub(super) const fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Deregisters all buffers.
    pub(super) fn clear(&mut self) {
        self.pending.clear();
        for one in self.known.drain(..) {
            // SAFETY: this value owns the region.
            unsafe { verbs::ibv_dereg_mr(one.mr) };
        }
    }

    fn free_index(&self) -> Option<u16> {
        (0..self.room).find(|&index| self.known.iter().all(|one| one.index != Some(index)))
    }
}

/// Sends new mappings to the peer, before any other data.
///
/// # Errors
/// The errno of sending.
pub(super) fn announce<'a>(
    socket: &'a Socket,
    mut state: MutexGuard<'a, SocketState>,
    flags: c_int,
) -> Result<MutexGuard<'a, SocketState>, Errno> {
    while state.mapped.is_pending() {
        state = socket.until_room(state, flags)?;
        let now = &mut *state;
        let (Some(endpoint), Some(stream)) = (&mut now.endpoint, &mut now.stream) else {
            return Err(Errno::ENOTCONN);
        };
        let (Some(&(index, mapping)), Some(peer)) = (now.mapped.pending.first(), endpoint.peer)
        else {
            return Err(Errno::ENOTCONN);
        };
        let table = u64::from(peer.table.length) * Area::LEN as u64;
        let behind = table + u64::from(index) * Mapping::LEN as u64;
        let length = Mapping::LEN as u32;
        let at = Area { addr: peer.table.addr.wrapping_add(behind), key: peer.table.key, length };
        let Some(write) = stream.outgoing.write_entry(at) else {
            // The entry must be contiguous, which is possible when no send is in flight.
            let done = |state: &SocketState| {
                state
                    .stream
                    .as_ref()
                    .is_none_or(|stream| stream.outgoing.is_idle() || !stream.is_open())
            };
            let at_once = super::transfer::at_once(now, flags);
            state = socket.until(state, at_once, done)?;
            continue;
        };
        let bytes = mapping.emit(peer.order);
        let posted = endpoint.write(write, Some(Message::Mapping(index)), |to, len| {
            // SAFETY: the slot has room for `len` bytes, the length of an entry.
            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), len.min(bytes.len())) };
        });
        if let Err(why) = posted {
            stream.fail();
            return Err(why);
        }
        now.mapped.pending.remove(0);
    }
    Ok(state)
}

/// # Safety
/// The pieces are readable.
unsafe fn write(
    socket: &Socket,
    bytes: &mut Vector,
    mut offset: u64,
    flags: c_int,
) -> Result<isize, Errno> {
    let mut state = socket.lock();
    if !matches!(state.phase, Phase::Connected | Phase::Accepting | Phase::Connecting) {
        return Err(Errno::ENOTCONN);
    }
    if state.mapped.is_pending() {
        state = announce(socket, state, flags)?;
    }
    let all = bytes.left();
    while bytes.left() > 0 {
        state = match socket.until_room(state, flags) {
            Ok(state) => state,
            Err(_) if bytes.left() < all => break,
            Err(why) => return Err(why),
        };
        let state = &mut *state;
        let (Some(endpoint), Some(stream)) = (&mut state.endpoint, &mut state.stream) else {
            break;
        };
        // Writing stops where the peer has no mapping; as upstream's, the call returns the bytes
        // written.
        let Some(target) = state.targets.find(offset) else { break };
        let Some(write) = stream.outgoing.write_to(target, bytes.left()) else { continue };
        let posted = endpoint.write(write, None, |to, len| {
            bytes.each(len, |from, behind, some| {
                // SAFETY: the pieces are valid by the caller's contract; the slot has room for
                // `len` bytes.
                unsafe { to.add(behind).copy_from_nonoverlapping(from, some) };
            });
        });
        if let Err(why) = posted {
            stream.fail();
            return Err(why);
        }
        offset = offset.wrapping_add(write.bytes.into());
    }
    Ok(all.wrapping_sub(bytes.left()).cast_signed())
}

verb! {
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
        let socket = find(socket)?;
        let mut state = socket.lock();
        // SAFETY: the socket owns the live id.
        let pd = unsafe { (*state.id.as_c()).pd };
        if pd.is_null() || prot & !libc::PROT_WRITE != 0 {
            return Err(Errno::EINVAL);
        }
        let length = u32::try_from(len).map_err(|_| Errno::EINVAL)?;
        let is_remote = prot & libc::PROT_WRITE != 0;
        let index = if is_remote { Some(state.mapped.free_index().ok_or(Errno::ENOMEM)?) } else { None };
        let access = if is_remote { IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE } else { IBV_ACCESS_LOCAL_WRITE };
        // SAFETY: the domain is never closed; the bytes are valid by contract.
        let mr = unsafe { verbs::ibv_reg_mr(pd, buf, len, access.cast_signed()) };
        if mr.is_null() {
            return Err(Errno::last());
        }
        let addr = buf as u64;
        let offset = if offset == -1 { addr } else { offset.cast_unsigned() };
        state.mapped.known.push(Buffer { addr, bytes: len, mr, index });
        if let Some(index) = index {
            // SAFETY: the region is live.
            let key = unsafe { (*mr).rkey };
            state.mapped.pending.push((index, Mapping { offset, area: Area { addr, key, length } }));
        }
        Ok(MinusOneLong(offset as isize))
    }

    /// `riounmap(3)`: `EINVAL` the buffer is not mapped.
    ///
    /// # Safety
    /// No requirements.
    pub(crate) fn riounmap(socket: c_int, buf: *mut c_void, len: usize) -> MinusOne {
        let socket = find(socket)?;
        let mut state = socket.lock();
        let mapped = &mut state.mapped;
        let at = mapped.known.iter().position(|one| one.addr == buf as u64 && one.bytes == len);
        let one = mapped.known.swap_remove(at.ok_or(Errno::EINVAL)?);
        mapped.pending.retain(|(index, _)| Some(*index) != one.index);
        // SAFETY: the region belonged to this socket, and has no other user.
        unsafe { verbs::ibv_dereg_mr(one.mr) };
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
        let socket = find(socket)?;
        let mut bytes = Vector::one(buf.cast_mut().cast(), count);
        // SAFETY: by the contract above.
        Ok(MinusOneLong(unsafe { write(&socket, &mut bytes, offset.cast_unsigned(), flags)? }))
    }
}
