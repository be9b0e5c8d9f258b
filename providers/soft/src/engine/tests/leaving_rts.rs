//! Tests of requests whose QP leaves RTS before, or while, they are executed. They cover the two
//! ends' view of one state change, and the completions that it causes.

use super::*;
use crate::engine::ring::holder::PeerState;
use soft_semantics::state::QpState;
use std::mem::ManuallyDrop;

#[test]
fn a_send_that_the_peer_skipped_because_we_left_rts_does_not_succeed() {
    for (cma, state, size) in [
        (true, IBV_QPS_ERR, 8),
        (false, IBV_QPS_ERR, 300_001),
        (true, IBV_QPS_ERR, 300_001),
        (true, IBV_QPS_RESET, 8),
        (false, IBV_QPS_RESET, 300_001),
    ] {
        let (a, b) = pair(QpType::Rc, cma, 300_001);
        b.receive(1, &[b.sge(0, size)]);
        // The lock keeps the service thread from executing the request at once.
        let not_yet = b.qp.responder().lock();
        a.send(request(IBV_WR_SEND, &b), &[a.sge(0, size)]);
        // This is the first step of modify_qp: the state is visible to all threads, and the
        // requests are not yet flushed.
        if state == IBV_QPS_ERR {
            assert!(a.qp.fail());
        } else {
            a.qp.set_state(QpState::Reset);
        }
        drop(not_yet);
        // The peer detects the state, and another thread of this process polls.
        for _ in 0..100 {
            b.cq.sweep(ServedBy::Application);
            a.qp.advance_send();
            assert_eq!(a.cq.pop_stamped().map(|(cqe, _)| cqe.status), None, "{cma} {state} {size}");
        }
        if state == IBV_QPS_ERR {
            a.qp.flush_all();
            assert_eq!(a.poll().map(|cqe| cqe.status), Some(IBV_WC_WR_FLUSH_ERR));
        } else {
            a.qp.reset();
        }
        assert_eq!((a.poll(), b.poll()), (None, None), "{cma} {state} {size}");
    }
}

#[test]
fn chunks_of_skipped_sends_are_freed() {
    let adapter = adapter(false);
    let (a, b) = (Side::new(&adapter, QpType::Rc, 40_000), Side::new(&adapter, QpType::Rc, 40_000));
    // All rounds together send more messages than there are chunks.
    for _ in 0..400 {
        a.connect(b.qp.qpn(), 7);
        b.connect(a.qp.qpn(), 7);
        for _ in 0..8 {
            a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 40_000)]);
        }
        assert!(a.qp.fail());
        b.cq.sweep(ServedBy::Application);
        a.qp.flush_all();
        a.qp.advance_send();
        assert!(a.qp.requester().lock().ring.lent_chunks.is_empty());
        a.modify(IBV_QPS_RESET, 0, Zeroed::zeroed());
        b.modify(IBV_QPS_RESET, 0, Zeroed::zeroed());
    }
}

/// A sender that sees no reply, and a peer QP in error, measures the retry time. That may be over
/// within microseconds.
#[test]
fn a_thread_that_sees_the_peer_in_error_also_sees_its_refusal() {
    let adapter = adapter(false);
    for round in 0..100 {
        let (a, b) = (Side::new(&adapter, QpType::Rc, 64), Side::new(&adapter, QpType::Rc, 64));
        a.connect(b.qp.qpn(), 7);
        b.connect(a.qp.qpn(), 7);
        let (link, _) = adapter.link(b.qp.qpn()).expect("it is there");
        let (begun, ready) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let seen = scope.spawn(|| {
                ready.store(1, Ordering::Release);
                while matches!(link.peer_state(a.qp.qpn()), PeerState::Serving(_)) {
                    std::hint::spin_loop();
                }
                begun.load(Ordering::Acquire) == 1
                    && !link.ring.nak().load(Ordering::Acquire).equals(0)
            });
            while ready.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            begun.store(1, Ordering::Release);
            let bad = misnamed(IBV_WR_RDMA_WRITE, &b);
            a.send(bad, &[a.sge(0, 8)]);
            b.qp.advance_receive(ServedBy::Application);
            assert!(seen.join().expect("no panic"), "round {round}");
        });
        assert_eq!(a.wait(&b).status, IBV_WC_REM_ACCESS_ERR, "round {round}");
    }
}

#[test]
fn a_failed_request_completes_after_the_qp_is_in_error_and_the_next_look_flushes_the_rest() {
    let (a, b) = pair(QpType::Rc, false, 64);
    a.receive(1, &[a.sge(0, 8)]);
    b.receive(1, &[b.sge(0, 4)]);
    a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 8)]);
    b.qp.advance_receive(ServedBy::Application);
    // A refusal in a message takes the same steps. What follows it needs other locks.
    a.qp.requester().lock().advance(&a.qp);
    let failed = a.cq.pop_stamped().map(|(cqe, _)| cqe.status);
    assert_eq!(failed, Some(IBV_WC_REM_INV_REQ_ERR));
    assert!(a.qp.is_in(QpState::Err), "{:?}", a.qp.state());
    let end = Instant::now() + Duration::from_secs(20);
    let mut flushed = None;
    while flushed.is_none() && Instant::now() < end {
        flushed = a.poll();
    }
    assert_eq!(flushed.map(|cqe| (cqe.wr_id, cqe.status)), Some((1, IBV_WC_WR_FLUSH_ERR)));
}

