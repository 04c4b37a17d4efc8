"""Supervise one MPS daemon from its start to its end, in steps that do not wait, except for processes just killed.

    waiting ──▶ starting ──▶ ready ──▶ ending ──▶ gone
       ▲            │           │
       └── failed ◀─┴───────────┘   with a pause that doubles, until it was ready for a minute

Starting: probe until it answers, then set the defaults. Log files that are too long are truncated after their end is
copied to ``<name>.1``, not renamed: the daemon would continue to write into the renamed file.
"""

import logging
import os
import signal
import subprocess
import time
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final

from dra_driver.core.backoff import Backoff
from dra_driver.core.errors import CommandError, StorageError
from dra_driver.hardware.driver_root.process import Clock, Running, shown
from dra_driver.hardware.sharing import control, orphan_processes
from dra_driver.hardware.sharing.control import ControlProgram
from dra_driver.hardware.sharing.memory import DaemonMemory
from dra_driver.hardware.sharing.mps_files import DaemonFolder, DaemonState, DaemonStatus, MpsDaemon

MAX_FILE: Final = 1024 * 1024
KEPT: Final = 256 * 1024
OUTPUT: Final = "output.log"
"""File with a daemon's output. The daemon's own log files beside it are control.log and server.log."""
_TAIL: Final = 2048


def open_output(folder: Path) -> int:
    """Open the output file of a daemon for appending; returns the descriptor. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(folder / OUTPUT, flags, 0o600)


def shorten_logs(folder: Path) -> None:
    """Truncate every plain file of ``folder`` that is longer than `MAX_FILE`. Files that fail are skipped."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_file(follow_symlinks=False) and not entry.name.endswith(".1"):
                with suppress(OSError):
                    _shorten(Path(entry.path))


def last_lines(folder: Path) -> str:
    """The last lines of the daemon's output, else of its control log, each once: every restart appends the same lines,
    and Kubernetes counts events with the same text as one."""
    for name in (OUTPUT, "control.log"):
        with suppress(OSError):
            lines = _end(folder / name, _TAIL).decode(errors="replace").split("\n")
            words = " ".join(dict.fromkeys(line.strip() for line in lines[-4:] if line.strip()))
            if words:
                return words
    return ""


def _shorten(path: Path) -> None:
    # Blocks, not length: a writer that does not append leaves a hole at the front after the truncation.
    if path.stat().st_blocks * 512 <= MAX_FILE:
        return
    path.with_name(f"{path.name}.1").write_bytes(_end(path, KEPT))
    os.truncate(path, 0)


def _end(path: Path, length: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, length, max(0, size - length))
    finally:
        os.close(descriptor)


log = logging.getLogger(__name__)

COMMAND_S: Final = 5.0
"""Time limit of one command; a daemon answers within milliseconds."""
START_S: Final = 15.0
"""Time limit from the start of a daemon until it is ready."""
ASK_AGAIN_S: Final = 0.05
FIRST_PAUSE_S, LONGEST_PAUSE_S, STABLE_S = 0.5, 30.0, 60.0
CHECK_EVERY_S: Final = 60.0
QUIT_S, TERM_S, KILL_S = 3.0, 2.0, 2.0
"""Time limits of an end: for clients to finish, to react to SIGTERM, and to be gone after SIGKILL."""


class _Phase(Enum):
    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    ENDING = "ending"
    GONE = "gone"


