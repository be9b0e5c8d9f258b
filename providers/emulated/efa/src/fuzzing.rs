//! Memory and a data path without a machine, and a fuzz target: a hostile provider sends commands
//! of any bytes and writes any bytes into its queues.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use emulated_commands::carrier::{Address, Carrier, Change, Keys, Port, Region};
use emulated_commands::fields::Structure;
use emulated_commands::kernel::{Kernel, WriteRequest};
use emulated_commands::refusal::Refusal;
use emulated_commands::vendor::{
    Capabilities, Completion, Location, Outside, Queue, QueueMemory, Receive, Service, Source,
    Status, WorkRequest,
};

use crate::Efa;

const PAGE: u64 = 4096;

/// The file that a provider maps, as bytes.
#[derive(Debug, Default)]
pub struct File {
    bytes: Vec<u8>,
    /// Offset and length of the areas in use.
    areas: BTreeMap<u64, u64>,
}

impl File {
    /// Bytes of the file at most.
    const MOST: u64 = 1 << 24;

    /// What the provider reads.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What the provider writes; bytes beyond the file's end are lost.
    pub fn poke(&mut self, offset: u64, bytes: &[u8]) {
        let to = usize::try_from(offset).ok().and_then(|offset| self.bytes.get_mut(offset..));
        for (to, from) in to.unwrap_or_default().iter_mut().zip(bytes) {
            *to = *from;
        }
    }

    /// The areas in use.
    #[must_use]
    pub fn areas(&self) -> usize {
        self.areas.len()
    }

    /// The range of an access, which must be within an area.
    fn range(&self, at: Location, len: usize) -> core::ops::Range<usize> {
        let Location::File(offset) = at else { panic!("an adapter's queue is not in its file") };
        let (start, size) = self.areas.range(..=offset).next_back().expect("below all areas");
        assert!(offset + len as u64 <= start + size, "an access beyond an area");
        let begin = usize::try_from(offset).expect("a small file");
        begin..begin + len
    }
}

impl QueueMemory for File {
    fn allocate(&mut self, len: u64) -> Result<u64, Refusal> {
        assert!(len > 0 && len.is_multiple_of(PAGE), "areas are whole pages");
        let mut offset = 0;
        for (start, size) in &self.areas {
            if start - offset >= len {
                break;
            }
            offset = start + size;
        }
        let end = offset + len;
        if end > Self::MOST {
            return Err(Refusal::NoMemory);
        }
        let (begin, end) = (offset as usize, end as usize);
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes.get_mut(begin..end).expect("just made").fill(0);
        self.areas.insert(offset, len);
        Ok(offset)
    }

    fn release(&mut self, offset: u64, len: u64) {
        assert_eq!(self.areas.remove(&offset), Some(len), "an area that is not in use");
    }

    fn read(&self, at: Location, bytes: &mut [u8]) -> Result<(), Outside> {
        let range = self.range(at, bytes.len());
        bytes.copy_from_slice(self.bytes.get(range).ok_or(Outside)?);
        Ok(())
    }

    fn load(&self, at: Location) -> Result<u32, Outside> {
        let range = self.range(at, 4);
        assert!(range.start.is_multiple_of(4), "a doorbell is aligned");
        let word = self.bytes.get(range).and_then(|word| word.try_into().ok()).ok_or(Outside)?;
        Ok(u32::from_le_bytes(word))
    }

    fn write(&mut self, at: Location, bytes: &[u8]) -> Result<(), Outside> {
        let range = self.range(at, bytes.len());
        self.bytes.get_mut(range).ok_or(Outside)?.copy_from_slice(bytes);
        Ok(())
    }

    fn publish(&mut self, at: Location, bytes: [u8; 8]) -> Result<(), Outside> {
        let range = self.range(at, 8);
        assert!(range.start.is_multiple_of(8), "a published word is aligned");
        self.bytes.get_mut(range).ok_or(Outside)?.copy_from_slice(&bytes);
        Ok(())
    }
}

/// A data path that records requests, and checks that each names a live object.
#[derive(Debug, Default)]
pub struct Recorder {
    /// Requests that were begun, with the handles of their QPs.
    pub requests: VecDeque<(u32, WorkRequest)>,
    /// Receives that were posted, with the handles of their QPs.
    pub receives: VecDeque<(u32, Receive)>,
    /// Events that were delivered: channel and provider's object.
    pub events: Vec<(i32, u64)>,
    /// Asynchronous events: provider's object and number.
    pub reports: Vec<(u64, u32)>,
    /// The result of the next request, if it is known at once.
    pub refusal: Option<Status>,
    channels: i32,
    pds: BTreeSet<u32>,
    regions: BTreeSet<u32>,
    addresses: BTreeSet<u32>,
    qps: BTreeSet<u32>,
}

