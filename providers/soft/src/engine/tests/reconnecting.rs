//! Tests of requests when one end of a connection, or each of them, connects anew, in any order. A
//! request of an earlier connection must never count for a later one.

use super::*;

/// Attributes with these PSNs and without any limit on retries.
fn patient(sq_psn: u32, rq_psn: u32) -> ibv_qp_attr {
    ibv_qp_attr { sq_psn, rq_psn, rnr_retry: 7, ..Zeroed::zeroed() }
}

/// Attributes with these PSNs and the shortest timeout.
fn with_short_timeout(sq_psn: u32, rq_psn: u32) -> ibv_qp_attr {
    ibv_qp_attr { timeout: 1, ..patient(sq_psn, rq_psn) }
}

fn two(cma: bool) -> (Side, Side) {
    let adapter = adapter(cma);
    (Side::new(&adapter, QpType::Rc, 40_000), Side::new(&adapter, QpType::Rc, 40_000))
}

fn unreliable(cma: bool) -> (Side, Side) {
    let adapter = adapter(cma);
    let (a, b) = (Side::new(&adapter, QpType::Uc, 40_000), Side::new(&adapter, QpType::Uc, 40_000));
    a.connect_as(b.qp.qpn(), patient(7, 9));
    b.connect_as(a.qp.qpn(), patient(9, 7));
    (a, b)
}

#[test]
fn the_ring_of_a_queue_pair_that_was_never_connected_is_empty() {
    let adapter = adapter(true);
    let sides: Vec<_> = (0..3).map(|_| Side::new(&adapter, QpType::Rc, 8)).collect();
    assert!(sides.iter().all(|side| !side.qp.has_arrivals()));
}

fn reset(side: &Side) {
    side.modify(IBV_QPS_RESET, 0, Zeroed::zeroed());
}

fn say(from: &Side, to: &Side, number: usize) {
    from.send(
        Request { imm: number as u32, ..request(IBV_WR_SEND_WITH_IMM, to) },
        &[from.sge(0, [8, 100, 20_000][number % 3])],
    );
}

/// Polls both sides until `wanted` completions have come, and for some more rounds. Returns all
/// completions.
fn observe(a: &Side, b: &Side, wanted: (usize, usize)) -> (Vec<Cqe>, Vec<Cqe>) {
    let (mut at_a, mut at_b) = (vec![], vec![]);
    let mut rest = 50;
    while rest > 0 {
        for (side, at) in [(a, &mut at_a), (b, &mut at_b)] {
            side.cq.sweep(ServedBy::Application);
            at.extend(std::iter::from_fn(|| side.poll()));
        }
        rest -= i32::from(at_a.len() >= wanted.0 && at_b.len() >= wanted.1);
    }
    (at_a, at_b)
}

fn statuses(cqes: &[Cqe]) -> Vec<u32> {
    cqes.iter().map(|cqe| cqe.status).collect()
}

#[test]
fn a_sender_that_alone_connects_anew_gets_no_reply_and_loses_nothing_silently() {
    for cma in [true, false] {
        let (a, b) = two(cma);
        a.connect_as(b.qp.qpn(), with_short_timeout(7, 9));
        b.connect_as(a.qp.qpn(), with_short_timeout(9, 7));
        for n in 0..8 {
            b.receive(n, &[b.sge(0, 20_000)]);
        }
        for n in 0..3 {
            say(&a, &b, n);
        }
        let (sent, got) = observe(&a, &b, (3, 3));
        assert_eq!((sent.len(), got.len()), (3, 3));
        reset(&a);
        a.connect_as(b.qp.qpn(), with_short_timeout(7, 9));
        for n in 0..5 {
            say(&a, &b, n);
        }
        let (sent, got) = observe(&a, &b, (5, 0));
        let mut expected = vec![IBV_WC_WR_FLUSH_ERR; 5];
        expected[0] = IBV_WC_RETRY_EXC_ERR;
        assert_eq!((statuses(&sent), got), (expected, vec![]), "{cma}");
        // The connection works once the receiver connects anew as well.
        reset(&a);
        reset(&b);
        a.connect_as(b.qp.qpn(), with_short_timeout(7, 9));
        b.connect_as(a.qp.qpn(), with_short_timeout(9, 7));
        b.receive(1, &[b.sge(0, 20_000)]);
        say(&a, &b, 1);
        assert_eq!(b.wait(&a).imm, 1);
    }
}

#[test]
fn messages_of_the_old_connection_are_not_taken_for_those_of_the_new_one() {
    for cma in [true, false] {
        let (a, b) = two(cma);
        a.connect_as(b.qp.qpn(), patient(7, 9));
        b.connect_as(a.qp.qpn(), patient(9, 7));
        // There are no receives, so the messages stay in the ring.
        for n in 0..6 {
            say(&a, &b, n);
        }
        reset(&a);
        a.connect_as(b.qp.qpn(), patient(7, 9));
        for n in 100..104 {
            say(&a, &b, n);
        }
        for n in 0..16 {
            b.receive(n, &[b.sge(0, 20_000)]);
        }
        assert_eq!(observe(&a, &b, (0, 0)), (vec![], vec![]), "{cma}");
        // The receiver connects anew, and gets the messages of this connection.
        reset(&b);
        b.connect_as(a.qp.qpn(), patient(9, 7));
        for n in 0..16 {
            b.receive(n, &[b.sge(0, 20_000)]);
        }
        let (sent, got) = observe(&a, &b, (4, 4));
        assert_eq!(statuses(&sent), [IBV_WC_SUCCESS; 4]);
        assert_eq!(got.iter().map(|cqe| cqe.imm).collect::<Vec<_>>(), [100, 101, 102, 103]);
    }
}

