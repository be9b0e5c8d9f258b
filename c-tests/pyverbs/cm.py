"""Connections by addresses through pyverbs: synchronous and asynchronous ids of two processes, private data, vendors' options, one-sided requests, a shared receive queue, a rejection; and datagrams, to one
and to a group."""
import ipaddress
import os
import signal
import socket
import struct
import sys

from pyverbs import enums as e
from pyverbs import cm_enums as ce
from pyverbs.addr import AH
from pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam, JoinMCAttrEx, UDParam
from pyverbs.device import Context, get_device_list
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.pd import PD
from pyverbs.qp import ECE, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR

from rig import PATIENCE_S, PORT, check, equal, finish, pattern

ADDRESS = '127.0.0.1'
# Of the device's table, in which an interface's first address is soon.
GIDS = 8
LENGTH = 1000
ROUNDS = 20


def attr():
    return QPInitAttr(qp_type=e.IBV_QPT_RC, sq_sig_all=1, cap=QPCap(max_send_wr=8, max_recv_wr=8))


def port():
    """A number that nobody has."""
    with socket.socket() as tcp:
        tcp.bind((ADDRESS, 0))
        return str(tcp.getsockname()[1])


def device_address():
    """One of the device's own: an id that is bound to loopback has no device, with the kernel as here, and pyverbs' bind_addr crashes without one."""
    with Context(name=get_device_list()[0].name.decode()) as context:
        gids = [ipaddress.IPv6Address(str(context.query_gid(PORT, index))) for index in range(GIDS)]
    # Those of one link have no meaning without it.
    addresses = [gid.ipv4_mapped or gid for gid in gids if not gid.is_link_local]
    usable = [address for address in addresses if not (address.is_loopback or address.is_unspecified)]
    if not usable:
        print('skipped: no interface of this host has an address but loopback')
        sys.exit(0)
    return str(usable[0])


def server_info(service, address=ADDRESS):
    return AddrInfo(src=address, src_service=service, port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE)


def client_info(service, address=ADDRESS):
    return AddrInfo(src=address, dst=address, dst_service=service, port_space=ce.RDMA_PS_TCP)


class Messages:
    """What both sides of a connection do: a region for each direction, and messages in turn."""

    def __init__(self, cmid):
        self.cmid = cmid
        self.out, self.into = cmid.reg_msgs(LENGTH), cmid.reg_msgs(LENGTH)
        cmid.post_recv(self.into)

    def send(self, data):
        self.out.write(data, len(data))
        self.cmid.post_send(self.out)
        return self.cmid.get_send_comp().status

    def receive(self, again):
        wc = self.cmid.get_recv_comp()
        data = self.into.read(LENGTH, 0)
        if again:
            self.cmid.post_recv(self.into)
        return wc.status, wc.byte_len, data


def exchange(cmid, messages, first, who):
    """A ping-pong, all bytes checked."""
    good = True
    for n in range(ROUNDS):
        if first:
            good &= messages.send(pattern(LENGTH, n)) == e.IBV_WC_SUCCESS
        status, length, data = messages.receive(n + 1 < ROUNDS)
        good &= (status, length, data) == (e.IBV_WC_SUCCESS, LENGTH, pattern(LENGTH, n + (0 if not first else 100)))
        if not first:
            good &= messages.send(pattern(LENGTH, n + 100)) == e.IBV_WC_SUCCESS
    check(good, f'{who}: {ROUNDS} messages there and back, byte by byte')


def one_sided_server(cmid, messages):
    """Offers memory, and sees what was written there."""
    written, read = cmid.reg_write(LENGTH), cmid.reg_read(LENGTH)
    read.write(pattern(LENGTH, 7), LENGTH)
    offer = struct.pack('<QIQI', written.buf, written.rkey, read.buf, read.rkey)
    cmid.post_recv(messages.into)
    messages.send(offer.ljust(LENGTH, b'\0'))
    messages.receive(False)
    equal(written.read(LENGTH, 0), pattern(LENGTH, 8), 'server: what was written')


