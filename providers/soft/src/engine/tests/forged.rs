//! Tests of forged ring entries: what a hostile peer can write into the rings of this process, and
//! what it must not cause. Each test writes an entry as no honest peer would, and lets the engine
//! read it.

use super::xrc_order::End;
use super::*;
use soft_local::shm::slot::{FIRST, Head, LAST, Op, PayloadLocation, halves};
use soft_local::shm::trust::Unchecked;

/// Writes a forged entry into the ring of `to`, in the slot of the next message of `from`.
fn forge(from: &Side, to: &Side, op: Op, carrier: PayloadLocation, count: u8, body: &[u64]) {
    forge_piece(from, to, op, FIRST | LAST, (carrier, count), body);
}

/// As `forge`, for a part of a message.
fn forge_piece(
    from: &Side,
    to: &Side,
    op: Op,
    flags: u8,
    (carrier, count): (PayloadLocation, u8),
    body: &[u64],
) {
    let ring = to.qp.adapter().view.qp_ring(to.qp.index()).expect("mapped");
    let seq = to.qp.responder().lock().position();
    let head = Head { seq, op, flags, carrier, count, imm: 0, src_qpn: from.qp.qpn(), ack: 0 };
    ring.publish_piece(&head, body);
    to.cq.sweep(ServedBy::Application);
}

/// Two QPs of one process, of which the first has sent to the second.
fn acquainted(kind: QpType, bytes: usize) -> (Side, Side) {
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
fn a_forged_offer_of_the_receivers_own_memory_moves_nothing() {
    const LEN: usize = 20_000;
    let secret = vec![0x5a_u8; LEN];
    let addresses = [secret.as_ptr() as u64, 8];
    for (kind, address) in
        [QpType::Rc, QpType::Uc].into_iter().flat_map(|k| addresses.map(|a| (k, a)))
    {
        for listed in [false, true] {
            let (a, mut b) = acquainted(kind, LEN);
            b.memory.fill(0);
            b.receive(2, &[b.sge(0, LEN)]);
            if listed {
                let chunk = b.qp.adapter().chunks.take().expect("room");
                let base = b.qp.adapter().view.chunk(chunk).expect("there");
                // SAFETY: this process owns the chunk.
                unsafe { base.base().cast::<[u64; 2]>().write([address, LEN as u64]) };
                let body = [halves(chunk, 1), LEN as u64];
                forge(&a, &b, Op::Send, PayloadLocation::AttachList, 0, &body);
            } else {
                let body = [address, 0, 0, halves(LEN as u32, 0), halves(0, LEN as u32)];
                forge(&a, &b, Op::Send, PayloadLocation::Attach, 1, &body);
            }
            assert!(b.memory.iter().all(|byte| *byte == 0), "{kind:?}, listed: {listed}");
            let got = b.poll().map(|cqe| cqe.status);
            let wanted = (kind == QpType::Rc).then_some(IBV_WC_WR_FLUSH_ERR);
            assert_eq!(got, wanted, "{kind:?}, listed: {listed}");
        }
    }
}

#[test]
fn a_range_beyond_its_region_is_refused_as_a_whole_on_both_paths() {
    const LEN: usize = 100_000;
    for cma in [true, false] {
        for opcode in [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
            let (mut a, mut b) = pair(QpType::Rc, cma, LEN);
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
    let (a, b) = (Side::new(&of_a, QpType::Rc, 64), Side::new(&of_b, QpType::Rc, 64));
    a.connect(b.qp.qpn(), 7);
    b.connect(a.qp.qpn(), 7);
    b.receive(1, &[b.sge(0, 64)]);
    a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 64)]);
    assert_eq!(b.wait(&a).status, IBV_WC_SUCCESS);
    b.receive(2, &[b.sge(0, 64)]);
    let chunk = of_a.chunks.take().expect("room");
    let base = of_a.view.chunk(chunk).expect("there");
    // The sum of the lengths overflows to 64.
    let list = [[0x1000u64, u64::MAX], [0x1000, 65]];
    // SAFETY: this process owns the chunk.
    unsafe { base.base().cast::<[[u64; 2]; 2]>().write(list) };
    forge(&a, &b, Op::Send, PayloadLocation::AttachList, 0, &[halves(chunk, 2), 64]);
    assert_eq!(b.poll().map(|cqe| cqe.status), Some(IBV_WC_WR_FLUSH_ERR));
}

