"""Two processes of Mooncake's transfer engine: one writes a MiB into the other's memory by RDMA.

No topology file names the device, so the engine looks for it in /sys and /dev.
"""

import subprocess
import sys

from mooncake.engine import TransferEngine

SIZE = 1 << 20
DATA = bytes(range(256)) * (SIZE // 256)
HOST = "127.0.0.1"


def engine_with_buffer():
    engine = TransferEngine()
    assert engine.initialize(HOST, "P2PHANDSHAKE", "rdma", "") == 0, "initialize"
    buffer = engine.allocate_managed_buffer(SIZE)
    assert buffer, "allocate_managed_buffer"
    return engine, buffer


def target():
    engine, buffer = engine_with_buffer()
    print("target", engine.get_rpc_port(), buffer, flush=True)
    sys.stdin.read()
    print("equal" if engine.read_bytes_from_buffer(buffer, SIZE) == DATA else "different")


def initiator():
    command = [sys.executable, __file__, "target"]
    peer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    port, there = next(line for line in peer.stdout if line.startswith("target ")).split()[1:]
    engine, here = engine_with_buffer()
    engine.write_bytes_to_buffer(here, DATA, SIZE)
    result = engine.transfer_sync_write(f"{HOST}:{port}", here, int(there), SIZE)
    print("written" if result == 0 else f"transfer_sync_write: {result}")
    print(peer.communicate("")[0], end="")


if len(sys.argv) > 1:
    target()
else:
    initiator()
