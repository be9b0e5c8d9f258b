//! The UD queue pair of a datagram rsocket for one local address, with its memory.
//! `datagrams` has one for each address that the socket uses.

use super::connect::{RESOLVE_MS, done};
use super::memory::Memory;
use super::queue::{Queue, most_requests, request};
use super::socket::destroy;
use crate::calls::{id as ids, qp, resolve};
use crate::core::id::Id;
use crate::sys::{address, verbs};
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
        // SAFETY: a NULL channel is allowed.
        let id = unsafe { ids::make(null_mut(), null_mut(), RDMA_PS_UDP, IBV_QPT_UD)? };
        // `destroy` releases this count.
        std::mem::forget(Arc::clone(&id));
        Ok(Self(id))
    }
}

impl Drop for OwnedId {
    fn drop(&mut self) {
        destroy(&self.0);
    }
}

/// An address as a C structure.
fn stored(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: zeros are a valid address.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    // SAFETY: `storage` is writable.
    unsafe { address::write(&raw mut storage, address) };
    storage
}

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
    qp: *mut ibv_qp,
    queue: Queue,
    outgoing: Memory,
    incoming: Memory,
    /// Slots of `outgoing` that no request uses.
    free: Vec<u16>,
    slots: u16,
    inline: u32,
    /// The largest message of the port, in bytes.
    most: usize,
    id: OwnedId,
}