#[test]
fn later_pieces_cannot_extend_a_message_beyond_its_declared_length() {
    const LEN: usize = 64;
    for listed in [false, true] {
        let [of_a, of_b] = adapters();
        let (a, b) = (Side::new(&of_a, QpType::Rc, LEN), Side::new(&of_b, QpType::Rc, LEN));
        a.connect(b.qp.qpn(), 7);
        b.connect(a.qp.qpn(), 7);
        b.receive(1, &[b.sge(0, LEN)]);
        a.send(request(IBV_WR_SEND, &b), &[a.sge(0, LEN)]);
        assert_eq!(b.wait(&a).status, IBV_WC_SUCCESS);
        b.receive(2, &[b.sge(0, LEN)]);
        let chunk = of_a.chunks.take().expect("room");
        let address = a.memory.as_ptr() as u64;
        // The first part offers 8 of 64 bytes, and the second offers all 64 again.
        let part = [halves(chunk, 8), LEN as u64];
        forge_piece(&a, &b, Op::Send, FIRST, (PayloadLocation::Chunk, 0), &part);
        if listed {
            let base = of_a.view.chunk(chunk).expect("there");
            // SAFETY: this process owns the chunk.
            unsafe { base.base().cast::<[u64; 2]>().write([address, LEN as u64]) };
            let body = [halves(chunk, 1), LEN as u64];
            forge_piece(&a, &b, Op::Send, LAST, (PayloadLocation::AttachList, 0), &body);
        } else {
            let body = [address, 0, 0, halves(LEN as u32, 0), halves(0, LEN as u32)];
            forge_piece(&a, &b, Op::Send, LAST, (PayloadLocation::Attach, 1), &body);
        }
        let got = b.poll().map(|cqe| (cqe.status, cqe.byte_len));
        assert_eq!(got, Some((IBV_WC_WR_FLUSH_ERR, 0)), "listed: {listed}");
    }
}