impl Recorder {
    /// Objects that exist.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.pds.len() + self.regions.len() + self.addresses.len() + self.qps.len()
    }
}

impl Carrier for Recorder {
    fn node_guid(&self) -> u64 {
        0x0102_0304_0506_0708
    }

    fn port(&self, port: u8) -> Option<Port> {
        (port == 1).then_some(Port { state: 4, mtu: 5, gids: 1, pkeys: 1 })
    }

    fn open_events(&mut self) -> Result<i32, Refusal> {
        Ok(3)
    }

    fn open_channel(&mut self) -> Result<i32, Refusal> {
        self.channels += 1;
        Ok(99 + self.channels)
    }

    fn has_channel(&self, channel: i32) -> bool {
        (100..100 + self.channels).contains(&channel)
    }

    fn notify(&mut self, channel: i32, user_handle: u64) {
        assert!(self.has_channel(channel));
        self.events.push((channel, user_handle));
    }

    fn forget_notifications(&mut self, _: i32, user_handle: u64) -> u32 {
        self.events.retain(|(_, of)| *of != user_handle);
        0
    }

    fn report(&mut self, user_handle: u64, event: u32) {
        self.reports.push((user_handle, event));
    }

    fn forget_reports(&mut self, user_handle: u64) -> u32 {
        self.reports.retain(|(of, _)| *of != user_handle);
        0
    }

    fn alloc_pd(&mut self, pd: u32) -> Result<(), Refusal> {
        assert!(self.pds.insert(pd));
        Ok(())
    }

    fn dealloc_pd(&mut self, pd: u32) {
        assert!(self.pds.remove(&pd));
    }

    fn register(&mut self, mr: u32, region: &Region) -> Result<Keys, Refusal> {
        assert!(self.pds.contains(&region.pd) && self.regions.insert(mr));
        Ok(Keys { lkey: mr, rkey: mr | 0x100 })
    }

    fn deregister(&mut self, mr: u32) {
        assert!(self.regions.remove(&mr));
    }

    fn create_ah(&mut self, ah: u32, pd: u32, _: &Address) -> Result<(), Refusal> {
        assert!(self.pds.contains(&pd) && self.addresses.insert(ah));
        Ok(())
    }

    fn destroy_ah(&mut self, ah: u32) {
        assert!(self.addresses.remove(&ah));
    }

    fn create_qp(
        &mut self,
        qp: u32,
        pd: u32,
        _: Service,
        _: &Capabilities,
        _: Option<u32>,
    ) -> Result<u32, Refusal> {
        assert!(self.pds.contains(&pd) && self.qps.insert(qp));
        Ok(qp + 1)
    }

    fn modify_qp(&mut self, qp: u32, change: &Change) -> Result<(), Refusal> {
        assert!(self.qps.contains(&qp));
        // IBV_QPS_ERR is the last state.
        if change.mask & 1 != 0 && change.state > 6 {
            return Err(Refusal::Invalid);
        }
        if change.mask & 1 != 0 && change.state == 0 {
            self.forget(qp);
        }
        Ok(())
    }

    fn destroy_qp(&mut self, qp: u32) {
        assert!(self.qps.remove(&qp));
        self.forget(qp);
    }

    fn send(&mut self, qp: u32, request: &WorkRequest) -> Result<(), Status> {
        assert!(self.qps.contains(&qp));
        if let Some(status) = self.refusal.take() {
            return Err(status);
        }
        self.requests.push_back((qp, request.clone()));
        Ok(())
    }

    fn receive(&mut self, qp: u32, receive: &Receive) -> Result<(), Status> {
        assert!(self.qps.contains(&qp) && (1..=2).contains(&receive.segments.len()));
        self.receives.push_back((qp, receive.clone()));
        Ok(())
    }
}

impl Recorder {
    fn forget(&mut self, qp: u32) {
        self.requests.retain(|(of, _)| *of != qp);
        self.receives.retain(|(of, _)| *of != qp);
    }
}

