//! Tests of strict queue pairs (`strict`). The engine refuses on one host what adapters refuse
//! between hosts, and frees a slot of the send queue only when the completion was polled.

use super::*;
use crate::engine::queues::qp::creating::STRICT;
use soft_semantics::state::QpState;
use soft_sys::Errno;

/// Two strict QPs of one process, in RESET.
fn strict_pair(kind: QpType, cma: bool, bytes: usize) -> (Side, Side) {
    let adapter = adapter(cma);
    STRICT.set(true);
    let pair = (Side::new(&adapter, kind, bytes), Side::new(&adapter, kind, bytes));
    STRICT.set(false);
    pair
}

/// Takes the QP through INIT and RTR to RTS with this path MTU and these READ depths.
fn bring_up(side: &Side, to: &Side, path_mtu: u32, depth: u8, own_resources: u8) {
    let attr = ibv_qp_attr {
        qkey: QKEY,
        qp_access_flags: ALL,
        port_num: 1,
        path_mtu,
        dest_qp_num: to.qp.qpn(),
        ah_attr: ibv_ah_attr { port_num: 1, ..Zeroed::zeroed() },
        min_rnr_timer: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        max_rd_atomic: depth,
        max_dest_rd_atomic: own_resources,
        ..Zeroed::zeroed()
    };
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let needs = soft_semantics::modify::transition(side.qp.qp_type(), side.qp.state(), state);
        side.modify(state as u32, needs.expect("the usual way").required, attr);
    }
}

fn connected(kind: QpType, cma: bool, mtus: (u32, u32), depths: (u8, u8)) -> (Side, Side) {
    let (a, b) = strict_pair(kind, cma, 64 << 10);
    bring_up(&a, &b, mtus.0, depths.0, 16);
    bring_up(&b, &a, mtus.1, 16, depths.1);
    (a, b)
}

const MTUS: [(u32, u32); 2] = [(IBV_MTU_4096, IBV_MTU_1024), (IBV_MTU_1024, IBV_MTU_4096)];

#[test]
fn two_path_mtus_pass_what_is_one_packet_for_both_and_nothing_longer() {
    for (cma, mtus) in [(true, MTUS[0]), (true, MTUS[1]), (false, MTUS[0]), (false, MTUS[1])] {
        for (opcode, status) in [
            (IBV_WR_SEND, IBV_WC_REM_INV_REQ_ERR),
            (IBV_WR_RDMA_WRITE, IBV_WC_REM_INV_REQ_ERR),
            (IBV_WR_RDMA_READ, IBV_WC_BAD_RESP_ERR),
        ] {
            let (a, b) = connected(QpType::Rc, cma, mtus, (16, 16));
            for n in 0..3 {
                b.receive(n, &[b.sge(0, 30_000)]);
            }
            a.send(request(opcode, &b), &[a.sge(0, 1024)]);
            assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS, "{opcode} {mtus:?}");
            a.send(request(opcode, &b), &[a.sge(0, 1025)]);
            assert_eq!(a.wait(&b).status, status, "{opcode} {mtus:?}");
            assert_eq!(a.qp.state(), QpState::Err);
        }
    }
}

#[test]
fn of_two_path_mtus_an_unreliable_connection_loses_what_is_longer() {
    let (mut a, mut b) = connected(QpType::Uc, true, MTUS[0], (16, 16));
    fill(&mut a, 1);
    fill(&mut b, 2);
    let before = b.memory.clone();
    a.send(request(IBV_WR_RDMA_WRITE, &b), &[a.sge(0, 1025)]);
    assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS, "the sender never knows");
    assert!(b.memory == before, "it was written");
    a.send(request(IBV_WR_RDMA_WRITE, &b), &[a.sge(0, 1024)]);
    assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
    assert!(b.memory[..1024] == a.memory[..1024], "what fits arrives");
}

#[test]
fn a_read_beyond_the_responders_depth_is_refused() {
    for (cma, opcode) in [(true, IBV_WR_RDMA_READ), (false, IBV_WR_ATOMIC_FETCH_AND_ADD)] {
        let (a, b) = connected(QpType::Rc, cma, (IBV_MTU_1024, IBV_MTU_1024), (16, 1));
        for _ in 0..3 {
            a.send(request(opcode, &b), &[a.sge(0, 8)]);
            assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS, "one at a time");
        }
        a.send(request(opcode, &b), &[a.sge(0, 8)]);
        a.send(request(opcode, &b), &[a.sge(0, 8)]);
        assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
        assert_eq!(a.wait(&b).status, IBV_WC_REM_INV_REQ_ERR, "two at a time");
        // An initiator whose own depth is 1 never has two READs outstanding.
        let (a, b) = connected(QpType::Rc, cma, (IBV_MTU_1024, IBV_MTU_1024), (1, 1));
        for _ in 0..9 {
            a.send(request(opcode, &b), &[a.sge(0, 8)]);
        }
        for _ in 0..9 {
            assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
        }
        let (a, b) = connected(QpType::Rc, cma, (IBV_MTU_1024, IBV_MTU_1024), (16, 0));
        a.send(request(opcode, &b), &[a.sge(0, 8)]);
        assert_eq!(a.wait(&b).status, IBV_WC_REM_INV_REQ_ERR, "no resources");
    }
}

#[test]
fn a_request_waits_for_the_peer_before_its_length_is_checked() {
    let (a, b) = strict_pair(QpType::Rc, true, 64 << 10);
    bring_up(&a, &b, IBV_MTU_1024, 16, 16);
    a.send(request(IBV_WR_RDMA_WRITE, &b), &[a.sge(0, 4096)]);
    assert_eq!(a.poll(), None);
    bring_up(&b, &a, IBV_MTU_4096, 16, 16);
    assert_eq!(a.wait(&b).status, IBV_WC_REM_INV_REQ_ERR);
}

/// Posts until the queue is full. Returns the number of accepted requests.
fn fill_queue(a: &Side, b: &Side, flags: u32) -> usize {
    let mut posted = 0;
    loop {
        let request = Request { flags, ..request(IBV_WR_SEND, b) };
        let mut requester = a.qp.requester().lock();
        let result = requester.post(&a.qp, &request, &[a.sge(0, 8)]);
        requester.publish();
        a.qp.release_requester(requester);
        match result {
            Ok(()) => posted += 1,
            Err(why) => {
                assert_eq!(why, Errno::ENOMEM);
                return posted;
            }
        }
    }
}

#[test]
fn a_slot_of_the_send_queue_is_free_once_its_completion_was_polled() {
    const LENGTH: usize = 64;
    for kind in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let (a, b) = connected(kind, true, (IBV_MTU_1024, IBV_MTU_1024), (16, 16));
        for n in 0..LENGTH as u64 {
            b.receive(n, &[b.sge(0, 64)]);
        }
        assert_eq!(fill_queue(&a, &b, IBV_SEND_SIGNALED), LENGTH, "{kind:?}");
        assert_eq!(fill_queue(&a, &b, IBV_SEND_SIGNALED), 0, "no thread has polled");
        for _ in 0..3 {
            assert_eq!(a.wait(&b).status, IBV_WC_SUCCESS);
        }
        assert_eq!(fill_queue(&a, &b, IBV_SEND_SIGNALED), 3, "three were polled, {kind:?}");
        a.modify(QpState::Reset as u32, 0, Zeroed::zeroed());
        let left = a.qp.requester().lock().postable_requests(&a.qp);
        assert_eq!(left, LENGTH, "RESET empties the queue, {kind:?}");
    }
}
