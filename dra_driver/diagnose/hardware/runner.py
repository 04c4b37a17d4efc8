"""Run one reader in a child process, within its time limit, and return its facts.

The child writes to a file, so that a child that hangs loses no lines. At the limit it gets SIGTERM and ``task.stop_s``
to restore its changes, then SIGKILL with its children. A child stuck in the kernel is not awaited.
"""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
from msgspec.structs import replace

from dra_driver.diagnose.hardware.child import MAX_BYTES, Task, last_call, own_module
from dra_driver.diagnose.hardware.values import Reading
from dra_driver.hardware.sharing import control, orphan_processes

REAP_S: Final = 1.0
_MAX_SHOWN: Final = 400

Run = Callable[[Task, float], Reading]


def run(task: Task, limit_s: float) -> Reading:
    """Run ``task.reader`` for at most ``limit_s`` seconds, plus ``task.stop_s``. Creates the directory of the task.

    An interrupt (KeyboardInterrupt) stops the child first; raises InterruptedReading.
    """
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dra-hw-check-", ignore_cleanup_errors=True) as folder:
        try:
            reading = _read(replace(task, folder=folder), Path(folder), limit_s)
        finally:
            orphan_processes.kill(control.MARK, Path(folder), within_s=REAP_S)
    return replace(reading, seconds=round(time.monotonic() - begin, 3))


class InterruptedReading(KeyboardInterrupt):
    """The command was interrupted; ``reading`` has the child's facts. The child has ended."""

    def __init__(self, reading: Reading) -> None:
        super().__init__("interrupted")
        self.reading = reading


def _read(task: Task, folder: Path, limit_s: float) -> Reading:
    (folder / ".task").write_bytes(msgspec.json.encode(task))
    with ExitStack() as stack:
        source = stack.enter_context((folder / ".task").open("rb"))
        # ``output`` has the output of libraries.
        output, lines, calls = (
            stack.enter_context((folder / name).open("w+b")) for name in (".output", ".lines", ".calls")
        )
        written = (lines.fileno(), calls.fileno())
        process = subprocess.Popen(
            [*own_module("child"), *map(str, written), str(os.getpid())],
            stdin=source,
            stdout=output,
            stderr=output,
            pass_fds=written,
            start_new_session=True,
        )
        problem, interrupted = "", False
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            where = last_call(calls.fileno())
            problem = f"not finished within {limit_s:.0f} s" + (f"; the last NVML call was {where}" if where else "")
        except KeyboardInterrupt:
            problem, interrupted = "the command was interrupted", True
        if not _end(process, task.stop_s):
            problem += f"; process {process.pid} hangs in the kernel and cannot be killed"
        reading = _reading(lines)
        if not (problem or reading.problem) and process.returncode != 0:
            problem = f"the check's process ended with status {process.returncode}: {_printed(output)}"
    reading = replace(reading, problem=problem or reading.problem)
    if interrupted:
        raise InterruptedReading(reading)
    return reading


def _end(process: "subprocess.Popen[bytes]", stop_s: float) -> bool:
    """End the child and its children; False if it is stuck."""
    for number, send, within_s in ((signal.SIGTERM, os.kill, stop_s), (signal.SIGKILL, os.killpg, REAP_S)):
        if number is signal.SIGTERM and process.poll() is not None:
            continue
        with suppress(ProcessLookupError, PermissionError):
            send(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
    return process.poll() is not None


def _reading(lines: BinaryIO) -> Reading:
    """The child's output: topics with values, and a problem; without an unfinished line."""
    lines.seek(0)
    *whole, _ = lines.read(MAX_BYTES).split(b"\n")
    reported = [json.loads(line) for line in whole]
    problem = next((str(each["problem"]) for each in reversed(reported) if "problem" in each), "")
    if lines.read(1):
        problem = problem or f"the check read more than {MAX_BYTES >> 20} MiB; the rest is omitted"
    return Reading(facts={each["topic"]: each["value"] for each in reported if "topic" in each}, problem=problem)


def _printed(output: BinaryIO) -> str:
    output.seek(0)
    lines = output.read(MAX_BYTES).decode("utf-8", "replace").split("\n")
    text = " ".join(" ".join(lines[-5:]).split())
    return text[-_MAX_SHOWN:] or "it printed nothing"