// SAFETY: any thread may use verbs objects; other fields are used under the socket's lock.
unsafe impl Send for DatagramEndpoint {}

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
        let mut from = stored(anyport);
        // SAFETY: the id is live and owned here; the address is readable. The context is never
        // closed, and new objects are dropped in order.
        unsafe {
            done(resolve::bind_addr(id.0.as_c(), (&raw mut from).cast()))?;
            if address.ip().is_loopback() {
                // An id that is bound to loopback has no device; resolving gives it one.
                let at = (&raw mut from).cast();
                done(resolve::resolve_addr(id.0.as_c(), null_mut(), at, RESOLVE_MS))?;
            }
            let (context, pd) = ((*id.0.as_c()).verbs, (*id.0.as_c()).pd);
            if context.is_null() || pd.is_null() {
                return Err(Errno::ENODEV);
            }
            let sizes = wanted.of_datagrams(most_requests(context, MOST_QUEUE));
            let (sends, receives) = (u32::from(sizes.send_queue), u32::from(sizes.receive_queue));
            let queue = Queue::new(context, sends + receives)?;
            let outgoing = Memory::new(pd, sends as usize * MOST, IBV_ACCESS_LOCAL_WRITE)?;
            let room = receives as usize * (GRH as usize + MOST);
            let incoming = Memory::new(pd, room, IBV_ACCESS_LOCAL_WRITE)?;
            let mut port = compat_ibv_port_attr::zeroed();
            let asked = verbs::ibv_query_port(context, (*id.0.as_c()).port_num, &raw mut port) == 0;
            // The path MTU, in the encoding of `enum ibv_mtu`.
            let mtu = if asked { 128_usize << port.active_mtu.min(5) } else { 1024 };
            let (qp, inline) = queue.pair(&id.0, pd, IBV_QPT_UD, &sizes)?;
            let mut endpoint = Self {
                address,
                header: Header::of(address),
                qp,
                queue,
                outgoing,
                incoming,
                free: (0..sizes.send_queue).collect(),
                slots: sizes.send_queue,
                inline,
                most: mtu.min(MOST),
                id,
            };
            for slot in 0..sizes.receive_queue {
                endpoint.receive(slot)?;
            }
            endpoint.queue.arm();
            Ok(endpoint)
        }
    }

    /// The descriptor that is readable after a completion.
    pub(super) fn fd(&self) -> c_int {
        self.queue.fd()
    }

    /// The number of the queue pair.
    pub(super) fn qpn(&self) -> u32 {
        // SAFETY: the queue pair lives as long as this value.
        unsafe { (*self.qp).qp_num }
    }

    /// The largest datagram, in bytes.
    pub(super) fn most(&self) -> usize {
        self.most - self.header.bytes().len()
    }

    /// Whether a datagram can be sent now.
    pub(super) const fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether all sends have completed.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == usize::from(self.slots)
    }

    const fn at(slot: u16) -> u32 {
        slot as u32 * (GRH + MOST as u32)
    }

    fn receive(&self, slot: u16) -> Result<(), Errno> {
        let sge = ibv_sge {
            addr: self.incoming.address_of(Self::at(slot)),
            length: GRH + MOST as u32,
            lkey: self.incoming.lkey(),
        };
        // SAFETY: the queue pair is live; no other request uses the slot, which lives as long as
        // this value.
        unsafe { self.queue.receive(self.qp, RECEIVE | u64::from(slot), Some(sge)) }
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
        let start: [u8; Header::MOST] = self.incoming.array(Self::at(slot) + GRH).ok()?;
        let start = start.get(..start.len().min(len as usize))?;
        let (from, header) = Header::parse(start).ok()?;
        let len = (len as usize).min(MOST).checked_sub(header)?;
        Some((from, Received { slot, header: header as u32, len }))
    }

    /// Copies a received datagram, from byte `behind` on.
    ///
    /// # Errors
    /// `EFAULT` out of range.
    ///
    /// # Safety
    /// `to` has room for `bytes` bytes.
    pub(super) unsafe fn read(
        &self,
        received: Received,
        behind: usize,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), Errno> {
        let at = Self::at(received.slot) + GRH + received.header + behind as u32;
        // SAFETY: by the contract above; the application has no access to this memory.
        unsafe { self.incoming.read(at, to, bytes) }
    }

    /// Posts the slot of a received datagram again.
    pub(super) fn repost(&self, received: Received) {
        // As in `progress`.
        let _broken = self.receive(received.slot);
    }

    /// Sends a datagram, which `fill` copies to the given address. Returns `false` without a free
    /// slot.
    ///
    /// # Errors
    /// `EMSGSIZE` the datagram is too long; else the errno of the device.
    pub(super) fn send(
        &mut self,
        (ah, qpn): (*mut ibv_ah, u32),
        bytes: usize,
        fill: impl FnOnce(*mut u8),
    ) -> Result<bool, Errno> {
        let header = self.header.bytes();
        if bytes > self.most() {
            return Err(Errno::EMSGSIZE);
        }
        let Some(slot) = self.free.pop() else { return Ok(false) };
        let at = u32::from(slot) * MOST as u32;
        let all = header.len() + bytes;
        let posted = self.outgoing.pointer(at, all).and_then(|to| {
            // SAFETY: `slot` checked the room for header and datagram, which no request reads.
            unsafe { to.copy_from_nonoverlapping(header.as_ptr(), header.len()) };
            fill(to.wrapping_add(header.len()));
            let length = all as u32;
            let sge =
                ibv_sge { addr: self.outgoing.address_of(at), length, lkey: self.outgoing.lkey() };
            let flags = if length <= self.inline { IBV_SEND_INLINE } else { 0 };
            let ud = ibv_send_wr_ud { ah, remote_qpn: qpn, remote_qkey: RDMA_UDP_QKEY };
            let wr = request(slot.into(), IBV_WR_SEND, flags, ibv_send_wr_wr { ud });
            // SAFETY: the queue pair is live; the slot is reused only after the completion; the
            // caller's handle is live.
            unsafe { self.queue.send(self.qp, wr, Some(sge)) }
        });
        if posted.is_err() {
            self.free.push(slot);
        }
        posted.map(|()| true)
    }

    /// The address handle for a destination.
    ///
    /// # Errors
    /// The errno of resolving the address, or of the device.
    pub(super) fn address_handle(&self, to: SocketAddr) -> Result<*mut ibv_ah, Errno> {
        let id = OwnedId::new()?;
        let mut anyport = self.address;
        anyport.set_port(0);
        let (mut from, mut to) = (stored(anyport), stored(to));
        // SAFETY: both ids are live and owned here; both addresses are readable. The path lives as
        // long as its id.
        unsafe {
            let at = id.0.as_c();
            let (from, to) = ((&raw mut from).cast(), (&raw mut to).cast());
            done(resolve::resolve_addr(at, from, to, RESOLVE_MS))?;
            done(resolve::resolve_route(at, RESOLVE_MS))?;
            let own = self.id.0.as_c();
            let path = (*at).route.path_rec.as_ref().ok_or(Errno::ENODEV)?;
            // Among entries with the same GID, the routable type (RoCE v2) has the highest number.
            let entries = verbs::gid_table((*own).verbs);
            let port = u32::from((*own).port_num);
            let own_gid = |entry: &&ibv_gid_entry| {
                entry.port_num == port && entry.gid.bytes() == path.sgid.bytes()
            };
            let found = entries.iter().filter(own_gid).max_by_key(|entry| entry.gid_type);
            let index = found.ok_or(Errno::ENODEV)?.gid_index;
            let mut attr = ibv_ah_attr {
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
                port_num: (*own).port_num,
                ..Zeroed::zeroed()
            };
            let ah = verbs::ibv_create_ah((*own).pd, &raw mut attr);
            if ah.is_null() { Err(Errno::last()) } else { Ok(ah) }
        }
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

impl Drop for DatagramEndpoint {
    fn drop(&mut self) {
        // SAFETY: this value owns the queue pair, which no thread uses any more. The queue pair is
        // destroyed before its memory.
        unsafe { qp::destroy(&self.id.0) };
    }
}
