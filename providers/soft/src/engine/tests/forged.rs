//! What others can write into our rings, and what it must not lead to.

use super::answers::End;
use super::*;
use soft_local::shm::slot::{Carrier, FIRST, Head, LAST, Op, halves};
use soft_local::shm::trust::Claim;

/// Puts what a forger wrote into the ring of `to`, where the next piece of `from` would be.
fn forge(from: &Side, to: &Side, op: Op, carrier: Carrier, count: u8, body: &[u64]) {
    forge_piece(from, to, op, FIRST | LAST, (carrier, count), body);
}

/// As `forge`, a part of a message.
fn forge_piece(
    from: &Side,
    to: &Side,
    op: Op,
    flags: u8,
    (carrier, count): (Carrier, u8),
    body: &[u64],
) {
    let ring = to.qp.adapter.view.qp_ring(to.qp.index).expect("mapped");
    let seq = to.qp.responder.lock().position();
    let head = Head { seq, op, flags, carrier, count, imm: 0, src_qpn: from.qp.qpn, ack: 0 };
    ring.put(&head, body);
    to.cq.sweep(ServedBy::Application);
}

/// Two QPs of one process, of which the first has sent to the second.
fn acquainted(kind: Kind, bytes: usize) -> (Side, Side) {
    let (mut a, b) = pair(kind, true, bytes);
    fill(&mut a, 1);
    b.receive(1, &[b.sge(0, bytes)]);
    a.send(request(IBV_WR_SEND, &b), &[a.sge(0, bytes)]);
    assert_eq!(b.wait(&a).status, IBV_WC_SUCCESS);
    assert!(a.memory == b.memory, "an offer that is none of a forger's");
    assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
    (a, b)
}

#[test]
fn an_offer_of_our_own_memory_that_nobody_of_us_made_moves_nothing() {
    const LEN: usize = 20_000;
    let secret = vec![0x5a_u8; LEN];
    let addresses = [secret.as_ptr() as u64, 8];
    for (kind, address) in [Kind::Rc, Kind::Uc].into_iter().flat_map(|k| addresses.map(|a| (k, a)))
    {
        for listed in [false, true] {
            let (a, mut b) = acquainted(kind, LEN);
            b.memory.fill(0);
            b.receive(2, &[b.sge(0, LEN)]);
            if listed {
                let chunk = b.qp.adapter.chunks.take().expect("room");
                let base = b.qp.adapter.view.chunk(chunk).expect("there");
                // SAFETY: a chunk of ours.
                unsafe { base.base().cast::<[u64; 2]>().write([address, LEN as u64]) };
                let body = [halves(chunk, 1), LEN as u64];
                forge(&a, &b, Op::Send, Carrier::AttachList, 0, &body);
            } else {
                let body = [address, 0, 0, halves(LEN as u32, 0), halves(0, LEN as u32)];
                forge(&a, &b, Op::Send, Carrier::Attach, 1, &body);
            }
            assert!(b.memory.iter().all(|byte| *byte == 0), "{kind:?}, listed: {listed}");
            let got = b.poll().map(|cqe| cqe.status);
            let wanted = (kind == Kind::Rc).then_some(IBV_WC_WR_FLUSH_ERR);
            assert_eq!(got, wanted, "{kind:?}, listed: {listed}");
        }
    }
}

#[test]
fn what_exceeds_its_region_is_refused_whole_on_both_paths() {
    const LEN: usize = 100_000;
    for cma in [true, false] {
        for opcode in [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
            let (mut a, mut b) = pair(Kind::Rc, cma, LEN);
            fill(&mut a, 1);
            fill(&mut b, 2);
            let before = [a.memory.clone(), b.memory.clone()];
            let at = b.memory[1..].as_ptr() as u64;
            let beyond = request_at(opcode, &b, at);
            a.send(beyond, &[a.sge(0, LEN)]);
            assert_eq!(a.wait(&b).status, IBV_WC_REM_ACCESS_ERR, "{opcode}, {cma}");
            assert!([&a.memory, &b.memory] == before.each_ref(), "{opcode}, {cma}: in part");
        }
    }
}

