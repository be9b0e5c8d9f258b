//! Tests of operations that the responder's QP does not allow, and of the memory that replies are
//! written to. Each test runs on every path that a request can take (`Path`).

use super::early_packets::far_pair_of;
use super::*;
use crate::engine::keys::regions::FLUSH_GLOBAL;
use soft_memory::testing::remote_pages;

/// A path of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// The initiator moves the bytes.
    Direct,
    /// The responder's process moves the bytes, through the ring.
    Ring,
    /// The bytes go in UDP packets.
    Wire,
}

pub(super) const PATHS: [Path; 3] = [Path::Direct, Path::Ring, Path::Wire];

/// A connection by `path`, whose second QP allows `access`. `None` if the UDP port is in use.
pub(super) fn connected(kind: QpType, path: Path, bytes: usize, access: u32) -> Option<[Side; 2]> {
    let sides = match path {
        Path::Direct => pair(kind, true, bytes).into(),
        Path::Ring => pair(kind, false, bytes).into(),
        Path::Wire => {
            let sides = far_pair_of(&adapter_with_port(), kind, bytes);
            if sides.is_none() {
                eprintln!(
                    "skipped: processes of another fabric have UDP port 4791 on this machine"
                );
            }
            sides?
        }
    };
    if kind != QpType::Ud {
        allow(&sides[1], access);
    }
    Some(sides)
}

fn allow(side: &Side, access: u32) {
    let attr = ibv_qp_attr { qp_access_flags: access, ..Zeroed::zeroed() };
    side.modify(IBV_QPS_RTS, IBV_QP_ACCESS_FLAGS, attr);
}

/// IBTA 1.7 9.7.4.1.2, 9.7.4.1.5, table 58.
#[test]
fn an_operation_that_the_qp_does_not_allow_is_an_invalid_request_whatever_its_length() {
    let all = ALL | FLUSH_GLOBAL;
    for (opcode, right, lens) in [
        (IBV_WR_RDMA_WRITE, REMOTE_WRITE, &[0, 8, 20_000][..]),
        (IBV_WR_RDMA_WRITE_WITH_IMM, REMOTE_WRITE, &[0, 8, 20_000]),
        (IBV_WR_RDMA_READ, REMOTE_READ, &[0, 8, 20_000]),
        (IBV_WR_ATOMIC_FETCH_AND_ADD, REMOTE_ATOMIC, &[8]),
        (IBV_WR_ATOMIC_CMP_AND_SWP, REMOTE_ATOMIC, &[8]),
        (IBV_WR_ATOMIC_WRITE, REMOTE_WRITE, &[8]),
        (IBV_WR_FLUSH, FLUSH_GLOBAL, &[0]),
    ] {
        for (path, len) in
            PATHS.into_iter().flat_map(|path| lens.iter().map(move |len| (path, *len)))
        {
            let Some([mut a, b]) = connected(QpType::Rc, path, 20_000, all & !right) else {
                continue;
            };
            fill(&mut a, 1);
            b.receive(3, &[b.sge(0, 8)]);
            let request = request(opcode, &b);
            let list = [a.sge(0, len)];
            a.send(request, if len == 0 { &[] } else { &list });
            let name = format!("opcode {opcode}, {len} bytes, {path:?}");
            assert_eq!(a.wait(&b).status, IBV_WC_REM_INV_REQ_ERR, "{name}");
            let receive = b.wait(&a);
            assert_eq!((receive.wr_id, receive.status), (3, IBV_WC_WR_FLUSH_ERR), "{name}");
            assert!(b.memory.iter().all(|byte| *byte == 0), "{name}");
        }
    }
}

#[test]
fn a_refused_write_with_immediate_data_of_an_unreliable_connection_takes_no_receive() {
    type Spoil = fn(&Side, &mut Request);
    let refusals: [(&str, Spoil); 6] = [
        ("a wrong rkey", |_, request| remote(request).rkey ^= 0x4000),
        ("beyond the region", |b, request| remote(request).addr += b.memory.len() as u64 - 2),
        ("a region without REMOTE_WRITE", |b, request| {
            remote(request).rkey = other_region(b, b.qp.pd(), LOCAL_WRITE).rkey;
        }),
        ("a deregistered region", |b, request| {
            let keys = other_region(b, b.qp.pd(), ALL);
            b.qp.adapter().regions.revoke(keys.index);
            remote(request).rkey = keys.rkey;
        }),
        ("a region of another domain", |b, request| {
            remote(request).rkey = other_region(b, b.qp.pd() + 1, ALL).rkey;
        }),
        ("a QP without REMOTE_WRITE", |b, _| allow(b, 0)),
    ];
    for (what, spoil) in refusals {
        for path in PATHS {
            let Some([mut a, b]) = connected(QpType::Uc, path, 20_000, ALL) else { continue };
            fill(&mut a, 1);
            b.receive(3, &[b.sge(0, 8)]);
            for len in [4, 10_000] {
                let mut request = request(IBV_WR_RDMA_WRITE_WITH_IMM, &b);
                spoil(&b, &mut request);
                a.send(request, &[a.sge(0, len)]);
                assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS, "{what}, {path:?}");
            }
            assert!(b.memory.iter().all(|byte| *byte == 0), "{what}, {path:?}");
            // The next message finds the receive. A SEND needs no access right.
            a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 5)]);
            let got = b.wait(&a);
            let wanted = (3, IBV_WC_SUCCESS, IBV_WC_RECV, 5);
            assert_eq!(
                (got.wr_id, got.status, got.opcode, got.byte_len),
                wanted,
                "{what}, {path:?}"
            );
        }
    }
}

