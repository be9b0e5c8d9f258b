//! Tests of memory that the application unmapped before it deregistered it (`soft_memory::guard`,
//! `soft_memory::careful`). The engine must survive the access, whichever path touches the memory.

use super::access_rights::{PATHS, Path, connected};
use super::*;
use soft_memory::testing::remote_pages;

const PAGE: usize = 4096;

/// Registers two pages for `side` and unmaps the second one. Returns their address and the keys.
fn half_gone(side: &Side) -> (*mut u8, Keys) {
    let at = remote_pages(2);
    let (va, len) = (at as u64, 2 * PAGE as u64);
    let extent = Extent { pd: side.qp.pd(), va, iova: va, len, access: ALL };
    let keys = side.qp.adapter().regions.register(&extent).expect("room");
    // SAFETY: this test mapped the page, and only the engine knows its address.
    assert_eq!(unsafe { libc::munmap(at.add(PAGE).cast(), PAGE) }, 0);
    (at, keys)
}

fn part(at: *mut u8, keys: Keys, from: usize, len: usize) -> ibv_sge {
    ibv_sge { addr: at as u64 + from as u64, length: len as u32, lkey: keys.lkey }
}

/// The next completion of `side`, while this thread serves `b` as the service thread does.
fn served(side: &Side, b: &Side) -> Cqe {
    loop {
        b.cq.sweep(ServedBy::Library);
        if let Some(cqe) = side.poll() {
            return cqe;
        }
    }
}

#[test]
fn unmapped_receives_discard_the_bytes_that_arrive() {
    for (kind, cma) in
        [(QpType::Rc, true), (QpType::Rc, false), (QpType::Uc, false), (QpType::Ud, true)]
    {
        let (mut a, b) = pair(kind, cma, 2 * PAGE);
        fill(&mut a, 5);
        let (at, keys) = half_gone(&b);
        let grh = if kind == QpType::Ud { 40 } else { 0 };
        for len in [8, 60, PAGE - 40] {
            b.receive(1, &[part(at, keys, PAGE, PAGE)]);
            a.send(request(IBV_WR_SEND, &b), &[a.sge(0, len)]);
            let got = served(&b, &b);
            assert_eq!((got.status, got.byte_len), (IBV_WC_SUCCESS, (len + grh) as u32));
            assert_eq!(served(&a, &b).status, IBV_WC_SUCCESS);
        }
        // A message that ends before the hole arrives.
        let len = PAGE - 100 - grh;
        b.receive(1, &[part(at, keys, 100, 2 * PAGE - 100)]);
        a.send(request(IBV_WR_SEND, &b), &[a.sge(0, len)]);
        assert_eq!(served(&b, &b).status, IBV_WC_SUCCESS);
        // SAFETY: the range is inside the page that is still mapped.
        let left = unsafe { std::slice::from_raw_parts(at.add(100 + grh), len) };
        assert!(left == &a.memory[..len], "{kind:?}");
    }
}

#[test]
fn unmapped_memory_accepts_writes_and_refuses_reads() {
    for (opcode, status) in [
        (IBV_WR_RDMA_WRITE, IBV_WC_SUCCESS),
        (IBV_WR_RDMA_READ, IBV_WC_REM_OP_ERR),
        (IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_REM_OP_ERR),
        (IBV_WR_ATOMIC_WRITE, IBV_WC_REM_OP_ERR),
    ] {
        // Without attach, the target's process moves the bytes.
        let (a, b) = pair(QpType::Rc, false, PAGE);
        let (at, keys) = half_gone(&b);
        let remote = RemoteAddress { addr: at as u64 + PAGE as u64, rkey: keys.rkey };
        a.send(
            Request { operation: operation_of(opcode, remote), ..request(opcode, &b) },
            &[a.sge(0, 8)],
        );
        assert_eq!(served(&a, &b).status, status, "opcode {opcode}");
    }
}

/// The number of unmapped pages of a region, whose first page alone stays mapped.
const GONE: usize = 80;

/// Registers `SENDER_DIED` + 1 pages for `side` and unmaps all but the first. Returns the address
/// of the unmapped pages, and the keys.
fn gone(side: &Side) -> (u64, Keys) {
    let at = remote_pages(GONE + 1);
    let (va, len) = (at as u64, (GONE + 1) * PAGE);
    let extent = Extent { pd: side.qp.pd(), va, iova: va, len: len as u64, access: ALL };
    let keys = side.qp.adapter().regions.register(&extent).expect("room");
    // SAFETY: this test mapped the pages, and only the engine knows their addresses.
    assert_eq!(unsafe { libc::munmap(at.add(PAGE).cast(), GONE * PAGE) }, 0);
    (va + PAGE as u64, keys)
}