#[test]
fn an_offer_whose_lengths_overflow_is_refused() {
    let [of_a, of_b] = adapters();
    let (a, b) = (Side::new(&of_a, Kind::Rc, 64), Side::new(&of_b, Kind::Rc, 64));
    a.connect(b.qp.qpn, 7);
    b.connect(a.qp.qpn, 7);
    b.receive(1, &[b.sge(0, 64)]);
    a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 64)]);
    assert_eq!(b.wait(&a).status, IBV_WC_SUCCESS);
    b.receive(2, &[b.sge(0, 64)]);
    let chunk = of_a.chunks.take().expect("room");
    let base = of_a.view.chunk(chunk).expect("there");
    // They add up to 64, if nobody looks.
    let list = [[0x1000u64, u64::MAX], [0x1000, 65]];
    // SAFETY: a chunk of ours.
    unsafe { base.base().cast::<[[u64; 2]; 2]>().write(list) };
    forge(&a, &b, Op::Send, Carrier::AttachList, 0, &[halves(chunk, 2), 64]);
    assert_eq!(b.poll().map(|cqe| cqe.status), Some(IBV_WC_WR_FLUSH_ERR));
}

#[test]
fn a_message_is_no_longer_than_it_said_whatever_later_pieces_offer() {
    const LEN: usize = 64;
    for listed in [false, true] {
        let [of_a, of_b] = adapters();
        let (a, b) = (Side::new(&of_a, Kind::Rc, LEN), Side::new(&of_b, Kind::Rc, LEN));
        a.connect(b.qp.qpn, 7);
        b.connect(a.qp.qpn, 7);
        b.receive(1, &[b.sge(0, LEN)]);
        a.send(request(IBV_WR_SEND, &b), &[a.sge(0, LEN)]);
        assert_eq!(b.wait(&a).status, IBV_WC_SUCCESS);
        b.receive(2, &[b.sge(0, LEN)]);
        let chunk = of_a.chunks.take().expect("room");
        let address = a.memory.as_ptr() as u64;
        // Eight bytes of 64, and then all 64 again.
        let part = [halves(chunk, 8), LEN as u64];
        forge_piece(&a, &b, Op::Send, FIRST, (Carrier::Chunk, 0), &part);
        if listed {
            let base = of_a.view.chunk(chunk).expect("there");
            // SAFETY: a chunk of ours.
            unsafe { base.base().cast::<[u64; 2]>().write([address, LEN as u64]) };
            let body = [halves(chunk, 1), LEN as u64];
            forge_piece(&a, &b, Op::Send, LAST, (Carrier::AttachList, 0), &body);
        } else {
            let body = [address, 0, 0, halves(LEN as u32, 0), halves(0, LEN as u32)];
            forge_piece(&a, &b, Op::Send, LAST, (Carrier::Attach, 1), &body);
        }
        let got = b.poll().map(|cqe| (cqe.status, cqe.byte_len));
        assert_eq!(got, Some((IBV_WC_WR_FLUSH_ERR, 0)), "listed: {listed}");
    }
}

#[test]
fn a_shared_queue_with_nothing_but_what_was_given_back_has_a_receive() {
    let adapter = adapter(true);
    let wanted = WantedSrq {
        pd: adapter.domains.create(0).expect("room").0,
        max_wr: 1,
        max_sge: 1,
        domain: None,
        cq: None,
        tags: None,
        report: Reporter(Arc::new(Channel::new(2).expect("a channel"))),
    };
    let srq = Srq::new(&adapter, wanted).expect("a number");
    assert!(!srq.has_receive());
    srq.post(1, &[]).expect("room");
    let mut taken = crate::engine::receive::Receive::default();
    assert!(srq.take(&mut taken) && !srq.has_receive());
    srq.give_back(&taken);
    assert!(srq.has_receive());
    srq.retire();
}

/// What somebody wrote into the ring of `to` for datagrams of process `slot`. What comes of it is done once the service thread has
/// `looked`: a second thread that worked at it would see some of it undone.
fn tell(to: &Arc<Adapter>, slot: u16, op: Op, about: u32, word: u64) -> bool {
    let head = Head {
        seq: 0,
        op,
        flags: FIRST | LAST,
        carrier: Carrier::Inline,
        count: 8,
        imm: 0,
        src_qpn: about,
        ack: 0,
    };
    to.xrc.hear(to, slot, &head, Claim::new(word))
}