#[test]
fn a_receiver_that_connects_anew_acknowledges_nothing_of_the_old_connection() {
    for (cma, count) in [(true, 1), (false, 1), (true, 64), (false, 64)] {
        let (a, b) = two(cma);
        a.connect_as(b.qp.qpn(), with_short_timeout(7, 9));
        b.connect_as(a.qp.qpn(), with_short_timeout(9, 7));
        // Without attach, the longer messages fill the ring. The acknowledgement of the old
        // connection must not look like that of a whole lap.
        for n in 0..count {
            say(&a, &b, n);
        }
        reset(&b);
        b.connect_as(a.qp.qpn(), with_short_timeout(9, 7));
        for n in 0..64 {
            b.receive(n, &[b.sge(0, 20_000)]);
        }
        let (sent, got) = observe(&a, &b, (count, 0));
        let mut expected = vec![IBV_WC_WR_FLUSH_ERR; count];
        expected[0] = IBV_WC_RETRY_EXC_ERR;
        assert_eq!((statuses(&sent), got), (expected, vec![]), "{cma}");
    }
}

#[test]
fn a_request_with_a_wrong_psn_gets_no_reply() {
    let (a, b) = two(true);
    a.connect_as(b.qp.qpn(), with_short_timeout(7, 9));
    b.connect_as(a.qp.qpn(), with_short_timeout(9, 8));
    b.receive(1, &[b.sge(0, 8)]);
    a.send(request(IBV_WR_RDMA_WRITE, &b), &[a.sge(0, 8)]);
    assert_eq!(a.wait(&b).status, IBV_WC_RETRY_EXC_ERR);
    assert_eq!(b.poll(), None);
}

#[test]
fn a_receiver_can_connect_anew_before_the_sender_has_sent_anything() {
    let (a, b) = two(true);
    a.connect_as(b.qp.qpn(), patient(7, 9));
    for _ in 0..3 {
        b.connect_as(a.qp.qpn(), patient(9, 7));
        assert_eq!(observe(&a, &b, (0, 0)), (vec![], vec![]));
        reset(&b);
    }
    say(&a, &b, 1);
    assert_eq!(observe(&a, &b, (0, 0)), (vec![], vec![]));
    b.connect_as(a.qp.qpn(), patient(9, 7));
    b.receive(1, &[b.sge(0, 20_000)]);
    assert_eq!(b.wait(&a).imm, 1);
    assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
}

#[test]
fn a_full_ring_is_not_acknowledged_by_another_connection() {
    let adapter = adapter(false);
    let (a, b) =
        (Side::new(&adapter, QpType::Rc, 100_000), Side::new(&adapter, QpType::Rc, 100_000));
    a.connect_as(b.qp.qpn(), with_short_timeout(7, 9));
    b.connect_as(a.qp.qpn(), with_short_timeout(9, 7));
    for _ in 0..64 {
        a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 100_000)]);
    }
    {
        let requester = a.qp.requester().lock();
        assert_eq!(
            requester.ring.next.wrapping_sub(requester.ring.acked),
            soft_local::shm::layout::RING_SLOTS
        );
    }
    reset(&b);
    b.connect_as(a.qp.qpn(), with_short_timeout(9, 7));
    let (sent, got) = observe(&a, &b, (64, 0));
    assert_eq!((sent[0].status, got), (IBV_WC_RETRY_EXC_ERR, vec![]));
}

#[test]
fn unreliable_connections_work_whichever_end_connects_anew() {
    for cma in [true, false] {
        for round in 0..12 {
            let (a, b) = unreliable(cma);
            // There are fewer receives than messages. Some messages stay in the ring, or were lost.
            for n in 0..round {
                b.receive(n, &[b.sge(0, 40_000)]);
            }
            for again in 0..4 {
                for n in 0..9 {
                    say(&a, &b, n);
                }
                if round % 2 == 0 {
                    b.cq.sweep(ServedBy::Application);
                }
                let alone = if (round + again) % 3 == 0 { &b } else { &a };
                let other = if std::ptr::eq(alone, &a) { &b } else { &a };
                reset(alone);
                alone.connect_as(other.qp.qpn(), patient(100, 200));
            }
            observe(&a, &b, (0, 0));
            for n in 0..20 {
                b.receive(n, &[b.sge(0, 40_000)]);
            }
            observe(&a, &b, (0, 0));
            for n in 50..54 {
                say(&a, &b, n);
            }
            let (sent, got) = observe(&a, &b, (4, 4));
            assert_eq!(statuses(&sent), [IBV_WC_SUCCESS; 4], "{cma} {round}");
            assert_eq!(got.iter().map(|cqe| cqe.imm).collect::<Vec<_>>(), [50, 51, 52, 53]);
        }
    }
}
