//! The data path of an emulated context: for each object of the vendor an object of the adapter.
//! The adapter has the rules of verbs: keys, rights, ranges, queues, retries, transports.
#![forbid(unsafe_code)]

use super::channels::Channels;
use super::direct::Direct;
use super::objects::{Ah, Device, Mr, Pd, Srq};
use super::qp::{Done, EmulatedQp};
use super::remote::{Local, address_of, ah_attr_of};
use super::requests::{Request, Segments};
use crate::net::GID_TABLE;
use abi::*;
use emulated_commands::carrier::{Address, Carrier, Change, Keys, Port, Region};
use emulated_commands::refusal::Refusal;
use emulated_commands::vendor::{
    Capabilities, Completion, Operation, Receive, Route, Segment, Service, Status, WorkRequest,
};
use emulated_efa::adapter::MAX_MESSAGE;
use soft_semantics::emulated::EmulatedDevice;
use soft_sys::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// Bytes of the longest RDMA operation: the longest message of `soft`.
const MAX_RDMA: u64 = 1 << 31;
/// Rights that EFA knows.
const RIGHTS: u32 = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_RELAXED_ORDERING;

/// The objects of one context, by the handles of the vendor's objects.
#[derive(Debug)]
pub(super) struct SoftCarrier {
    qps: BTreeMap<u32, EmulatedQp>,
    srqs: BTreeMap<u32, Arc<Srq>>,
    ahs: BTreeMap<u32, ([u8; 16], Arc<Ah>)>,
    mrs: Regions,
    pds: BTreeMap<u32, Arc<Pd>>,
    channels: Channels,
    completions: VecDeque<(u32, Completion)>,
    local: Local,
    device: Arc<Device>,
}

/// Regions by handle. EFA's descriptors have 24 bits for a key: 16 of the handle, and 8 that count
/// registrations, so that the key of a region that is gone rarely names a later region.
#[derive(Debug, Default)]
struct Regions {
    by_handle: BTreeMap<u32, (u32, Mr)>,
    uses: u8,
}

impl Regions {
    fn add(&mut self, handle: u32, mr: Mr) -> Keys {
        self.uses = self.uses.checked_add(1).unwrap_or(1);
        let keys = Keys { lkey: u32::from(self.uses) << 16 | handle & 0xffff, rkey: mr.rkey() };
        self.by_handle.insert(handle, (keys.lkey, mr));
        keys
    }

    /// Adds a region that keeps the keys of the adapter.
    fn add_as_is(&mut self, handle: u32, mr: Mr) -> Keys {
        let keys = Keys { lkey: mr.lkey(), rkey: mr.rkey() };
        self.by_handle.insert(handle, (keys.lkey, mr));
        keys
    }

    /// Segments with keys of the adapter.
    ///
    /// # Errors
    /// [`Status::LocalProtection`] no region has the key; [`Status::LocalLength`] too many
    /// segments.
    fn segments(&self, segments: &[Segment]) -> Result<Segments, Status> {
        let mut found = Segments::new();
        for segment in segments {
            let region = self.by_handle.get(&(segment.lkey & 0xffff));
            let region = region.filter(|(lkey, _)| *lkey == segment.lkey);
            let (_, mr) = region.ok_or(Status::LocalProtection)?;
            let (addr, length, lkey) = (segment.address, segment.length, mr.lkey());
            let sge = ibv_sge { addr, length, lkey };
            found.try_push(sge).map_err(|_| Status::LocalLength)?;
        }
        Ok(found)
    }
}

fn refusal(errno: Errno) -> Refusal {
    Refusal::Other(errno.raw())
}

impl SoftCarrier {
    pub(super) fn new(device: Arc<Device>) -> Self {
        Self {
            qps: BTreeMap::new(),
            srqs: BTreeMap::new(),
            ahs: BTreeMap::new(),
            mrs: Regions::default(),
            pds: BTreeMap::new(),
            channels: Channels::default(),
            completions: VecDeque::new(),
            local: Local::new(&device),
            device,
        }
    }

    /// An entry of the GID table.
    ///
    /// # Errors
    /// `EINVAL` beyond the table; `ENODATA` an empty entry.
    pub(super) fn query_gid(&self, port: u32, index: u32) -> Result<ibv_gid_entry, Errno> {
        if !self.is_efa() {
            return self.device.query_gid(port, index);
        }
        if (port, index) != (1, 0) {
            return Err(Errno::EINVAL);
        }
        Ok(ibv_gid_entry {
            gid: ibv_gid { raw: self.local.gid },
            gid_index: index,
            port_num: port,
            gid_type: IBV_GID_TYPE_IB,
            ndev_ifindex: 0,
        })
    }

