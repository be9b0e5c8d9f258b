//! The data path: requests reach QPs of the same context, and are done at once. A message waits
//! until its receiver posts a receive. Keys and rights are not checked.

use std::collections::{BTreeMap, VecDeque};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};

use emulated_commands::carrier::{Address, Carrier, Change, Keys, Port, Region};
use emulated_commands::refusal::Refusal;
use emulated_commands::vendor::{
    Capabilities, Completion, Operation, Queue, Receive, Segment, Service, Source, Status,
    WorkRequest,
};

use crate::ports::{GID, NODE_GUID};

/// A channel's own ends. The program's end is another descriptor of the reader.
struct Channel {
    reader: PipeReader,
    writer: PipeWriter,
    /// Events that were written, by the object of the CQ.
    written: BTreeMap<u64, u32>,
}

/// A message on its way.
struct Message {
    bytes: Vec<u8>,
    immediate: Option<u32>,
    source: u32,
    /// The sender's QP and request, which complete when the message is received.
    sender: (u32, Completion),
}

#[derive(Default)]
struct Qp {
    receives: VecDeque<Receive>,
    messages: VecDeque<Message>,
}

/// The data path of one context.
#[derive(Default)]
pub(crate) struct Loopback {
    qps: BTreeMap<u32, Qp>,
    addresses: BTreeMap<u32, [u8; 16]>,
    channels: BTreeMap<i32, Channel>,
    events: Option<PipeWriter>,
    done: VecDeque<(u32, Completion)>,
    keys: u32,
}

impl Loopback {
    /// The next completion, with the handle of its QP.
    pub(crate) fn next_completion(&mut self) -> Option<(u32, Completion)> {
        self.done.pop_front()
    }

    /// Gives waiting messages of a QP to its receives.
    fn deliver(&mut self, handle: u32) {
        let Some(qp) = self.qps.get_mut(&handle) else { return };
        while !qp.receives.is_empty() && !qp.messages.is_empty() {
            let (Some(receive), Some(message)) = (qp.receives.pop_front(), qp.messages.pop_front())
            else {
                return;
            };
            let fits = scatter(&receive.segments, &message.bytes);
            let (sender, mut sent) = message.sender;
            let mut received = Completion {
                qp: number(handle),
                queue: Queue::Receive,
                id: Some(receive.id),
                len: message.bytes.len() as u32,
                immediate: message.immediate,
                source: Some(Source { qp: message.source, ah: None, gid: GID }),
                ..Default::default()
            };
            if !fits {
                received.status = Status::LocalLength;
                sent.status = Status::RemoteLength;
            }
            self.done.push_back((handle, received));
            self.done.push_back((sender, sent));
        }
    }
}

/// The number of a QP.
const fn number(handle: u32) -> u32 {
    handle + 1
}

fn bytes_of(segments: &[Segment]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for segment in segments {
        let start = core::ptr::with_exposed_provenance::<u8>(segment.address as usize);
        let len = segment.length as usize;
        // SAFETY: a segment of a region that the program of the test registered, at its address.
        bytes.extend_from_slice(unsafe { core::slice::from_raw_parts(start, len) });
    }
    bytes
}

/// Stores bytes in consecutive segments. False: there are more bytes.
fn scatter(segments: &[Segment], mut bytes: &[u8]) -> bool {
    for segment in segments {
        let (now, rest) = bytes.split_at(bytes.len().min(segment.length as usize));
        let start = core::ptr::with_exposed_provenance_mut::<u8>(segment.address as usize);
        // SAFETY: as in `bytes_of`.
        unsafe { start.copy_from_nonoverlapping(now.as_ptr(), now.len()) };
        bytes = rest;
    }
    bytes.is_empty()
}

impl Carrier for Loopback {
    fn node_guid(&self) -> u64 {
        NODE_GUID
    }

    fn port(&self, port: u8) -> Option<Port> {
        (port == 1).then_some(Port { state: 4, mtu: 5, gids: 1, pkeys: 1 })
    }

    fn open_events(&mut self) -> Result<i32, Refusal> {
        let (reader, writer) = std::io::pipe().map_err(|_| Refusal::NoMemory)?;
        self.events = Some(writer);
        Ok(reader.into_raw_fd())
    }

    fn open_channel(&mut self) -> Result<i32, Refusal> {
        let (reader, writer) = std::io::pipe().map_err(|_| Refusal::NoMemory)?;
        let programs = reader.try_clone().map_err(|_| Refusal::NoMemory)?.into_raw_fd();
        self.channels.insert(programs, Channel { reader, writer, written: BTreeMap::new() });
        Ok(programs)
    }

    fn has_channel(&self, channel: i32) -> bool {
        self.channels.contains_key(&channel)
    }