#[test]
fn an_srq_that_holds_only_returned_receives_has_a_receive() {
    let adapter = adapter(true);
    let wanted = SrqParameters {
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
    let mut taken = soft_semantics::receive::Receive::default();
    assert!(srq.take_receive(&mut taken) && !srq.has_receive());
    srq.give_back(&taken);
    assert!(srq.has_receive());
    srq.retire();
}

/// Writes an entry about the process in `slot` into the datagram ring of `to`. Its effects are
/// complete after `looked`. The test does not serve the ring itself, because two threads that serve
/// one entry could each see half of its effects.
fn tell(to: &Arc<Adapter>, slot: u16, op: Op, about: u32, word: u64) -> bool {
    let head = Head {
        seq: 0,
        op,
        flags: FIRST | LAST,
        carrier: PayloadLocation::Inline,
        count: 8,
        imm: 0,
        src_qpn: about,
        ack: 0,
    };
    to.xrc.receive_message(to, slot, &head, Unchecked::new(word))
}

#[test]
fn a_message_that_the_tables_do_not_confirm_does_not_fail_an_xrc_qp() {
    let [home, other] = adapters();
    let domain = home.xrc.open_domain(&home, None, true, false).expect("a domain");
    let (receiver, sender) = (End::new(&home, domain), End::new(&other, domain));
    receiver.connect(&sender);
    sender.connect(&receiver);
    let qp = &receiver.recv.qp;
    let events = || qp.reports().events.sent_count();
    let slot = other.fabric.slot();
    let forger = Side::new(&other, QpType::Rc, 64);
    let names =
        [qp.qpn(), sender.send.qp.qpn(), forger.qp.qpn(), soft_local::shm::layout::qpn(slot, 7)];
    for event in (0..40).chain([u32::MAX]) {
        for by in names {
            for from in [slot, home.fabric.slot(), 99] {
                tell(&home, from, Op::XrcBroke, by, halves(qp.qpn(), event));
            }
        }
    }
    looked(&home);
    assert_eq!((events(), qp.state()), (0, soft_semantics::state::QpState::Rts));
    // A word from the process that has the stand-in QP is accepted: the tables confirm it.
    let stand_in = End::new(&other, domain);
    stand_in.recv.connect(sender.send.qp.qpn(), 7);
    let entry = stand_in.recv.qp.entry();
    entry.stands_for.store(qp.qpn(), Ordering::Relaxed);
    let word = halves(qp.qpn(), IBV_EVENT_QP_ACCESS_ERR);
    tell(&home, slot, Op::XrcBroke, stand_in.recv.qp.qpn(), word);
    looked(&home);
    assert_eq!(events(), 0, "it is well");
    stand_in.recv.qp.fail();
    tell(&home, slot, Op::XrcBroke, stand_in.recv.qp.qpn(), halves(qp.qpn(), IBV_EVENT_CQ_ERR));
    looked(&home);
    assert_eq!(events(), 0, "no event of a QP");
    tell(&home, slot, Op::XrcBroke, stand_in.recv.qp.qpn(), word);
    looked(&home);
    assert_eq!(qp.state(), soft_semantics::state::QpState::Err);
    assert_eq!(events(), 2, "the refusal, and that nothing more comes");
}

#[test]
fn unrequested_replies_are_not_kept() {
    let adapter = adapter(true);
    let a = Side::new(&adapter, QpType::XrcSend, 64);
    let slot = 99;
    let number = soft_local::shm::layout::qpn(slot, 5);
    let answer = |by| tell(&adapter, slot, Op::XrcAnswer, 0, halves(number, by));
    for by in 0..1000 {
        assert!(!answer(by));
    }
    adapter.xrc.ask_for_stand_in(&adapter, slot, number, a.qp.qpn());
    assert!(answer(a.qp.qpn()) && answer(a.qp.qpn()) && !answer(a.qp.qpn() + 1));
    a.qp.reset();
    assert!(!answer(a.qp.qpn()), "who begins anew waits for nothing");
}

#[test]
fn pending_requests_of_peer_processes_are_limited() {
    let adapter = adapter(true);
    let slot = 99;
    let by = soft_local::shm::layout::qpn(slot, 5);
    let head = Head {
        seq: 0,
        op: Op::XrcAsk,
        flags: FIRST | LAST,
        carrier: PayloadLocation::Inline,
        count: 8,
        imm: 0,
        src_qpn: by,
        ack: 0,
    };
    // The service thread may serve the ring at the same time, so the test repeats the message.
    assert!((0..2_000_000).any(|of| !adapter.xrc.receive_message(
        &adapter,
        slot,
        &head,
        Unchecked::new(of)
    )));
}

#[test]
fn a_datagram_that_names_the_qp_of_a_third_process_is_dropped() {
    let [adapter, member] = adapters();
    let side = Side::new(&adapter, QpType::Ud, 4096);
    side.connect(0, 0);
    side.receive(1, &[side.sge(0, 100)]);
    side.receive(2, &[side.sge(100, 100)]);
    member.datagrams.meet_all_processes(&member).expect("nothing is lacking");
    let slot = adapter.fabric.slot();
    let say = |src_qpn| {
        let word = halves(side.qp.qpn(), QKEY);
        member.datagrams.send_message(&member, slot, Op::Datagram, src_qpn, word);
        adapter.datagrams.serve_woken(&adapter);
    };
    let own = soft_local::shm::layout::qpn(member.fabric.slot(), 3);
    say(side.qp.qpn());
    say(own);
    let got = side.poll().expect("the second one");
    assert_eq!((got.wr_id, got.src_qp), (1, own));
    assert!(side.poll().is_none());
    assert_eq!(adapter.datagrams.dropped.load(Ordering::Relaxed), 1);
}
