//! Tests of progress on CQs that no thread polls. The service thread has to do the work of such a
//! CQ, even while a thread polls another one.

use super::xrc_order::End;
use super::*;
use soft_semantics::receive::Receive;
use soft_semantics::windows::Bind;

/// As `Side::wait` without a poll: the service thread has to make progress.
fn left_alone(side: &Side) -> Option<u32> {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        if let Some((cqe, _)) = side.cq.pop_stamped() {
            return Some(cqe.status);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// Waits until a message found no receive.
fn found_no_receive(side: &Side) {
    until("a message", || side.qp.responder().lock().rnr_since.is_some());
}

fn binding(bind: Bind) -> Request {
    let operation = RequestOperation::Bind(bind);
    Request { wr_id: 1, opcode: IBV_WR_BIND_MW, operation, ..Request::default() }
}

fn invalidation(rkey: u32) -> Request {
    let operation = RequestOperation::Invalidate { rkey };
    Request { wr_id: 9, opcode: IBV_WR_LOCAL_INV, operation, ..Request::default() }
}

#[test]
fn a_send_within_the_process_completes_after_few_polls_despite_many_unpolled_cqs() {
    const MESSAGES: u64 = 100;
    let adapter = adapter(true);
    let (a, b) = (Side::new(&adapter, QpType::Rc, 64), Side::new(&adapter, QpType::Rc, 64));
    a.connect(b.qp.qpn(), 7);
    b.connect(a.qp.qpn(), 7);
    let _others: Vec<Side> = (0..200).map(|_| Side::new(&adapter, QpType::Rc, 64)).collect();
    while !adapter.attention.is_down() {
        a.poll();
    }
    let slow = (0..MESSAGES).filter(|n| {
        b.receive(*n, &[b.sge(0, 8)]);
        a.send(request(IBV_WR_SEND, &b), &[a.sge(8, 8)]);
        let (polls, sent) = (1..).find_map(|polls| Some((polls, a.poll()?))).expect("in the end");
        assert_eq!(sent.status, IBV_WC_SUCCESS);
        assert_eq!(b.cq.pop_stamped().map(|(cqe, _)| cqe.wr_id), Some(*n));
        polls > 64
    });
    // The service thread sometimes holds the list, for as long as the scheduler lets other threads
    // run on its processor.
    let slow = slow.count();
    assert!(slow < 10, "{slow} of {MESSAGES} took long");
}

#[test]
fn requests_that_wait_for_operations_in_flight_go_on_without_polls() {
    let adapter = adapter(true);
    let (a, b) = (Side::new(&adapter, QpType::Rc, 64), Side::new(&adapter, QpType::Rc, 64));
    a.connect(b.qp.qpn(), 7);
    b.connect(a.qp.qpn(), 7);
    let va = b.memory.as_ptr() as u64;
    let access = ALL | IBV_ACCESS_MW_BIND;
    let region = Extent { pd: b.qp.pd(), va, iova: va, len: 64, access };
    let region = adapter.regions.register(&region).expect("room").rkey;
    let own = adapter.fabric.slot();
    for remotely in [false, true] {
        let (_, first) = adapter.windows.allocate(b.qp.pd(), true).expect("room");
        let rkey = counted(first);
        let bind = Bind { rkey, region, addr: va, len: 64, access: REMOTE_WRITE };
        b.send(binding(bind), &[]);
        assert_eq!(left_alone(&b), Some(IBV_WC_SUCCESS), "the bind");
        let in_flight = adapter.in_flight.announce(own, rkey);
        if remotely {
            b.receive(2, &[b.sge(0, 8)]);
            a.send(Request { imm: rkey, ..request(IBV_WR_SEND_WITH_INV, &b) }, &[a.sge(0, 8)]);
        } else {
            b.send(invalidation(rkey), &[]);
        }
        looked(&adapter);
        assert_eq!(b.cq.pop_stamped().map(|(cqe, _)| cqe.status), None, "{remotely}: too early");
        drop(in_flight);
        assert_eq!(left_alone(&b), Some(IBV_WC_SUCCESS), "{remotely}");
        if remotely {
            // The sender's process makes progress when it polls, because it has requested no event.
            assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS, "its sender");
        }
    }
}

/// The key that the user of a window gets by ibv_inc_rkey(3).
fn counted(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}

#[test]
fn window_operations_wait_for_local_transfers_and_not_for_the_peer() {
    let adapter = adapter(true);
    let nobody = soft_local::shm::layout::qpn(1000, 1);
    for kind in [QpType::Rc, QpType::Uc] {
        let a = Side::new(&adapter, kind, 64);
        a.connect(nobody, 7);
        let va = a.memory.as_ptr() as u64;
        let access = ALL | IBV_ACCESS_MW_BIND;
        let region = Extent { pd: a.qp.pd(), va, iova: va, len: 64, access };
        let region = adapter.regions.register(&region).expect("room").rkey;
        let (_, first) = adapter.windows.allocate(a.qp.pd(), true).expect("room");
        let rkey = counted(first);
        let bind = Bind { rkey, region, addr: va, len: 64, access: REMOTE_WRITE };
        a.send(binding(bind), &[]);
        assert_eq!(left_alone(&a), Some(IBV_WC_SUCCESS), "{kind:?}: the bind");
        let in_flight = adapter.in_flight.announce(adapter.fabric.slot(), rkey);
        a.send(invalidation(rkey), &[]);
        // No event marks that a request does not complete. The test sleeps for longer than any wait
        // for the peer.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(a.cq.pop_stamped().map(|(cqe, _)| cqe.status), None, "{kind:?}: too early");
        drop(in_flight);
        assert_eq!(left_alone(&a), Some(IBV_WC_SUCCESS), "{kind:?}: its key is taken back");
    }
}

#[test]
fn a_ring_of_an_unpolled_cq_makes_progress_while_another_cq_is_polled() {
    let adapter = adapter(false);
    let (a, b) =
        (Side::new(&adapter, QpType::Rc, 300_001), Side::new(&adapter, QpType::Rc, 300_001));
    let other = Side::new(&adapter, QpType::Rc, 64);
    a.connect(b.qp.qpn(), 7);
    b.connect(a.qp.qpn(), 7);
    for opcode in [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
        // The CQ becomes hot, and its peers send no wake-ups, because attention is down.
        for _ in 0..1000 {
            other.cq.poll(1, |_, _| {});
        }
        a.send(request(opcode, &b), &[a.sge(0, 300_001)]);
        let end = Instant::now() + Duration::from_secs(20);
        let mut got = None;
        while got.is_none() && Instant::now() < end {
            other.cq.poll(1, |_, _| {});
            got = a.poll();
        }
        assert_eq!(got.map(|cqe| cqe.status), Some(IBV_WC_SUCCESS), "{opcode}");
    }
}

/// Yields the processor to the service thread, which may hold the queue, and polls.
fn yield_and_poll(side: &Side) -> Option<Cqe> {
    std::thread::yield_now();
    side.poll()
}

#[test]
fn a_thread_that_moves_on_to_another_cq_sends_its_delayed_acknowledgements() {
    let adapter = adapter(false);
    let (a, b) = (Side::new(&adapter, QpType::Rc, 64), Side::new(&adapter, QpType::Rc, 64));
    let other = Side::new(&adapter, QpType::Rc, 64);
    a.connect(b.qp.qpn(), 7);
    b.connect(a.qp.qpn(), 7);
    for round in 0..100 {
        b.receive(round, &[b.sge(0, 64)]);
        // A peer that replied once is expected to reply again, so the acknowledgement waits for the
        // next reply.
        a.receive(round, &[a.sge(0, 64)]);
        a.send(request(IBV_WR_SEND, &a), &[a.sge(0, 8)]);
        assert_eq!(b.wait(&a).status, IBV_WC_SUCCESS, "{round}");
        b.receive(round, &[b.sge(0, 64)]);
        b.send(request(IBV_WR_SEND, &b), &[b.sge(0, 8)]);
        for _ in 0..2 {
            assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS, "{round}");
        }
        assert_eq!(b.wait(&a).status, IBV_WC_SUCCESS, "{round}");
        // Attention is down while a thread polls. The test polls for so long that no
        // acknowledgement of earlier rounds is left.
        for _ in 0..100 {
            other.cq.poll(1, |_, _| {});
        }
        a.send(request(IBV_WR_SEND, &a), &[a.sge(0, 8)]);
        // The test polls more than once, since the service thread may hold the queue. It polls less
        // often than it takes for the sender to ask for an acknowledgement.
        let soon = |side| (0..500).find_map(|_| yield_and_poll(side)).map(|cqe| cqe.status);
        assert_eq!(soon(&b), Some(IBV_WC_SUCCESS), "{round}");
        for _ in 0..16 {
            other.cq.poll(1, |_, _| {});
        }
        assert_eq!(soon(&a), Some(IBV_WC_SUCCESS), "{round}");
    }
}

