//! Tests of long one-sided operations that two processes execute together (`helping`). A helper
//! thread of the target's process moves some of the pieces.

use super::*;
use crate::engine::ring::helper::HelperClaim;
use crate::engine::ring::helping_state::Helping;
use soft_local::shm::view::PeerView;
use soft_sys::futex;
use soft_sys::thread::testing::ThreadHandle;
use std::sync::atomic::AtomicBool;

const MOST: usize = 1 << 20;

/// Two adapters, which the fabric takes for two processes, and one connected QP of each.
fn two(bytes: usize) -> (Side, Side) {
    let [one, other] = adapters();
    let (a, b) = (Side::new(&one, QpType::Rc, bytes), Side::new(&other, QpType::Rc, bytes));
    a.connect(b.qp.qpn(), 7);
    b.connect(a.qp.qpn(), 7);
    (a, b)
}

fn whole(opcode: u32, a: &Side, b: &Side, at: usize, len: usize) -> (Request, [ibv_sge; 1]) {
    (request_at(opcode, b, b.memory[at..].as_ptr() as u64), [a.sge(at, len)])
}

#[test]
fn long_operations_are_complete_whichever_process_moved_the_pieces() {
    let (mut a, mut b) = two(MOST);
    let alone = std::thread::available_parallelism().is_ok_and(|n| n.get() == 1);
    let (mut helped, mut round) = ([0, 0], 0);
    let end = Instant::now() + Duration::from_secs(300);
    // With two processors, the helper takes part sooner or later, because every round calls it
    // again.
    while (helped.contains(&0) && !alone) || round < 200 {
        round += 1;
        assert!(Instant::now() < end, "the helper did not take part in {round} rounds: {helped:?}");
        if round > 200 {
            a.qp.adapter().helping.forget_history();
        }
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
        helped[usize::from(write)] += a.qp.adapter().helping.helped.swap(0, Ordering::Relaxed);
    }
    for side in [&a, &b] {
        Helping::stop(side.qp.adapter());
    }
}

#[test]
fn a_process_with_helping_disabled_has_no_helper() {
    let (mut a, b) = two(MOST);
    b.qp.adapter().helping.disable();
    for round in 0..100 {
        fill(&mut a, round);
        let (request, list) = whole(IBV_WR_RDMA_WRITE, &a, &b, 0, MOST);
        a.send(request, &list);
        assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
        assert!(a.memory == b.memory, "round {round}");
    }
    assert!(!b.qp.adapter().helping.was_called());
    Helping::stop(b.qp.adapter());
}

#[test]
fn a_helper_ends_even_if_other_threads_sleep_on_its_word_and_write_it() {
    let (a, _b) = two(MOST);
    let adapter = Arc::clone(a.qp.adapter());
    let wanted = &adapter.view.rings_head().help_wanted.0;
    // The slot number 77 belongs to no process. The helper starts, finds no work and sleeps.
    wanted.store(77, Ordering::Release);
    Helping::start_helper_if_called(&adapter);
    until("the helper sleeps", || wanted.load(Ordering::Acquire) == 0 && futex::wake(wanted));
    let over = AtomicBool::new(false);
    let ended = std::thread::scope(|scope| {
        let other_sleeper = || {
            while !over.load(Ordering::Relaxed) {
                let _ = futex::wait(wanted, 0);
                wanted.store(0, Ordering::Relaxed);
            }
        };
        let other_sleepers: Vec<_> = (0..4).map(|_| scope.spawn(other_sleeper)).collect();
        // The other threads sleep on the same word. A wake then reaches the first sleeper, and the
        // helper queues behind them.
        std::thread::sleep(Duration::from_millis(50));
        futex::wake(wanted);
        std::thread::sleep(Duration::from_millis(50));
        let (result_sender, result) = std::sync::mpsc::channel();
        let stopped = Arc::clone(&adapter);
        std::thread::spawn(move || {
            Helping::stop(&stopped);
            let _ = result_sender.send(());
        });
        let ended = result.recv_timeout(Duration::from_secs(20));
        over.store(true, Ordering::Relaxed);
        until("the other_sleepers end", || {
            wanted.store(1, Ordering::Release);
            futex::wake(wanted);
            other_sleepers.iter().all(std::thread::ScopedJoinHandle::is_finished)
        });
        ended
    });
    assert!(ended.is_ok(), "ending the helper hangs");
}

