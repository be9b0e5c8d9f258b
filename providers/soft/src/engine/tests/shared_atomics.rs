//! Tests of atomics from many QPs on one word. A word must count every change, whichever process or
//! thread makes it.

use super::*;

#[test]
fn a_word_that_many_qps_change_at_once_counts_every_change() {
    const EACH: u64 = 3000;
    let attached = adapter(true);
    let by_ring = adapter(false);
    for adapter in [attached, by_ring] {
        let (mut sides, mut senders) = (vec![], vec![]);
        let home = Side::new(&adapter, QpType::Rc, 64);
        for _ in 0..3 {
            let a = Side::new(&adapter, QpType::Rc, 64);
            let mut b = Side::new(&adapter, QpType::Rc, 64);
            a.connect(b.qp.qpn(), 7);
            b.connect(a.qp.qpn(), 7);
            // All QPs change the word of `home`.
            let va = home.memory.as_ptr() as u64;
            let region = Extent { pd: b.qp.pd(), va, iova: va, len: 64, access: ALL };
            b.keys = adapter.regions.register(&region).expect("room");
            senders.push(a);
            sides.push(b);
        }
        let va = home.memory.as_ptr() as u64;
        let done = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for (a, b) in senders.iter().zip(&sides) {
                let done = &done;
                scope.spawn(move || {
                    for _ in 0..EACH {
                        let remote = RemoteAddress { addr: va, rkey: b.keys.rkey };
                        let operation = RequestOperation::FetchAdd { remote, add: 1 };
                        let add = Request { operation, ..request(IBV_WR_ATOMIC_FETCH_AND_ADD, b) };
                        a.send(add, &[a.sge(0, 8)]);
                        assert_eq!(a.wait(b).status, IBV_WC_SUCCESS);
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        let end = u64::from_ne_bytes(home.memory[..8].try_into().expect("eight"));
        assert_eq!((done.into_inner(), end), (3, 3 * EACH));
    }
}
