//! What gets on though nobody polls the queue that it belongs to.

use super::answers::End;
use super::*;
use crate::engine::receive::Receive;
use crate::engine::windows::Bind;

/// As `Side::wait`, but nobody polls: the service thread has to do it.
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
    until("a message", || side.qp.responder.lock().rnr_since.is_some());
}

/// What was searched for one queue after the other took many polls where there are many queues, and other threads took turns with it.
fn binding(bind: Bind) -> Request {
    let what = What::Bind(bind);
    Request { wr_id: 1, opcode: IBV_WR_BIND_MW, what, ..Request::default() }
}

fn invalidation(rkey: u32) -> Request {
    let what = What::Invalidate { rkey };
    Request { wr_id: 9, opcode: IBV_WR_LOCAL_INV, what, ..Request::default() }
}

#[test]
fn a_send_within_the_process_completes_after_few_polls_however_many_queues_nobody_polls() {
    const MESSAGES: u64 = 100;
    let adapter = adapter(true);
    let (a, b) = (Side::new(&adapter, Kind::Rc, 64), Side::new(&adapter, Kind::Rc, 64));
    a.connect(b.qp.qpn, 7);
    b.connect(a.qp.qpn, 7);
    let _others: Vec<Side> = (0..200).map(|_| Side::new(&adapter, Kind::Rc, 64)).collect();
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
    // The service thread holds the list now and then, for as long as others have its processor.
    let slow = slow.count();
    assert!(slow < 10, "{slow} of {MESSAGES} took long");
}

#[test]
fn requests_that_wait_for_operations_in_flight_go_on_without_polls() {
    let adapter = adapter(true);
    let (a, b) = (Side::new(&adapter, Kind::Rc, 64), Side::new(&adapter, Kind::Rc, 64));
    a.connect(b.qp.qpn, 7);
    b.connect(a.qp.qpn, 7);
    let va = b.memory.as_ptr() as u64;
    let access = ALL | IBV_ACCESS_MW_BIND;
    let region = Extent { pd: b.qp.pd, va, iova: va, len: 64, access };
    let region = adapter.regions.register(&region).expect("room").rkey;
    let own = adapter.fabric.slot();
    for remotely in [false, true] {
        let (_, first) = adapter.windows.allocate(b.qp.pd, true).expect("room");
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
            // Its own process looks when it polls, as it has asked for no event.
            assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS, "its sender");
        }
    }
}

/// The key to which the user of a window counts (ibv_inc_rkey(3)).
fn counted(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}

#[test]
fn work_on_windows_waits_for_movers_and_for_nobody_at_the_other_end() {
    let adapter = adapter(true);
    let nobody = soft_local::shm::layout::qpn(1000, 1);
    for kind in [Kind::Rc, Kind::Uc] {
        let a = Side::new(&adapter, kind, 64);
        a.connect(nobody, 7);
        let va = a.memory.as_ptr() as u64;
        let access = ALL | IBV_ACCESS_MW_BIND;
        let region = Extent { pd: a.qp.pd, va, iova: va, len: 64, access };
        let region = adapter.regions.register(&region).expect("room").rkey;
        let (_, first) = adapter.windows.allocate(a.qp.pd, true).expect("room");
        let rkey = counted(first);
        let bind = Bind { rkey, region, addr: va, len: 64, access: REMOTE_WRITE };
        a.send(binding(bind), &[]);
        assert_eq!(left_alone(&a), Some(IBV_WC_SUCCESS), "{kind:?}: the bind");
        let in_flight = adapter.in_flight.announce(adapter.fabric.slot(), rkey);
        a.send(invalidation(rkey), &[]);
        // That it does not complete cannot be waited for: longer than anybody waits for the other end.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(a.cq.pop_stamped().map(|(cqe, _)| cqe.status), None, "{kind:?}: too early");
        drop(in_flight);
        assert_eq!(left_alone(&a), Some(IBV_WC_SUCCESS), "{kind:?}: its key is taken back");
    }
}