#[test]
fn an_empty_write_with_immediate_data_needs_the_right_on_an_unreliable_connection_too() {
    for path in PATHS {
        let Some([a, b]) = connected(QpType::Uc, path, 64, 0) else { continue };
        b.receive(3, &[b.sge(0, 8)]);
        a.send(request(IBV_WR_RDMA_WRITE_WITH_IMM, &b), &[]);
        assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
        a.send(request(IBV_WR_SEND, &b), &[a.sge(0, 5)]);
        assert_eq!(b.wait(&a).opcode, IBV_WC_RECV, "{path:?}");
    }
}

#[test]
fn a_qp_that_is_connected_to_itself_says_why_its_request_was_refused() {
    for (cma, opcode) in [true, false].into_iter().flat_map(|cma| {
        [IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_ATOMIC_FETCH_AND_ADD].map(|op| (cma, op))
    }) {
        let adapter = adapter(cma);
        let side = Side::new(&adapter, QpType::Rc, 64);
        side.connect(side.qp.qpn(), 0);
        side.receive(3, &[side.sge(0, 8)]);
        side.receive(4, &[side.sge(0, 8)]);
        side.send(request(IBV_WR_SEND, &side), &[side.sge(0, 8)]);
        side.send(misnamed(opcode, &side), &[side.sge(0, 8)]);
        side.send(request(IBV_WR_SEND, &side), &[side.sge(0, 8)]);
        let all: Vec<Cqe> = (0..5).map(|_| side.wait(&side)).collect();
        let of = |sent: bool| all.iter().filter(move |cqe| (cqe.wr_id == 9) == sent);
        let sent: Vec<u32> = of(true).map(|cqe| cqe.status).collect();
        let wanted = [IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR];
        assert_eq!(sent, wanted, "opcode {opcode}, {cma}");
        let received: Vec<u32> = of(false).map(|cqe| cqe.status).collect();
        assert_eq!(received, [IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR], "opcode {opcode}, {cma}");
    }
}

#[test]
fn a_reply_for_memory_that_was_deregistered_meanwhile_is_a_protection_error() {
    for (path, opcode) in [Path::Ring, Path::Wire].into_iter().flat_map(|path| {
        [IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD].map(|opcode| (path, opcode))
    }) {
        for len in [8, 20_000] {
            let Some([a, b]) = connected(QpType::Rc, path, 20_000, ALL) else { continue };
            let len = if opcode == IBV_WR_RDMA_READ { len } else { 8 };
            let pages = remote_pages(5);
            let (va, bytes) = (pages as u64, 5 * 4096);
            let extent = Extent { pd: a.qp.pd(), va, iova: va, len: bytes, access: ALL };
            let keys = a.qp.adapter().regions.register(&extent).expect("room");
            let sge = ibv_sge { addr: va, length: len as u32, lkey: keys.lkey };
            // The lock keeps the responder from replying before the memory is deregistered.
            let not_yet = b.qp.responder().lock();
            a.send(request(opcode, &b), &[sge]);
            a.qp.adapter().regions.revoke(keys.index);
            // SAFETY: this test mapped the pages, and no thread uses them any more.
            assert_eq!(unsafe { libc::munmap(pages.cast(), bytes as usize) }, 0);
            drop(not_yet);
            assert_eq!(a.wait(&b).status, IBV_WC_LOC_PROT_ERR, "opcode {opcode}, {len}, {path:?}");
        }
    }
}

fn remote(request: &mut Request) -> &mut RemoteAddress {
    request.operation.remote_mut().expect("a request that names memory")
}

/// Registers a second region over all memory of `side`.
fn other_region(side: &Side, pd: u32, access: u32) -> Keys {
    let va = side.memory.as_ptr() as u64;
    let extent = Extent { pd, va, iova: va, len: side.memory.len() as u64, access };
    side.qp.adapter().regions.register(&extent).expect("room")
}

#[test]
fn a_flush_needs_the_right_for_each_place_that_it_names() {
    for (path, placement) in PATHS.into_iter().flat_map(|path| {
        [IBV_FLUSH_GLOBAL, IBV_FLUSH_PERSISTENT, IBV_FLUSH_GLOBAL | IBV_FLUSH_PERSISTENT]
            .map(|placement| (path, placement))
    }) {
        let Some([a, b]) = connected(QpType::Rc, path, 64, ALL | FLUSH_GLOBAL) else { continue };
        let keys = other_region(&b, b.qp.pd(), ALL | FLUSH_GLOBAL);
        let remote = RemoteAddress { addr: b.memory.as_ptr() as u64, rkey: keys.rkey };
        let operation = RequestOperation::Flush { remote, len: 8, placement };
        a.send(Request { operation, ..request(IBV_WR_FLUSH, &b) }, &[]);
        let is_allowed = placement == IBV_FLUSH_GLOBAL;
        let wanted = if is_allowed { IBV_WC_SUCCESS } else { IBV_WC_REM_INV_REQ_ERR };
        assert_eq!(a.wait(&b).status, wanted, "{path:?}, {placement:#x}");
    }
}
