"""One check in a process of its own: ``python -m dra_driver.diagnose.hardware.child``.

A call of NVML or CUDA may hang for ever, and a check may replace its mounts or its root; neither affects the command.
The child gets its `Task` as JSON on stdin and writes one JSON line per topic to the descriptor ``--lines``. The name of
each NVML function that it calls goes to the start of the file ``--calls`` first, so that the command can name the call
that hangs.

SIGTERM raises `Stopped` in the reader, whose ``finally`` restores what it changed; the kernel sends it when the command
dies.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from types import FrameType
from typing import Any, Final

from dra_driver.core.errors import DraError
from dra_driver.diagnose.hardware.emit import Emitter
from dra_driver.diagnose.hardware.task import Task

PROCESS_NAME: Final = "dra-hw-check"
"""The name (comm) of all processes of the command: how administrators and the node process see who holds a GPU."""
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # linux/prctl.h
_MAX_TASK: Final = 1 << 20


class Stopped(BaseException):
    """The command ends this check. Not an Exception, so that no reader takes it for an answer."""


def main(arguments: list[str]) -> int:
    """Run the reader of the task on stdin. Exit statuses: 0 done, 1 failed (a line says why), 75 stopped."""
    lines, calls = int(arguments[0]), int(arguments[1])
    name_process()
    emitter = Emitter(lines, calls)
    _stop_with_parent(int(arguments[2]))
    task = Task.from_json(sys.stdin.read(_MAX_TASK))
    try:
        module, _, function = task.reader.partition(":")
        read = getattr(import_module(f"dra_driver.diagnose.hardware.{module}"), function)
        _run(read(task), emitter)
    except Stopped:
        return 75
    except DraError as error:
        emitter.problem(str(error))
        return 1
    except Exception as error:  # noqa: BLE001 - the boundary of the process: the command reports it
        emitter.problem(f"{type(error).__name__}: {error}")
        return 1
    return 0


def name_process(name: str = PROCESS_NAME) -> None:
    """Set the name of this process; best effort."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _run(topics: Iterator[tuple[str, Any]], emitter: Emitter) -> None:
    try:
        for topic, value in topics:
            emitter.topic(topic, value)
    finally:
        close = getattr(topics, "close", None)
        if close is not None:
            close()  # runs the reader's own `finally`


def _stop_with_parent(parent: int) -> None:
    def stop(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt restoring
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the command, which stops its children
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise Stopped


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
