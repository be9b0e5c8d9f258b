//! A simulated fabric: racks of hosts with a leaf switch each, and spines between the leaves.
//!
//! All packets of a connection pass the same spine.

use super::{Conn, Port, Random};
use ferroverbs_roce::Time;
use ferroverbs_roce::engine::*;
use ferroverbs_roce::wire::*;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::Ipv6Addr;
use std::time::Duration;

/// Size and speed of a fabric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) hosts: usize,
    pub(crate) per_rack: usize,
    pub(crate) spines: usize,
    /// Bytes per second of a host's link; uplinks have four times as much.
    pub(crate) rate: u64,
    /// Capacity of each output queue of a switch, in bytes.
    pub(crate) queue: u64,
    pub(crate) mark: bool,
    /// Capacity of a receiver's socket buffer, in bytes.
    pub(crate) socket: u64,
    /// The receiving process's cost of a packet.
    pub(crate) per_packet: Duration,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            hosts: 256,
            per_rack: 32,
            spines: 8,
            rate: 3_125_000_000,
            queue: 512 << 10,
            mark: true,
            socket: 1 << 20,
            per_packet: Duration::from_nanos(200),
        }
    }
}

/// A simulated fabric.
pub(crate) struct Fabric {
    pub(crate) shape: Shape,
    pub(crate) now: Time,
    pub(crate) conns: Vec<Conn>,
    pub(crate) ports: Vec<Port>,
    pub(crate) random: Random,
    hosts: Vec<Host>,
    /// A spine that routes avoid.
    pub(crate) avoid: Option<usize>,
    events: BinaryHeap<Reverse<(Time, u64, usize)>>,
    /// The events to which the numbers in `events` refer; free entries are reused.
    slab: Vec<Option<SimEvent>>,
    free: Vec<usize>,
    count: u64,
    pub(crate) packets: u64,
}

#[derive(Default)]
struct Host {
    ready: VecDeque<usize>,
    is_sending: bool,
}

enum SimEvent {
    Hop(Box<PacketInFlight>),
    Send(usize),
    Timer(usize),
    Call(fn(&mut Fabric)),
}

struct PacketInFlight {
    to: usize,
    bytes: Vec<u8>,
    marked: bool,
    path: [usize; 4],
    hop: usize,
}

/// Bytes of Ethernet, IPv6, UDP, ICRC, preamble and gap.
const AROUND: u64 = 14 + 40 + 8 + 4 + 24;
/// The latency of one link.
const LATENCY: Duration = Duration::from_micros(1);

