"""A server and a client of InfiniStore: a MiB is written and read back by RDMA."""

import asyncio
import os
import socket
import subprocess
import sys

import infinistore
import numpy

HOST = "127.0.0.1"
DEVICE = {"dev_name": "soft0", "link_type": "Ethernet"}
BLOCK = 1 << 18
COUNT = 4


def free_port():
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        return taken.getsockname()[1]


def server(port):
    import uvloop

    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    ports = {"service_port": port, "manage_port": free_port()}
    infinistore.register_server(loop, infinistore.ServerConfig(prealloc_size=1, **ports, **DEVICE))
    print("listens", flush=True)
    # The server prints a line for each event of a connection that its client has closed.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    loop.run_until_complete(loop.run_in_executor(None, sys.stdin.read))


def client():
    port = free_port()
    command = [sys.executable, __file__, str(port)]
    peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert any("listens" in line for line in peer.stdout), "the server ended"
    where = {"host_addr": HOST, "service_port": port, "connection_type": infinistore.TYPE_RDMA}
    connection = infinistore.InfinityConnection(infinistore.ClientConfig(**where, **DEVICE))
    connection.connect()
    source = numpy.random.randint(0, 256, COUNT * BLOCK, dtype=numpy.uint8)
    copy = numpy.zeros_like(source)
    for array in (source, copy):
        connection.register_mr(array.ctypes.data, array.nbytes)
    blocks = [(f"key{n}", n * BLOCK) for n in range(COUNT)]
    asyncio.run(connection.rdma_write_cache_async(blocks, BLOCK, source.ctypes.data))
    print("written")
    asyncio.run(connection.rdma_read_cache_async(blocks, BLOCK, copy.ctypes.data))
    print("equal" if (source == copy).all() else "different")
    connection.close()
    peer.stdin.close()
    peer.wait()


if len(sys.argv) > 1:
    server(int(sys.argv[1]))
else:
    client()