/// Bytes of a script.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// A hostile provider: the input is a script of commands, bytes for the queues, doorbells and
/// results.
///
/// # Panics
/// The engine touches memory outside of its queues, uses an object of the data path that does not
/// exist, or keeps memory of a destroyed object.
pub fn provider(data: &[u8]) {
    const RESULTS: [Status; 4] =
        [Status::Success, Status::RemoteAccess, Status::NotReady, Status::Flushed];
    let mut script = Script(data);
    let (mut kernel, mut file, mut carrier) =
        (Kernel::new(Efa), File::default(), Recorder::default());
    let prepared =
        |number, is_extended, core: Vec<u8>, vendor: Vec<u8>| (number, is_extended, core, vendor);
    let cq = Structure::new(32).u32(8, 4).u32(16, u32::MAX).into_bytes();
    let qp = Structure::new(64).u32(24, 4).u32(28, 4).u32(32, 2).u32(36, 2).u8(45, 255);
    let state = |state| Structure::new(112).u32(68, 1).u8(96, state).into_bytes();
    let vendors_qp = Structure::new(16).u32(4, 128).u32(8, 256).into_bytes();
    for (number, is_extended, core, vendor) in [
        prepared(3, false, vec![0; 8], Vec::new()),
        prepared(18, true, cq, Structure::new(16).u32(4, 32).u16(8, 1).into_bytes()),
        prepared(24, true, qp.into_bytes(), vendors_qp),
        prepared(26, false, state(1), Vec::new()),
        prepared(26, false, state(3), Vec::new()),
    ] {
        let sent = WriteRequest { number, is_extended, core: &core, room: 512, vendor: &vendor };
        let done = kernel.write(&sent, &mut file, &mut carrier);
        assert!(done.is_ok(), "{number}: {done:?}");
    }
    while let Some(operation) = script.byte() {
        match operation % 6 {
            0 => {
                let (number, core) = (script.byte().unwrap_or(0), script.byte().unwrap_or(0));
                let vendor = script.byte().unwrap_or(0);
                let core = script.bytes(usize::from(core));
                let vendor = script.bytes(usize::from(vendor % 64));
                let sent = WriteRequest {
                    number: u32::from(number & 0x7f),
                    is_extended: number & 0x80 != 0,
                    core,
                    room: 512,
                    vendor,
                };
                let _ = kernel.write(&sent, &mut file, &mut carrier);
            }
            1 => {
                let [page, place, len] = [(); 3].map(|()| script.byte().unwrap_or(0));
                let offset = u64::from(page % 16) * PAGE + u64::from(place) * 4;
                file.poke(offset, script.bytes(usize::from(len % 80)));
            }
            2 => {
                let qp = u32::from(script.byte().unwrap_or(0) % 4);
                let _ = kernel.ring(qp, &mut file, &mut carrier);
            }
            3 => {
                let result = usize::from(script.byte().unwrap_or(0)) % RESULTS.len();
                let status = RESULTS.get(result).copied().unwrap_or_default();
                if let Some((qp, request)) = carrier.requests.pop_front() {
                    let completion = Completion {
                        qp: qp + 1,
                        id: Some(request.id),
                        status,
                        operation: request.operation,
                        ..Default::default()
                    };
                    let _ = kernel.complete(qp, &completion, &mut file, &mut carrier);
                } else if let Some((qp, receive)) = carrier.receives.pop_front() {
                    let completion = Completion {
                        qp: qp + 1,
                        queue: Queue::Receive,
                        id: Some(receive.id),
                        status,
                        len: 7,
                        source: Some(Source { qp: 1, ah: None, gid: [1; 16] }),
                        ..Default::default()
                    };
                    let _ = kernel.complete(qp, &completion, &mut file, &mut carrier);
                }
            }
            4 => {
                let _ = kernel.arm(u32::from(script.byte().unwrap_or(0) % 4), &file, &mut carrier);
            }
            _ => carrier.refusal = Some(Status::BadAddressHandle),
        }
    }
    end(&mut kernel, &mut file, &mut carrier);
}

/// Destroys all objects: nothing is left.
fn end(kernel: &mut Kernel<Efa>, file: &mut File, carrier: &mut Recorder) {
    // QPs first, then what they use.
    for (number, at) in [(27, 8), (20, 8), (13, 0), (8, 0), (4, 0)] {
        for handle in 0..512 {
            let core = Structure::new(16).u32(at, handle).into_bytes();
            let sent =
                WriteRequest { number, is_extended: false, core: &core, room: 512, vendor: &[] };
            let _ = kernel.write(&sent, file, carrier);
        }
    }
    assert_eq!((file.areas(), carrier.objects()), (0, 0), "something is left");
}