    fn is_efa(&self) -> bool {
        self.device.emulated() == EmulatedDevice::Efa
    }

    /// The program closes a completion channel.
    pub(super) fn close_channel(&mut self, fd: i32) {
        self.channels.close(fd);
    }

    /// The next completion, with the handle of its QP.
    pub(super) fn next_completion(&mut self) -> Option<(u32, Completion)> {
        self.completions.pop_front()
    }

    /// Takes the events of the adapter's CQs, and asks for further ones.
    pub(super) fn take_events(&mut self) {
        while let Some(key) = self.device.take_event() {
            if let Some(qp) = self.qps.values().find(|qp| qp.has_queue(key)) {
                qp.acknowledge();
            }
        }
    }

    /// Handles what the adapter has completed, and repeats what was not answered. Returns the time
    /// of the next look.
    pub(super) fn progress(&mut self) -> Option<Instant> {
        let Self { qps, ahs, completions, local, .. } = self;
        let ah_of = |gid: &[u8; 16]| {
            ahs.iter().find(|(_, (known, _))| known == gid).map(|(handle, _)| *handle)
        };
        loop {
            let mut is_moving = false;
            let mut next: Option<Instant> = None;
            for (&handle, qp) in qps.iter_mut() {
                let number = qp.number;
                let mut done = Done { handle, number, completions, ah_of: &ah_of };
                is_moving |= qp.poll(local, &mut done);
                next = next.into_iter().chain(qp.repeat(local, &mut done)).min();
            }
            if !is_moving {
                return next;
            }
        }
    }
}

impl Carrier for SoftCarrier {
    fn node_guid(&self) -> u64 {
        u64::from_ne_bytes(self.device.state().adapter.identity.guid().guid(0))
    }

    fn port(&self, port: u8) -> Option<Port> {
        let state = if self.local.is_up() { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN } as u8;
        let (mtu, gids) =
            if self.is_efa() { (IBV_MTU_4096, 1) } else { (self.local.mtu, GID_TABLE as u32) };
        (port == 1).then_some(Port { state, mtu: mtu as u8, gids, pkeys: 1 })
    }

    fn open_events(&mut self) -> Result<i32, Refusal> {
        self.channels.open_asynchronous(&self.device.state().adapter).map_err(refusal)
    }

    fn open_channel(&mut self) -> Result<i32, Refusal> {
        self.channels.open(&self.device.state().adapter).map_err(refusal)
    }

    fn has_channel(&self, channel: i32) -> bool {
        self.channels.contains(channel)
    }

    fn notify(&mut self, channel: i32, user_handle: u64) {
        self.channels.notify(channel, user_handle);
    }

    fn forget_notifications(&mut self, channel: i32, user_handle: u64) -> u32 {
        self.channels.forget_notifications(channel, user_handle)
    }

    fn report(&mut self, user_handle: u64, event: u32) {
        self.channels.report(user_handle, event);
    }

    fn forget_reports(&mut self, user_handle: u64) -> u32 {
        self.channels.forget_reports(user_handle)
    }

    fn alloc_pd(&mut self, pd: u32) -> Result<(), Refusal> {
        self.pds.insert(pd, Pd::new(&self.device).map_err(refusal)?);
        Ok(())
    }

    fn dealloc_pd(&mut self, pd: u32) {
        self.pds.remove(&pd);
    }

    fn register(&mut self, mr: u32, region: &Region) -> Result<Keys, Refusal> {
        if self.is_efa() && region.access & !RIGHTS != 0 {
            return Err(Refusal::Unsupported);
        }
        let pd = self.pds.get(&region.pd).ok_or(Refusal::Invalid)?;
        let Region { start, length, iova, access, .. } = *region;
        let made = Mr::new(pd, start, length, iova, access).map_err(refusal)?;
        Ok(if self.is_efa() { self.mrs.add(mr, made) } else { self.mrs.add_as_is(mr, made) })
    }

    fn deregister(&mut self, mr: u32) {
        self.mrs.by_handle.remove(&mr);
    }

