"""For live_migration.sh: has one QEMU go over to another one: migrate.py FROM TO URI, the first two sockets of their monitors (QMP). Wants the same memory in both, and
the other one to go on with it. Ends both."""

import json
import os
import socket
import sys
import time

MEMORY = 16 << 20
PAGE = 4096


def monitor(path):
    end = socket.socket(socket.AF_UNIX)
    end.connect(path)
    lines = end.makefile("rw")
    lines.readline()

    def ask(command, **arguments):
        lines.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        lines.flush()
        while True:
            said = json.loads(lines.readline())
            if "error" in said:
                sys.exit(f"{command}: {said['error']}")
            if "return" in said:
                return said["return"]

    def memory(name):
        ask("pmemsave", val=0, size=MEMORY, filename=os.path.abspath(name))
        return name

    ask("qmp_capabilities")
    ask.memory = memory
    return ask


def differing(one, other):
    """The numbers of the pages that two copies of the memory do not have alike."""
    one, other = open(one, "rb").read(), open(other, "rb").read()
    return [at // PAGE for at in range(0, MEMORY, PAGE) if one[at : at + PAGE] != other[at : at + PAGE]]


begin, end = monitor(sys.argv[1]), monitor(sys.argv[2])
# QEMU does not see all that its emulated processor writes meanwhile: with several rounds pages differ, by TCP as well.
begin("stop")
begin("migrate", uri=sys.argv[3])
deadline = time.monotonic() + 80
while (state := begin("query-migrate")).get("status") not in ("completed", "failed"):
    if time.monotonic() > deadline:
        sys.exit(f"it does not end: {state}")
    time.sleep(0.1)
if state["status"] == "failed":
    sys.exit(f"failed: {state.get('error-desc', '')}")
# There it arrives a moment after the last byte has left here.
while end("query-status")["status"] == "inmigrate" and time.monotonic() < deadline:
    time.sleep(0.1)
left, came = begin.memory("left"), end.memory("came")
different = differing(left, came)
with open("bytes", "rb") as bytes_there:
    all_there = open(came, "rb").read()
    whole = all_there[1 << 20 :].startswith(bytes_there.read())
goes_on = False
while not goes_on and time.monotonic() < deadline:
    end("cont")
    time.sleep(0.2)
    end("stop")
    goes_on = bool(differing(came, end.memory("later")))
print(f"{state['ram']['transferred'] >> 20} MiB; different pages: {different}; the bytes: {whole}; it goes on: {goes_on}")
begin("quit")
end("quit")
sys.exit(0 if whole and not different and goes_on else 1)
