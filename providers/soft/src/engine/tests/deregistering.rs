//! Tests that a deregistration waits for the threads that move bytes of its region. They cover what
//! `quiesce` waits for, and that its cost does not grow with the number of QPs.

use super::*;
use std::sync::atomic::AtomicBool;

#[test]
fn the_cost_of_a_deregistration_does_not_depend_on_the_number_of_queue_pairs() {
    let adapter = adapter(true);
    let sides: Vec<_> = (0..300).map(|_| Side::new(&adapter, QpType::Rc, 8)).collect();
    let looks = || {
        let before = adapter.registry.recent_locks().looked_at();
        adapter.quiesce(sides[0].qp.pd(), sides[0].keys.rkey, "a test");
        adapter.registry.recent_locks().looked_at() - before
    };
    assert_eq!(looks(), 600, "both halves of each are new");
    assert_eq!(looks(), 0, "none was used since");
    drop(sides[7].qp.requester().lock());
    drop(sides[8].qp.requester().lock());
    drop(sides[8].qp.responder().lock());
    assert_eq!(looks(), 3);
    assert_eq!(looks(), 0);
}

/// Runs threads that use both halves of each QP while two threads deregister the regions of `keys`
/// one after the other. No thread moves bytes of a region whose deregistration has returned.
fn no_key_outlives_its_deregistration(qps: usize) {
    const KEYS: usize = 100;
    let adapter = adapter(true);
    let sides: Vec<_> = (0..qps).map(|_| Side::new(&adapter, QpType::Rc, 8)).collect();
    let revoked: Vec<AtomicBool> = (0..KEYS).map(|_| AtomicBool::new(false)).collect();
    let gone: Vec<AtomicBool> = (0..KEYS).map(|_| AtomicBool::new(false)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for user in 0..2 {
            let (sides, revoked, gone, over) = (&sides, &revoked, &gone, &over);
            scope.spawn(move || {
                let mut n = user;
                while !over.load(Ordering::Relaxed) {
                    n += 1;
                    let qp = &sides[n % sides.len()].qp;
                    let use_keys = || {
                        for (revoked, gone) in revoked.iter().zip(gone) {
                            if !revoked.load(Ordering::SeqCst) {
                                std::hint::spin_loop();
                                assert!(!gone.load(Ordering::SeqCst), "its memory is gone");
                                break;
                            }
                        }
                    };
                    if n % 3 == 0 {
                        let _half = qp.responder().lock();
                        use_keys();
                    } else {
                        let _half = qp.requester().lock();
                        use_keys();
                    }
                }
            });
        }
        let ends: Vec<_> = (0..2)
            .map(|half| {
                let (adapter, sides, revoked, gone) = (&adapter, &sides, &revoked, &gone);
                scope.spawn(move || {
                    for key in (half..KEYS).step_by(2) {
                        revoked[key].store(true, Ordering::SeqCst);
                        // Each side is in a protection domain of its own.
                        for side in sides {
                            adapter.quiesce(side.qp.pd(), side.keys.rkey, "a test");
                        }
                        gone[key].store(true, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for end in ends {
            end.join().expect("a deregistration returns");
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn every_concurrent_deregistration_waits_for_a_thread_that_moves_bytes() {
    no_key_outlives_its_deregistration(1);
}

#[test]
fn deregistration_waits_for_a_thread_that_moves_bytes_of_one_of_many_qps() {
    no_key_outlives_its_deregistration(100);
}