class Supervised:
    """One supervised daemon. For one thread: `step` often, `end` once, then `step` until `is_gone`."""

    def __init__(
        self,
        daemon: MpsDaemon,
        folder: DaemonFolder,
        program: ControlProgram,
        memory: DaemonMemory,
        *,
        clock: Clock = time.monotonic,
    ) -> None:
        self.daemon = daemon
        self.folder = folder
        self._program = program
        self._memory = memory
        self._shm = memory.shm(daemon.id)
        self._clock = clock
        self._phase = _Phase.WAITING
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: tuple[str, Running] | None = None
        self._to_set: list[str] = []
        self._next_at = clock()
        self._phase_since = clock()
        self._backoff = Backoff(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        self._restarts = 0
        self._signals: list[int] = []
        self._written: DaemonStatus | None = None
        self._answered = False

    @property
    def is_gone(self) -> bool:
        return self._phase is _Phase.GONE

    @property
    def is_moving(self) -> bool:
        return self._phase in (_Phase.STARTING, _Phase.ENDING)

    def end(self) -> None:
        """Begin to stop it permanently. Idempotent."""
        if self._phase in (_Phase.ENDING, _Phase.GONE):
            return
        self._abandon_command()
        self._signals = [signal.SIGTERM, signal.SIGKILL]
        was_ready = self._phase is _Phase.READY
        self._enter(_Phase.ENDING)
        self._next_at = self._clock()
        if self._process is not None:
            self._set_status("stopping", "it was released")
        if was_ready:  # only a daemon that was ready has clients, and answers
            self._ask(control.QUIT, QUIT_S)
            self._next_at = self._clock() + QUIT_S

    def step(self) -> None:
        """Advance without waiting. Raises nothing: failures are in the status and in the log."""
        match self._phase:
            case _Phase.WAITING if self._clock() >= self._next_at:
                self._start()
            case _Phase.STARTING:
                self._continue_start()
            case _Phase.READY:
                self._watch()
            case _Phase.ENDING:
                self._continue_end()

    def _start(self) -> None:
        self._set_status("starting", "its program is being started")
        if self.folder.read_desired() != self.daemon:
            # It was released before this status was written: the node process found none and reported success.
            self._finish()
            return
        try:
            self._memory.make(self.folder)
            self.folder.make()
            output = open_output(self.folder.log)
            try:
                self._process = self._program.start(self.daemon, self.folder, self._shm, output)
            finally:
                os.close(output)
        except (OSError, CommandError, StorageError) as error:
            self._fail(str(error))
            return
        self._to_set = list(control.defaults(self.daemon))
        self._next_at = self._clock()
        self._enter(_Phase.STARTING)
        self._set_status("starting", "its program runs and has not answered yet")

    def _continue_start(self) -> None:
        if self._has_ended():
            return
        if self._clock() >= self._phase_since + START_S:
            reason = self._written.reason if self._written else ""
            self._abort(f"it was not ready {START_S:.0f} s after its start: {reason}")
            return
        answer = self._answer()
        if answer is not None:
            self._handle_answer(*answer)
        elif self._asked is None and self._clock() >= self._next_at:
            self._ask(self._to_set[0] if self._answered else control.PROBE, COMMAND_S)

    def _handle_answer(self, command: str, problem: str | None) -> None:
        if problem is not None and command == control.PROBE:
            self._set_status("starting", f"it does not answer yet: {problem}")
            self._next_at = self._clock() + ASK_AGAIN_S
            return
        if problem is not None:
            self._abort(problem)
            return
        if command != control.PROBE:
            self._to_set.remove(command)
        if self._to_set:
            self._ask(self._to_set[0], COMMAND_S)
            return
        self._enter(_Phase.READY)
        self._next_at = self._clock() + CHECK_EVERY_S
        self._set_status("ready", "")
        log.info("MPS daemon ready", extra={"daemon": self.daemon.id, "restarts": self._restarts})

    def _watch(self) -> None:
        if self._has_ended():
            return
        now = self._clock()
        if now >= self._phase_since + STABLE_S:
            self._backoff.reset()
        answer = self._answer()
        if answer is not None:
            # A daemon that does not answer refuses new clients. Its present clients continue, so it is not stopped.
            problem = answer[1]
            self._set_status(
                "failed" if problem else "ready", f"it does not answer any more: {problem}" if problem else ""
            )
            self._next_at = now + CHECK_EVERY_S
        elif self._asked is None and now >= self._next_at:
            self._ask(control.HEALTH, COMMAND_S)

    def _continue_end(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self._kill_rest()
            self._finish()
        elif self._clock() >= self._next_at:
            if not self._signals:
                log.error("MPS daemon does not end after SIGKILL", extra={"daemon": self.daemon.id})
                self._finish()
                return
            number = self._signals.pop(0)
            self._signal(number)
            self._next_at = self._clock() + (TERM_S if number == signal.SIGTERM else KILL_S)
        elif self._asked is not None:
            self._answer()

    def _has_ended(self) -> bool:
        """Return whether the process ended although it should run; then it is `_fail`ed."""
        if self._process is None or self._process.poll() is None:
            return False
        status = self._process.returncode
        self._kill_rest()
        printed = last_lines(self.folder.log)
        how = f"signal {-status}" if status < 0 else f"status {status}"
        self._fail(f"its program ended with {how}; it printed last: {shown(printed)}")
        return True

    def _abort(self, reason: str) -> None:
        self._signal(signal.SIGKILL)
        self._kill_rest()
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        self._abandon_command()
        self._process = None
        pause_s = self._backoff.next_s()
        log.warning("MPS daemon failed", extra={"daemon": self.daemon.id, "reason": reason, "again_s": pause_s})
        self._set_status("failed", reason)
        self._next_at = self._clock() + pause_s
        self._restarts += 1
        self._enter(_Phase.WAITING)

    def _finish(self) -> None:
        self._abandon_command()
        self._process = None
        with suppress(StorageError):
            self.folder.clear_status()
        self._enter(_Phase.GONE)
        log.info("MPS daemon ended", extra={"daemon": self.daemon.id})

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _kill_rest(self) -> None:
        """Kill servers that outlived their daemon: a new daemon cannot open the GPU while they have it open."""
        with suppress(subprocess.TimeoutExpired):
            if self._process is not None:
                self._process.wait(timeout=KILL_S)
        left = orphan_processes.kill(control.MARK, self.folder.path, within_s=KILL_S)
        if left:
            log.error("cannot kill processes of an MPS daemon", extra={"daemon": self.daemon.id, "pids": left})

    def _ask(self, command: str, within_s: float) -> None:
        try:
            running = self._program.send(command, self.folder, self._shm, within_s=within_s, clock=self._clock)
        except CommandError as error:
            self._set_status("failed", str(error))
            self._next_at = self._clock() + COMMAND_S
            return
        self._asked = (command, running)

    def _answer(self) -> tuple[str, str | None] | None:
        """Return the answered command and its error, if any; None before the answer."""
        ended = self._asked[1].poll() if self._asked else None
        if self._asked is None or ended is None:
            return None
        command, self._asked = self._asked[0], None
        problem = control.refusal(command, ended)
        if command == control.PROBE and problem is None:
            self._answered = True
        return command, problem

    def _abandon_command(self) -> None:
        if self._asked is not None:
            self._asked[1].abandon()
            self._asked = None

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        self._phase_since = self._clock()
        self._answered = False

    def _set_status(self, state: DaemonState, reason: str) -> None:
        status = DaemonStatus(
            generation=self.daemon.generation,
            state=state,
            reason=reason,
            pid=self._process.pid if self._process else None,
            restarts=self._restarts,
            shm=str(self._shm),
        )
        if status == self._written:
            return
        try:
            self.folder.write_status(status)
        except StorageError as error:
            facts = {"daemon": self.daemon.id, "reason": str(error)}
            log.warning("cannot write the status of an MPS daemon", extra=facts)
        else:
            self._written = status