fn at(addr: u64, keys: Keys, len: usize) -> ibv_sge {
    ibv_sge { addr, length: len as u32, lkey: keys.lkey }
}

#[test]
fn a_polling_thread_survives_unmapped_receives_whatever_arrives() {
    for (kind, path) in [
        (QpType::Rc, Path::Direct),
        (QpType::Rc, Path::Ring),
        (QpType::Rc, Path::Wire),
        (QpType::Uc, Path::Direct),
        (QpType::Uc, Path::Wire),
        (QpType::Ud, Path::Direct),
    ] {
        let Some([mut a, b]) = connected(kind, path, 300_001, ALL) else { continue };
        fill(&mut a, 5);
        let (addr, keys) = gone(&b);
        let grh = if kind == QpType::Ud { 40 } else { 0 };
        for len in [1, 8, 48, 60, 4000, 20_000, 300_001] {
            if kind == QpType::Ud && len > 4096 {
                continue;
            }
            // The first range begins in the page that is mapped.
            for addr in [addr - 3, addr] {
                b.receive(1, &[at(addr, keys, len + grh)]);
                a.send(request(IBV_WR_SEND, &b), &[a.sge(0, len)]);
                let got = b.wait(&a);
                let wanted = (IBV_WC_SUCCESS, (len + grh) as u32);
                assert_eq!((got.status, got.byte_len), wanted, "{kind:?}, {path:?}, {len}");
                assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS, "{kind:?}, {path:?}, {len}");
            }
        }
    }
}

#[test]
fn a_request_whose_own_memory_was_unmapped_fails_if_it_would_read_it() {
    for (opcode, kind) in [
        (IBV_WR_SEND, QpType::Rc),
        (IBV_WR_SEND, QpType::Ud),
        (IBV_WR_RDMA_WRITE, QpType::Rc),
        (IBV_WR_RDMA_READ, QpType::Rc),
        (IBV_WR_ATOMIC_FETCH_AND_ADD, QpType::Rc),
    ] {
        for path in PATHS.into_iter().filter(|path| kind != QpType::Ud || *path == Path::Direct) {
            for len in [8, 48, 4000, 20_000, 300_001] {
                let is_atomic = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
                if (kind == QpType::Ud && len > 4096) || (is_atomic && len != 8) {
                    continue;
                }
                let Some([a, b]) = connected(kind, path, 300_001, ALL) else { continue };
                let (addr, keys) = gone(&a);
                b.receive(3, &[b.sge(0, 300_001)]);
                a.send(request(opcode, &b), &[at(addr, keys, len)]);
                let reads = matches!(opcode, IBV_WR_SEND | IBV_WR_RDMA_WRITE);
                let wanted = if reads { IBV_WC_LOC_PROT_ERR } else { IBV_WC_SUCCESS };
                assert_eq!(a.wait(&b).status, wanted, "{opcode}, {kind:?}, {path:?}, {len}");
            }
        }
    }
}

#[test]
fn unmapped_target_memory_accepts_writes_and_refuses_reads_on_all_paths() {
    for (opcode, wanted) in [
        (IBV_WR_RDMA_WRITE, IBV_WC_SUCCESS),
        (IBV_WR_RDMA_READ, IBV_WC_REM_OP_ERR),
        (IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_REM_OP_ERR),
        (IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WC_REM_OP_ERR),
        (IBV_WR_ATOMIC_WRITE, IBV_WC_REM_OP_ERR),
    ] {
        for path in PATHS {
            for len in [8, 4000, 300_001] {
                if len > 8 && !matches!(opcode, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_READ) {
                    continue;
                }
                let Some([a, b]) = connected(QpType::Rc, path, 300_001, ALL) else { continue };
                let (addr, keys) = gone(&b);
                let remote = RemoteAddress { addr, rkey: keys.rkey };
                let request =
                    Request { operation: operation_of(opcode, remote), ..request(opcode, &b) };
                a.send(request, &[a.sge(0, len)]);
                assert_eq!(a.wait(&b).status, wanted, "opcode {opcode}, {path:?}, {len}");
            }
        }
    }
}
