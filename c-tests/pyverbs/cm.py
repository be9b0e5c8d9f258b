"""Connections by addresses through pyverbs: synchronous and asynchronous ids of two processes, private data, one-sided requests, a rejection."""
import os
import signal
import socket
import struct

from pyverbs import enums as e
from pyverbs import cm_enums as ce
from pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam
from pyverbs.device import Context, get_device_list
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QPCap, QPInitAttr

from rig import PATIENCE_S, PORT, check, equal, finish, pattern

ADDRESS = '127.0.0.1'
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
        return str(context.query_gid(PORT, 0))


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


def begin(what):
    """Runs `what` in a process of its own: what made connections may not fork."""
    child = os.fork()
    if not child:
        signal.alarm(6 * PATIENCE_S)
        what()
        finish()
    return child


def pair(server, client):
    """Runs both. The client begins when the server listens."""
    service = port()
    here, there = os.pipe()
    serving = begin(lambda: server(service, lambda: os.write(there, b'.')))
    os.close(there)
    if check(os.read(here, 1) == b'.', 'the server listens'):
        asking = begin(lambda: client(service))
        equal(os.waitpid(asking, 0)[1], 0, 'the client ends')
    equal(os.waitpid(serving, 0)[1], 0, 'the server ends')
    os.close(here)


def main():
    pair(synchronous_server, synchronous_client)
    pair(asynchronous_server, asynchronous_client)
    finish()


main()
