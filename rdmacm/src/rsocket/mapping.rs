//! Mappings: `riomap`, `riounmap`, `riowrite` (rsocket(7)).
//! Entry points (`entry`) register application memory and write to the peer's memory here.

use super::socket::{Phase, Socket, SocketState};
use super::vector::Source;
use crate::sys::objects::{Domain, Region};
use abi::*;
use cface::Errno;
use cface::sync::MutexGuard;
use ferroverbs_cm::stream::{Area, Mapping, Message};
use std::ffi::c_int;

/// A mapped buffer of the application.
#[derive(Debug)]
struct Buffer {
    addr: u64,
    bytes: usize,
    _region: Region,
    /// The entry in the peer's table; None if the peer may not write to the buffer.
    index: Option<u16>,
}

/// The mapped buffers of a socket.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    buffers: Vec<Buffer>,
    /// Entries that the peer has not received yet.
    pending: Vec<(u16, Mapping)>,
    /// The number of entries in the peer's table.
    pub(super) room: u16,
}

impl Mapped {
    /// Whether entries must be sent to the peer.
    pub(super) const fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Deregisters all buffers.
    pub(super) fn clear(&mut self) {
        self.pending.clear();
        self.buffers.clear();
    }

    fn free_index(&self) -> Option<u16> {
        (0..self.room).find(|&index| self.buffers.iter().all(|one| one.index != Some(index)))
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
            state = socket.wait_until(state, at_once, done)?;
            continue;
        };
        let bytes = mapping.emit(peer.order);
        let mut source = Source::of_slice(&bytes);
        let posted = endpoint.write(write, Some(Message::Mapping(index)), &mut source);
        if let Err(why) = posted {
            stream.fail();
            return Err(why);
        }
        now.mapped.pending.remove(0);
    }
    Ok(state)
}

/// Writes to the memory of the peer. Returns the number of bytes written, which is smaller if the
/// peer has no mapping.
///
/// # Errors
/// As `riowrite(3)`.
pub(super) fn write(
    socket: &Socket,
    bytes: &mut Source<'_>,
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
        let posted = endpoint.write(write, None, bytes);
        if let Err(why) = posted {
            stream.fail();
            return Err(why);
        }
        offset = offset.wrapping_add(write.bytes.into());
    }
    Ok(all.wrapping_sub(bytes.left()).cast_signed())
}

/// Maps a buffer of the application for the peer. `register` registers the buffer with the given
/// access. Returns the offset by which the peer names the buffer.
///
/// # Errors
/// As `riomap(3)`.
pub(super) fn map(
    socket: &Socket,
    (addr, len): (u64, usize),
    prot: c_int,
    offset: libc::off_t,
    register: impl FnOnce(Domain, u32) -> Result<Region, Errno>,
) -> Result<u64, Errno> {
    let mut state = socket.lock();
    let pd = state.id.c().domain().filter(|_| prot & !libc::PROT_WRITE == 0);
    let pd = pd.ok_or(Errno::EINVAL)?;
    let length = u32::try_from(len).map_err(|_| Errno::EINVAL)?;
    let is_remote = prot & libc::PROT_WRITE != 0;
    let (index, access) = if is_remote {
        let index = state.mapped.free_index().ok_or(Errno::ENOMEM)?;
        (Some(index), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
    } else {
        (None, IBV_ACCESS_LOCAL_WRITE)
    };
    let region = register(pd, access)?;
    let offset = if offset == -1 { addr } else { offset.cast_unsigned() };
    if let Some(index) = index {
        let area = Area { addr, key: region.rkey(), length };
        state.mapped.pending.push((index, Mapping { offset, area }));
    }
    state.mapped.buffers.push(Buffer { addr, bytes: len, _region: region, index });
    Ok(offset)
}

/// Ends the mapping of a buffer.
///
/// # Errors
/// `EINVAL` the buffer is not mapped.
pub(super) fn unmap(socket: &Socket, addr: u64, len: usize) -> Result<(), Errno> {
    let mut state = socket.lock();
    let mapped = &mut state.mapped;
    let at = mapped.buffers.iter().position(|one| one.addr == addr && one.bytes == len);
    let one = mapped.buffers.swap_remove(at.ok_or(Errno::EINVAL)?);
    mapped.pending.retain(|(index, _)| Some(*index) != one.index);
    Ok(())
}
