"""Extended completion queues through pyverbs: what they read, in one poll and in batches."""
import errno

from pyverbs import enums as e
from pyverbs.cq import CQEX, CqInitAttrEx, PollCqAttr
from pyverbs.qp import QP, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from rig import Side, check, connect, equal, finish, nothing, pattern, poll_ex, refused

STANDARD = (e.IBV_WC_EX_WITH_BYTE_LEN | e.IBV_WC_EX_WITH_IMM | e.IBV_WC_EX_WITH_QP_NUM
            | e.IBV_WC_EX_WITH_SRC_QP | e.IBV_WC_EX_WITH_SLID | e.IBV_WC_EX_WITH_SL
            | e.IBV_WC_EX_WITH_DLID_PATH_BITS)


def main():
    a, b = Side(), Side()
    cq_a = a.cq_ex(flags=STANDARD)
    cq_b = b.cq_ex(flags=STANDARD | e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
    cap = QPCap(max_send_wr=32, max_recv_wr=32)
    qp_a = QP(a.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq_a, rcq=cq_a, cap=cap))
    qp_b = QP(b.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq_b, rcq=cq_b, cap=cap))
    connect(a, qp_a, b, qp_b)

    def receive(wr_id, length):
        qp_b.post_recv(RecvWR(wr_id=wr_id, num_sge=1, sg=[SGE(b.mr.buf, length, b.mr.lkey)]))

    def send(wr_id, length, imm=None):
        opcode = e.IBV_WR_SEND if imm is None else e.IBV_WR_SEND_WITH_IMM
        wr = SendWR(wr_id=wr_id, opcode=opcode, num_sge=1, sg=[SGE(a.mr.buf, length, a.mr.lkey)],
                    send_flags=e.IBV_SEND_SIGNALED)
        if imm is not None:
            wr.imm_data = imm
        qp_a.post_send(wr)

    nothing(cq_b, 'an empty queue')
    before = 0
    for n, length in enumerate((0, 10, 4000)):
        data = pattern(length, n)
        a.write(data)
        receive(n, length)
        send(n + 50, length, 0x01020304 if n else None)
        seen = poll_ex(cq_b, 'opcode', 'byte_len', 'qp_num', 'wc_flags', 'vendor_err', 'timestamp',
                       *(('imm_data',) if n else ()))
        equal((seen['wr_id'], seen['status'], seen['opcode']), (n, e.IBV_WC_SUCCESS, e.IBV_WC_RECV), 'a receive')
        equal((seen['byte_len'], seen['qp_num'], seen['vendor_err']), (length, qp_b.qp_num, 0), 'its fields')
        equal(seen['wc_flags'], e.IBV_WC_WITH_IMM if n else 0, 'its flags')
        if n:
            # The byte order of immediate data is the sender's business; pyverbs swaps it on one side only.
            check(seen['imm_data'] in (0x01020304, 0x04030201), 'its immediate data')
        check(seen['timestamp'] > before, 'time goes on')
        before = seen['timestamp']
        check(b.read(length) == data, 'its bytes')
        seen = poll_ex(cq_a, 'opcode', 'qp_num')
        equal((seen['wr_id'], seen['opcode'], seen['qp_num']), (n + 50, e.IBV_WC_SEND, qp_a.qp_num), 'the send')

    # Several at once, between one start and one end.
    for n in range(10):
        receive(n, 100)
    for n in range(10):
        send(n, n)
    for n in range(10):
        poll_ex(cq_a)
    equal(cq_b.start_poll(PollCqAttr()), 0, 'start_poll')
    got = [(cq_b.wr_id, cq_b.read_byte_len())]
    while len(got) < 10 and cq_b.poll_next() == 0:
        got.append((cq_b.wr_id, cq_b.read_byte_len()))
    equal(cq_b.poll_next(), errno.ENOENT, 'poll_next at the end')
    cq_b.end_poll()
    equal(got, [(n, n) for n in range(10)], 'ten completions in one batch')

    refused(lambda: CQEX(a.ctx, CqInitAttrEx(cqe=1 << 30)), errno.EINVAL, 'a queue larger than the device has')
    refused(lambda: CQEX(a.ctx, CqInitAttrEx(cqe=8, wc_flags=1 << 40)), errno.EOPNOTSUPP, 'an unknown field')
    for thing in (qp_a, qp_b, cq_a, cq_b):
        thing.close()
    finish()


main()
