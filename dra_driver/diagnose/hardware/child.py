"""Run one check in a separate process: ``python -m dra_driver.diagnose.hardware.child``.

A call of NVML or CUDA can hang, and a check can replace its mounts or its root. The child gets its `Task` as JSON on
stdin and writes one JSON line per topic to the descriptor ``--lines``. Before each NVML call it writes the name of the
function to the start of the file ``--calls``. SIGTERM, which the kernel sends when the command ends, raises `Stopped`
in the reader, whose ``finally`` restores its changes.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from types import FrameType
from typing import Any, Final

from msgspec import Struct, field
from msgspec.json import encode

from dra_driver.core.convert import decode_json
from dra_driver.core.errors import ConfigurationError, DraError
from dra_driver.diagnose.hardware.values import Facts, Topics
from dra_driver.hardware.driver_root.root import DriverRoot


class ChosenGpu(Struct, frozen=True, kw_only=True):
    """The GPU that a check uses, by NVML index. ``has_mig``: it supports MIG."""

    index: int
    uuid: str
    minor: int
    has_mig: bool = False


class Task(Struct, frozen=True, kw_only=True):
    """Input of a reader. Paths are as this process sees them; ``folder`` is an empty directory for this check,
    ``plugin_dir`` that of the node process. ``stop_s`` is the time to end after SIGTERM, ``facts`` an earlier reading
    to restore."""

    reader: str
    folder: str
    root: str = "/"
    host_root: str = ""
    dev_root: str = "/"
    host_dev_root: str = ""
    host: str = "/"
    library: str | None = None
    proc_devices: str = "/proc/devices"
    proc_driver: str = "/proc/driver"
    plugin_dir: str = ""
    stop_s: float = 2.0
    gpu: ChosenGpu | None = None
    facts: Facts = field(default_factory=dict)

    @property
    def driver_root(self) -> DriverRoot:
        return DriverRoot(
            root=self.root, host_root=self.host_root, dev_root=self.dev_root, host_dev_root=self.host_dev_root
        )

    @property
    def chosen(self) -> ChosenGpu:
        """The GPU, for checks that need one."""
        if self.gpu is None:
            raise ConfigurationError(f"{self.reader} needs a GPU, but none was chosen")
        return self.gpu


def own_module(name: str) -> list[str]:
    """The command line that runs a module of this package as a program.

    With ``-P``: otherwise Python imports modules from the current directory first, which other users may write.
    """
    return [sys.executable, "-P", "-m", f"dra_driver.diagnose.hardware.{name}"]


def ask(name: str, request: Struct, within_s: float, **options: Any) -> dict[str, Any]:
    """Run a module of this package with ``request`` on stdin; return its line of JSON, or ``error``. ``options`` go
    to `subprocess.run`."""
    try:
        done = subprocess.run(
            own_module(name), input=encode(request), capture_output=True, timeout=within_s, check=False, **options
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no end within {within_s:.0f} s", "hangs": True}
    except (OSError, subprocess.SubprocessError) as error:
        return {"error": f"cannot start: {error}"}
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        printed = " ".join((done.stdout + done.stderr).decode("utf-8", "replace").split())
        return {"error": f"ended with status {done.returncode}: {printed[-_MAX_PRINTED:]}"}
    return answer if isinstance(answer, dict) else {"error": f"printed {answer!r:.80}"}


def say(document: Mapping[str, object]) -> int:
    """Print a JSON line for the parent; return the exit status 0."""
    os.write(1, json.dumps(document, default=str).encode() + b"\n")
    return 0


_MAX_PRINTED: Final = 400
MAX_BYTES: Final = 16 << 20
"""Limit of one reading: a node with 16 GPUs needs less than 2 MiB."""
NAME_BYTES: Final = 96
"""Size of the file with the last function's name, padded with zero bytes."""


class Emitter:
    """Write JSON lines to the descriptor ``lines``, and the names of NVML functions to the file ``calls``: pynvml looks
    each up before the call."""

    def __init__(self, lines: int, calls: int) -> None:
        self._lines = lines
        probes = import_module("dra_driver.hardware.gpu.nvml.probes")
        probes.trace(lambda name: os.pwrite(calls, name.encode()[:NAME_BYTES].ljust(NAME_BYTES, b"\0"), 0))

    def write(self, **document: object) -> None:
        """``topic`` and its ``value``, where a repeated topic replaces the former value; or a ``problem``.

        Drops bytes beyond ``MAX_BYTES`` except one, which shows that some are missing."""
        room = max(0, MAX_BYTES + 1 - os.fstat(self._lines).st_size)
        data = (json.dumps(document, default=str).encode() + b"\n")[:room]
        while data:
            data = data[os.write(self._lines, data) :]


def last_call(calls: int) -> str:
    """The last name in the file; "" without a call."""
    return os.pread(calls, NAME_BYTES, 0).rstrip(b"\0").decode("ascii", "replace")


PROCESS_NAME: Final = "dra-hw-check"
"""The name (comm) of all processes of the command, for administrators and the node process."""
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # linux/prctl.h
_MAX_TASK: Final = 1 << 20


class Stopped(BaseException):
    """The command ends this check. Not an Exception, so that no reader catches it."""


def main(arguments: list[str]) -> int:
    """Run the reader of the task on stdin. Exit statuses: 0 done, 1 failed (a line has the cause), 75 stopped."""
    lines, calls = int(arguments[0]), int(arguments[1])
    name_process()
    emitter = Emitter(lines, calls)
    _stop_with_parent(int(arguments[2]))
    task = decode_json(sys.stdin.read(_MAX_TASK), Task)
    try:
        module, _, function = task.reader.partition(":")
        read = getattr(import_module(f"dra_driver.diagnose.hardware.{module}"), function)
        _run(read(task), emitter)
    except Stopped:
        return 75
    except DraError as error:
        emitter.write(problem=str(error))
        return 1
    except Exception as error:  # noqa: BLE001 - the boundary of the process: the command reports it
        emitter.write(problem=f"{type(error).__name__}: {error}")
        return 1
    return 0


def name_process(name: str = PROCESS_NAME) -> None:
    """Set the name of this process; best effort."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _run(topics: Topics, emitter: Emitter) -> None:
    try:
        for topic, value in topics:
            emitter.write(topic=topic, value=value)
    finally:
        close = getattr(topics, "close", None)
        if close is not None:
            close()  # runs the reader's ``finally``


def _stop_with_parent(parent: int) -> None:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt restoring
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command also gets it from the terminal, and stops its children
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise Stopped


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