#[test]
fn the_last_message_is_acknowledged_without_another_poll() {
    let [of_a, of_b] = two_adapters("last");
    let (a, b) = (Side::new(&of_a, QpType::Rc, 64), Side::new(&of_b, QpType::Rc, 64));
    a.connect(b.qp.qpn(), 7);
    b.connect(a.qp.qpn(), 7);
    // Attention is down, so no sender wakes a thread.
    for _ in 0..200 {
        b.cq.poll(1, |_, _| {});
    }
    for count in 1..40 {
        for n in 0..count {
            b.receive(n, &[b.sge(0, 64)]);
            a.send(request(IBV_WR_SEND, &a), &[a.sge(0, 8)]);
        }
        for n in 0..count {
            assert_eq!((0..500).find_map(|_| yield_and_poll(&b)).map(|cqe| cqe.wr_id), Some(n));
        }
        for _ in 0..count {
            let sent = (0..500).find_map(|_| yield_and_poll(&a)).map(|cqe| cqe.status);
            assert_eq!(sent, Some(IBV_WC_SUCCESS), "{count}");
        }
    }
}

#[test]
fn many_unpolled_cqs_all_make_progress_while_another_one_is_polled() {
    let adapter = adapter(true);
    let others: Vec<_> = (0..1500).map(|_| Side::new(&adapter, QpType::Rc, 8).cq.clone()).collect();
    let (a, b) = (Side::new(&adapter, QpType::Rc, 64), Side::new(&adapter, QpType::Rc, 64));
    a.connect(b.qp.qpn(), 7);
    b.connect(a.qp.qpn(), 7);
    b.receive(1, &[b.sge(0, 64)]);
    for _ in 0..1000 {
        others[0].poll(1, |_, _| {});
    }
    a.send(request(IBV_WR_SEND, &a), &[a.sge(0, 8)]);
    let end = Instant::now() + Duration::from_secs(20);
    let mut got = None;
    while got.is_none() && Instant::now() < end {
        others[0].poll(1, |_, _| {});
        got = a.cq.pop_stamped();
    }
    assert_eq!(got.map(|(cqe, _)| cqe.status), Some(IBV_WC_SUCCESS));
}