/// Makes the calling thread act as the helper of `b`: calls start no thread, and the thread that
/// takes a piece counts as the helper.
fn hold_helper(a: &Side, b: &Side) {
    let own = u32::from(a.qp.adapter().fabric.slot()) + 1;
    b.qp.adapter().helping.disable();
    b.qp.adapter().view.rings_head().help_wanted.0.store(own, Ordering::Relaxed);
}

/// Posts long operations with different bytes until the other process has taken a piece of one.
/// Returns the claim on that piece.
fn post_until_taken(a: &mut Side, b: &Side, opcode: u32) -> HelperClaim {
    let slot = b.qp.adapter().fabric.slot();
    let done = AtomicBool::new(false);
    let start = std::sync::Barrier::new(2);
    let until = Instant::now() + Duration::from_secs(100);
    for seed in 0.. {
        fill(a, seed);
        a.qp.adapter().helping.forget_history();
        let mut hand = hand_of(a, b);
        let (request, list) = whole(opcode, a, b, 0, MOST);
        let taken = std::thread::scope(|scope| {
            let helper = scope.spawn(|| {
                start.wait();
                while !done.load(Ordering::Acquire) {
                    if hand.claim_piece(slot).is_some() {
                        return true;
                    }
                }
                false
            });
            start.wait();
            a.send(request, &list);
            done.store(true, Ordering::Release);
            helper.join().expect("no panic")
        });
        if taken {
            return hand;
        }
        assert_eq!(a.wait(b).status, IBV_WC_SUCCESS);
        done.store(false, Ordering::Release);
        assert!(Instant::now() < until, "the other process took no piece");
    }
    unreachable!("there is always another seed")
}

fn hand_of(a: &Side, b: &Side) -> HelperClaim {
    let [of_a, of_b] = [a, b].map(|side| side.qp.adapter());
    HelperClaim::new(of_b.view, of_a.view, of_a.fabric.slot())
}

#[test]
fn a_piece_in_the_hands_of_a_stopped_process_is_waited_for() {
    let (mut a, b) = two(MOST);
    hold_helper(&a, &b);
    let mut hand = post_until_taken(&mut a, &b, IBV_WR_RDMA_WRITE);
    let last = MOST - 64..;
    for _ in 0..20 {
        assert_eq!(a.poll(), None, "it may be at the piece");
        assert!(b.memory[last.clone()] != a.memory[last.clone()], "the last bytes arrive last");
        std::thread::sleep(Duration::from_millis(1));
    }
    // The stopped process continues.
    hand.release(true);
    assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
    assert!(a.memory == b.memory, "what the other one had in hand is done, too");
}

#[test]
fn a_piece_of_a_long_stopped_process_is_taken_back() {
    for opcode in [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ] {
        let (mut a, mut b) = two(MOST);
        fill(&mut b, 1000);
        hold_helper(&a, &b);
        let slot = b.qp.adapter().fabric.slot();
        let mut hand = hand_of(&a, &b);
        let asked = loop {
            // As above, without the history of earlier operations.
            a.qp.adapter().helping.forget_history();
            let (request, list) = whole(opcode, &a, &b, 0, MOST);
            let done = AtomicBool::new(false);
            let taken = std::thread::scope(|scope| {
                let helper = scope.spawn(|| {
                    while !done.load(Ordering::Acquire) {
                        if let Some(taken) = hand.claim_piece(slot) {
                            return Some(taken);
                        }
                    }
                    None
                });
                a.send(request, &list);
                done.store(true, Ordering::Release);
                helper.join().expect("no panic")
            });
            if let Some(taken) = taken {
                break taken;
            }
            assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
        };
        // The stopped process does not continue. The request completes all the same.
        assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
        assert!(a.memory == b.memory);
        a.memory.fill(1);
        b.memory.fill(2);
        let (request, list) = whole(opcode, &a, &b, 0, MOST);
        a.send(request, &list);
        assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS, "without it");
        a.memory.fill(1);
        b.memory.fill(2);
        // The stopped process continues with the operation that it read before.
        let (asked, n) = asked;
        let peer = b.qp.adapter().fabric.peer(a.qp.adapter().fabric.slot()).expect("there");
        let moved = asked.move_piece(b.qp.adapter(), &PeerView::of(peer), n);
        assert_eq!(moved, None);
        hand.release(false);
        let all = |part: &[u8], byte| part.iter().all(|b| *b == byte);
        assert!(all(&a.memory, 1) && all(&b.memory, 2), "memory that was completed long ago");
    }
}

