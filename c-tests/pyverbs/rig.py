"""What the scripts share: checks that print a line each, and a device's objects.

They drive the library through pyverbs as a distribution ships it, and see what its users see.
"""
import os
import sys
import time

from pyverbs import enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQEX, CqInitAttrEx, PollCqAttr
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QPAttr

PORT = 1
PATIENCE_S = 20
ACCESS = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
          | e.IBV_ACCESS_REMOTE_ATOMIC)

_passed = 0
_failed = 0

# Where the layer `validate` writes: whose fault is what follows.
if 'TOLD' in os.environ:
    with open(os.environ['TOLD'], 'a') as told:
        print(f'test pyverbs {os.path.basename(sys.argv[0])}', file=told)


def check(ok, what):
    """Prints and counts one check."""
    global _passed, _failed
    print(('ok: ' if ok else 'FAILED: ') + what, flush=True)
    if ok:
        _passed += 1
    else:
        _failed += 1
    return ok


def equal(value, wanted, what):
    """A check that says both values when they differ."""
    return check(value == wanted, what if value == wanted else f'{what}: is {value}, should be {wanted}')


def refused(call, errno, what):
    """Checks that `call` fails with `errno`."""
    try:
        call()
    except PyverbsRDMAError as error:
        return equal(error.error_code, errno, what)
    return check(False, f'{what}: it did not fail')


def finish():
    """Prints the totals and ends the program."""
    print(f'{_passed} checks passed, {_failed} failed')
    sys.exit(1 if _failed or not _passed else 0)


def pattern(length, seed):
    """Bytes that tell where they belong."""
    return bytes((i * 7 + (i >> 8) * 13 + seed * 31) & 0xff for i in range(length))


class Side:
    """A context with a domain and a region of `size` bytes."""

    def __init__(self, size=1 << 16):
        self.ctx = Context(name=get_device_list()[0].name.decode())
        self.pd = PD(self.ctx)
        self.size = size
        self.mr = MR(self.pd, size, ACCESS)

    def write(self, data, offset=0):
        self.mr.write(data, len(data), offset)

    def read(self, length, offset=0):
        data = self.mr.read(length, offset)
        return data if isinstance(data, bytes) else data.encode()

    def cq_ex(self, cqe=64, flags=0, **more):
        """An extended completion queue that reads what `flags` say."""
        return CQEX(self.ctx, CqInitAttrEx(cqe=cqe, wc_flags=flags, **more))


def attributes(here, to_qpn, dgid=None, sgid_index=0):
    """What two QPs need to be connected; without `dgid` they are of this host."""
    dgid = dgid or here.ctx.query_gid(PORT, sgid_index)
    route = GlobalRoute(dgid=dgid, sgid_index=sgid_index, hop_limit=64)
    attr = QPAttr(port_num=PORT)
    attr.qp_access_flags = ACCESS
    attr.path_mtu = e.IBV_MTU_1024
    attr.dest_qp_num = to_qpn
    attr.max_dest_rd_atomic = 4
    attr.max_rd_atomic = 4
    attr.min_rnr_timer = 1
    attr.timeout = 10
    attr.retry_cnt = 7
    attr.rnr_retry = 7
    attr.rq_psn = 0x123
    attr.sq_psn = 0x123
    attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=PORT)
    return attr


def connect(a, qp_a, b, qp_b):
    """Takes both to RTS, connected to each other."""
    for here, qp, other in ((a, qp_a, qp_b), (b, qp_b, qp_a)):
        qp.to_rts(attributes(here, other.qp_num))


def poll(cq):
    """The next completion of a plain queue."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        count, completions = cq.poll(1)
        if count:
            return completions[0]
    raise TimeoutError('no completion came')


def poll_ex(cq, *fields):
    """The next completion of an extended queue: wr_id, status, and what the methods named in `fields` read."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        # Errors are returned: ENOENT for an empty queue.
        if cq.start_poll(PollCqAttr()) != 0:
            continue
        seen = {'wr_id': cq.wr_id, 'status': cq.status}
        for field in fields:
            seen[field] = getattr(cq, f'read_{field}')()
        cq.end_poll()
        return seen
    raise TimeoutError('no completion came')


def nothing(cq, what):
    """Checks that no completion comes for a while."""
    until = time.monotonic() + 0.03
    while time.monotonic() < until:
        if cq.start_poll(PollCqAttr()) == 0:
            text = f'{what}: id {cq.wr_id}, status {cq.status}'
            cq.end_poll()
            return check(False, text)
    return check(True, what)
