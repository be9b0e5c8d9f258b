"""Stores values of several lengths in a monitor of Ceph, and wants them back: ceph_values.py CONFIG DEVICE."""

import json
import os
import sys

import rados

SECONDS = 60

cluster = rados.Rados(conffile=sys.argv[1], name="client.admin")
cluster.conf_set("ms_async_rdma_device_name", sys.argv[2])
cluster.connect(timeout=SECONDS)


def ask(prefix, key, data=b""):
    status, out, why = cluster.mon_command(json.dumps({"prefix": prefix, "key": key}), data, timeout=SECONDS)
    if status:
        sys.exit(f"{prefix} {key}: {status}: {why}")
    return out


wrong = 0
for length in (1, 3000, 20000, 65000):
    value = os.urandom(length)
    ask("config-key set", f"key.{length}", value)
    wrong += ask("config-key get", f"key.{length}") != value
print(f"4 values, {wrong} wrong")
sys.stdout.flush()
# Ceph 16's messenger closes its adapter below its connections at the end (docs/reference/programs.md).
os._exit(1 if wrong else 0)
