"""RDMA verbs without hardware, for Python programs and their tests.

The package contains the libraries and the command of Ferroverbs. It needs no root, no compiler and
no kernel module. Three ways to use it:

- From a shell: ``ferroverbs run -- python app.py``.
- From a test that starts processes::

    import ferroverbs

    with ferroverbs.Fabric(faults="qp-error nth=7") as fabric:
        server = fabric.popen(["ibv_rc_pingpong"])
        fabric.run(["ibv_rc_pingpong", "127.0.0.1"], check=True)

- By the library's path, for a binding: ``ctypes.CDLL(ferroverbs.library_path())``.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile

__all__ = ["Fabric", "cluster", "command", "environment", "library_path", "root"]
__version__ = "@VERSION@"


def root():
    """The folder with ``bin``, ``lib`` and ``etc``, as a ``pathlib.Path``."""
    return pathlib.Path(__file__).resolve().parent / "tree"


def command():
    """The path of the command ``ferroverbs``."""
    return root() / "bin" / "ferroverbs"


def library_path(name="libibverbs.so.1"):
    """The path of a shared library: ``libibverbs.so.1``, ``librdmacm.so.1`` or
    ``rsocket/librspreload.so``.

    Raises ``FileNotFoundError`` if the package has no such library.
    """
    path = root() / "lib" / name
    if not path.is_file():
        raise FileNotFoundError(f"ferroverbs {__version__} has no library {name}: {path}")
    return path


def environment(options=(), env=None):
    """The environment that ``ferroverbs run`` gives to a program, as a ``dict``.

    ``options`` are options of ``ferroverbs run``. ``env`` is the environment to begin with; the
    default is ``os.environ``. A process that runs already cannot change its own library path:
    start a new process with the result.

    Raises ``subprocess.CalledProcessError`` if the command refuses an option or a setting.
    """
    words = [command(), "run", *options, "--", "env", "-0"]
    printed = subprocess.run(words, env=env, check=True, stdout=subprocess.PIPE).stdout
    pairs = (entry.split(b"=", 1) for entry in printed.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, value in pairs}


class Fabric:
    """A fabric of its own: only processes that this object starts can reach each other.

    ``faults``      requests that fail on purpose, in the words of ``ferroverbs run -f``
    ``impairment``  packets between hosts that are lost or late: ``"loss=1% seed=7"``
    ``layers``      names of layers, outermost first: ``["validate"]``
    ``options``     further options of ``ferroverbs run``, such as ``["-s", "2"]`` for two devices
    ``env``         the environment to begin with, ``os.environ`` by default

    The processes are ended and the folder of the fabric is removed at the end of the ``with``
    block. ``FERROVERBS_*`` settings of ``env`` hold unless an argument says otherwise.
    """

    def __init__(self, *, faults=None, impairment=None, layers=(), options=(), env=None):
        self._options = [*options, *(["-f", faults] if faults is not None else [])]
        self._env = dict(os.environ if env is None else env)
        if impairment is not None:
            self._env["FERROVERBS_SOFT_IMPAIRMENT"] = impairment
        if layers:
            self._env["FERROVERBS_LAYERS"] = ",".join(layers)
        self._folder = None
        self._processes = []

    def __enter__(self):
        self._folder = tempfile.mkdtemp(prefix="ferroverbs-")
        self._env["FERROVERBS_FABRIC_DIR"] = self._folder
        return self

    def __exit__(self, *_exception):
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def environment(self):
        """The environment of a program in this fabric, as a ``dict``."""
        self._check()
        return environment(self._options, self._env)

    def popen(self, words, **arguments):
        """Starts a program, as ``subprocess.Popen``. The process ends with the fabric."""
        self._check()
        words = [command(), "run", *self._options, "--", *words]
        process = subprocess.Popen(words, env=self._env, **arguments)
        self._processes.append(process)
        return process

    def run(self, words, **arguments):
        """Runs a program to its end, as ``subprocess.run``."""
        self._check()
        words = [command(), "run", *self._options, "--", *words]
        return subprocess.run(words, env=self._env, **arguments)

    def _check(self):
        if self._folder is None:
            raise RuntimeError("a Fabric is usable in its 'with' block only")


def cluster(hosts, words, *, options=(), **arguments):
    """Runs a program in each of ``hosts`` virtual hosts, as ``subprocess.run``.

    ``options`` are options of ``ferroverbs cluster``. The kernel must allow user namespaces;
    ``ferroverbs doctor`` says whether it does.
    """
    words = [command(), "cluster", *options, str(hosts), "--", *words]
    return subprocess.run(words, **arguments)
