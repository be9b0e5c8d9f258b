"""Reliable connections through pyverbs: both posting interfaces, every kind of request, events, failures, queries."""
import errno

from pyverbs import enums as e
from pyverbs.cq import CQ, CompChannel
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.wr import SGE, RecvWR, SendWR

from rig import PORT, Side, check, connect, equal, finish, pattern, poll, refused


def make_qp(side, cq, ops=0):
    cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=2, max_recv_sge=2, max_inline_data=64)
    if not ops:
        return QP(side.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap))
    mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
    init = QPInitAttrEx(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap, pd=side.pd, comp_mask=mask,
                        send_ops_flags=ops)
    return QPEx(side.ctx, init)


def sge(side, length, offset=0):
    return SGE(side.mr.buf + offset, length, side.mr.lkey)


def request(side, opcode, length, wr_id, offset=0):
    return SendWR(wr_id=wr_id, opcode=opcode, num_sge=1, sg=[sge(side, length, offset)],
                  send_flags=e.IBV_SEND_SIGNALED)


def completed(cq, wr_id, opcode, what, status=e.IBV_WC_SUCCESS):
    wc = poll(cq)
    equal((wc.status, wc.wr_id), (status, wr_id), what)
    if status == e.IBV_WC_SUCCESS:
        equal(wc.opcode, opcode, f'{what}: opcode')
    return wc


def by_post_send(a, b):
    cq_a, cq_b = CQ(a.ctx, 64), CQ(b.ctx, 64)
    qp_a, qp_b = make_qp(a, cq_a), make_qp(b, cq_b)
    connect(a, qp_a, b, qp_b)
    for n, length in enumerate((0, 1, 48, 49, 5000, 30000)):
        data = pattern(length, n)
        a.write(data)
        qp_b.post_recv(RecvWR(wr_id=n, num_sge=1, sg=[sge(b, length)]))
        wr = request(a, e.IBV_WR_SEND_WITH_IMM, length, n + 100)
        wr.imm_data = 0x11223344
        qp_a.post_send(wr)
        wc = completed(cq_b, n, e.IBV_WC_RECV, f'SEND of {length} bytes arrives')
        equal((wc.byte_len, wc.wc_flags & e.IBV_WC_WITH_IMM, wc.qp_num),
              (length, e.IBV_WC_WITH_IMM, qp_b.qp_num), 'length, flags and QP number')
        check(b.read(length) == data, 'its bytes')
        completed(cq_a, n + 100, e.IBV_WC_SEND, 'SEND completes')
        for opcode, wc_opcode, source, target, what in (
                (e.IBV_WR_RDMA_WRITE, e.IBV_WC_RDMA_WRITE, a, b, 'WRITE'),
                (e.IBV_WR_RDMA_READ, e.IBV_WC_RDMA_READ, b, a, 'READ')):
            data = pattern(length, n + 50)
            source.write(data)
            target.write(bytes(length))
            wr = request(a, opcode, length, n)
            wr.set_wr_rdma(b.mr.rkey, b.mr.buf)
            qp_a.post_send(wr)
            completed(cq_a, n, wc_opcode, f'{what} of {length} bytes')
            check(target.read(length) == data, 'its bytes')
    a.write(bytes(8))
    b.write((40).to_bytes(8, 'little'))
    wr = request(a, e.IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 1)
    wr.set_wr_atomic(b.mr.rkey, b.mr.buf, 2, 0)
    qp_a.post_send(wr)
    completed(cq_a, 1, e.IBV_WC_FETCH_ADD, 'fetch-and-add')
    equal([int.from_bytes(side.read(8), 'little') for side in (a, b)], [40, 42], 'old and new value')
    wr = request(a, e.IBV_WR_ATOMIC_CMP_AND_SWP, 8, 2)
    wr.set_wr_atomic(b.mr.rkey, b.mr.buf, 42, 7)
    qp_a.post_send(wr)
    completed(cq_a, 2, e.IBV_WC_COMP_SWAP, 'compare-and-swap')
    equal([int.from_bytes(side.read(8), 'little') for side in (a, b)], [42, 7], 'old and new value')

    attr, init = qp_a.query(e.IBV_QP_STATE | e.IBV_QP_CAP)
    equal((attr.qp_state, attr.dest_qp_num, attr.timeout), (e.IBV_QPS_RTS, qp_b.qp_num, 10), 'query')
    check(init.cap.max_send_wr >= 16 and init.cap.max_inline_data >= 64, 'query: capacities')

    # A key that is none takes both ends down.
    qp_b.post_recv(RecvWR(wr_id=9, num_sge=1, sg=[sge(b, 8)]))
    wr = request(a, e.IBV_WR_RDMA_WRITE, 8, 3)
    wr.set_wr_rdma(b.mr.rkey ^ 0x4000, b.mr.buf)
    qp_a.post_send(wr)
    completed(cq_a, 3, 0, 'WRITE with a bad rkey', e.IBV_WC_REM_ACCESS_ERR)
    completed(cq_b, 9, 0, "the target's receive", e.IBV_WC_WR_FLUSH_ERR)
    equal(qp_a.query(e.IBV_QP_STATE)[0].qp_state, e.IBV_QPS_ERR, 'the QP')
    qp_a.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    refused(lambda: qp_a.post_send(request(a, e.IBV_WR_SEND, 1, 1)), errno.EINVAL, 'a request in RESET')
    for thing in (qp_a, qp_b, cq_a, cq_b):
        thing.close()


