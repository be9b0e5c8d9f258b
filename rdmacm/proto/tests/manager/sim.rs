//! Simulated processes, their applications and the network between them.
//! The other test files build on this.

use ferroverbs_cm::wire::*;
use ferroverbs_cm::*;
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const SERVICE: ServiceId = PortSpace::Tcp.service(7471);
pub(crate) const DATAGRAMS: ServiceId = PortSpace::Udp.service(7471);

/// Attribute ids of messages.
pub(crate) const REQ: u16 = 0x10;
pub(crate) const MRA: u16 = 0x11;
pub(crate) const REJ: u16 = 0x12;
pub(crate) const REP: u16 = 0x13;
pub(crate) const RTU: u16 = 0x14;
pub(crate) const DREQ: u16 = 0x15;
pub(crate) const DREP: u16 = 0x16;
pub(crate) const SIDR_REQ: u16 = 0x17;
pub(crate) const SIDR_REP: u16 = 0x18;

/// Random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

/// A message in flight.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) bytes: Vec<u8>,
}

impl Packet {
    pub(crate) fn attribute(&self) -> u16 {
        u16::from_be_bytes([self.bytes[16], self.bytes[17]])
    }

    pub(crate) fn message(&self) -> Message {
        Mad::parse(&self.bytes).expect("a message").message
    }
}

/// The automatic behaviour of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    /// Accepts requests, calls `ready` after a reply, and ends connections that its peer has ended.
    Willing,
    /// Rejects requests.
    Refusing,
    /// Takes requests and replies, and does nothing.
    Idle,
    /// Does not take requests.
    Absent,
}

/// A process.
pub(crate) struct Node {
    pub(crate) address: u32,
    pub(crate) manager: Manager<u32>,
    pub(crate) habit: Habit,
    pub(crate) events: Vec<(Time, Event<u32>)>,
    random: Random,
    qpn: u32,
}

impl Node {
    fn new(address: u32, config: Config) -> Self {
        let random = Random(u64::from(address) << 32);
        let manager = Manager::new(config);
        Self { address, manager, habit: Habit::Willing, events: Vec::new(), random, qpn: 0 }
    }

    pub(crate) fn listens(&mut self, backlog: usize) -> Listener {
        self.manager.listen(Kind::Connections, SERVICE, backlog).expect("nobody listens")
    }

    pub(crate) fn connect(&mut self, now: Time, to: u32) -> Connection {
        self.qpn += 1;
        self.request(now, to, request(self.qpn))
    }

    pub(crate) fn request(&mut self, now: Time, to: u32, request: Request) -> Connection {
        let random = &mut self.random;
        self.manager.connect(now, &mut || random.next(), to, request).expect("there is room")
    }

    pub(crate) fn ask(&mut self, now: Time, to: u32) -> Connection {
        let random = &mut self.random;
        let request = DatagramRequest { service: DATAGRAMS, ..DatagramRequest::default() };
        let code = TimeCode::new(20);
        self.manager
            .send_sidr_request(now, &mut || random.next(), to, request, code, 3)
            .expect("there is room")
    }

    pub(crate) fn accept(&mut self, now: Time, connection: Connection) {
        self.qpn += 1;
        let reply = reply(self.qpn);
        self.manager.accept(now, connection, reply).expect("there is a request");
    }

    pub(crate) fn receive(&mut self, now: Time, from: u32, bytes: &[u8]) {
        let random = &mut self.random;
        self.manager.receive(now, &mut || random.next(), &from, bytes);
    }

    /// The events so far, one letter each.
    pub(crate) fn story(&self) -> String {
        self.events
            .iter()
            .map(|(_, event)| match event {
                Event::Request { .. } => 'Q',
                Event::Reply { .. } => 'P',
                Event::Established { .. } => 'E',
                Event::Rejected { .. } => 'X',
                Event::Unreachable { .. } => 'U',
                Event::Disconnected { .. } => 'D',
                Event::TimeWaitOver { .. } => 'T',
                Event::DatagramRequest { .. } => 'q',
                Event::DatagramReply { .. } => 'p',
            })
            .collect()
    }

