//! Memory that the application unmapped before it took it back (`soft_memory::careful`).

use super::*;
use soft_memory::testing::remote_pages;

const PAGE: usize = 4096;

/// Two pages registered for `side`, of which the second is unmapped: their addresses, and keys.
fn half_gone(side: &Side) -> (*mut u8, Keys) {
    let at = remote_pages(2);
    let (va, len) = (at as u64, 2 * PAGE as u64);
    let extent = Extent { pd: side.qp.pd, va, iova: va, len, access: ALL };
    let keys = side.qp.adapter.regions.register(&extent).expect("room");
    // SAFETY: a page of our own, which the engine knows of, and nobody else.
    assert_eq!(unsafe { libc::munmap(at.add(PAGE).cast(), PAGE) }, 0);
    (at, keys)
}

fn part(at: *mut u8, keys: Keys, from: usize, len: usize) -> ibv_sge {
    ibv_sge { addr: at as u64 + from as u64, length: len as u32, lkey: keys.lkey }
}

/// The next completion of `side`, while the service thread serves `b`.
fn served(side: &Side, b: &Side) -> Cqe {
    loop {
        b.cq.sweep(ServedBy::Library);
        if let Some(cqe) = side.poll() {
            return cqe;
        }
    }
}

#[test]
fn receives_that_were_unmapped_swallow_what_comes() {
    for (kind, cma) in [(Kind::Rc, true), (Kind::Rc, false), (Kind::Uc, false), (Kind::Ud, true)] {
        let (mut a, b) = pair(kind, cma, 2 * PAGE);
        fill(&mut a, 5);
        let (at, keys) = half_gone(&b);
        let grh = if kind == Kind::Ud { 40 } else { 0 };
        for len in [8, 60, PAGE - 40] {
            b.receive(1, &[part(at, keys, PAGE, PAGE)]);
            a.send(request(IBV_WR_SEND, &b), &[a.sge(0, len)]);
            let got = served(&b, &b);
            assert_eq!((got.status, got.byte_len), (IBV_WC_SUCCESS, (len + grh) as u32));
            assert_eq!(served(&a, &b).status, IBV_WC_SUCCESS);
        }
        // What ends before the hole arrives.
        let len = PAGE - 100 - grh;
        b.receive(1, &[part(at, keys, 100, 2 * PAGE - 100)]);
        a.send(request(IBV_WR_SEND, &b), &[a.sge(0, len)]);
        assert_eq!(served(&b, &b).status, IBV_WC_SUCCESS);
        // SAFETY: the page that is left.
        let left = unsafe { std::slice::from_raw_parts(at.add(100 + grh), len) };
        assert!(left == &a.memory[..len], "{kind:?}");
    }
}

#[test]
fn what_was_unmapped_takes_writes_and_gives_nothing() {
    for (opcode, status) in [
        (IBV_WR_RDMA_WRITE, IBV_WC_SUCCESS),
        (IBV_WR_RDMA_READ, IBV_WC_REM_OP_ERR),
        (IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_REM_OP_ERR),
        (IBV_WR_ATOMIC_WRITE, IBV_WC_REM_OP_ERR),
    ] {
        // The target's process acts, where nobody can attach.
        let (a, b) = pair(Kind::Rc, false, PAGE);
        let (at, keys) = half_gone(&b);
        let remote = RemoteAddress { addr: at as u64 + PAGE as u64, rkey: keys.rkey };
        a.send(Request { what: what(opcode, remote), ..request(opcode, &b) }, &[a.sge(0, 8)]);
        assert_eq!(served(&a, &b).status, status, "opcode {opcode}");
    }
}
