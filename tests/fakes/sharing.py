"""Fakes of ``sharing``: compute modes, notes, a clock that moves by sleeping, and an MPS host as one function, which
holds the real lock and answers desired files with status files each time the code under test sleeps."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from dra_driver.core.errors import HardwareError, StorageError
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.hardware.sharing.mps_files import DaemonState, DaemonStatus, MpsFolders
from tests.fakes.fuse import Killed


class Mortality:
    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        self.at, self.after, self.count = at, after, 0

    def around(self, effect: Callable[[], object]) -> object:
        self.count += 1
        dying = self.at is not None and self.count >= self.at
        if dying and not (self.after and self.count == self.at):
            raise Killed
        result = effect()
        if dying:
            raise Killed
        return result


class FakeControl:
    """``GpuControl`` as far as compute modes go. ``problem`` is raised by whatever changes a mode."""

    def __init__(self, mortality: Mortality | None = None) -> None:
        self.modes: dict[GpuUuid, ComputeMode] = {}
        self.calls: list[str] = []
        self.problem: HardwareError | None = None
        self.mortality = mortality or Mortality()

    def compute_mode(self, gpu: GpuUuid) -> ComputeMode:
        return self.modes.get(gpu, ComputeMode.DEFAULT)

    def set_compute_mode(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        def effect() -> None:
            self.calls.append(f"{gpu} {mode.name}")
            if self.problem:
                raise self.problem
            self.modes[gpu] = mode

        self.mortality.around(effect)


class FakeGpuNotes:
    """`gpu.notes.GpuNotes`. ``log`` has the changes in order; while ``full`` is set every write fails."""

    def __init__(self) -> None:
        self.values: dict[tuple[GpuUuid, str], str] = {}
        self.log: list[str] = []
        self.full = False

    def gpu_note(self, gpu: GpuUuid, key: str) -> str | None:
        return self.values.get((gpu, key))

    def set_gpu_note(self, gpu: GpuUuid, key: str, value: str) -> None:
        self._write(f"set {key}")
        self.values[gpu, key] = value

    def clear_gpu_note(self, gpu: GpuUuid, key: str) -> None:
        self._write(f"clear {key}")
        self.values.pop((gpu, key), None)

    def gpus_with_note(self, key: str) -> tuple[GpuUuid, ...]:
        return tuple(gpu for gpu, held in self.values if held == key)

    def _write(self, what: str) -> None:
        if self.full:
            raise StorageError("no space left on device")
        self.log.append(what)


class MortalNotes(FakeGpuNotes):
    def __init__(self, mortality: Mortality | None = None) -> None:
        super().__init__()
        self.mortality = mortality or Mortality()

    def set_gpu_note(self, gpu: GpuUuid, key: str, value: str) -> None:
        self.mortality.around(lambda: super(MortalNotes, self).set_gpu_note(gpu, key, value))

    def clear_gpu_note(self, gpu: GpuUuid, key: str) -> None:
        self.mortality.around(lambda: super(MortalNotes, self).clear_gpu_note(gpu, key))


class Clock:
    def __init__(self, while_asleep: Callable[[], object] = lambda: None) -> None:
        self.now = 1000.0
        self.while_asleep = while_asleep
        self.mortality = Mortality()

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.mortality.around(self.while_asleep)


class FakeHost:
    def __init__(self, root: Path, *, shm: Path = Path("/dev/shm/test-mps")) -> None:
        self.folders = MpsFolders(root)
        self.shm = shm
        self.state: DaemonState = "ready"
        self.reason = ""
        self.restarts = 0
        self.ends_daemons = True
        self._lock: int | None = None

    def live(self) -> "FakeHost":
        self.folders.make()
        self._lock = os.open(self.folders.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self

    def die(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def work(self) -> None:
        if self._lock is None:
            return
        for daemon_id in self.folders.ids():
            folder = self.folders.of(daemon_id)
            daemon = folder.read_desired()
            if daemon is not None:
                folder.write_status(
                    DaemonStatus(
                        generation=daemon.generation,
                        state=self.state,
                        reason=self.reason,
                        restarts=self.restarts,
                        shm=str(self.shm / daemon_id),
                    )
                )
            elif self.ends_daemons:
                folder.clear_status()