    /// The connection of the only request.
    pub(crate) fn requested(&self) -> Connection {
        let requests: Vec<_> = self
            .events
            .iter()
            .filter(|(_, event)| {
                matches!(event, Event::Request { .. } | Event::DatagramRequest { .. })
            })
            .collect();
        assert_eq!(requests.len(), 1, "{}", self.story());
        requests[0].1.connection()
    }

    /// The reason of the last rejection.
    pub(crate) fn reason(&self) -> Reason {
        let last = self.events.iter().rev().find_map(|(_, event)| match event {
            Event::Rejected { rejection, .. } => Some(rejection.reason),
            _ => None,
        });
        last.expect("a rejection")
    }

    pub(crate) fn act(&mut self, now: Time) {
        while let Some(event) = self.manager.poll_event() {
            let connection = event.connection();
            let request = matches!(event, Event::Request { .. } | Event::DatagramRequest { .. });
            if request && self.habit != Habit::Absent {
                self.manager.remove_from_backlog(connection);
            }
            match (&event, self.habit) {
                (Event::Request { .. }, Habit::Willing) => self.accept(now, connection),
                (Event::Request { .. }, Habit::Refusing) => {
                    let private = Private::new(b"no").expect("fits");
                    let none = Information::default();
                    let reason = Reason::CONSUMER;
                    let done = self.manager.reject(now, connection, reason, none, private);
                    done.expect("there is a request");
                }
                (Event::Reply { .. }, Habit::Willing) => {
                    self.manager.ready(connection).expect("it is granted");
                }
                (Event::Disconnected { .. }, Habit::Willing) => {
                    let done = self.manager.disconnect(now, connection, Private::NONE);
                    done.expect("it was established");
                }
                (Event::DatagramRequest { .. }, Habit::Willing) => {
                    let reply = DatagramReply { qpn: Qpn::new(9), ..DatagramReply::default() };
                    self.manager.answer(now, connection, reply).expect("there is a question");
                }
                _ => {}
            }
            self.events.push((now, event));
        }
    }
}

/// A REQ as rdma_cm sends it.
pub(crate) fn request(qpn: u32) -> Request {
    Request {
        service: SERVICE,
        qpn: Qpn::new(qpn),
        psn: Psn::new(qpn),
        remote_response_timeout: TimeCode::new(20),
        local_response_timeout: TimeCode::new(20),
        max_retries: Bits::new(15),
        primary: Path { ack_timeout: TimeCode::new(19), ..Path::default() },
        private: Private::new(b"hello").expect("fits"),
        ..Request::default()
    }
}

pub(crate) fn reply(qpn: u32) -> Reply {
    Reply {
        qpn: Qpn::new(qpn),
        psn: Psn::new(qpn),
        private: Private::new(b"welcome").expect("fits"),
        ..Reply::default()
    }
}

/// The treatment of a message: the delay of each delivered copy.
pub(crate) type Delivery = Box<dyn FnMut(&mut Packet) -> Vec<Duration>>;

pub(crate) const LATENCY: Duration = Duration::from_micros(50);

/// The network with all processes.
pub(crate) struct Net {
    pub(crate) now: Time,
    pub(crate) nodes: Vec<Node>,
    pub(crate) delivery: Delivery,
    /// All sent messages, delivered or not.
    pub(crate) sent: Vec<(Time, Packet)>,
    wire: BTreeMap<(Time, u64), Packet>,
    number: u64,
}

impl Net {
    /// `count` processes, each on its own adapter, on a perfect network.
    pub(crate) fn new(count: u32) -> Self {
        let nodes = (0..count).map(|n| Node::new(n, config(n))).collect();
        Self {
            now: Time::ZERO,
            nodes,
            delivery: Box::new(|_| vec![LATENCY]),
            sent: Vec::new(),
            wire: BTreeMap::new(),
            number: 0,
        }
    }