def by_event(a, b):
    channel = CompChannel(b.ctx)
    cq_a, cq_b = CQ(a.ctx, 64), CQ(b.ctx, 64, channel=channel)
    qp_a, qp_b = make_qp(a, cq_a), make_qp(b, cq_b)
    connect(a, qp_a, b, qp_b)
    for n in range(3):
        cq_b.req_notify()
        qp_b.post_recv(RecvWR(wr_id=n, num_sge=1, sg=[sge(b, 8)]))
        qp_a.post_send(request(a, e.IBV_WR_SEND, 8, n))
        channel.get_cq_event(cq_b)
        cq_b.ack_events(1)
        completed(cq_b, n, e.IBV_WC_RECV, 'what an event was for')
        completed(cq_a, n, e.IBV_WC_SEND, 'the send')
    for thing in (qp_a, qp_b, cq_a, cq_b, channel):
        thing.close()


def by_wr_calls(a, b):
    ops = (e.IBV_QP_EX_WITH_SEND | e.IBV_QP_EX_WITH_SEND_WITH_IMM | e.IBV_QP_EX_WITH_RDMA_WRITE
           | e.IBV_QP_EX_WITH_RDMA_READ | e.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
    cq_a, cq_b = CQ(a.ctx, 64), CQ(b.ctx, 64)
    qp_a, qp_b = make_qp(a, cq_a, ops), make_qp(b, cq_b)
    connect(a, qp_a, b, qp_b)
    data = pattern(3000, 1)
    a.write(data)
    qp_b.post_recv(RecvWR(wr_id=1, num_sge=1, sg=[sge(b, 3000)]))
    qp_a.wr_start()
    qp_a.wr_id, qp_a.wr_flags = 10, e.IBV_SEND_SIGNALED
    qp_a.wr_send()
    qp_a.wr_set_sge(sge(a, 3000))
    qp_a.wr_id = 11
    qp_a.wr_rdma_write(b.mr.rkey, b.mr.buf + 4096)
    qp_a.wr_set_sge_list(2, [sge(a, 1000), sge(a, 2000, 1000)])
    qp_a.wr_id = 12
    qp_a.wr_rdma_read(b.mr.rkey, b.mr.buf + 4096)
    qp_a.wr_set_sge(sge(a, 3000, 8192))
    qp_a.wr_complete()
    completed(cq_b, 1, e.IBV_WC_RECV, 'a SEND that was built')
    for wr_id, opcode in ((10, e.IBV_WC_SEND), (11, e.IBV_WC_RDMA_WRITE), (12, e.IBV_WC_RDMA_READ)):
        completed(cq_a, wr_id, opcode, f'request {wr_id}')
    check(b.read(3000) == data and b.read(3000, 4096) == data and a.read(3000, 8192) == data, 'their bytes')
    qp_a.wr_start()
    qp_a.wr_id = 13
    qp_a.wr_send()
    qp_a.wr_abort()
    equal(cq_a.poll(1)[0], 0, 'an aborted request leaves nothing')
    for thing in (qp_a, qp_b, cq_a, cq_b):
        thing.close()


def main():
    a, b = Side(), Side()
    port = a.ctx.query_port(PORT)
    equal((port.state, port.link_layer), (e.IBV_PORT_ACTIVE, e.IBV_LINK_LAYER_ETHERNET), 'the port')
    by_post_send(a, b)
    by_event(a, b)
    by_wr_calls(a, b)
    finish()


main()
