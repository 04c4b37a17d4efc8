"""The MPS host: one process per node whose children are the MPS daemons that the node's claims need.

It starts and stops daemons as the files below its root request (``mps_files.py``). It has a separate DaemonSet, because
the death of a daemon ends the CUDA contexts of its clients: the node process can restart while pods compute. The
daemons end with it; it does not adopt daemons of a former host.

Start: acquire the lock; remove processes, statuses and shared memory of a former host; run the loop. Stop: send quit to
every daemon and kill daemons that run longer than `STOP_S`.
"""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.files import holder_of, lock_file, name_holder
from dra_driver.hardware.driver_root.process import Clock, Sleep
from dra_driver.hardware.sharing import control, mps_files, orphan_processes, supervise
from dra_driver.hardware.sharing.control import ControlProgram
from dra_driver.hardware.sharing.memory import DaemonMemory
from dra_driver.hardware.sharing.mps_files import MAX_DAEMONS, MpsDaemon, MpsFolders, storage
from dra_driver.hardware.sharing.supervise import Supervised

log = logging.getLogger(__name__)

IDLE_S, BUSY_S = 0.25, 0.02
"""Pauses between two steps. A step costs a quarter of a millisecond, most of it for waking up: 0.1 to 0.2 % of a core
when idle."""
LOGS_EVERY_S: Final = 10.0
STOP_S: Final = 9.0
"""Time limit of `MpsHost.stop`. The pod's grace period must be longer."""
LOCK_WAIT_S: Final = 30.0
"""Seconds to wait for the lock of a host that is stopping."""
LOCK_QUIET_S: Final = 1.0
"""After this time without the lock, the wait is logged."""
ORPHANS_KILL_S: Final = 2.0

_Stamp = tuple[int, int, int]


class MpsHost:
    """The daemons of one node. For one thread: `start`, then `step` in a loop, then `stop`."""

    def __init__(
        self,
        root: Path,
        program: ControlProgram,
        memory: DaemonMemory,
        *,
        sleep: Sleep = time.sleep,
        clock: Clock = time.monotonic,
    ) -> None:
        self._folders = MpsFolders(root)
        self._program = program
        self._memory = memory
        self._sleep = sleep
        self._clock = clock
        self._lock: int | None = None
        self._running: dict[str, Supervised] = {}
        self._seen: dict[str, tuple[_Stamp, MpsDaemon | None]] = {}
        self._shorten_at = clock()
        self._reported = ""
        self._is_first_step = True
        self._beat_at = clock()

    def start(self) -> None:
        """Acquire the lock and remove leftovers. Raises ConfigurationError when another host runs, and StorageError."""
        self._folders.make()
        self._take_lock()
        left = orphan_processes.kill(
            control.MARK, self._folders.daemons, within_s=ORPHANS_KILL_S, sleep=self._sleep, clock=self._clock
        )
        if left:
            log.error("cannot kill processes of a former MPS host", extra={"pids": left})
        for daemon_id in self._folders.ids():
            self._folders.of(daemon_id).clear_status()
        self._memory.start()
        self._memory.remove_unused(self._is_wanted)
        log.info("MPS host started", extra={"root": self._folders.root, "daemons": self._folders.ids()})

    def step(self) -> float:
        """Advance all daemons without waiting; returns the seconds until the next step. Raises nothing."""
        if self._lock is not None and self._clock() >= self._beat_at:
            self._beat_at = self._clock() + mps_files.EVERY_S
            mps_files.beat(self._lock)
        try:
            self._apply_wanted()
        except StorageError as error:
            self._report(str(error))
        if self._is_first_step:  # a daemon that was released since `start` had folders of a former host
            self._is_first_step = False
            self._memory.remove_unused(lambda daemon_id: daemon_id in self._running or self._is_wanted(daemon_id))
        self._step_daemons()
        if self._clock() >= self._shorten_at:
            self._shorten_at = self._clock() + LOGS_EVERY_S
            for supervised in self._running.values():
                supervise.shorten_logs(supervised.folder.log)
        return BUSY_S if any(one.is_moving for one in self._running.values()) else IDLE_S

    def stop(self) -> None:
        """Stop all daemons, within `STOP_S`, and release the lock. Idempotent."""
        deadline = self._clock() + STOP_S
        for supervised in self._running.values():
            supervised.end()
        while self._running and self._clock() < deadline:
            self._step_daemons()
            self._sleep(BUSY_S)
        if self._lock is not None:
            self._memory.stop()
            os.close(self._lock)
            self._lock = None
            log.info("MPS host stopped", extra={"left": tuple(self._running)})

    def run(self, is_over: Callable[[], bool]) -> None:
        self.start()
        try:
            while not is_over():
                self._sleep(self.step())
        finally:
            self.stop()

    def _apply_wanted(self) -> None:
        wanted = self._wanted()
        for daemon_id, supervised in self._running.items():
            if wanted.get(daemon_id) != supervised.daemon:
                supervised.end()
        for daemon_id, daemon in wanted.items():
            if daemon_id in self._running:
                continue
            if len(self._running) >= MAX_DAEMONS:
                self._report(f"{len(wanted)} MPS daemons are wanted, but at most {MAX_DAEMONS} can run")
                return
            self._running[daemon_id] = Supervised(
                daemon, self._folders.of(daemon_id), self._program, self._memory, clock=self._clock
            )

    def _wanted(self) -> dict[str, MpsDaemon]:
        seen: dict[str, tuple[_Stamp, MpsDaemon | None]] = {}
        for daemon_id, stamp in self._folders.stamps().items():
            before = self._seen.get(daemon_id)
            if before is not None and before[0] == stamp:
                seen[daemon_id] = before
                continue
            folder = self._folders.of(daemon_id)
            daemon = folder.read_desired()
            if daemon is None:
                log.error("file does not describe an MPS daemon", extra={"file": folder.desired})
            seen[daemon_id] = (stamp, daemon)
        self._seen = seen
        return {daemon_id: daemon for daemon_id, (_, daemon) in seen.items() if daemon is not None}

    def _report(self, problem: str) -> None:
        if problem != self._reported:
            self._reported = problem
            log.error("cannot run all wanted MPS daemons", extra={"reason": problem})

    def _take_lock(self) -> None:
        path = self._folders.lock
        with storage(f"open {path}"):
            try:
                # A node process that checks for a running host also holds the lock, for a moment.
                self._lock = self._lock_within(LOCK_QUIET_S)
            except BlockingIOError:
                log.info("waiting for another MPS host to stop", extra={"lock": path})
                try:
                    self._lock = self._lock_within(LOCK_WAIT_S - LOCK_QUIET_S)
                except BlockingIOError as error:
                    raise ConfigurationError(
                        f"another MPS host runs on this node (lock {path}, held by {holder_of(path)}): there is one per"
                        " node and driver; stop it first"
                    ) from error
        name_holder(self._lock)

    def _lock_within(self, timeout_s: float) -> int:
        return lock_file(
            self._folders.lock, timeout_s=timeout_s, create_mode=0o644, sleep=self._sleep, clock=self._clock
        )

    def _step_daemons(self) -> None:
        for daemon_id, supervised in list(self._running.items()):
            supervised.step()
            if supervised.is_gone:
                del self._running[daemon_id]
                if not self._is_wanted(daemon_id):  # if it is wanted again, containers have its folders mounted
                    self._memory.remove(daemon_id)

    def _is_wanted(self, daemon_id: str) -> bool:
        return self._folders.of(daemon_id).read_desired() is not None