impl Fabric {
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        let racks = shape.hosts.div_ceil(shape.per_rack);
        let mark = |k: u64| shape.mark.then_some((k * shape.queue / 16, k * shape.queue / 4));
        let link = Port::new(shape.rate, shape.queue, mark(1));
        let uplink = Port::new(4 * shape.rate, 4 * shape.queue, mark(4));
        let mut socket = Port::new(u64::MAX >> 20, shape.socket, None);
        socket.per_packet = shape.per_packet;
        let mut ports = vec![link; shape.hosts];
        ports.resize(2 * shape.hosts, socket);
        ports.resize(2 * shape.hosts + 2 * racks * shape.spines, uplink);
        Self {
            shape,
            now: Time::from_ns(1),
            conns: Vec::new(),
            ports,
            random: Random::new(seed),
            hosts: (0..shape.hosts).map(|_| Host::default()).collect(),
            avoid: None,
            events: BinaryHeap::new(),
            slab: Vec::new(),
            free: Vec::new(),
            count: 0,
            packets: 0,
        }
    }

    /// The queue in front of a host's link.
    pub(crate) fn link(&mut self, host: usize) -> &mut Port {
        &mut self.ports[host]
    }

    fn uplink(&self, rack: usize, spine: usize, down: bool) -> usize {
        2 * self.shape.hosts + 2 * (rack * self.shape.spines + spine) + usize::from(down)
    }

    /// Makes a spine lose all packets, or work again.
    pub(crate) fn set_spine(&mut self, spine: usize, up: bool) {
        for rack in 0..self.shape.hosts.div_ceil(self.shape.per_rack) {
            for down in [false, true] {
                let port = self.uplink(rack, spine, down);
                self.ports[port].up = up;
            }
        }
    }

    /// Connects two hosts. The first posts `count` requests like `work`.
    pub(crate) fn connect(
        &mut self,
        from: usize,
        to: usize,
        work: Work,
        count: u64,
        tune: impl Fn(&mut Tuning, &mut Sending),
    ) {
        let first = self.conns.len();
        let address = |host: usize| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, host as u16 + 1);
        let there = Addresses::V6 { src: address(from), dst: address(to) };
        for me in 0..2 {
            let addresses = if me == 0 { there } else { there.reversed() };
            let qpn = |end: usize| Qpn::new((first + end) as u32 + 2);
            let mut config = Config::new(Service::Rc, qpn(me), Pmtu::B1024);
            config.nonce = Nonce::new(0x9e37_79b9_7f4a_7c15 ^ u64::from(qpn(me).get()));
            config.peer = Some(Peer { addresses, qpn: qpn(1 - me) });
            config.access = Access { read: true, ..Access::default() };
            config.tuning.line_rate = self.shape.rate;
            let mut sending = Sending::default();
            tune(&mut config.tuning, &mut sending);
            let mut qp = Qp::new(config);
            qp.ready_to_send(sending);
            let host = if me == 0 { from } else { to };
            self.conns.push(Conn::new(qp, host, first + 1 - me, work));
        }
        self.conns[first].left = count;
    }

    /// Starts connection `index`.
    pub(crate) fn start(&mut self, index: usize) {
        let now = self.now;
        self.conns[index].post(now);
        self.touch(index);
    }

    pub(crate) fn at(&mut self, time: Time, call: fn(&mut Self)) {
        self.schedule(time, SimEvent::Call(call));
    }

    fn schedule(&mut self, at: Time, what: SimEvent) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.slab.push(None);
            self.slab.len() - 1
        });
        self.slab[place] = Some(what);
        self.count += 1;
        self.events.push(Reverse((at, self.count, place)));
    }

    /// Schedules a connection that may have a packet to send, or a new timer.
    fn touch(&mut self, index: usize) {
        let conn = &mut self.conns[index];
        let host = conn.host;
        // A packet that may be sent at once waits for the free link.
        let timer = conn.qp.poll_timeout().filter(|&at| at > self.now);
        let sooner = timer.filter(|&at| conn.timer.is_none_or(|set| at < set));
        if sooner.is_some() {
            conn.timer = sooner;
        }
        if !std::mem::replace(&mut conn.is_ready, true) {
            self.hosts[host].ready.push_back(index);
        }
        if let Some(at) = sooner {
            self.schedule(at, SimEvent::Timer(index));
        }
        if !std::mem::replace(&mut self.hosts[host].is_sending, true) {
            self.schedule(self.now, SimEvent::Send(host));
        }
    }

    /// The link of `host` is free: the next connection sends one packet.
    fn send(&mut self, host: usize) {
        while let Some(index) = self.hosts[host].ready.pop_front() {
            let conn = &mut self.conns[index];
            conn.is_ready = false;
            let Some(bytes) = conn.transmit(self.now) else {
                conn.events(self.now);
                let timer = conn.qp.poll_timeout().map(|at| at.max(self.now));
                if let Some(at) = timer.filter(|&at| conn.timer.is_none_or(|set| at < set)) {
                    conn.timer = timer;
                    self.schedule(at, SimEvent::Timer(index));
                }
                continue;
            };
            let size = bytes.len() as u64 + AROUND;
            let (to, free) = (
                conn.peer,
                self.now.after(Duration::from_nanos(size * 1_000_000_000 / self.shape.rate)),
            );
            conn.is_ready = true;
            self.hosts[host].ready.push_back(index);
            self.packets += 1;
            let path = self.path(index, host, self.conns[to].host);
            let hop = if path[0] == usize::MAX { 2 } else { 0 };
            let flying = PacketInFlight { to, bytes, marked: false, path, hop };
            self.schedule(free.after(LATENCY), SimEvent::Hop(Box::new(flying)));
            self.schedule(free, SimEvent::Send(host));
            return;
        }
        self.hosts[host].is_sending = false;
    }

    fn path(&self, conn: usize, from: usize, to: usize) -> [usize; 4] {
        let (shape, none) = (self.shape, usize::MAX);
        let last = [to, shape.hosts + to];
        let (here, there) = (from / shape.per_rack, to / shape.per_rack);
        if here == there {
            return [none, none, last[0], last[1]];
        }
        let mut spine = (conn / 2 * 7 + conn / 2 / 13) % shape.spines;
        if self.avoid == Some(spine) {
            spine = (spine + 1) % shape.spines;
        }
        [self.uplink(here, spine, false), self.uplink(there, spine, true), last[0], last[1]]
    }

    fn hop(&mut self, mut flying: Box<PacketInFlight>) {
        let Some(&port) = flying.path.get(flying.hop) else {
            let conn = &mut self.conns[flying.to];
            conn.receive(self.now, &flying.bytes, flying.marked);
            return self.touch(flying.to);
        };
        let size = flying.bytes.len() as u64 + AROUND;
        let passed = self.ports[port].pass(self.now, size, &mut self.random);
        let Some((leaves, marked)) = passed else { return };
        flying.marked |= marked;
        flying.hop += 1;
        self.schedule(leaves.after(LATENCY), SimEvent::Hop(flying));
    }

    /// Runs until no event remains or `end`. Returns whether all requests are complete.
    pub(crate) fn run(&mut self, end: Time) -> bool {
        while let Some(&Reverse((at, _, place))) = self.events.peek() {
            if at > end {
                break;
            }
            self.events.pop();
            self.now = at;
            self.free.push(place);
            match self.slab[place].take() {
                Some(SimEvent::Hop(flying)) => self.hop(flying),
                Some(SimEvent::Send(host)) => self.send(host),
                Some(SimEvent::Call(call)) => call(self),
                Some(SimEvent::Timer(index)) => {
                    let conn = &mut self.conns[index];
                    if conn.timer == Some(at) {
                        conn.timer = None;
                        conn.qp.handle_timeout(at);
                        conn.events(at);
                        self.touch(index);
                    }
                }
                None => {}
            }
        }
        self.conns.iter().all(|conn| conn.left == 0 && conn.completed == conn.posted)
    }
}