/// Two adapters, as of two processes. They differ so that a wake-up of the sender does not also
/// wake the receiver.
fn two_adapters(what: &str) -> [Arc<Adapter>; 2] {
    let name = format!("ferroverbs-{what}-{}", std::process::id());
    let mut config = FabricConfig::new(std::env::temp_dir().join(name));
    config.dir_is_ours = true;
    config.cma = false;
    [(); 2].map(|()| Adapter::join(config.clone()).expect("a fabric in the temporary directory"))
}

#[test]
fn an_xrc_request_to_a_process_that_dies_fails_without_polls() {
    let [of_a, of_b] = two_adapters("bereft");
    let [a, b] = [&of_a, &of_b].map(|adapter| {
        let domain = adapter.xrc.open_domain(adapter, None, true, false).expect("a domain");
        End::new(adapter, domain)
    });
    a.connect(&b);
    b.connect(&a);
    a.send.cq.arm(false);
    a.send(&b);
    // The receiver exists and finds no receive. Then its process goes without closing anything.
    looked(&of_b);
    assert!(a.send.cq.pop_stamped().is_none());
    of_b.fabric.leave();
    assert_eq!(left_alone(&a.send), Some(IBV_WC_RETRY_EXC_ERR));
}

/// A message of more parts than one round serves waits for a receive. The receive is posted, and no
/// thread polls.
#[test]
fn a_long_message_that_waited_for_its_receive_goes_on_without_polls() {
    let [of_a, of_b] = two_adapters("unpolled");
    let (a, b) = (Side::new(&of_a, QpType::Rc, 600_000), Side::new(&of_b, QpType::Rc, 600_000));
    a.connect(b.qp.qpn(), 7);
    b.connect(a.qp.qpn(), 7);
    // A thread waits for an event of this CQ.
    a.cq.arm(false);
    a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 600_000)]);
    // The service thread finds no receive and goes to sleep.
    found_no_receive(&b);
    b.receive(1, &[b.sge(0, 600_000)]);
    assert_eq!(left_alone(&b), Some(IBV_WC_SUCCESS), "the receive");
    assert_eq!(left_alone(&a), Some(IBV_WC_SUCCESS), "the message");
}

