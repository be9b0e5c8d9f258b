//! The UD queue pair of a datagram rsocket for one local address, with its memory.
//! `datagrams` has one for each address that the socket uses.

use super::connect::RESOLVE_MS;
use super::queue::{Queue, most_requests};
use super::socket::destroy;
use super::vector::{Room, Source};
use crate::calls::{id as ids, resolve};
use crate::core::id::Id;
use crate::sys::address::GivenAddress;
use crate::sys::objects::{AddressHandle, Memory, Payload, SendRequest, Target};
use abi::*;
use cface::Errno;
use ferroverbs_cm::datagram::{Header, MOST};
use ferroverbs_cm::stream::{MOST_QUEUE, Settings};
use std::ffi::c_int;
use std::net::SocketAddr;
use std::ptr::null_mut;
use std::sync::Arc;

/// Bytes of the GRH in front of a received message (IBTA 1.7 11.4.1.2).
const GRH: u32 = 40;
/// Marks the ids of receive requests.
const RECEIVE: u64 = 1 << 63;

/// A synchronous datagram id that only this module uses.
#[derive(Debug)]
struct OwnedId(Arc<Id>);

impl OwnedId {
    fn new() -> Result<Self, Errno> {
        let id = ids::create_id(None, null_mut(), RDMA_PS_UDP, IBV_QPT_UD)?;
        Ok(Self(id))
    }
}

impl Drop for OwnedId {
    fn drop(&mut self) {
        destroy(&self.0);
    }
}

/// The memories of the queue pair.
const OUTGOING: usize = 0;
const INCOMING: usize = 1;

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    slot: u16,
    /// Bytes of the header in front of the datagram.
    header: u32,
    pub(super) len: usize,
}

/// The queue pair of one address.
#[derive(Debug)]
pub(super) struct DatagramEndpoint {
    /// The address of the UDP socket on this path, with its port.
    pub(super) address: SocketAddr,
    header: Header,
    queue: Queue,
    /// Slots of the outgoing memory that no request uses.
    free: Vec<u16>,
    slots: u16,
    inline: u32,
    /// The largest message of the port, in bytes.
    max_message: usize,
    _id: OwnedId,
}

impl DatagramEndpoint {
    /// The queue pair for an address, with all receives posted and its completion queue armed.
    ///
    /// # Errors
    /// `ENODEV` no device has the address; else the errno of the device.
    pub(super) fn new(address: SocketAddr, wanted: Settings) -> Result<Self, Errno> {
        let id = OwnedId::new()?;
        let mut anyport = address;
        // The UDP socket holds the port.
        anyport.set_port(0);
        let from = GivenAddress::from(anyport);
        resolve::bind_id(&id.0, &from)?;
        if address.ip().is_loopback() {
            // An id that is bound to loopback has no device; resolving gives it one.
            resolve::resolve_id(&id.0, &GivenAddress::NULL, &from, RESOLVE_MS)?;
        }
        let (Some(context), Some(pd)) = (id.0.c().context(), id.0.c().domain()) else {
            return Err(Errno::ENODEV);
        };
        let sizes = wanted.of_datagrams(most_requests(context, MOST_QUEUE));
        let (sends, receives) = (u32::from(sizes.send_queue), u32::from(sizes.receive_queue));
        let room = receives as usize * (GRH as usize + MOST);
        let memory = vec![
            Memory::new(pd, sends as usize * MOST, IBV_ACCESS_LOCAL_WRITE)?,
            Memory::new(pd, room, IBV_ACCESS_LOCAL_WRITE)?,
        ];
        // The path MTU, in the encoding of `enum ibv_mtu`.
        let port = context.port(id.0.c().port());
        let mtu = port.map_or(1024, |port| 128_usize << port.active_mtu.min(5));
        let (queue, inline) = Queue::new(&id.0, context, memory, (IBV_QPT_UD, &sizes))?;
        let mut endpoint = Self {
            address,
            header: Header::of(address),
            queue,
            free: (0..sizes.send_queue).collect(),
            slots: sizes.send_queue,
            inline,
            max_message: mtu.min(MOST),
            _id: id,
        };
        for slot in 0..sizes.receive_queue {
            endpoint.receive(slot)?;
        }
        endpoint.queue.arm();
        Ok(endpoint)
    }

    /// The descriptor that is readable after a completion.
    pub(super) fn fd(&self) -> c_int {
        self.queue.fd()
    }

    /// The number of the queue pair.
    pub(super) fn qpn(&self) -> u32 {
        self.queue.number()
    }

    /// The largest datagram, in bytes.
    pub(super) fn max_datagram(&self) -> usize {
        self.max_message - self.header.bytes().len()
    }

