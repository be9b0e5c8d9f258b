"""Two processes with a device each: every kind of request, an event, a failure, and datagrams that are answered.

With TEST_HOST=/run/netns/NAME the second process is in that network namespace, and TEST_HOST_FABRIC names its fabric folder, as for the C programs.
"""
import ctypes
import os
import pickle
import signal
import socket

from pyverbs import enums as e
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from rig import PORT, Side, attributes, check, equal, finish, pattern, poll

HOSTS_DIFFER = 'TEST_HOST' in os.environ
# The first address of an interface, which other hosts know, or what this host knows.
INDEX = 1 if HOSTS_DIFFER else 0
LENGTHS = (0, 1, 48, 1024, 1025, 30000)
QKEY = 0x1234567
GRH_LENGTH = 40
LIMIT_S = 60


class Peer:
    """The other process. Both tell each other the same number of things, so that each step begins when both are there."""

    def __init__(self, end):
        self.file = end.makefile('rwb')

    def swap(self, what=None):
        pickle.dump(what, self.file)
        self.file.flush()
        return pickle.load(self.file)


class End(Side):
    """What both processes have."""

    def __init__(self, peer, kind):
        super().__init__()
        self.came = {}
        self.channel = CompChannel(self.ctx)
        self.cq = CQ(self.ctx, 64, channel=self.channel)
        cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=kind, scq=self.cq, rcq=self.cq, cap=cap))
        told = (self.qp.qp_num, str(self.ctx.query_gid(PORT, INDEX)), self.mr.rkey, self.mr.buf)
        self.far_qpn, gid, self.far_rkey, self.far_address = peer.swap(told)
        self.far_gid = GID(gid)

    def sge(self, length, offset=0):
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def receive(self, length, wr_id):
        self.qp.post_recv(RecvWR(wr_id=wr_id, num_sge=1, sg=[self.sge(length)]))

    def request(self, opcode, length, wr_id=1):
        return SendWR(wr_id=wr_id, opcode=opcode, num_sge=1, sg=[self.sge(length)],
                      send_flags=e.IBV_SEND_SIGNALED)

    def one_sided(self, opcode, length):
        wr = self.request(opcode, length)
        wr.set_wr_rdma(self.far_rkey, self.far_address)
        return wr

    def completes(self, wr, what, status=e.IBV_WC_SUCCESS):
        self.qp.post_send(wr)
        equal(self.completion(wr.wr_id).status, status, what)

    def completion(self, wr_id):
        """That of a request. An answer may be there before what it answers has completed."""
        while wr_id not in self.came:
            wc = poll(self.cq)
            self.came[wc.wr_id] = wc
        return self.came.pop(wr_id)

    def datagram(self, way, length):
        """Sends what both know, from behind what is received."""
        offset = 1000
        self.write(pattern(length, 1), offset)
        wr = SendWR(wr_id=2, opcode=e.IBV_WR_SEND, num_sge=1, sg=[self.sge(length, offset)],
                    send_flags=e.IBV_SEND_SIGNALED)
        wr.set_wr_ud(way, self.far_qpn, QKEY)
        self.completes(wr, 'a datagram goes')

    def close(self):
        for thing in (self.qp, self.cq, self.channel, self.mr, self.pd, self.ctx):
            thing.close()


def connected(peer):
    end = End(peer, e.IBV_QPT_RC)
    attr = attributes(end, end.far_qpn, end.far_gid, INDEX)
    if HOSTS_DIFFER:
        # On a cable an answer takes longer.
        attr.timeout = 18
    end.qp.to_rts(attr)
    peer.swap()
    return end


