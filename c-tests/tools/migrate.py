"""Has one QEMU go over to another one: migrate.py FROM TO URI, the first two sockets of their monitors (QMP). Ends both."""

import json
import socket
import sys
import time


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

    ask("qmp_capabilities")
    return ask


begin, end = monitor(sys.argv[1]), monitor(sys.argv[2])
begin("migrate", uri=sys.argv[3])
deadline = time.monotonic() + 60
while (state := begin("query-migrate")).get("status") not in ("completed", "failed"):
    if time.monotonic() > deadline:
        sys.exit(f"it does not end: {state}")
    time.sleep(0.1)
running = end("query-status")
print(state["status"], state.get("error-desc", ""), running)
begin("quit")
end("quit")
sys.exit(0 if state["status"] == "completed" and running["running"] else 1)