#[test]
fn a_ring_whose_queue_nobody_polls_gets_on_while_another_queue_is_polled() {
    let adapter = adapter(false);
    let (a, b) = (Side::new(&adapter, Kind::Rc, 300_001), Side::new(&adapter, Kind::Rc, 300_001));
    let other = Side::new(&adapter, Kind::Rc, 64);
    a.connect(b.qp.qpn, 7);
    b.connect(a.qp.qpn, 7);
    for opcode in [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
        // Hot, and nobody is told of what arrives: attention is down.
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

/// Polls, and lets the service thread go on if that is at the queue just now.
fn patiently(side: &Side) -> Option<Cqe> {
    std::thread::yield_now();
    side.poll()
}

#[test]
fn who_goes_on_to_another_queue_acknowledges_what_it_left_for_later() {
    let adapter = adapter(false);
    let (a, b) = (Side::new(&adapter, Kind::Rc, 64), Side::new(&adapter, Kind::Rc, 64));
    let other = Side::new(&adapter, Kind::Rc, 64);
    a.connect(b.qp.qpn, 7);
    b.connect(a.qp.qpn, 7);
    for round in 0..100 {
        b.receive(round, &[b.sge(0, 64)]);
        // Who answers once is expected to do so again: the acknowledgement waits for that.
        a.receive(round, &[a.sge(0, 64)]);
        a.send(request(IBV_WR_SEND, &a), &[a.sge(0, 8)]);
        assert_eq!(b.wait(&a).status, IBV_WC_SUCCESS, "{round}");
        b.receive(round, &[b.sge(0, 64)]);
        b.send(request(IBV_WR_SEND, &b), &[b.sge(0, 8)]);
        for _ in 0..2 {
            assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS, "{round}");
        }
        assert_eq!(b.wait(&a).status, IBV_WC_SUCCESS, "{round}");
        // Attention is down: somebody polls, for long enough that nobody has anything left from before.
        for _ in 0..100 {
            other.cq.poll(1, |_, _| {});
        }
        a.send(request(IBV_WR_SEND, &a), &[a.sge(0, 8)]);
        // More than once: the service thread may be at the queue just then. Fewer times than it takes for the sender to ask.
        let soon = |side| (0..500).find_map(|_| patiently(side)).map(|cqe| cqe.status);
        assert_eq!(soon(&b), Some(IBV_WC_SUCCESS), "{round}");
        for _ in 0..16 {
            other.cq.poll(1, |_, _| {});
        }
        assert_eq!(soon(&a), Some(IBV_WC_SUCCESS), "{round}");
    }
}

#[test]
fn who_takes_the_last_message_and_does_not_look_again_has_acknowledged_it() {
    let [of_a, of_b] = two_adapters("last");
    let (a, b) = (Side::new(&of_a, Kind::Rc, 64), Side::new(&of_b, Kind::Rc, 64));
    a.connect(b.qp.qpn, 7);
    b.connect(a.qp.qpn, 7);
    // Attention is down, so that nobody is woken.
    for _ in 0..200 {
        b.cq.poll(1, |_, _| {});
    }
    for count in 1..40 {
        for n in 0..count {
            b.receive(n, &[b.sge(0, 64)]);
            a.send(request(IBV_WR_SEND, &a), &[a.sge(0, 8)]);
        }
        for n in 0..count {
            assert_eq!((0..500).find_map(|_| patiently(&b)).map(|cqe| cqe.wr_id), Some(n));
        }
        for _ in 0..count {
            let sent = (0..500).find_map(|_| patiently(&a)).map(|cqe| cqe.status);
            assert_eq!(sent, Some(IBV_WC_SUCCESS), "{count}");
        }
    }
}

#[test]
fn all_of_many_queues_have_their_turn_while_another_one_is_polled() {
    let adapter = adapter(true);
    let others: Vec<_> = (0..1500).map(|_| Side::new(&adapter, Kind::Rc, 8).cq.clone()).collect();
    let (a, b) = (Side::new(&adapter, Kind::Rc, 64), Side::new(&adapter, Kind::Rc, 64));
    a.connect(b.qp.qpn, 7);
    b.connect(a.qp.qpn, 7);
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

/// Two of them, as in two processes: what wakes the sender must not be what wakes the receiver.
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
    // It is there and finds no receive; then its process is gone, and took nothing down.
    looked(&of_b);
    assert!(a.send.cq.pop_stamped().is_none());
    of_b.fabric.leave();
    assert_eq!(left_alone(&a.send), Some(IBV_WC_RETRY_EXC_ERR));
}

/// More pieces than one round serves wait for a receive; it is posted, and nobody polls.
#[test]
fn a_long_message_that_waited_for_its_receive_goes_on_without_polls() {
    let [of_a, of_b] = two_adapters("unpolled");
    let (a, b) = (Side::new(&of_a, Kind::Rc, 600_000), Side::new(&of_b, Kind::Rc, 600_000));
    a.connect(b.qp.qpn, 7);
    b.connect(a.qp.qpn, 7);
    // Somebody sleeps until it completes.
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
        let (a, b) = (Side::new(&adapter, Kind::Rc, 64), Side::new(&adapter, Kind::Rc, 64));
        a.connect(b.qp.qpn, rnr_retry);
        b.connect(a.qp.qpn, rnr_retry);
        // 655 ms: it does not end within the test.
        b.qp.responder.lock().min_rnr_timer = 0;
        a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 64)]);
        found_no_receive(&b);
        // That the thread does nothing cannot be waited for: so long that one which looks all the time makes many rounds.
        let before = adapter.rounds.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(200));
        let rounds = adapter.rounds.load(Ordering::Relaxed) - before;
        assert!(rounds < 300, "{rounds} rounds, rnr_retry {rnr_retry}");
        b.receive(1, &[b.sge(0, 64)]);
        assert_eq!(left_alone(&b), Some(IBV_WC_SUCCESS), "the receive");
    }
}

#[test]
fn a_receive_that_is_given_back_goes_to_whoever_waits_without_polls() {
    let adapter = adapter(true);
    let wanted = WantedSrq {
        pd: adapter.domains.create(0).expect("room").0,
        max_wr: 8,
        max_sge: 1,
        domain: None,
        cq: None,
        tags: None,
        report: Reporter(Arc::new(Channel::new(2).expect("a channel"))),
    };
    let srq = Srq::new(&adapter, wanted).expect("a number");
    let a = Side::new(&adapter, Kind::Rc, 64);
    let b = Side::with(&adapter, Kind::Rc, 64, 0, Some(&srq));
    a.connect(b.qp.qpn, 7);
    b.connect(a.qp.qpn, 7);
    srq.post(3, &[b.sge(0, 64)]).expect("room");
    // As a QP does for a message that it will not finish.
    let mut taken = Receive::default();
    assert!(srq.take(&mut taken));
    a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 64)]);
    found_no_receive(&b);
    assert!(b.cq.pop_stamped().is_none(), "there is no receive");
    srq.give_back(&taken);
    assert_eq!(left_alone(&b), Some(IBV_WC_SUCCESS));
    // As above: no event was asked for.
    assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS, "its sender");
    drop((a, b));
    srq.retire();
}