#[test]
fn the_initiator_moves_the_pieces_that_the_helper_refuses() {
    let (mut a, mut b) = two(MOST);
    fill(&mut b, 1000);
    hold_helper(&a, &b);
    let mut hand = post_until_taken(&mut a, &b, IBV_WR_RDMA_READ);
    hand.release(false);
    assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
    assert!(a.memory == b.memory);
}

#[test]
fn a_flush_waits_for_a_piece_in_hand() {
    let (mut a, b) = two(MOST);
    hold_helper(&a, &b);
    let mut hand = post_until_taken(&mut a, &b, IBV_WR_RDMA_READ);
    let over = AtomicBool::new(false);
    let flusher = ThreadHandle::current();
    std::thread::scope(|scope| {
        let putter = scope.spawn(|| {
            until("it waits", || over.load(Ordering::Relaxed) || flusher.sleeps());
            let waited = !over.load(Ordering::Relaxed);
            hand.release(true);
            waited
        });
        a.modify(soft_semantics::state::QpState::Err as u32, 0, Zeroed::zeroed());
        over.store(true, Ordering::Relaxed);
        assert!(
            putter.join().expect("no panic"),
            "it was flushed while another had a piece in hand"
        );
    });
    assert_eq!(a.wait(&b).status, IBV_WC_WR_FLUSH_ERR);
}

#[test]
fn a_helper_with_a_forged_state_moves_no_bytes_of_other_processes() {
    let (a, mut b) = two(MOST);
    fill(&mut b, 1);
    hold_helper(&a, &b);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let vandal = scope.spawn(|| {
            let hand = &b.qp.adapter().view.tables_head().hand.0;
            let job = a.qp.adapter().view.job();
            for n in (0..u64::MAX).take_while(|_| !done.load(Ordering::Relaxed)) {
                // The state of the present operation with a false count: all pieces are done, or
                // more pieces than there are.
                let number = job.state.load(Ordering::Relaxed) & !0xffff_ffff;
                let own = u64::from(a.qp.adapter().fabric.slot()) << 20;
                hand.store(number | own | ((n * 7919) & 0xffff), Ordering::Relaxed);
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

/// A process that is not an end of the connection asks the helper of one end for an operation that
/// only the other end may make.
#[test]
fn a_helper_serves_only_the_peer_of_its_qp() {
    let (a, b) = two(MOST);
    let mut config = a.qp.adapter().fabric.config().clone();
    config.dir_is_ours = false;
    let third = Adapter::join(config).expect("the same fabric");
    let c = Side::new(&third, QpType::Rc, MOST);
    // The helper looks up what to move in the tables of the process that asks.
    for (number, (asker, read, wanted)) in
        [(&a, 1, Some(())), (&a, 0, Some(())), (&c, 1, None), (&c, 0, None)].into_iter().enumerate()
    {
        let of = asker.qp.adapter();
        let job = of.view.job();
        job.target.store(b.qp.adapter().fabric.slot().into(), Ordering::Relaxed);
        job.qpn.store(b.qp.qpn(), Ordering::Relaxed);
        job.rkey.store(b.keys.rkey, Ordering::Relaxed);
        job.addr.store(b.memory.as_ptr() as u64, Ordering::Relaxed);
        job.len.store(4096, Ordering::Relaxed);
        job.piece.store(4096, Ordering::Relaxed);
        job.is_read.store(read, Ordering::Relaxed);
        let part = &job.parts[0];
        part.witness.store(of.fabric.witness_address(), Ordering::Relaxed);
        part.witness_len.store(8, Ordering::Relaxed);
        part.addr.store(asker.memory.as_ptr() as u64, Ordering::Relaxed);
        part.len.store(4096, Ordering::Relaxed);
        job.state.store((number as u64 + 5) << 32 | 1 << 16, Ordering::Release);
        let mut hand = HelperClaim::new(b.qp.adapter().view, of.view, of.fabric.slot());
        let (asked, n) = hand.claim_piece(b.qp.adapter().fabric.slot()).expect("a piece");
        let peer = b.qp.adapter().fabric.peer(of.fabric.slot()).expect("there");
        assert_eq!(asked.move_piece(b.qp.adapter(), &PeerView::of(peer), n), wanted);
    }
}