def one_sided_client(cmid, messages):
    """Writes and reads what the other side offers."""
    _, _, offer = messages.receive(False)
    to, to_key, source, source_key = struct.unpack_from('<QIQI', offer)
    messages.out.write(pattern(LENGTH, 8), LENGTH)
    cmid.post_write(messages.out, LENGTH, to, to_key)
    equal(cmid.get_send_comp().status, e.IBV_WC_SUCCESS, 'client: a write')
    cmid.post_read(messages.into, LENGTH, source, source_key)
    equal(cmid.get_send_comp().status, e.IBV_WC_SUCCESS, 'client: a read')
    equal(messages.into.read(LENGTH, 0), pattern(LENGTH, 7), 'client: what was read')
    messages.send(bytes(LENGTH))


def synchronous_server(service, ready):
    listener = CMID(creator=server_info(service), qp_init_attr=attr())
    listener.listen(4)
    ready()
    cmid = listener.get_request()
    messages = Messages(cmid)
    cmid.accept()
    exchange(cmid, messages, False, 'server')
    one_sided_server(cmid, messages)
    cmid.disconnect()
    cmid.close()
    # The second one is turned away.
    refused = listener.get_request()
    refused.reject(b'not today')
    refused.close()
    listener.close()


def synchronous_client(service):
    cmid = CMID(creator=client_info(service), qp_init_attr=attr())
    messages = Messages(cmid)
    cmid.connect()
    exchange(cmid, messages, True, 'client')
    cmid.post_recv(messages.into)
    one_sided_client(cmid, messages)
    cmid.disconnect()
    cmid.close()
    cmid = CMID(creator=client_info(service), qp_init_attr=attr())
    try:
        cmid.connect()
        check(False, 'client: a rejected connection does not come')
    except PyverbsError as error:
        check('refused' in str(error).lower() or 'Errno: 111' in str(error), f'client: it is refused ({error})')
    cmid.close()


def next_event(channel, wanted, who):
    """The event that must be next; it is acknowledged by the caller."""
    event = CMEvent(channel)
    equal(event.event_type, wanted, f'{who}: {event.event_str()}')
    return event


def asynchronous_server(service, ready):
    info = server_info(service, device_address())
    channel = CMEventChannel()
    listener = CMID(creator=channel, port_space=ce.RDMA_PS_TCP)
    listener.bind_addr(info)
    listener.listen(4)
    ready()
    event = next_event(channel, ce.RDMA_CM_EVENT_CONNECT_REQUEST, 'server')
    equal(bytes(event.private_data)[:5], b'hello', 'server: its private data')
    cmid = CMID(creator=event, listen_id=listener)
    ece = cmid.get_remote_ece()
    equal((ece.vendor_id, ece.options), (0x1234, 0xabcd), "server: the client's vendor options")
    cmid.create_qp(attr())
    messages = Messages(cmid)
    answer = ConnParam(resources=1, depth=1, data_len=7)
    answer.set_private_data(b'welcome')
    cmid.accept(answer)
    event.ack_cm_event()
    next_event(channel, ce.RDMA_CM_EVENT_ESTABLISHED, 'server').ack_cm_event()
    exchange(cmid, messages, False, 'server')
    next_event(channel, ce.RDMA_CM_EVENT_DISCONNECTED, 'server').ack_cm_event()
    cmid.disconnect()
    cmid.close()
    listener.close()
    channel.close()


def asynchronous_client(service):
    channel = CMEventChannel()
    cmid = CMID(creator=channel, port_space=ce.RDMA_PS_TCP)
    cmid.resolve_addr(client_info(service, device_address()), 2000)
    next_event(channel, ce.RDMA_CM_EVENT_ADDR_RESOLVED, 'client').ack_cm_event()
    cmid.resolve_route(2000)
    next_event(channel, ce.RDMA_CM_EVENT_ROUTE_RESOLVED, 'client').ack_cm_event()
    cmid.set_local_ece(ECE(vendor_id=0x1234, options=0xabcd))
    cmid.create_qp(attr())
    messages = Messages(cmid)
    ask = ConnParam(resources=1, depth=1, data_len=5)
    ask.set_private_data(b'hello')
    cmid.connect(ask)
    event = next_event(channel, ce.RDMA_CM_EVENT_ESTABLISHED, 'client')
    equal(bytes(event.private_data)[:7], b'welcome', 'client: the answer\'s private data')
    event.ack_cm_event()
    exchange(cmid, messages, True, 'client')
    cmid.disconnect()
    next_event(channel, ce.RDMA_CM_EVENT_DISCONNECTED, 'client').ack_cm_event()
    cmid.close()
    channel.close()


