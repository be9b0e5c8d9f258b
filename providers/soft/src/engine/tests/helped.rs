//! Long one-sided operations that two processes do together (`helping`).

use super::*;
use crate::engine::helping::Helping;
use crate::shm::protocol::{find_piece, piece_done, take_piece};
use std::time::{Duration, Instant};

const MOST: usize = 1 << 20;

/// Two processes' adapters, as far as the fabric knows, and a connected QP of each.
fn two(bytes: usize) -> (Side, Side) {
    let [one, other] = adapters();
    let (a, b) = (Side::new(&one, Kind::Rc, bytes), Side::new(&other, Kind::Rc, bytes));
    a.connect(b.qp.qpn, 7);
    b.connect(a.qp.qpn, 7);
    (a, b)
}

fn whole(opcode: u32, a: &Side, b: &Side, at: usize, len: usize) -> (Request, [ibv_sge; 1]) {
    let remote_addr = b.memory[at..].as_ptr() as u64;
    (Request { remote_addr, ..request(opcode, b) }, [a.sge(at, len)])
}

#[test]
fn long_operations_are_whole_whoever_did_the_pieces() {
    let (mut a, mut b) = two(MOST);
    let view = a.qp.adapter.view;
    let job = &view.rings_head().job;
    let until = Instant::now() + Duration::from_secs(100);
    let (mut helped, mut round) = ([0, 0], 0);
    // Somebody helps sooner or later, where there are two processors.
    while (helped.contains(&0) && Instant::now() < until) || round < 200 {
        round += 1;
        let len = 64 * 1024 + round * 77_777 % (MOST - 130 * 1024);
        let at = round * 13 % 60_000;
        let write = round % 2 == 0;
        fill(&mut a, round);
        fill(&mut b, round + 100);
        let expected =
            if write { a.memory[at..at + len].to_vec() } else { b.memory[at..at + len].to_vec() };
        let opcode = if write { IBV_WR_RDMA_WRITE } else { IBV_WR_RDMA_READ };
        let (request, list) = whole(opcode, &a, &b, at, len);
        a.send(request, &list);
        assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
        assert!(
            a.memory[at..at + len] == expected && b.memory[at..at + len] == expected,
            "round {round}"
        );
        helped[usize::from(write)] += job.helped.0.load(Ordering::Relaxed);
        job.helped.0.store(0, Ordering::Relaxed);
    }
    assert!(
        !helped.contains(&0) || std::thread::available_parallelism().is_ok_and(|n| n.get() == 1),
        "{helped:?}"
    );
    for side in [&a, &b] {
        Helping::stop(&side.qp.adapter);
    }
}

#[test]
fn a_process_that_does_not_want_it_has_no_helper() {
    let (mut a, b) = two(MOST);
    Helping::refuse(&b.qp.adapter.view);
    for round in 0..100 {
        fill(&mut a, round);
        let (request, list) = whole(IBV_WR_RDMA_WRITE, &a, &b, 0, MOST);
        a.send(request, &list);
        assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
        assert!(a.memory == b.memory, "round {round}");
    }
    assert!(!b.qp.adapter.helping.was_called());
    Helping::stop(&b.qp.adapter);
}

/// As if the helper of `b` were there: calls are not heard, and whoever takes a piece is the helper.
fn hold_helper(a: &Side, b: &Side) {
    let own = u32::from(a.qp.adapter.fabric.slot()) + 1;
    b.qp.adapter.view.rings_head().help_wanted.0.store(own, Ordering::Relaxed);
}

/// Posts long operations, of other bytes each time, until somebody else has taken a piece of one: which.
fn post_until_taken(a: &mut Side, b: &Side, opcode: u32) -> u16 {
    let view = a.qp.adapter.view;
    let job = &view.rings_head().job;
    let done = std::sync::atomic::AtomicBool::new(false);
    let start = std::sync::Barrier::new(2);
    let until = Instant::now() + Duration::from_secs(100);
    for seed in 0.. {
        fill(a, seed);
        a.qp.adapter.helping.forget_partners();
        let (request, list) = whole(opcode, a, b, 0, MOST);
        let taken = std::thread::scope(|scope| {
            let helper = scope.spawn(|| {
                start.wait();
                while !done.load(Ordering::Acquire) {
                    if let Some(n) =
                        find_piece(&job.pieces).and_then(|found| take_piece(&job.pieces, found))
                    {
                        return Some(n);
                    }
                }
                None
            });
            start.wait();
            a.send(request, &list);
            done.store(true, Ordering::Release);
            helper.join().expect("no panic")
        });
        if let Some(taken) = taken {
            return taken;
        }
        assert_eq!(a.wait(b).status, IBV_WC_SUCCESS);
        done.store(false, Ordering::Release);
        assert!(Instant::now() < until, "nobody took a piece");
    }
    unreachable!("there is always another seed")
}

#[test]
fn a_piece_in_the_hands_of_a_stopped_process_is_waited_for() {
    let (mut a, b) = two(MOST);
    hold_helper(&a, &b);
    post_until_taken(&mut a, &b, IBV_WR_RDMA_WRITE);
    let last = MOST - 64..;
    for _ in 0..20 {
        assert_eq!(a.poll(), None, "it may go on with the piece at any time");
        assert!(b.memory[last.clone()] != a.memory[last.clone()], "the last bytes arrive last");
        std::thread::sleep(Duration::from_millis(1));
    }
    // It goes on.
    piece_done(&a.qp.adapter.view.rings_head().job.helped.0);
    assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
    assert!(a.memory == b.memory, "what the other one had in hand is done, too");
}

#[test]
fn what_the_other_process_refuses_is_done_without_it() {
    let (mut a, mut b) = two(MOST);
    fill(&mut b, 1000);
    hold_helper(&a, &b);
    post_until_taken(&mut a, &b, IBV_WR_RDMA_READ);
    let view = a.qp.adapter.view;
    let job = &view.rings_head().job;
    job.refused.fetch_add(1, Ordering::Relaxed);
    piece_done(&job.helped.0);
    assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
    assert!(a.memory == b.memory);
}

#[test]
fn a_flush_waits_for_a_piece_in_hand() {
    let (mut a, b) = two(MOST);
    hold_helper(&a, &b);
    post_until_taken(&mut a, &b, IBV_WR_RDMA_READ);
    let view = a.qp.adapter.view;
    let job = &view.rings_head().job;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            piece_done(&job.helped.0);
        });
        a.modify(super::super::state::State::Err as u32, 0, Zeroed::zeroed());
    });
    assert!(begun.elapsed() >= Duration::from_millis(50));
    assert_eq!(a.wait(&b).status, IBV_WC_WR_FLUSH_ERR);
}

#[test]
fn a_process_that_writes_nonsense_into_a_job_moves_no_foreign_bytes() {
    let (a, mut b) = two(MOST);
    fill(&mut b, 1);
    hold_helper(&a, &b);
    let view = a.qp.adapter.view;
    let job = &view.rings_head().job;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let vandal = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                job.pieces.fetch_or(0xffff_fff0, Ordering::Relaxed);
                job.helped.0.store(1000, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(30));
            }
        });
        for _ in 0..200 {
            let (request, list) = whole(IBV_WR_RDMA_READ, &a, &b, MOST / 4, MOST / 2);
            a.send(request, &list);
            assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
        }
        done.store(true, Ordering::Relaxed);
        vandal.join().expect("no panic");
    });
    let untouched = |part: &[u8]| part.iter().all(|byte| *byte == 0);
    assert!(untouched(&a.memory[..MOST / 4]) && untouched(&a.memory[MOST / 4 * 3..]));
}