/// The peer's application gets a message and reports it by TCP; this end's application then calls
/// ibv_modify_qp.
#[test]
fn sends_that_the_peer_received_succeed_even_if_the_qp_goes_to_error_before_a_poll() {
    for (cma, state, size) in [
        (true, IBV_QPS_RTS, 8),
        (true, IBV_QPS_ERR, 8),
        (true, IBV_QPS_RESET, 8),
        (true, IBV_QPS_ERR, 300_001),
        (false, IBV_QPS_ERR, 300_001),
    ] {
        let (a, b) = pair(QpType::Rc, cma, 300_001);
        a.receive(1, &[a.sge(0, 8)]);
        b.receive(2, &[b.sge(0, size)]);
        a.send(request(IBV_WR_SEND, &b), &[a.sge(0, size)]);
        let end = Instant::now() + Duration::from_secs(20);
        let mut received = None;
        while received.is_none() && Instant::now() < end {
            received = b.poll();
        }
        assert_eq!(received.map(|c| (c.wr_id, c.status)), Some((2, IBV_WC_SUCCESS)));
        if state == IBV_QPS_RTS {
            b.qp.responder().lock().acknowledge_arrivals(&b.qp);
        } else {
            b.modify(state, 0, Zeroed::zeroed());
        }
        a.modify(IBV_QPS_ERR, 0, Zeroed::zeroed());
        let ends = [a.poll(), a.poll(), a.poll()].map(|c| c.map(|c| (c.wr_id, c.status)));
        let expected = [Some((9, IBV_WC_SUCCESS)), Some((1, IBV_WC_WR_FLUSH_ERR)), None];
        assert_eq!(ends, expected, "{cma} {state} {size}");
    }
}

/// The counterpart of the test above: a message has arrived here, and no thread has polled.
#[test]
fn messages_that_have_arrived_are_received_before_the_qp_goes_to_error() {
    for (cma, size) in [(true, 8), (true, 300_001), (false, 8)] {
        let (a, b) = pair(QpType::Rc, cma, 300_001);
        b.receive(2, &[b.sge(0, size)]);
        b.receive(3, &[b.sge(0, size)]);
        a.send(request(IBV_WR_SEND, &b), &[a.sge(0, size)]);
        b.modify(IBV_QPS_ERR, 0, Zeroed::zeroed());
        let ends = [b.poll(), b.poll(), b.poll()].map(|c| c.map(|c| (c.wr_id, c.status)));
        let expected = [Some((2, IBV_WC_SUCCESS)), Some((3, IBV_WC_WR_FLUSH_ERR)), None];
        assert_eq!(ends, expected, "{cma} {size}");
        assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS, "{cma} {size}");
    }
}

#[test]
fn the_flush_after_an_overrun_may_overrun_another_queue() {
    let adapter = adapter(true);
    let queues = [queue(&adapter), queue(&adapter)];
    let [sent, received] = &queues;
    // A deadlock of the service thread would hold locks that the destruction of the QP takes, so
    // the test does not destroy it.
    let side = Side::with_queues(&adapter, QpType::Rc, 64, 0, None, [sent, received]);
    let side = ManuallyDrop::new(side);
    side.connect(side.qp.qpn(), 0);
    for wr_id in [1, 2] {
        side.receive(wr_id, &[side.sge(0, 8)]);
    }
    for queue in &queues {
        queue.plan_overrun(Some(1));
    }
    side.send(request(IBV_WR_RDMA_WRITE, &side), &[side.sge(0, 8)]);
    // No test thread polls. The service thread finds the completion, and a deadlock would stop it
    // there.
    until("an overrun of the queue of requests", || sent.has_overrun());
    until("an overrun of the queue of receives", || received.has_overrun());
    until("the QP is told of both", || side.qp.reports().events.sent_count() == 2);
    assert_eq!(side.qp.state(), QpState::Err);
    drop(ManuallyDrop::into_inner(side));
    received.retire();
}

#[test]
fn a_builder_that_finds_a_broken_send_queue_flushes_it() {
    use crate::engine::queues::qp::builder::{Builder, BuiltRequest};
    let found = (0..1000).any(|_| {
        let (a, b) = pair(QpType::Rc, false, 64);
        // The lock keeps the service thread from executing the requests at once.
        let not_yet = b.qp.responder().lock();
        a.send(misnamed(IBV_WR_RDMA_READ, &b), &[a.sge(0, 8)]);
        (1..64).for_each(|_| a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 8)]));
        drop(not_yet);
        // A poll would also look at the sender's queue, and flush it.
        b.qp.advance_receive(ServedBy::Application);
        // One slot of the queue is free once the failed request has completed, and the builder
        // needs two.
        let built = BuiltRequest { request: request(IBV_WR_SEND, &b), ..BuiltRequest::default() };
        let mut builder =
            Builder { built: vec![built.clone(), built], count: 2, ..Builder::default() };
        if crate::ops::builder::post_all(&a.qp, &mut builder).is_ok() {
            // The service thread was faster, and has flushed the queue.
            return false;
        }
        let done = std::iter::from_fn(|| a.cq.pop_stamped()).map(|(cqe, _)| cqe.status);
        let statuses: Vec<u32> = done.collect();
        assert_eq!(statuses.first(), Some(&IBV_WC_REM_ACCESS_ERR));
        assert_eq!(statuses.len(), 64, "all that was behind it is flushed");
        true
    });
    assert!(found, "the service thread is not always first");
}
