"""Extended reliable connections through pyverbs: domains, shared receive queues by number, both posting interfaces, one-sided requests."""
import os
import tempfile

from pyverbs import enums as e
from pyverbs.cq import CQ
from pyverbs.qp import QP, QPCap, QPEx, QPInitAttrEx
from pyverbs.srq import SRQ, SrqInitAttrEx
from pyverbs.wr import SGE, RecvWR, SendWR
from pyverbs.xrcd import XRCD, XRCDInitAttr

from rig import Side, attributes, check, equal, finish, pattern, poll

OPS = e.IBV_QP_EX_WITH_SEND | e.IBV_QP_EX_WITH_SEND_WITH_IMM | e.IBV_QP_EX_WITH_RDMA_WRITE


class Receiver(Side):
    """The side with a domain, a QP that receives and two queues."""

    def __init__(self, fd):
        super().__init__()
        mask = e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS
        self.xrcd = XRCD(self.ctx, XRCDInitAttr(mask, os.O_CREAT, fd))
        self.cq = CQ(self.ctx, 64)
        self.queues = [self.make_queue(), self.make_queue()]
        init = QPInitAttrEx(qp_type=e.IBV_QPT_XRC_RECV, comp_mask=e.IBV_QP_INIT_ATTR_XRCD, xrcd=self.xrcd)
        self.qp = QP(self.ctx, init)

    def make_queue(self):
        attr = SrqInitAttrEx(max_wr=32, max_sge=1)
        attr.srq_type = e.IBV_SRQT_XRC
        attr.pd = self.pd
        attr.xrcd = self.xrcd
        attr.cq = self.cq
        attr.comp_mask = (e.IBV_SRQ_INIT_ATTR_TYPE | e.IBV_SRQ_INIT_ATTR_PD | e.IBV_SRQ_INIT_ATTR_XRCD
                          | e.IBV_SRQ_INIT_ATTR_CQ)
        return SRQ(self.ctx, attr)


class Sender(Side):
    """The side with a QP that sends, for one posting interface or both."""

    def __init__(self):
        super().__init__()
        self.cq = CQ(self.ctx, 64)
        cap = QPCap(max_send_wr=16, max_recv_wr=0, max_send_sge=2, max_recv_sge=0, max_inline_data=64)
        init = QPInitAttrEx(qp_type=e.IBV_QPT_XRC_SEND, scq=self.cq, rcq=self.cq, cap=cap, pd=self.pd,
                            comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, send_ops_flags=OPS)
        self.qp = QPEx(self.ctx, init)


def request(s, opcode, length, number, wr_id=1):
    wr = SendWR(wr_id=wr_id, opcode=opcode, num_sge=1, sg=[SGE(s.mr.buf, length, s.mr.lkey)],
                send_flags=e.IBV_SEND_SIGNALED)
    wr.set_qp_type_xrc(number)
    return wr


def done(cq, wr_id, opcode, what, status=e.IBV_WC_SUCCESS):
    wc = poll(cq)
    equal((wc.status, wc.wr_id), (status, wr_id), what)
    if status == e.IBV_WC_SUCCESS:
        equal(wc.opcode, opcode, f'{what}: opcode')
    return wc


def sends(s, r):
    numbers = [queue.get_srq_num() for queue in r.queues]
    check(numbers[0] != numbers[1], 'each queue has a number of its own')
    for n, length in enumerate((0, 1, 48, 49, 9000, 40000)):
        which = n % 2
        data = pattern(length, n)
        s.write(data)
        r.queues[which].post_recv(RecvWR(wr_id=n, num_sge=1, sg=[SGE(r.mr.buf, length, r.mr.lkey)]))
        s.qp.post_send(request(s, e.IBV_WR_SEND, length, numbers[which]))
        wc = done(r.cq, n, e.IBV_WC_RECV, f'SEND of {length} bytes to queue {which}')
        equal(wc.byte_len, length, 'its length')
        check(r.read(length) == data, 'its bytes')
        done(s.cq, 1, e.IBV_WC_SEND, 'SEND completes')


def builds(s, r):
    number = r.queues[1].get_srq_num()
    data = pattern(3000, 77)
    s.write(data)
    r.queues[1].post_recv(RecvWR(wr_id=5, num_sge=1, sg=[SGE(r.mr.buf, 3000, r.mr.lkey)]))
    s.qp.wr_start()
    s.qp.wr_id, s.qp.wr_flags = 6, e.IBV_SEND_SIGNALED
    s.qp.wr_send()
    s.qp.wr_set_xrc_srqn(number)
    s.qp.wr_set_sge(SGE(s.mr.buf, 3000, s.mr.lkey))
    s.qp.wr_complete()
    done(r.cq, 5, e.IBV_WC_RECV, 'a SEND that was built')
    check(r.read(3000) == data, 'its bytes')
    done(s.cq, 6, e.IBV_WC_SEND, 'it completes')


def one_sided(s, r):
    number = r.queues[0].get_srq_num()
    data = pattern(5000, 3)
    s.write(data)
    wr = request(s, e.IBV_WR_RDMA_WRITE, 5000, number)
    wr.set_wr_rdma(r.mr.rkey, r.mr.buf + 8192)
    s.qp.post_send(wr)
    done(s.cq, 1, e.IBV_WC_RDMA_WRITE, 'WRITE')
    check(r.read(5000, 8192) == data, 'its bytes')
    s.write(bytes(5000))
    wr = request(s, e.IBV_WR_RDMA_READ, 5000, number)
    wr.set_wr_rdma(r.mr.rkey, r.mr.buf + 8192)
    s.qp.post_send(wr)
    done(s.cq, 1, e.IBV_WC_RDMA_READ, 'READ')
    check(s.read(5000) == data, 'its bytes')
    # A number that no queue has takes the connection down.
    s.qp.post_send(request(s, e.IBV_WR_SEND, 8, number ^ 0x1fff))
    done(s.cq, 1, 0, 'a queue that is none', e.IBV_WC_REM_INV_RD_REQ_ERR)
    equal(s.qp.query(e.IBV_QP_STATE)[0].qp_state, e.IBV_QPS_ERR, 'the QP')


def main():
    with tempfile.TemporaryFile() as file:
        s, r = Sender(), Receiver(file.fileno())
        s.qp.to_rts(attributes(s, r.qp.qp_num))
        r.qp.to_rts(attributes(r, s.qp.qp_num))
        sends(s, r)
        builds(s, r)
        one_sided(s, r)
        for thing in [s.qp, s.cq, r.qp, *r.queues, r.cq, r.xrcd]:
            thing.close()
    finish()


main()
