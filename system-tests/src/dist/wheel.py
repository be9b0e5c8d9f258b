# Uses the module and the command of an installed wheel. Prints "ok: ..." or "FAILED: ..." lines.
import ctypes
import os
import subprocess
import sys
import time
import traceback

import ferroverbs

LIMIT = 60


def check(function):
    try:
        function()
        print("ok:", function.__doc__, flush=True)
    except Exception:
        print("FAILED:", function.__doc__, flush=True)
        traceback.print_exc()


def exchange(fabric, *options):
    """Runs a ping-pong of two processes; returns the client's result."""
    server = fabric.popen(["ibv_rc_pingpong", *options], stdout=subprocess.PIPE, text=True)
    end = time.monotonic() + LIMIT
    while server.poll() is None and time.monotonic() < end:
        words = ["ibv_rc_pingpong", *options, "127.0.0.1"]
        client = fabric.run(words, capture_output=True, text=True, timeout=LIMIT)
        # The server does not say when it listens: the client asks until it does.
        if "Couldn't connect" not in client.stderr:
            break
        time.sleep(0.05)
    if client.returncode != 0:
        # The server may wait for a message that never comes.
        server.kill()
    said, _ = server.communicate(timeout=LIMIT)
    return client, server.returncode, said


@check
def _():
    """the script runs a program over the library of the wheel"""
    words = ["ferroverbs", "run", "--", "ibv_devices"]
    with ferroverbs.Fabric() as fabric:
        env = {**os.environ, "FERROVERBS_FABRIC_DIR": fabric.environment()["FERROVERBS_FABRIC_DIR"]}
        said = subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout
    assert "soft0" in said, said


@check
def _():
    """python -m ferroverbs is the command"""
    words = [sys.executable, "-m", "ferroverbs", "--version"]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert ferroverbs.__version__ in said, said


@check
def _():
    """a binding opens the library by its path"""
    library = ctypes.CDLL(str(ferroverbs.library_path()))
    count = ctypes.c_int(-1)
    library.ibv_get_device_list.restype = ctypes.c_void_p
    devices = library.ibv_get_device_list(ctypes.byref(count))
    assert devices and count.value >= 1, count
    library.ibv_free_device_list(ctypes.c_void_p(devices))


@check
def _():
    """a library that the wheel does not have is refused with its name"""
    try:
        ferroverbs.library_path("libmlx5.so.1")
    except FileNotFoundError as error:
        assert "libmlx5.so.1" in str(error), error
    else:
        raise AssertionError("no error")


@check
def _():
    """two processes of a fabric exchange messages"""
    with ferroverbs.Fabric() as fabric:
        client, status, said = exchange(fabric, "-n", "50")
    assert client.returncode == 0 and status == 0, (client, status, said)
    assert "50 iters" in client.stdout and "50 iters" in said, (client, said)


@check
def _():
    """an injected fault fails a request of the program"""
    with ferroverbs.Fabric(faults="qp-error nth=7") as fabric:
        client, status, said = exchange(fabric, "-n", "50")
    assert client.returncode > 0 or status > 0, (client, status, said)


@check
def _():
    """a setting that is no setting is refused"""
    with ferroverbs.Fabric(faults="nonsense") as fabric:
        done = fabric.run(["ibv_devices"], capture_output=True, text=True)
    assert done.returncode != 0 and "nonsense" in done.stderr, done


@check
def _():
    """a fabric ends its processes and removes its folder"""
    with ferroverbs.Fabric() as fabric:
        folder = fabric.environment()["FERROVERBS_FABRIC_DIR"]
        process = fabric.popen(["sleep", "1000"])
        assert os.path.isdir(folder)
    assert process.returncode is not None and not os.path.exists(folder)
    try:
        fabric.run(["true"])
    except RuntimeError:
        pass
    else:
        raise AssertionError("a fabric that has ended runs a program")
