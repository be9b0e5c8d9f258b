//! Tests of the messages by which one process asks another to serve an XRC SRQ on behalf of a QP
//! whose peer is on another host. A message must be served once, and give no more access than the
//! QP's peer has.

use super::xrc_order::End;
use super::*;
use crate::engine::datagram::OutgoingDatagram;
use crate::engine::host_qp::{FRAME_KINDS, receive_srq_request};
use crate::host::xrc_messages::SrqRequest;
use ferroverbs_roce::engine::ResponderRequest;
use ferroverbs_roce::wire::{Number, Reth, Tail};
use soft_local::shm::slot::{BODY_WORDS, Op, halves};

/// The process that has the receiving QP, and the process that has the SRQ.
struct Both {
    home: End,
    other: End,
}

impl Both {
    fn new() -> Self {
        let [of_home, of_other] = adapters();
        let domain = of_home.xrc.open_domain(&of_home, None, true, false).expect("a domain");
        let (home, other) = (End::new(&of_home, domain), End::new(&of_other, domain));
        let pair = Self { home, other };
        pair.connect();
        pair
    }

    /// Connects the QP as for a peer on another host.
    fn connect(&self) {
        let attr = ibv_qp_attr { port_num: 1, qp_access_flags: ALL, ..Zeroed::zeroed() };
        let given = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.home.recv.modify(IBV_QPS_INIT, given, attr);
        self.home.recv.qp.set_connected(0);
    }

    fn generation(&self) -> u16 {
        self.home.recv.qp.generation()
    }

    fn question(&self, number: u64, ask: ResponderRequest) -> SrqRequest {
        let (of, srqn) = (self.home.recv.qp.qpn(), self.other.srq.number);
        SrqRequest { number, receiver_qpn: of, generation: self.generation(), srqn, operation: ask }
    }

    /// Sends the question as the process in `slot`.
    fn ask(&self, slot: u16, question: SrqRequest) -> bool {
        let adapter = self.other.recv.qp.adapter();
        let asked = receive_srq_request(adapter, slot, question, &[7; 64], ServedBy::Application);
        looked(adapter);
        asked
    }

    fn home_slot(&self) -> u16 {
        self.home.recv.qp.adapter().fabric.slot()
    }

    fn post(&self, id: u64) {
        self.other.srq.post(id, &[self.other.recv.sge(0, 64)]).expect("room");
        self.other.srq.receives_posted();
    }

    fn polled(&self) -> Option<Cqe> {
        self.other.recv.cq.pop_stamped().map(|(cqe, _)| cqe)
    }
}

fn piece(first: bool, last: bool) -> ResponderRequest {
    ResponderRequest::Deliver {
        srq: Some(Number::new(0)),
        offset: if first { 0 } else { 8 },
        payload: 0..8,
        first,
        last: last.then_some(Tail::Plain),
        solicited: false,
    }
}

#[test]
fn a_repeated_question_is_served_once() {
    let pair = Both::new();
    let slot = pair.home_slot();
    pair.post(1);
    pair.post(2);
    pair.post(3);
    // Copies of a question may wait for a stand-in while the next question arrives.
    for number in [10, 10, 10, 11, 11, 10] {
        assert!(pair.ask(slot, pair.question(number, piece(true, true))));
    }
    for id in [1, 2] {
        let cqe = pair.polled().expect("received");
        let got = (cqe.wr_id, cqe.status, cqe.byte_len, cqe.qp_num);
        assert_eq!(got, (id, IBV_WC_SUCCESS, 8, pair.home.recv.qp.qpn()));
    }
    assert!(pair.polled().is_none());
    // A new connection starts without a history, even if its questions have the same numbers.
    pair.home.recv.qp.reset();
    pair.connect();
    assert!(pair.ask(slot, pair.question(10, piece(true, true))));
    assert_eq!(pair.polled().map(|cqe| cqe.wr_id), Some(3));
}

#[test]
fn an_unfinished_message_returns_its_receive() {
    let pair = Both::new();
    pair.post(1);
    assert!(pair.ask(pair.home_slot(), pair.question(1, piece(true, false))));
    assert!(!pair.other.srq.has_receive(), "it was taken");
    // The reset wakes the process of the SRQ.
    pair.home.recv.qp.reset();
    until("the receive is back", || pair.other.srq.has_receive());
    until("the stand-in is gone", || {
        pair.other.recv.qp.adapter().xrc.remote_stand_in(pair.home.recv.qp.qpn()).is_none()
    });
    pair.connect();
    assert!(pair.ask(pair.home_slot(), pair.question(2, piece(true, true))));
    assert_eq!(pair.polled().map(|cqe| (cqe.wr_id, cqe.byte_len)), Some((1, 8)));
}

