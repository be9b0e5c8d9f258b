//! One end of a simulated connection: sends or reads messages of one length, and checks received
//! data.

use ferroverbs_roce::Time;
use ferroverbs_roce::engine::*;
use std::collections::HashMap;

/// One end of a connection.
pub(crate) struct Conn {
    pub(crate) qp: Qp,
    pub(crate) host: usize,
    /// The other end.
    pub(crate) peer: usize,
    /// Number of requests left to post.
    pub(crate) left: u64,
    pub(crate) work: Work,
    pub(crate) posted: u64,
    pub(crate) completed: u64,
    pub(crate) failed: bool,
    /// When each request in flight was posted.
    started: HashMap<u64, Time>,
    /// The duration of each request in ns.
    pub(crate) elapsed: Vec<u64>,
    pub(crate) finished: Option<Time>,
    /// Number of bytes received from the peer, and the expected offset of the next packet in its
    /// message.
    pub(crate) received: u64,
    offset: u32,
    held: HashMap<u16, Vec<u8>>,
    pub(crate) is_ready: bool,
    pub(crate) timer: Option<Time>,
}

/// Requests in flight of each connection.
const DEPTH: u64 = 2;

impl Conn {
    pub(crate) fn new(qp: Qp, host: usize, peer: usize, work: Work) -> Self {
        Self {
            qp,
            host,
            peer,
            left: 0,
            work,
            posted: 0,
            completed: 0,
            failed: false,
            started: HashMap::new(),
            elapsed: Vec::new(),
            finished: None,
            received: 0,
            offset: 0,
            held: HashMap::new(),
            is_ready: false,
            timer: None,
        }
    }

    /// Posts requests up to the limit.
    pub(crate) fn post(&mut self, now: Time) {
        while self.left != 0 && self.posted - self.completed < DEPTH {
            let id = self.posted;
            self.qp.post(Work { id, ..self.work }).expect("a request of this service");
            self.started.insert(id, now);
            self.posted += 1;
            self.left -= 1;
        }
    }

    /// Handles a packet from the socket.
    pub(crate) fn receive(&mut self, now: Time, packet: &[u8], congested: bool) {
        self.packet(now, packet, congested);
        while let Some(place) = self.qp.release() {
            let packet = self.held.remove(&place).expect("it was kept");
            self.packet(now, &packet, false);
        }
        self.events(now);
    }

    fn packet(&mut self, now: Time, packet: &[u8], congested: bool) {
        let addresses = self.qp.config().peer.expect("connected").addresses.reversed();
        match self.qp.receive(now, &Arrival { addresses, congested, packet }) {
            Step::AskCaller(ask) => {
                match ask {
                    ResponderRequest::Deliver { offset, payload, last, .. } => {
                        assert_eq!(offset, self.offset, "in order, each once");
                        self.received += payload.len() as u64;
                        self.offset = match last {
                            Some(_) => 0,
                            None => offset + payload.len() as u32,
                        };
                    }
                    ResponderRequest::Read { .. } => {}
                    other => panic!("{other:?}"),
                }
                self.qp.answer(ResponderReply::Accepted);
            }
            Step::PlaceResponse { payload, .. } => self.received += payload.len() as u64,
            Step::HoldPacket(place) => {
                self.held.insert(place, packet.to_vec());
            }
            Step::Done | Step::Dropped(_) | Step::Original { .. } => {}
        }
    }

    pub(crate) fn events(&mut self, now: Time) {
        while let Some(event) = self.qp.poll_event() {
            match event {
                Event::Completed { work, status: Status::Success } => {
                    assert_eq!(work, self.completed, "in order, each once");
                    self.completed += 1;
                    let started = self.started.remove(&work).expect("posted");
                    self.elapsed.push(now.since(started).as_nanos() as u64);
                }
                Event::Completed { .. } => self.failed = true,
                Event::Failed(status) => {
                    self.failed = true;
                    println!("{status:?} after {} requests", self.completed);
                }
                other => panic!("{other:?}"),
            }
        }
        self.post(now);
        if self.left == 0 && self.completed == self.posted && self.finished.is_none() {
            self.finished = Some(now);
        }
    }

    /// The next packet to send.
    pub(crate) fn transmit(&mut self, now: Time) -> Option<Vec<u8>> {
        let nothing = self.qp.has_nothing_to_send(false);
        let transmit = self.qp.poll_transmit(now)?;
        assert!(!nothing, "it had nothing to send");
        let mut bytes = transmit.head.to_vec();
        bytes.resize(bytes.len() + transmit.payload.len() as usize + transmit.padding, 0);
        Some(bytes)
    }
}