#[test]
fn an_xrc_qp_fails_by_no_word_that_tables_do_not_confirm() {
    let [home, other] = adapters();
    let domain = home.xrc.open_domain(&home, None, true, false).expect("a domain");
    let (receiver, sender) = (End::new(&home, domain), End::new(&other, domain));
    receiver.connect(&sender);
    sender.connect(&receiver);
    let qp = &receiver.recv.qp;
    let events = || qp.events.sent();
    let slot = other.fabric.slot();
    let forger = Side::new(&other, Kind::Rc, 64);
    let names = [qp.qpn, sender.send.qp.qpn, forger.qp.qpn, soft_local::shm::layout::qpn(slot, 7)];
    for event in (0..40).chain([u32::MAX]) {
        for by in names {
            for from in [slot, home.fabric.slot(), 99] {
                tell(&home, from, Op::XrcBroke, by, halves(qp.qpn, event));
            }
        }
    }
    looked(&home);
    assert_eq!((events(), qp.state()), (0, crate::engine::state::State::Rts));
    // Who stands for it, and is in error, is believed.
    let stand_in = End::new(&other, domain);
    stand_in.recv.connect(sender.send.qp.qpn, 7);
    let entry = stand_in.recv.qp.entry();
    entry.stands_for.store(qp.qpn, Ordering::Relaxed);
    let word = halves(qp.qpn, IBV_EVENT_QP_ACCESS_ERR);
    tell(&home, slot, Op::XrcBroke, stand_in.recv.qp.qpn, word);
    looked(&home);
    assert_eq!(events(), 0, "it is well");
    stand_in.recv.qp.fail();
    tell(&home, slot, Op::XrcBroke, stand_in.recv.qp.qpn, halves(qp.qpn, IBV_EVENT_CQ_ERR));
    looked(&home);
    assert_eq!(events(), 0, "no event of a QP");
    tell(&home, slot, Op::XrcBroke, stand_in.recv.qp.qpn, word);
    looked(&home);
    assert_eq!(qp.state(), crate::engine::state::State::Err);
    assert_eq!(events(), 2, "the refusal, and that nothing more comes");
}

#[test]
fn answers_to_what_nobody_asked_are_not_kept() {
    let adapter = adapter(true);
    let a = Side::new(&adapter, Kind::XrcSend, 64);
    let slot = 99;
    let number = soft_local::shm::layout::qpn(slot, 5);
    let answer = |by| tell(&adapter, slot, Op::XrcAnswer, 0, halves(number, by));
    for by in 0..1000 {
        assert!(!answer(by));
    }
    adapter.xrc.ask(&adapter, slot, number, a.qp.qpn);
    assert!(answer(a.qp.qpn) && answer(a.qp.qpn) && !answer(a.qp.qpn + 1));
    a.qp.reset();
    assert!(!answer(a.qp.qpn), "who begins anew waits for nothing");
}

#[test]
fn what_others_ask_for_is_not_kept_without_end() {
    let adapter = adapter(true);
    let slot = 99;
    let by = soft_local::shm::layout::qpn(slot, 5);
    let head = Head {
        seq: 0,
        op: Op::XrcAsk,
        flags: FIRST | LAST,
        carrier: Carrier::Inline,
        count: 8,
        imm: 0,
        src_qpn: by,
        ack: 0,
    };
    // The service thread may be at it.
    assert!((0..2_000_000).any(|of| !adapter.xrc.hear(&adapter, slot, &head, Claim::new(of))));
}

#[test]
fn a_datagram_in_the_name_of_another_processs_queue_pair_is_dropped() {
    let [adapter, member] = adapters();
    let side = Side::new(&adapter, Kind::Ud, 4096);
    side.connect(0, 0);
    side.receive(1, &[side.sge(0, 100)]);
    side.receive(2, &[side.sge(100, 100)]);
    member.datagrams.meet_everyone(&member).expect("nothing is lacking");
    let slot = adapter.fabric.slot();
    let say = |src_qpn| {
        let word = halves(side.qp.qpn, QKEY);
        member.datagrams.tell(&member, slot, Op::Datagram, src_qpn, word);
        adapter.datagrams.attend(&adapter);
    };
    let own = soft_local::shm::layout::qpn(member.fabric.slot(), 3);
    say(side.qp.qpn);
    say(own);
    let got = side.poll().expect("the second one");
    assert_eq!((got.wr_id, got.src_qp), (1, own));
    assert!(side.poll().is_none());
    assert_eq!(adapter.datagrams.dropped.load(Ordering::Relaxed), 1);
}