#[test]
fn a_message_without_a_first_part_or_without_the_right_moves_nothing() {
    let mut pair = Both::new();
    pair.other.recv.memory.fill(0x55);
    pair.post(1);
    let slot = pair.home_slot();
    let keys = pair.other.recv.keys;
    let va = pair.other.recv.memory.as_ptr() as u64;
    let place = |rkey, va, len, first| ResponderRequest::Write {
        srq: Some(Number::new(0)),
        region: Reth { va, rkey, len },
        offset: if first { 0 } else { 1 },
        payload: 0..8,
        first,
        last: Some(None),
        solicited: false,
    };
    let asks = [
        piece(false, true),
        place(keys.rkey ^ 0x100, va, 8, true),
        place(keys.rkey, va + 60, 8, true),
        place(keys.rkey, va + 56, 8, false),
        place(keys.rkey, va, u32::MAX, true),
    ];
    for (number, ask) in (1..).zip(asks) {
        assert!(pair.ask(slot, pair.question(number, ask)));
    }
    assert!(pair.other.recv.memory.iter().all(|byte| *byte == 0x55));
    assert!(pair.polled().is_none() && pair.other.srq.has_receive());
    assert!(pair.ask(slot, pair.question(9, place(keys.rkey, va, 8, true))));
    assert_eq!(pair.other.recv.memory[..9], [7, 7, 7, 7, 7, 7, 7, 7, 0x55], "what is allowed");
}

#[test]
fn a_question_with_a_false_sender_or_without_a_connection_is_refused() {
    let pair = Both::new();
    let slot = pair.home_slot();
    pair.post(1);
    let question = || pair.question(1, piece(true, true));
    let own = pair.other.recv.qp.adapter().fabric.slot();
    for forger in [own, 99] {
        assert!(!pair.ask(forger, question()), "{forger} has no such queue pair");
    }
    let ours = SrqRequest { receiver_qpn: pair.other.recv.qp.qpn(), ..question() };
    assert!(!pair.ask(own, ours), "our own");
    let generation = pair.generation().wrapping_sub(1);
    let stale = SrqRequest { generation, ..question() };
    let sender = SrqRequest { receiver_qpn: pair.home.send.qp.qpn(), ..question() };
    let nothing = SrqRequest { receiver_qpn: soft_local::shm::layout::qpn(slot, 77), ..question() };
    let nowhere = SrqRequest { srqn: pair.other.srq.number + 5, ..question() };
    for question in [stale, sender, nothing, nowhere] {
        pair.ask(slot, question);
    }
    assert!(pair.polled().is_none() && pair.other.srq.has_receive());
    pair.home.recv.qp.fail();
    pair.ask(slot, question());
    assert!(pair.polled().is_none() && pair.other.srq.has_receive(), "it is in error");
}

#[test]
fn questions_that_wait_for_a_stand_in_are_limited() {
    let pair = Both::new();
    let adapter = pair.other.recv.qp.adapter();
    // The service thread may serve the questions at the same time, so the test repeats them.
    let lost = (0..1_000_000).any(|number| {
        let question = SrqRequest {
            receiver_qpn: pair.home.send.qp.qpn(),
            ..pair.question(number, piece(true, true))
        };
        !receive_srq_request(adapter, pair.home_slot(), question, &[0; 64], ServedBy::Application)
    });
    assert!(lost);
}

#[test]
fn malformed_frames_are_dropped_and_counted() {
    let pair = Both::new();
    let (from, to) = (pair.home.recv.qp.adapter(), pair.other.recv.qp.adapter());
    let outlet = from.datagrams.outlet(from, to.fabric.slot()).expect("it is there");
    let mut word = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    };
    let mut put = 0;
    pair.post(1);
    while put < 20_000 {
        let mut frame = [0u8; 256];
        frame.fill_with(|| random() as u8);
        frame[35] = FRAME_KINDS[random() as usize % FRAME_KINDS.len()];
        if random() % 2 == 0 {
            // These fields name objects that exist.
            frame[44..48].copy_from_slice(&pair.home.recv.qp.qpn().to_ne_bytes());
            frame[48..52].copy_from_slice(&pair.other.srq.number.to_ne_bytes());
            frame[52..54].copy_from_slice(&pair.generation().to_ne_bytes());
            // The frame is neither the first part of a SEND nor has it immediate data. Both take a
            // receive, and would be as valid as any.
            frame[54] = [0, 2, 3, 4, 5, 6, 7, 8, 255][random() as usize % 9];
            frame[55] &= !8;
        }
        let mut body = [0; BODY_WORDS];
        body[0] = halves((random() % 300) as u32, 0);
        let (op, src_qpn) = (Op::Packet, soft_local::shm::layout::qpn(from.fabric.slot(), 0));
        let datagram = OutgoingDatagram {
            op,
            flags: 0,
            imm: 0,
            src_qpn,
            target_index: None,
            body,
            inline: None,
        };
        outlet.put_datagram(from, &datagram, |chunk| chunk.copy_from(&frame));
        outlet.publish();
        to.datagrams.serve_woken(to);
        put += 1;
    }
    looked(to);
    assert!(to.datagrams.dropped.load(Ordering::Relaxed) > 1000, "most of it");
    assert!(pair.polled().is_none() && pair.other.srq.has_receive());
    assert!(pair.ask(pair.home_slot(), pair.question(u64::MAX, piece(true, true))));
    assert_eq!(pair.polled().map(|cqe| cqe.status), Some(IBV_WC_SUCCESS), "and it goes on");
}