# A datagram is received behind a header of addresses.
HEADER = 40
GROUP = '239.77.7.10'


def group_info():
    """The group, where pyverbs looks for it: among sources."""
    return datagram_info(src=GROUP, src_service='0', flags=ce.RAI_PASSIVE)


def datagram_attr():
    return QPInitAttr(qp_type=e.IBV_QPT_UD, sq_sig_all=1, cap=QPCap(max_send_wr=8, max_recv_wr=8))


def datagram_info(**more):
    return AddrInfo(port_space=ce.RDMA_PS_UDP, **more)


def datagram_server(service, ready):
    """Says which queue pair it is, and receives; then is a member of a group."""
    channel = CMEventChannel()
    listener = CMID(creator=channel, port_space=ce.RDMA_PS_UDP)
    listener.bind_addr(datagram_info(src=device_address(), src_service=service, flags=ce.RAI_PASSIVE))
    listener.listen(4)
    ready()
    event = next_event(channel, ce.RDMA_CM_EVENT_CONNECT_REQUEST, 'server')
    equal(bytes(event.private_data)[:3], b'who', "server: a datagram request's private data")
    cmid = CMID(creator=event, listen_id=listener)
    cmid.create_qp(datagram_attr())
    into = cmid.reg_msgs(LENGTH + HEADER)
    cmid.post_recv(into)
    answer = ConnParam(data_len=2)
    answer.set_private_data(b'me')
    cmid.accept(answer)
    event.ack_cm_event()
    wc = cmid.get_recv_comp()
    equal((wc.status, wc.byte_len), (e.IBV_WC_SUCCESS, LENGTH + HEADER), 'server: a datagram')
    equal(into.read(LENGTH, HEADER), pattern(LENGTH, 3), 'server: what is in it')
    cmid.close()
    listener.close()

    member = CMID(creator=channel, port_space=ce.RDMA_PS_UDP)
    member.bind_addr(datagram_info(src=device_address(), src_service='0', flags=ce.RAI_PASSIVE))
    member.resolve_addr(datagram_info(src=device_address(), dst=GROUP), 2000)
    next_event(channel, ce.RDMA_CM_EVENT_ADDR_RESOLVED, 'member').ack_cm_event()
    member.create_qp(datagram_attr())
    into = member.reg_msgs(LENGTH + HEADER)
    member.post_recv(into)
    member.join_multicast(addr=group_info())
    next_event(channel, ce.RDMA_CM_EVENT_MULTICAST_JOIN, 'member').ack_cm_event()
    ready()
    equal(member.get_recv_comp().status, e.IBV_WC_SUCCESS, 'member: a datagram of the group')
    equal(into.read(LENGTH, HEADER), pattern(LENGTH, 4), 'member: what is in it')
    member.leave_multicast(group_info())
    member.close()
    channel.close()


def datagram_client(service, wait):
    channel = CMEventChannel()
    cmid = CMID(creator=channel, port_space=ce.RDMA_PS_UDP)
    cmid.resolve_addr(datagram_info(src=device_address(), dst=device_address(), dst_service=service), 2000)
    next_event(channel, ce.RDMA_CM_EVENT_ADDR_RESOLVED, 'client').ack_cm_event()
    cmid.resolve_route(2000)
    next_event(channel, ce.RDMA_CM_EVENT_ROUTE_RESOLVED, 'client').ack_cm_event()
    cmid.create_qp(datagram_attr())
    ask = ConnParam(data_len=3)
    ask.set_private_data(b'who')
    cmid.connect(ask)
    event = next_event(channel, ce.RDMA_CM_EVENT_ESTABLISHED, 'client')
    equal(bytes(event.private_data)[:2], b'me', "client: a datagram answer's private data")
    send_datagram(cmid, event, 3)
    cmid.close()

    wait()
    sender = CMID(creator=channel, port_space=ce.RDMA_PS_UDP)
    sender.bind_addr(datagram_info(src=device_address(), src_service='0', flags=ce.RAI_PASSIVE))
    sender.resolve_addr(datagram_info(src=device_address(), dst=GROUP), 2000)
    next_event(channel, ce.RDMA_CM_EVENT_ADDR_RESOLVED, 'sender').ack_cm_event()
    sender.create_qp(datagram_attr())
    mask = ce.RDMA_CM_JOIN_MC_ATTR_ADDRESS | ce.RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS
    # The attributes point into it.
    group = group_info()
    sender.join_multicast(mc_attr=JoinMCAttrEx(addr=group, comp_mask=mask, join_flags=ce.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER))
    send_datagram(sender, next_event(channel, ce.RDMA_CM_EVENT_MULTICAST_JOIN, 'sender'), 4)
    sender.leave_multicast(group)
    sender.close()
    channel.close()