    /// Whether a datagram can be sent now.
    pub(super) const fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether all sends have completed.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == usize::from(self.slots)
    }

    const fn slot_offset(slot: u16) -> u32 {
        slot as u32 * (GRH + MOST as u32)
    }

    fn receive(&self, slot: u16) -> Result<(), Errno> {
        let into = Payload::Memory(INCOMING, Self::slot_offset(slot), GRH + MOST as u32);
        self.queue.receive(RECEIVE | u64::from(slot), into)
    }

    /// Processes completions: passes each datagram and its sender to `f`. Returns `false` without a
    /// completion.
    pub(super) fn progress(&mut self, mut f: impl FnMut(SocketAddr, Received)) -> bool {
        let (mut any, mut arrived, mut to_repost) = (false, vec![], vec![]);
        loop {
            let free = &mut self.free;
            let found = self.queue.poll(|wc| {
                let slot = wc.wr_id as u16;
                if wc.wr_id & RECEIVE == 0 {
                    free.push(slot);
                } else if wc.status == IBV_WC_SUCCESS {
                    arrived.push((slot, wc.byte_len.saturating_sub(GRH)));
                } else {
                    to_repost.push(slot);
                }
            });
            for (slot, len) in arrived.drain(..) {
                match self.parse_sender(slot, len) {
                    Some((from, received)) => f(from, received),
                    None => to_repost.push(slot),
                }
            }
            if !found {
                break;
            }
            any = true;
        }
        for slot in to_repost {
            // The post fails only on a broken device or in the error state, in which no datagram
            // arrives.
            let _broken = self.receive(slot);
        }
        any
    }

    /// The sender of a message; `None`: the message is from no rsocket.
    fn parse_sender(&self, slot: u16, len: u32) -> Option<(SocketAddr, Received)> {
        let start: [u8; Header::MOST] =
            self.queue.memory(INCOMING).ok()?.array(Self::slot_offset(slot) + GRH).ok()?;
        let start = start.get(..start.len().min(len as usize))?;
        let (from, header) = Header::parse(start).ok()?;
        let len = (len as usize).min(MOST).checked_sub(header)?;
        Some((from, Received { slot, header: header as u32, len }))
    }

    /// Copies the first `bytes` bytes of a received datagram.
    ///
    /// # Errors
    /// `EFAULT` out of range.
    pub(super) fn read(
        &self,
        received: Received,
        to: &mut Room<'_>,
        bytes: usize,
    ) -> Result<(), Errno> {
        let at = Self::slot_offset(received.slot) + GRH + received.header;
        to.fill_from_memory(self.queue.memory(INCOMING)?, at, bytes)
    }

    /// Posts the slot of a received datagram again.
    pub(super) fn repost(&self, received: Received) {
        // As in `progress`.
        let _broken = self.receive(received.slot);
    }

    /// Sends a datagram. Returns `false` without a free slot.
    ///
    /// # Errors
    /// `EMSGSIZE` the datagram is too long; else the errno of the device.
    pub(super) fn send(
        &mut self,
        (ah, qpn): (&AddressHandle, u32),
        bytes: &mut Source<'_>,
    ) -> Result<bool, Errno> {
        if bytes.left() > self.max_datagram() {
            return Err(Errno::EMSGSIZE);
        }
        let Some(slot) = self.free.pop() else { return Ok(false) };
        let posted = self.post(slot, (ah, qpn), bytes);
        if posted.is_err() {
            self.free.push(slot);
        }
        posted.map(|()| true)
    }

    fn post(
        &self,
        slot: u16,
        (ah, qpn): (&AddressHandle, u32),
        bytes: &mut Source<'_>,
    ) -> Result<(), Errno> {
        let (header, memory) = (self.header.bytes(), self.queue.memory(OUTGOING)?);
        let (at, left) = (u32::from(slot) * MOST as u32, bytes.left());
        let all = (header.len() + left) as u32;
        memory.write(at, header)?;
        bytes.copy_to_memory(memory, at + header.len() as u32, left)?;
        let request = SendRequest {
            name: slot.into(),
            opcode: IBV_WR_SEND,
            flags: if all <= self.inline { IBV_SEND_INLINE } else { 0 },
            immediate: 0,
            target: Target::Datagram(ah, qpn, RDMA_UDP_QKEY),
        };
        // The slot is reused only after the completion.
        self.queue.send(&request, Payload::Memory(OUTGOING, at, all))
    }

    /// The address handle for a destination.
    ///
    /// # Errors
    /// The errno of resolving the address, or of the device.
    pub(super) fn address_handle(&self, to: SocketAddr) -> Result<AddressHandle, Errno> {
        let id = OwnedId::new()?;
        let mut anyport = self.address;
        anyport.set_port(0);
        resolve::resolve_id(&id.0, &anyport.into(), &to.into(), RESOLVE_MS)?;
        resolve::resolve_route_of(&id.0, RESOLVE_MS)?;
        let own = self.queue.id().c();
        let path = id.0.c().path().ok_or(Errno::ENODEV)?;
        let (Some(context), Some(pd)) = (own.context(), own.domain()) else {
            return Err(Errno::ENODEV);
        };
        // Among entries with the same GID, the routable type (RoCE v2) has the highest number.
        let entries = context.gid_table();
        let port = u32::from(own.port());
        let own_gid = |entry: &&ibv_gid_entry| {
            entry.port_num == port && entry.gid.bytes() == path.sgid.bytes()
        };
        let found = entries.iter().filter(own_gid).max_by_key(|entry| entry.gid_type);
        let index = found.ok_or(Errno::ENODEV)?.gid_index;
        pd.address_handle(ibv_ah_attr {
            grh: ibv_global_route {
                dgid: path.dgid,
                flow_label: u32::from_be(path.flow_label),
                sgid_index: u8::try_from(index).map_err(|_| Errno::ENODEV)?,
                hop_limit: path.hop_limit.max(1),
                traffic_class: path.traffic_class,
            },
            dlid: u16::from_be(path.dlid),
            sl: path.sl,
            static_rate: path.rate,
            is_global: 1,
            port_num: own.port(),
            ..Zeroed::zeroed()
        })
    }

    /// Arms the completion queue, so that the next completion makes the descriptor readable.
    pub(super) fn arm(&mut self) {
        self.queue.arm();
    }

    /// Takes all events off the descriptor.
    pub(super) fn drain_events(&mut self) {
        self.queue.drain_events();
    }
}