    fn create_ah(&mut self, ah: u32, pd: u32, address: &Address) -> Result<(), Refusal> {
        let is_efa = self.is_efa();
        if !address.is_global || is_efa && address.sgid_index != 0 {
            return Err(Refusal::Invalid);
        }
        let pd = self.pds.get(&pd).ok_or(Refusal::Invalid)?;
        let attr = if is_efa { address_of(address.dgid, &self.local) } else { ah_attr_of(address) };
        let made = Ah::new(pd, attr).map_err(refusal)?;
        self.ahs.insert(ah, (address.dgid, made));
        Ok(())
    }

    fn destroy_ah(&mut self, ah: u32) {
        self.ahs.remove(&ah);
    }

    fn create_srq(&mut self, srq: u32, pd: u32, max_wr: u32, max_sge: u32) -> Result<(), Refusal> {
        let pd = self.pds.get(&pd).ok_or(Refusal::Invalid)?;
        self.srqs.insert(srq, Srq::new(pd, max_wr, max_sge).map_err(refusal)?);
        Ok(())
    }

    fn destroy_srq(&mut self, srq: u32) {
        self.srqs.remove(&srq);
    }

    fn shared_receive(&mut self, srq: u32, receive: &Receive) -> Result<(), Status> {
        let srq = self.srqs.get(&srq).ok_or(Status::Malformed)?;
        Direct::receive_shared(srq, receive)
    }

    fn create_qp(
        &mut self,
        qp: u32,
        pd: u32,
        service: Service,
        sizes: &Capabilities,
        srq: Option<u32>,
    ) -> Result<u32, Refusal> {
        let pd = self.pds.get(&pd).ok_or(Refusal::Invalid)?;
        let srq = srq.map(|srq| self.srqs.get(&srq).ok_or(Refusal::Invalid)).transpose()?;
        let made = EmulatedQp::new(&self.device, pd, service, sizes, srq).map_err(refusal)?;
        let number = made.number;
        self.qps.insert(qp, made);
        Ok(number)
    }

    fn state(&self, qp: u32) -> Option<u8> {
        self.qps.get(&qp)?.state()
    }

    fn modify_qp(&mut self, handle: u32, change: &Change) -> Result<(), Refusal> {
        let Self { qps, completions, .. } = self;
        let qp = qps.get_mut(&handle).ok_or(Refusal::Invalid)?;
        let number = qp.number;
        qp.modify(change, &mut Done { handle, number, completions, ah_of: &|_| None })
    }

    fn destroy_qp(&mut self, qp: u32) {
        self.qps.remove(&qp);
        self.completions.retain(|(handle, _)| *handle != qp);
    }

    fn send(&mut self, handle: u32, request: &WorkRequest) -> Result<(), Status> {
        let qp = self.qps.get_mut(&handle).ok_or(Status::Malformed)?;
        if let Some(direct) = qp.direct() {
            return direct.send(request);
        }
        let destination = request.destination.ok_or(Status::BadAddressHandle)?;
        let Route::Handle(ah) = destination.route else { return Err(Status::BadAddressHandle) };
        let (gid, ah) = self.ahs.get(&ah).ok_or(Status::BadAddressHandle)?;
        // An RC QP would refuse a longer operation after the connection is open, when no caller is
        // left that could report the error.
        let is_send = request.operation == Operation::Send;
        let most = if is_send { MAX_MESSAGE.into() } else { MAX_RDMA };
        if request.len() > most {
            return Err(Status::LocalLength);
        }
        let number = u16::try_from(destination.qp).map_err(|_| Status::NoRemoteQp)?;
        let prepared = Request {
            id: request.id,
            operation: request.operation,
            immediate: request.immediate,
            segments: self.mrs.segments(&request.segments)?,
            inline: request.inline.clone(),
        };
        let completions = &mut self.completions;
        let mut done = Done { handle, number: qp.number, completions, ah_of: &|_| None };
        qp.send(prepared, (*gid, ah), number, destination.qkey, &self.local, &mut done)
    }

    fn receive(&mut self, handle: u32, receive: &Receive) -> Result<(), Status> {
        let qp = self.qps.get_mut(&handle).ok_or(Status::Malformed)?;
        if let Some(direct) = qp.direct() {
            return direct.receive(receive);
        }
        let segments = self.mrs.segments(&receive.segments)?;
        qp.receive(receive.id, segments)
    }
}
