"""Run a program of the driver with a deadline and bounded output, optionally with another root as its ``/``.

At the deadline the program and its children are killed. The wait ends in any case: a process that is stuck in the
kernel driver cannot be killed.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct

from dra_driver.core.text import one_line

_ENTER: Final = "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); os.execv(sys.argv[2], sys.argv[2:])"


def enter_root(root: str) -> list[str]:
    """The start of a command line below ``root``, before the program's path; [] for this process's root."""
    return [] if root in ("", "/") else [sys.executable, "-I", "-S", "-c", _ENTER, root]


MAX_OUTPUT: Final = 16 * 1024
MAX_SHOWN: Final = 300
REAP_S: Final = 1.0
"""Seconds to wait for the end of a process after SIGKILL."""
_MAX_STDIN: Final = 4096  # fits into any pipe at once, so that writing cannot block
_STEP_S: Final = 0.01  # between two polls where the kernel has no pidfd (before Linux 5.3)
_MAX_WAIT_S: Final = 0.25

Clock = Callable[[], float]
Sleep = Callable[[float], None]
Prepare = Callable[[], None]


class Ended(Struct, frozen=True, kw_only=True):
    """Result of a run. ``status`` is None when it was killed at its deadline, negative for a signal. ``output`` is the
    start of stdout and stderr. ``stuck``: not even SIGKILL ended it."""

    status: int | None
    output: str
    stuck: bool = False


class Running:
    """One run of a program in its own process group, for one thread. ``prepare`` runs between fork and exec: only for
    processes of one thread. Raises OSError when it cannot start. Background processes of a program that ends keep
    running."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        within_s: float,
        stdin: str = "",
        prepare: Prepare | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._clock = clock
        self._deadline = clock() + within_s
        self._killed_at: float | None = None
        self._kept = bytearray()
        self._all_read = False
        self._reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reading, False)
        source = _filled_pipe(stdin)
        try:
            self._process = subprocess.Popen(
                list(arguments),
                env=dict(environment),
                stdin=source,
                stdout=writing,
                stderr=writing,
                start_new_session=True,
                preexec_fn=prepare,  # noqa: PLW1509 - see the docstring: callers that give one have one thread
            )
        except BaseException:
            os.close(self._reading)
            raise
        finally:
            os.close(source)
            os.close(writing)

    def poll(self) -> Ended | None:
        """Return the result; None while it runs. Kills the process group at the deadline. Never waits."""
        self._read()
        status = self._process.poll()
        if status is not None:
            self._read()
            return self._end(None if self._killed_at is not None else status)
        now = self._clock()
        if self._killed_at is None and now >= self._deadline:
            self._killed_at = now
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._killed_at is not None and now >= self._killed_at + REAP_S:
            return self._end(None, stuck=True)
        return None

    def wait(self) -> Ended:
        """Wait for the result, at most until the deadline plus `REAP_S`."""
        poller = select.poll()
        poller.register(self._reading, select.POLLIN)
        step, pidfd = _STEP_S, -1
        with suppress(OSError):  # no pidfd: the kernel is old, or a seccomp profile refuses the call
            pidfd = os.pidfd_open(self._process.pid)
            poller.register(pidfd, select.POLLIN)
            step = _MAX_WAIT_S
        try:
            watching = True
            while (ended := self.poll()) is None:
                if self._all_read and watching:
                    poller.unregister(self._reading)  # it closed its output and still runs: the pipe stays readable
                    watching = False
                left = max(self._deadline - self._clock(), _STEP_S)
                poller.poll(1000 * min(left, step))
            return ended
        finally:
            if pidfd >= 0:
                os.close(pidfd)

    def abandon(self) -> None:
        """Kill it now and wait up to `_MAX_WAIT_S` for its end, without a result."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_MAX_WAIT_S)
        self._end(None)

    def _read(self) -> None:
        """Read the output, so that a full pipe never blocks the program; keep its beginning."""
        while self._reading >= 0:
            try:
                piece = os.read(self._reading, MAX_OUTPUT)
            except BlockingIOError:
                return
            if not piece:
                self._all_read = True
                return
            self._kept += piece[: MAX_OUTPUT - len(self._kept)]

    def _end(self, status: int | None, *, stuck: bool = False) -> Ended:
        if self._reading >= 0:
            os.close(self._reading)
            self._reading = -1
        return Ended(status=status, output=self._kept.decode(errors="replace"), stuck=stuck)


def run(arguments: Sequence[str], *, environment: Mapping[str, str], within_s: float, stdin: str = "") -> Ended:
    return Running(arguments, environment=environment, within_s=within_s, stdin=stdin).wait()


def shown(output: str) -> str:
    """A program's output as one printable line, short enough for an event."""
    return one_line(output, MAX_SHOWN) or "nothing"


def _filled_pipe(text: str) -> int:
    data = text.encode()
    if len(data) > _MAX_STDIN:
        raise ValueError(f"stdin of a program is limited to {_MAX_STDIN} bytes, got {len(data)}")
    reading, writing = os.pipe2(os.O_CLOEXEC)
    with open(writing, "wb", buffering=0) as pipe:  # noqa: PTH123 - a descriptor, not a path
        pipe.write(data)
    return reading
