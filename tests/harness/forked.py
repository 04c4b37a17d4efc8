"""Commands of this project as forks of a process that has imported them: most of the CPU of a started command is spent
on imports, and `make test` starts about a thousand.

`install` replaces the start of processes by `subprocess.Popen`. A command ``python -m MODULE`` with a module of
`MODULES` is then a fork; all other commands are started as before. A fork has the arguments, environment, directory,
streams, session and parent of a started process. It differs in memory and in /proc, where cmdline and environ are those
of the process that it was forked from. Tests about these, or about the start, use the fixture `new_interpreters`.
"""

import ctypes
import gc
import importlib
import inspect
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any, Final

MODULES: Final = ("dra_driver.core.command_line.main", "dra_driver.kubectl.commands.kubectl")
# Modules that commands import when they run, besides the modules of all subcommands.
_LATER: Final = (
    "dra_driver.controller.process",
    "dra_driver.diagnose.doctor.bundle",
    "dra_driver.hardware.sharing.host",
    "dra_driver.node.process.plugin",
    "encodings.idna",
    "grpc._server",
)
# Variables that the interpreter or the dynamic loader reads at the start of a process.
_AT_START: Final = ("PYTHON", "LD_", "GLIBC_", "TZ")
_KNOWN: Final = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONUNBUFFERED"}
_LOCALE: Final = ("LC_ALL", "LC_CTYPE", "LANG")
_PLAIN: Final = ("", "C", "POSIX")
_PIPES: Final = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_PR_SET_CHILD_SUBREAPER: Final = 36
_SIZE: Final = struct.Struct("=I")
_CHANNEL: Final = 3

are_new: Final = threading.Event()
"""Set: all commands are started."""


class Template:
    """The process that is forked. It ends with the process that makes it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards one request, and the time in which this process adopts orphans
        self._own, its = socket.socketpair()
        environ = {"PATH": os.environ.get("PATH", ""), "LC_CTYPE": "C.UTF-8"}
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, its.fileno(), _CHANNEL),
        ]
        with its:
            os.posix_spawn(sys.executable, [sys.executable, "-m", __name__], environ, file_actions=files)

    def fork(self, request: Mapping[str, Any], streams: list[int]) -> int:
        """Return the process ID of a new child of this process with these standard streams."""
        message = json.dumps(request).encode()
        with self._lock, _adopting_orphans():
            socket.send_fds(self._own, [_SIZE.pack(len(message))], streams)
            self._own.sendall(message)
            (pid,) = _SIZE.unpack(self._own.recv(_SIZE.size, socket.MSG_WAITALL))
        return int(pid)


_template: Final = cache(Template)


def _adopt_orphans(yes: bool) -> bool:
    """Return whether the kernel supports it. Only Linux does."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    return prctl is not None and prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0) == 0


@contextmanager
def _adopting_orphans() -> Iterator[None]:
    """The parent of a fork ends at once, so that the fork becomes a child of this process and not of the template."""
    _adopt_orphans(True)
    try:
        yield
    finally:
        _adopt_orphans(False)


def _is_usual(given: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Return whether a fork has everything that the caller of `subprocess.Popen` asks for."""
    args = given["args"]
    return (
        isinstance(args, list)
        and args[:2] == [sys.executable, "-m"]
        and args[2] in MODULES
        and given["executable"] is given["preexec_fn"] is None
        and given["close_fds"]
        and not given["pass_fds"]
        and Path(given["cwd"] or ".").is_dir()
        and all(given[name] in (None, -1) for name in ("gid", "gids", "uid", "umask", "process_group"))
        and not any(name.startswith(_AT_START) for name in environ.keys() - _KNOWN)
        and all(value in _PLAIN or value.endswith("UTF-8") for name in _LOCALE if (value := environ.get(name, "")))
    )


_start: Final = vars(subprocess.Popen)["_execute_child"]
_parameters: Final = inspect.signature(_start)


def start_or_fork(self: Any, *given: Any) -> None:
    """`subprocess.Popen._execute_child`, which forks the template for usual commands of this project."""
    found = _parameters.bind(self, *given).arguments
    environ = dict(os.environ if found["env"] is None else found["env"])
    if are_new.is_set() or not _is_usual(found, environ):
        _start(self, *given)
        return
    pipes = [found[name] for name in _PIPES]
    streams = [number if pipe == -1 else pipe for number, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
    request = {
        "arguments": found["args"],
        "environ": environ,
        "directory": str(found["cwd"] or Path.cwd()),
        "session": found["start_new_session"],
    }
    self.pid = _template().fork(request, streams)
    self._child_created = True
    self._close_pipe_fds(*pipes)


def install() -> None:
    """Fork commands in this process from now on, if the system can. The template is started for the first of them."""
    if _adopt_orphans(False):
        vars(subprocess)["Popen"]._execute_child = start_or_fork


def serve(channel: socket.socket) -> dict[str, Any]:
    """Return in each fork, with its request. The template itself ends here."""
    while True:
        header, streams, _flags, _address = socket.recv_fds(channel, _SIZE.size, 3)
        if not header:
            os._exit(0)
        request: dict[str, Any] = json.loads(channel.recv(_SIZE.unpack(header)[0], socket.MSG_WAITALL))
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            if os.fork() > 0:
                os._exit(0)
            os.close(write)
            os.read(read, 1)  # ends when the process between was reaped and this one has its new parent
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            return request
        os.waitpid(between, 0)
        for descriptor in (read, write, *streams):
            os.close(descriptor)


def become(request: Mapping[str, Any]) -> None:
    """Set the directory, environment, streams and arguments of this fork."""
    if request["session"]:
        os.setsid()
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environ"])
    plain = all(os.environ.get(name, "") in _PLAIN for name in _LOCALE)
    if plain:
        os.environ["LC_CTYPE"] = "C.UTF-8"
    errors = "surrogateescape" if plain else "strict"
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = TextIOWrapper(open(0, "rb", closefd=False), "utf-8", errors)  # noqa: SIM115 - for the whole life
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = open(number, "wb", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115 - same
        lines = number == 2 or os.isatty(number)
        escape = errors if number == 1 else "backslashreplace"
        text = TextIOWrapper(stream, "utf-8", escape, line_buffering=lines, write_through=unbuffered)
        setattr(sys, name, text)
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.argv = [str(sys.modules[request["arguments"][2]].__file__), *request["arguments"][3:]]
    more = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [request["directory"], *more]
    tempfile.tempdir = None
    gc.enable()


def main() -> None:
    """Import what commands import, and fork at each request. In the fork, run the command."""
    gc.disable()  # forks share memory with the template, which the collector would write to
    programs = [importlib.import_module(name) for name in MODULES]
    subcommands = chain.from_iterable(program.SUBCOMMANDS.values() for program in programs)
    for name in (*(module for module, _help in subcommands), *_LATER):
        importlib.import_module(name)
    gc.freeze()
    channel = socket.socket(fileno=_CHANNEL)
    request = serve(channel)
    become(request)
    os.closerange(_CHANNEL + 1, os.sysconf("SC_OPEN_MAX"))
    channel.sendall(_SIZE.pack(os.getpid()))
    channel.close()
    sys.exit(importlib.import_module(request["arguments"][2]).main())


if __name__ == "__main__":
    main()