def asks(peer):
    """The first process: its requests are answered by the other's memory and receives."""
    end = connected(peer)
    for n, length in enumerate(LENGTHS):
        peer.swap()
        end.write(pattern(length, n))
        wr = end.request(e.IBV_WR_SEND_WITH_IMM, length)
        wr.imm_data = 0x11223344
        end.completes(wr, f'SEND of {length} bytes')
        peer.swap()
        end.write(pattern(length, n + 50))
        end.completes(end.one_sided(e.IBV_WR_RDMA_WRITE, length), f'WRITE of {length} bytes')
        peer.swap()
        peer.swap()
        end.completes(end.one_sided(e.IBV_WR_RDMA_READ, length), f'READ of {length} bytes')
        check(end.read(length) == pattern(length, n + 100), 'what was read')
        peer.swap()
    peer.swap()
    for opcode, arguments, old, what in ((e.IBV_WR_ATOMIC_FETCH_AND_ADD, (2, 0), 40, 'fetch-and-add'),
                                         (e.IBV_WR_ATOMIC_CMP_AND_SWP, (42, 7), 42, 'compare-and-swap')):
        wr = end.request(opcode, 8)
        wr.set_wr_atomic(end.far_rkey, end.far_address, *arguments)
        end.completes(wr, what)
        equal(int.from_bytes(end.read(8), 'little'), old, f'{what}: the value before')
    peer.swap()
    wr = end.request(e.IBV_WR_RDMA_WRITE, 8)
    wr.set_wr_rdma(end.far_rkey ^ 0x4000, end.far_address)
    end.completes(wr, 'WRITE with a key that is none', e.IBV_WC_REM_ACCESS_ERR)
    equal(end.qp.query(e.IBV_QP_STATE)[0].qp_state, e.IBV_QPS_ERR, 'the QP')
    peer.swap()
    end.close()


def answers(peer):
    """The second process."""
    end = connected(peer)
    for n, length in enumerate(LENGTHS):
        end.cq.req_notify()
        end.receive(length, n)
        peer.swap()
        end.channel.get_cq_event(end.cq)
        end.cq.ack_events(1)
        wc = poll(end.cq)
        equal((wc.status, wc.wr_id, wc.byte_len, wc.imm_data), (e.IBV_WC_SUCCESS, n, length, 0x11223344),
              f'{length} bytes arrive')
        check(end.read(length) == pattern(length, n), 'what was sent')
        peer.swap()
        peer.swap()
        check(end.read(length) == pattern(length, n + 50), 'what was written')
        end.write(pattern(length, n + 100))
        peer.swap()
        peer.swap()
    end.write((40).to_bytes(8, 'little'))
    peer.swap()
    peer.swap()
    equal(int.from_bytes(end.read(8), 'little'), 7, 'what atomics left')
    end.receive(8, 9)
    wc = poll(end.cq)
    equal((wc.status, wc.wr_id), (e.IBV_WC_WR_FLUSH_ERR, 9), 'the receive of a QP that was refused a key')
    peer.swap()
    end.close()


def datagrams(peer, asks_first):
    """The first process sends, the second answers by what the completion and the header in front of the bytes tell."""
    end = End(peer, e.IBV_QPT_UD)
    attr = QPAttr(port_num=PORT)
    attr.qkey = QKEY
    end.qp.to_rts(attr)
    end.receive(GRH_LENGTH + 500, 1)
    peer.swap()
    if asks_first:
        route = GlobalRoute(dgid=end.far_gid, sgid_index=INDEX, hop_limit=64)
        end.datagram(AH(end.pd, attr=AHAttr(gr=route, is_global=1, port_num=PORT)), 300)
    wc = end.completion(1)
    equal((wc.status, wc.src_qp, wc.byte_len), (e.IBV_WC_SUCCESS, end.far_qpn, GRH_LENGTH + 300), 'a datagram')
    check(end.read(300, GRH_LENGTH) == pattern(300, 1), 'its bytes')
    if not asks_first:
        end.datagram(AH(end.pd, wc=wc, grh=end.mr.buf, port_num=PORT), 300)
    peer.swap()
    end.close()


def go_to_host():
    with open(os.environ['TEST_HOST']) as network:
        # Python has it by itself from 3.12 on.
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(network.fileno(), 0):
            raise OSError(ctypes.get_errno(), 'setns')
    os.environ['FERROVERBS_FABRIC_DIR'] = os.environ['TEST_HOST_FABRIC']


def main():
    here, there = socket.socketpair()
    # Whoever waits for the other for ever, whatever became of it, ends.
    child = os.fork()
    signal.alarm(LIMIT_S)
    if child == 0:
        here.close()
        if HOSTS_DIFFER:
            go_to_host()
        peer = Peer(there)
        answers(peer)
        datagrams(peer, False)
        finish()
    there.close()
    peer = Peer(here)
    asks(peer)
    datagrams(peer, True)
    equal(os.waitpid(child, 0)[1], 0, 'the other process')
    finish()


main()