    fn notify(&mut self, channel: i32, user_handle: u64) {
        if let Some(channel) = self.channels.get_mut(&channel)
            && channel.writer.write_all(&user_handle.to_ne_bytes()).is_ok()
        {
            *channel.written.entry(user_handle).or_default() += 1;
        }
    }

    fn forget_notifications(&mut self, channel: i32, user_handle: u64) -> u32 {
        let Some(channel) = self.channels.get_mut(&channel) else { return 0 };
        let mut unread = 0;
        let mut others = Vec::new();
        let mut poll =
            libc::pollfd { fd: channel.reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, and no wait.
        while unsafe { libc::poll(&raw mut poll, 1, 0) } == 1 {
            let mut record = [0; 8];
            if channel.reader.read_exact(&mut record).is_err() {
                break;
            }
            if u64::from_ne_bytes(record) == user_handle {
                unread += 1;
            } else {
                others.extend(record);
            }
        }
        // The pipe had these records before.
        let _ = channel.writer.write_all(&others);
        channel.written.remove(&user_handle).unwrap_or(0).saturating_sub(unread)
    }

    fn report(&mut self, user_handle: u64, event: u32) {
        if let Some(writer) = &mut self.events {
            let mut record = [0; 16];
            record[..8].copy_from_slice(&user_handle.to_ne_bytes());
            record[8..12].copy_from_slice(&event.to_ne_bytes());
            // Without a reader nobody misses the record.
            let _ = writer.write_all(&record);
        }
    }

    fn forget_reports(&mut self, _: u64) -> u32 {
        0
    }

    fn alloc_pd(&mut self, _: u32) -> Result<(), Refusal> {
        Ok(())
    }

    fn dealloc_pd(&mut self, _: u32) {}

    fn register(&mut self, _: u32, _: &Region) -> Result<Keys, Refusal> {
        self.keys += 1;
        Ok(Keys { lkey: self.keys, rkey: self.keys })
    }

    fn deregister(&mut self, _: u32) {}

    fn create_ah(&mut self, ah: u32, _: u32, address: &Address) -> Result<(), Refusal> {
        self.addresses.insert(ah, address.dgid);
        Ok(())
    }

    fn destroy_ah(&mut self, ah: u32) {
        self.addresses.remove(&ah);
    }

    fn create_qp(&mut self, qp: u32, _: u32, _: Service, _: &Capabilities) -> Result<u32, Refusal> {
        self.qps.insert(qp, Qp::default());
        Ok(number(qp))
    }

    fn modify_qp(&mut self, qp: u32, change: &Change) -> Result<(), Refusal> {
        const STATE: u32 = 1;
        const ERROR: u8 = 6;
        let found = self.qps.get_mut(&qp).ok_or(Refusal::Invalid)?;
        if change.mask & STATE != 0 && change.state == ERROR {
            for receive in found.receives.drain(..) {
                let flushed = Completion {
                    qp: number(qp),
                    queue: Queue::Receive,
                    id: Some(receive.id),
                    status: Status::Flushed,
                    ..Default::default()
                };
                self.done.push_back((qp, flushed));
            }
        }
        Ok(())
    }

    fn destroy_qp(&mut self, qp: u32) {
        self.qps.remove(&qp);
    }

    fn send(&mut self, handle: u32, request: &WorkRequest) -> Result<(), Status> {
        let destination = request.destination.ok_or(Status::BadAddressHandle)?;
        let to = self.addresses.get(&destination.ah).ok_or(Status::BadAddressHandle)?;
        let remote = destination.qp.checked_sub(1).filter(|_| *to == GID);
        let remote = remote.filter(|remote| self.qps.contains_key(remote));
        let remote = remote.ok_or(Status::NoRemoteQp)?;
        let done = Completion {
            qp: number(handle),
            id: Some(request.id),
            operation: request.operation,
            ..Default::default()
        };
        let bytes = match &request.inline {
            Some(bytes) => bytes.clone(),
            None => bytes_of(&request.segments),
        };
        let range = |address, length| [Segment { address, length, lkey: 0 }];
        match request.operation {
            Operation::Send => {
                let message = Message {
                    bytes,
                    immediate: request.immediate,
                    source: number(handle),
                    sender: (handle, done),
                };
                if let Some(qp) = self.qps.get_mut(&remote) {
                    qp.messages.push_back(message);
                }
                self.deliver(remote);
            }
            Operation::Read(from) => {
                let read = bytes_of(&range(from.address, request.len() as u32));
                scatter(&request.segments, &read);
                self.done.push_back((handle, done));
            }
            Operation::Write(to) => {
                scatter(&range(to.address, request.len() as u32), &bytes);
                self.done.push_back((handle, done));
            }
        }
        Ok(())
    }

    fn receive(&mut self, qp: u32, receive: &Receive) -> Result<(), Status> {
        if let Some(found) = self.qps.get_mut(&qp) {
            found.receives.push_back(receive.clone());
        }
        self.deliver(qp);
        Ok(())
    }
}
