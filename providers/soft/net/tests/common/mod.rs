//! A sender, a receiver and a path between them.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

pub mod host;
pub mod namespace;

use ferroverbs_net::*;
use ferroverbs_roce::wire::{Addresses, Envelope};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

pub const HOPS: u8 = 17;
pub const CLASS: u8 = 0x48;

pub struct Ends {
    pub sender: Sender,
    pub receiver: Receiver,
    pub address: IpAddr,
    pub port: u16,
    pub target: Target,
    pub path: Path,
}

/// A packet as it came.
pub struct Came {
    pub bytes: Vec<u8>,
    pub from: SocketAddr,
    pub to: IpAddr,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub merged: bool,
}

impl Came {
    pub fn envelope(&self, identification: u16) -> Envelope {
        let addresses = Addresses::new(self.from.ip(), self.to).expect("one family");
        Envelope { addresses, source_port: self.from.port(), identification }
    }
}

impl Ends {
    /// Both at `address`, any port.
    pub fn new(address: &str, segment: bool, merge: bool) -> Self {
        let address: IpAddr = address.parse().expect("an address");
        let receiver =
            Receiver::bind(Bind { port: 0, merge, ..Bind::new(address) }).expect("a port");
        let port = receiver.port().expect("bound");
        let mut sender = Sender::new(segment);
        assert_eq!(sender.segments(), segment, "this kernel cuts datagrams");
        let (interface, traffic_class, hop_limit) = (0, CLASS, HOPS);
        let target = Target { from: address, to: address, interface, traffic_class, hop_limit };
        let lane = sender.lane(address, 0x1234).expect("a lane");
        let path = Path::new(&target, lane).expect("a path").to_port(port);
        Self { sender, receiver, address, port, target, path }
    }

    /// The next `count` packets.
    pub fn receive(&mut self, count: usize) -> Vec<Came> {
        receive(&mut self.receiver, count)
    }
}

/// The next `count` packets.
pub fn receive(receiver: &mut Receiver, count: usize) -> Vec<Came> {
    let mut all = Vec::new();
    while all.len() < count {
        assert!(wait_readable(receiver, Duration::from_secs(10)), "{} of {count} came", all.len());
        for datagram in receiver.receive().expect("a socket") {
            assert!(!datagram.is_cut);
            let merged = datagram.packets().len() > 1;
            all.extend(datagram.packets().map(|bytes| Came {
                bytes: bytes.to_vec(),
                from: datagram.from,
                to: datagram.to,
                traffic_class: datagram.traffic_class,
                hop_limit: datagram.hop_limit,
                merged,
            }));
        }
    }
    assert_eq!(all.len(), count);
    all
}

/// Whether something is there within `limit`.
pub fn wait_readable(receiver: &Receiver, limit: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec::try_from(limit).expect("not so long");
    let mut fds = [PollFd::new(receiver, PollFlags::IN)];
    poll(&mut fds, Some(&limit)).expect("poll") != 0
}

/// What comes at last.
pub fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(it) = what() {
            return it;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "it does not come");
        std::thread::yield_now();
    }
}

pub fn body(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed * 31 + i * 7) as u8).collect()
}

/// A packet of a header that means nothing, `payload`, and its ICRC.
pub fn put<'p>(batch: &mut Batch<'_, 'p>, path: &Path, ecn: Ecn, payload: &'p [u8]) {
    let head = [4; 12];
    let envelope_of = path_envelope(path);
    let place = batch.place(path, ecn, head.len() + payload.len() + 4).expect("room");
    let envelope = Envelope { identification: place.identification(), ..envelope_of };
    let icrc = envelope.icrc(&head, &[payload]);
    place.put(&head, &[Bytes::from(payload)], &icrc).expect("as long as said");
}

fn path_envelope(path: &Path) -> Envelope {
    let target = path.target();
    let addresses = Addresses::new(target.from, target.to).expect("one family");
    Envelope { addresses, source_port: path.source_port(), identification: 0 }
}