def send_datagram(cmid, event, seed):
    """To whom an event names."""
    to = UDParam(event)
    event.ack_cm_event()
    ah = AH(cmid.pd, attr=to.ah_attr)
    out = cmid.reg_msgs(LENGTH)
    out.write(pattern(LENGTH, seed), LENGTH)
    cmid.post_ud_send(out, ah, rqpn=to.qp_num)
    equal(cmid.get_send_comp().status, e.IBV_WC_SUCCESS, 'a datagram is sent')
    ah.close()


def shared_server(service, ready):
    """Receives by a shared receive queue."""
    channel = CMEventChannel()
    listener = CMID(creator=channel, port_space=ce.RDMA_PS_TCP)
    listener.bind_addr(server_info(service, device_address()))
    listener.listen(4)
    ready()
    event = next_event(channel, ce.RDMA_CM_EVENT_CONNECT_REQUEST, 'server')
    cmid = CMID(creator=event, listen_id=listener)
    pd = PD(cmid)
    srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=4)))
    cmid.create_qp(QPInitAttr(qp_type=e.IBV_QPT_RC, sq_sig_all=1, srq=srq, cap=QPCap(max_send_wr=8, max_recv_wr=0)))
    into = cmid.reg_msgs(LENGTH)
    srq.post_recv(RecvWR(wr_id=5, num_sge=1, sg=[SGE(into.buf, LENGTH, into.lkey)]))
    cmid.accept(ConnParam(resources=1, depth=1))
    event.ack_cm_event()
    next_event(channel, ce.RDMA_CM_EVENT_ESTABLISHED, 'server').ack_cm_event()
    wc = cmid.get_recv_comp()
    equal((wc.status, wc.wr_id), (e.IBV_WC_SUCCESS, 5), 'server: a message by the shared queue')
    equal(into.read(LENGTH, 0), pattern(LENGTH, 6), 'server: what is in it')
    next_event(channel, ce.RDMA_CM_EVENT_DISCONNECTED, 'server').ack_cm_event()
    cmid.close()
    srq.close()
    listener.close()
    channel.close()


def shared_client(service):
    cmid = CMID(creator=client_info(service, device_address()), qp_init_attr=attr())
    messages = Messages(cmid)
    cmid.connect()
    equal(messages.send(pattern(LENGTH, 6)), e.IBV_WC_SUCCESS, 'client: a message')
    cmid.disconnect()
    cmid.close()


def begin(what):
    """Runs `what` in a process of its own: what made connections may not fork."""
    child = os.fork()
    if not child:
        signal.alarm(6 * PATIENCE_S)
        what()
        finish()
    return child


def pair(server, client, waits=False):
    """Runs both. The client begins when the server listens. If it `waits`, it can do so until the server is ready for more."""
    service = port()
    here, there = os.pipe()
    serving = begin(lambda: server(service, lambda: os.write(there, b'.')))
    os.close(there)
    if check(os.read(here, 1) == b'.', 'the server listens'):
        more = [lambda: os.read(here, 1)] if waits else []
        asking = begin(lambda: client(service, *more))
        equal(os.waitpid(asking, 0)[1], 0, 'the client ends')
    equal(os.waitpid(serving, 0)[1], 0, 'the server ends')
    os.close(here)


def main():
    pair(synchronous_server, synchronous_client)
    pair(asynchronous_server, asynchronous_client)
    pair(shared_server, shared_client)
    pair(datagram_server, datagram_client, waits=True)
    finish()


main()
