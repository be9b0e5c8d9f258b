"""Tag matching shared receive queues through pyverbs: creation, each kind of message, phases."""
import errno
import struct

from pyverbs import enums as e
from pyverbs.cq import CQ
from pyverbs.qp import QP, QPCap, QPInitAttr
from pyverbs.srq import SRQ, OpsWr, SrqInitAttrEx
from pyverbs.wr import SGE, RecvWR, SendWR

from rig import Side, check, connect, equal, finish, nothing, pattern, poll, poll_ex, refused

TMH = struct.Struct('>B3xIQ')
RVH = struct.Struct('>QII')
FULL = e.IBV_WC_TM_MATCH | e.IBV_WC_TM_DATA_VALID
EXACT = (1 << 64) - 1
SYNCED = e.IBV_OPS_SIGNALED | e.IBV_OPS_TM_SYNC


class Receiver(Side):
    """The side that matches."""

    def __init__(self):
        super().__init__()
        self.caps = self.ctx.query_device_ex().tm_caps
        self.cq = self.cq_ex(flags=e.IBV_WC_EX_WITH_TM_INFO | e.IBV_WC_EX_WITH_BYTE_LEN | e.IBV_WC_EX_WITH_QP_NUM)
        self.srq = self.make_srq()
        cap = QPCap(max_send_wr=0, max_recv_wr=0, max_send_sge=0, max_recv_sge=0)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, srq=self.srq, cap=cap))

    def make_srq(self, tags=64, ops=16, mask=0, cq=True):
        attr = SrqInitAttrEx(max_wr=64, max_sge=1)
        attr.srq_type = e.IBV_SRQT_TM
        attr.pd = self.pd
        attr.comp_mask = e.IBV_SRQ_INIT_ATTR_TYPE | e.IBV_SRQ_INIT_ATTR_PD | e.IBV_SRQ_INIT_ATTR_TM | mask
        if cq:
            attr.cq = self.cq
            attr.comp_mask |= e.IBV_SRQ_INIT_ATTR_CQ
        attr.max_num_tags = tags
        attr.max_ops = ops
        return SRQ(self.ctx, attr)

    def add(self, wr_id, tag, mask=EXACT, length=1000, offset=0, flags=e.IBV_OPS_SIGNALED, seen=0):
        wr = OpsWr(wr_id=wr_id + 1000, opcode=e.IBV_WR_TAG_ADD, flags=flags, unexpected_cnt=seen, recv_wr_id=wr_id,
                   num_sge=1, tag=tag, mask=mask, sg_list=[SGE(self.mr.buf + offset, length, self.mr.lkey)])
        self.srq.post_srq_ops(wr)
        return wr.handle

    def receive(self, wr_id, length=2000, offset=8192):
        self.srq.post_recv(RecvWR(wr_id=wr_id, num_sge=1, sg=[SGE(self.mr.buf + offset, length, self.mr.lkey)]))

    def expect(self, what, wr_id, opcode, flags=0, length=None, tag=0, ctx=0, status=e.IBV_WC_SUCCESS):
        seen = poll_ex(self.cq, 'opcode', 'wc_flags', 'byte_len', 'qp_num', 'tm_info')
        info = seen['tm_info']
        equal((seen['wr_id'], seen['status'], seen['opcode'], seen['wc_flags']), (wr_id, status, opcode, flags), what)
        if length is not None:
            equal((seen['byte_len'], seen['qp_num']), (length, self.qp.qp_num), f'{what}: length, QP')
        equal((info.tag, info.priv), (tag, ctx), f'{what}: tag')


class Sender(Side):
    """The side that sends: an ordinary QP."""

    def __init__(self):
        super().__init__()
        self.cq = CQ(self.ctx, 64)
        cap = QPCap(max_send_wr=16, max_recv_wr=16)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap))

    def send(self, message, wr_id=1):
        self.write(message)
        self.qp.post_send(SendWR(wr_id=wr_id, opcode=e.IBV_WR_SEND, num_sge=1, send_flags=e.IBV_SEND_SIGNALED,
                                 sg=[SGE(self.mr.buf, len(message), self.mr.lkey)]))

    def sent(self, wr_id=1):
        wc = poll(self.cq)
        equal((wc.status, wc.wr_id, wc.opcode), (e.IBV_WC_SUCCESS, wr_id, e.IBV_WC_SEND), 'the send completes')


def calls(r):
    equal(r.caps.flags, e.IBV_TM_CAP_RC, 'tm_caps.flags')
    check(r.caps.max_num_tags >= 64 and r.caps.max_ops >= 16 and r.caps.max_sge >= 1 and r.caps.max_rndv_hdr_size >= 32,
          'tm_caps')
    refused(lambda: r.make_srq(cq=False), errno.EINVAL, 'without a CQ')
    refused(lambda: r.make_srq(tags=0), errno.EINVAL, 'without tags')
    refused(lambda: r.make_srq(mask=1 << 10), errno.EOPNOTSUPP, 'an unknown bit')
    refused(lambda: r.srq.post_srq_ops(OpsWr(opcode=9)), errno.EINVAL, 'an unknown operation')