#[test]
fn a_message_that_waits_for_a_receive_leaves_the_service_thread_asleep() {
    for rnr_retry in [7, 6] {
        let adapter = adapter(true);
        let (a, b) = (Side::new(&adapter, QpType::Rc, 64), Side::new(&adapter, QpType::Rc, 64));
        a.connect(b.qp.qpn(), rnr_retry);
        b.connect(a.qp.qpn(), rnr_retry);
        // The code 0 stands for 655 ms, so the wait does not end within the test.
        b.qp.responder().lock().min_rnr_timer = 0;
        a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 64)]);
        found_no_receive(&b);
        // No event marks that the thread sleeps. The test waits for so long that a thread which
        // spins would make many rounds.
        let before = adapter.service.rounds();
        std::thread::sleep(Duration::from_millis(200));
        let rounds = adapter.service.rounds() - before;
        assert!(rounds < 300, "{rounds} rounds, rnr_retry {rnr_retry}");
        b.receive(1, &[b.sge(0, 64)]);
        assert_eq!(left_alone(&b), Some(IBV_WC_SUCCESS), "the receive");
    }
}

#[test]
fn a_returned_receive_goes_to_a_waiting_message_without_polls() {
    let adapter = adapter(true);
    let wanted = SrqParameters {
        pd: adapter.domains.create(0).expect("room").0,
        max_wr: 8,
        max_sge: 1,
        domain: None,
        cq: None,
        tags: None,
        report: Reporter(Arc::new(Channel::new(2).expect("a channel"))),
    };
    let srq = Srq::new(&adapter, wanted).expect("a number");
    let a = Side::new(&adapter, QpType::Rc, 64);
    let b = Side::with(&adapter, QpType::Rc, 64, 0, Some(&srq));
    a.connect(b.qp.qpn(), 7);
    b.connect(a.qp.qpn(), 7);
    srq.post(3, &[b.sge(0, 64)]).expect("room");
    // A QP does this with the receive of a message that it does not finish.
    let mut taken = Receive::default();
    assert!(srq.take_receive(&mut taken));
    a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 64)]);
    found_no_receive(&b);
    assert!(b.cq.pop_stamped().is_none(), "there is no receive");
    srq.give_back(&taken);
    assert_eq!(left_alone(&b), Some(IBV_WC_SUCCESS));
    // As above: the CQ has requested no event.
    assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS, "its sender");
    drop((a, b));
    srq.retire();
}
