"""Runs one reader in a child process, within its time limit, and returns what it read.

At the limit the child gets SIGTERM and ``task.stop_s`` to restore what it changed, then SIGKILL with everything that it
started. A process that waits in the kernel cannot even be killed; then the command goes on without it.
"""

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from dra_driver.diagnose.hardware.child import NAME_BYTES, Task, last_call, own_module
from dra_driver.diagnose.hardware.values import Reading
from dra_driver.hardware.sharing import control, orphan_processes

REAP_S: Final = 1.0
MAX_BYTES: Final = 16 << 20
"""Of one reading: a node with 16 GPUs needs below 2 MiB."""
_MAX_SHOWN: Final = 400
_STEP_S: Final = 0.25

Run = Callable[[Task, float], Reading]


def run(task: Task, limit_s: float) -> Reading:
    """Run ``task.reader`` for at most ``limit_s`` seconds, plus ``task.stop_s``. The folder of the task is made for it.

    When this is interrupted (KeyboardInterrupt), the child is stopped first; raises InterruptedReading.
    """
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dra-hw-check-", ignore_cleanup_errors=True) as folder:
        task = replace(task, folder=folder)
        try:
            reading = _Child(task, Path(folder)).read(begin + limit_s, limit_s)
        finally:
            orphan_processes.kill(control.MARK, Path(folder), within_s=REAP_S)
    return replace(reading, seconds=round(time.monotonic() - begin, 3))


class InterruptedReading(KeyboardInterrupt):
    """The command was interrupted; ``reading`` is what the child had read. The child has ended."""

    def __init__(self, reading: Reading) -> None:
        super().__init__("interrupted")
        self.reading = reading


class _Child:
    """One child process and what it has told so far."""

    def __init__(self, task: Task, folder: Path) -> None:
        self._stop_s = task.stop_s
        self._facts: dict[str, object] = {}
        self._problem = ""
        self._buffer = bytearray()
        self._size = 0
        self._output = (folder / ".output").open("w+b")  # of libraries, which print what they like
        self._calls = os.memfd_create("calls", os.MFD_CLOEXEC)
        os.ftruncate(self._calls, NAME_BYTES)
        self._lines, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writing, True)
        try:
            self._process = self._start(task, folder, writing)
        finally:
            os.close(writing)

    def _start(self, task: Task, folder: Path, writing: int) -> "subprocess.Popen[bytes]":
        arguments = [str(writing), str(self._calls), str(os.getpid())]
        (folder / ".task").write_bytes(msgspec.json.encode(task))
        with (folder / ".task").open("rb") as source:
            return subprocess.Popen(
                [*own_module("child"), *arguments],
                stdin=source,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(writing, self._calls),
                start_new_session=True,
            )

    def read(self, deadline: float, limit_s: float) -> Reading:
        """Read to the child's end or the deadline, and end it."""
        interrupted, ended = False, False
        try:
            ended = self._collect(deadline)
        except KeyboardInterrupt:
            interrupted = True
        where = last_call(self._calls)
        stuck = self._end()
        self._collect(time.monotonic())
        os.close(self._lines)
        problem = self._problem
        if interrupted:
            problem = "the command was interrupted"
        elif not ended:
            problem = f"no end within {limit_s:.0f} s" + (f"; the last NVML call was {where}" if where else "")
        if stuck:
            problem += f"; process {self._process.pid} hangs in the kernel and cannot be killed"
        if not problem and self._process.returncode != 0:
            problem = f"the check's process ended with status {self._process.returncode}: {self._printed()}"
        os.close(self._calls)
        self._output.close()
        reading = Reading(facts=self._facts, problem=problem)
        if interrupted:
            raise InterruptedReading(reading)
        return reading

    def _collect(self, deadline: float) -> bool:
        """Read lines until the child has closed its end; whether it did so before the deadline."""
        while True:
            left_s = deadline - time.monotonic()
            ready, _, _ = select.select([self._lines], [], [], max(0.0, min(left_s, _STEP_S)))
            if ready:
                piece = os.read(self._lines, 1 << 16)
                if not piece:
                    return True
                self._take(piece)
            elif self._process.poll() is not None:
                return True
            elif left_s <= 0:
                return False

    def _take(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > MAX_BYTES:
            self._problem = self._problem or f"the check read more than {MAX_BYTES >> 20} MiB; the rest is left out"
            return
        self._buffer += piece
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        for line in lines:
            document = json.loads(line)
            if "problem" in document:
                self._problem = str(document["problem"])
            else:
                self._facts[document["topic"]] = document["value"]

    def _end(self) -> bool:
        """End the child and its own children; whether it is stuck."""
        if self._process.poll() is None:
            self._signal(signal.SIGTERM, own_group=False)
            self._wait(self._stop_s)
        self._signal(signal.SIGKILL, own_group=True)
        return not self._wait(REAP_S)

    def _signal(self, number: int, *, own_group: bool) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if own_group:
                os.killpg(self._process.pid, number)
            else:
                os.kill(self._process.pid, number)

    def _wait(self, within_s: float) -> bool:
        """Whether it has ended. Lines are read meanwhile, so that the child does not block on a full pipe."""
        deadline = time.monotonic() + within_s
        while self._process.poll() is None and time.monotonic() < deadline:
            self._collect(time.monotonic() + _STEP_S / 5)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STEP_S / 5)
        return self._process.poll() is not None

    def _printed(self) -> str:
        self._output.seek(0)
        lines = self._output.read(MAX_BYTES).decode("utf-8", "replace").split("\n")
        text = " ".join(" ".join(lines[-5:]).split())
        return text[-_MAX_SHOWN:] or "it printed nothing"