def eager(r, s):
    for n, length in enumerate((0, 1, 100, 1000)):
        tag, data = 0xabcd00 + n, pattern(length, n)
        r.add(n, tag)
        r.expect('added', n + 1000, e.IBV_WC_TM_ADD)
        s.send(TMH.pack(e.IBV_TMH_EAGER, 0x5550 + n, tag) + data)
        r.expect(f'{length} bytes', n, e.IBV_WC_TM_RECV, FULL, length, tag, 0x5550 + n)
        check(r.read(length) == data, f'{length} bytes: the payload')
        s.sent()
    # The first one added wins.
    for wr_id, tag, mask in ((1, 0x20, 0xf0), (2, 0x21, EXACT), (3, 0, 0)):
        r.add(wr_id, tag, mask, flags=0)
    for wr_id in (1, 2, 3):
        s.send(TMH.pack(e.IBV_TMH_EAGER, 0, 0x21))
        r.expect(f'entry {wr_id}', wr_id, e.IBV_WC_TM_RECV, FULL, 0, 0x21)
        s.sent()


def rendezvous(r, s):
    for n, length in enumerate((0, 1, 1000, 20000)):
        data = pattern(length, n)
        s.write(data, 4096)
        s.qp.post_recv(RecvWR(wr_id=77, num_sge=1, sg=[SGE(s.mr.buf + 30000, 32, s.mr.lkey)]))
        r.add(n, 5, length=20000, flags=0)
        offer = RVH.pack(s.mr.buf + 4096, s.mr.rkey, length)
        s.send(TMH.pack(e.IBV_TMH_RNDV, 3, 5) + offer)
        r.expect(f'rendezvous of {length} bytes', n, e.IBV_WC_TM_RECV, e.IBV_WC_TM_MATCH, 0, 5, 3)
        s.sent()
        fin = poll(s.cq)
        equal((fin.wr_id, fin.opcode, fin.byte_len), (77, e.IBV_WC_RECV, 32), 'FIN')
        check(s.read(32, 30000) == TMH.pack(e.IBV_TMH_FIN, 3, 5) + offer, 'FIN: its bytes')
        r.expect('the data', n, e.IBV_WC_TM_RECV, e.IBV_WC_TM_DATA_VALID, length)
        check(r.read(length) == data, 'the data: its bytes')
    r.add(9, 5, length=100, flags=0)
    s.send(TMH.pack(e.IBV_TMH_RNDV, 3, 5) + RVH.pack(s.mr.buf, s.mr.rkey, 101))
    r.expect('a buffer too small', 9, e.IBV_WC_TM_RECV, FULL, 32, 5, 3, e.IBV_WC_TM_RNDV_INCOMPLETE)
    s.sent()


def phases(r, s):
    whole = TMH.pack(e.IBV_TMH_EAGER, 1, 0x99) + pattern(20, 1)
    for wr_id in range(4):
        r.receive(wr_id)
    s.send(whole)
    r.expect('unexpected', 0, e.IBV_WC_TM_RECV, 0, len(whole))
    check(r.read(len(whole), 8192) == whole, 'unexpected: the whole message')
    s.sent()
    handle = r.add(20, 0x99)
    r.expect('out of step', 1020, e.IBV_WC_TM_ADD, e.IBV_WC_TM_SYNC_REQ)
    s.send(whole)
    r.expect('what was added out of step does not match', 1, e.IBV_WC_TM_RECV, 0, len(whole))
    s.sent()
    r.srq.post_srq_ops(OpsWr(wr_id=30, opcode=e.IBV_WR_TAG_SYNC, flags=SYNCED, unexpected_cnt=2))
    r.expect('in step', 30, e.IBV_WC_TM_SYNC)
    s.send(whole)
    r.expect('it matches', 20, e.IBV_WC_TM_RECV, FULL, 20, 0x99, 1)
    s.sent()
    for opcode in (e.IBV_TMH_NO_TAG, e.IBV_TMH_FIN):
        message = TMH.pack(opcode, 0, 0x99) + bytes(16)
        s.send(message)
        r.expect('not tagged', 2 if opcode == e.IBV_TMH_NO_TAG else 3, e.IBV_WC_TM_NO_TAG, 0, len(message))
        s.sent()
    del_wr = OpsWr(wr_id=40, opcode=e.IBV_WR_TAG_DEL, flags=e.IBV_OPS_SIGNALED)
    del_wr.handle = handle
    r.srq.post_srq_ops(del_wr)
    r.expect('a stale handle', 40, e.IBV_WC_TM_DEL, status=e.IBV_WC_TM_ERR)
    del_wr.handle = r.add(41, 1, flags=0)
    r.srq.post_srq_ops(del_wr)
    r.expect('a fresh one', 40, e.IBV_WC_TM_DEL)
    nothing(r.cq, 'nothing is left')


def main():
    r, s = Receiver(), Sender()
    connect(r, r.qp, s, s.qp)
    calls(r)
    eager(r, s)
    rendezvous(r, s)
    phases(r, s)
    for thing in (r.qp, r.srq, r.cq, s.qp, s.cq):
        thing.close()
    finish()


main()