    /// The first process listens.
    pub(crate) fn with_server(count: u32) -> Self {
        let mut net = Self::new(count);
        net.nodes[0].listens(1 << 16);
        net
    }

    /// Replaces a process by a new one.
    pub(crate) fn restart(&mut self, n: usize) {
        let address = self.nodes[n].address;
        let mut node = Node::new(address, config(address));
        node.random = Random(u64::from(address) << 32 | self.now.as_nanos() as u64 | 1);
        self.nodes[n] = node;
    }

    /// Loses each message for which `lost` is true, given its attribute and the number of earlier
    /// messages of that kind.
    pub(crate) fn lose(&mut self, mut lost: impl FnMut(u16, usize) -> bool + 'static) {
        let mut counts = BTreeMap::<u16, usize>::new();
        self.delivery = Box::new(move |packet| {
            let count = counts.entry(packet.attribute()).or_default();
            let lost = lost(packet.attribute(), *count);
            *count += 1;
            if lost { vec![] } else { vec![LATENCY] }
        });
    }

    /// The number of sent messages of a kind.
    pub(crate) fn count(&self, attribute: u16) -> usize {
        self.sent.iter().filter(|(_, packet)| packet.attribute() == attribute).count()
    }

    /// Takes all messages that processes send.
    fn collect(&mut self) {
        for node in &mut self.nodes {
            node.act(self.now);
            while let Some((to, bytes)) = node.manager.poll_transmit() {
                let packet = Packet { from: node.address, to, bytes: bytes.to_vec() };
                self.sent.push((self.now, packet.clone()));
                let mut packet = packet;
                for delay in (self.delivery)(&mut packet) {
                    self.number += 1;
                    self.wire.insert((self.now + delay, self.number), packet.clone());
                }
            }
        }
    }

    /// Performs the next event; `false` if none happens before `end`.
    pub(crate) fn step(&mut self, end: Time) -> bool {
        self.collect();
        let timer = self.nodes.iter().filter_map(|node| node.manager.poll_timeout()).min();
        let arrival = self.wire.first_key_value().map(|(&(at, _), _)| at);
        let Some(next) = timer.into_iter().chain(arrival).min().filter(|&next| next <= end) else {
            return false;
        };
        self.now = self.now.max(next);
        if arrival == Some(next) {
            let (_, packet) = self.wire.pop_first().expect("there is one");
            let node = self.nodes.iter_mut().find(|node| node.address == packet.to);
            if let Some(node) = node {
                node.receive(self.now, packet.from, &packet.bytes);
            }
        } else {
            for node in &mut self.nodes {
                node.manager.handle_timeout(self.now);
            }
        }
        self.collect();
        true
    }

    /// Performs all events of this time span.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end) {}
        self.now = end;
    }

    /// Performs all events until none is left.
    pub(crate) fn settle(&mut self) {
        let begin = self.sent.len();
        while self.step(Time::MAX - Duration::from_secs(1)) {
            assert!(self.sent.len() < begin + 1_000_000, "it never ends");
        }
    }

    /// Ends all connections and checks that no state remains.
    pub(crate) fn end_all(&mut self) {
        let now = self.now;
        for node in &mut self.nodes {
            for connection in node.events.iter().map(|(_, event)| event.connection()) {
                node.manager.destroy(now, connection);
            }
        }
        self.settle();
        for node in &self.nodes {
            assert_eq!(node.manager.counts(), (0, 0), "at {}: {}", node.address, node.story());
            assert_eq!(node.manager.poll_timeout(), None);
        }
    }
}

pub(crate) fn config(n: u32) -> Config {
    Config::new(Guid(0x1000 + u64::from(n)))
}

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
