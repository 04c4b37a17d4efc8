"""Keep the state file of simulated GPUs (docs/simulated-gpus.md): format, lock and change detection.

The file is JSON, replaced by a rename and changed under ``flock`` of ``<file>.lock``: any number of processes share one
node's hardware. It is not synced: a crash of the machine also ends real MIG instances. Without a file, memory serves.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.convert import decode_json
from dra_driver.core.errors import DriverUnavailableError
from dra_driver.core.files import lock_file, replace_file
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.simulated import mig as simulated_mig
from dra_driver.hardware.gpu.simulated.faults import GpuFault, HardwareFault
from dra_driver.hardware.gpu.simulated.mig import GiId, GpuState

MAX_BYTES = 4 * 1024 * 1024
MAX_INJECTED = 256
LOCK_TIMEOUT_S = 20.0
_Stamp = tuple[int, int, int] | None


class Fault(Struct, frozen=True, kw_only=True, rename="camel"):
    """Applies to ``times`` calls (0: all) of ``method``, of ``GpuBackend``, for ``gpu`` (None: any) after ``skip`` of
    them: the call waits ``delay_s`` and raises ``error`` (a HardwareError of ``errors.py``; None: none), with ``after``
    when it has done its work."""

    method: str
    gpu: str | None = None
    error: str | None = None
    message: str = ""
    skip: int = 0
    times: int = 1
    delay_s: float = 0.0
    after: bool = False


class _Injected(Struct, frozen=True, kw_only=True):
    gpu: GpuUuid
    fault: str
    gi: GiId | None = None
    source: str = ""


class _File(Struct, frozen=True, kw_only=True):
    version: Literal[1] = 1
    changes: int = 0
    gpus: Mapping[str, GpuState] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    injected: tuple[_Injected, ...] = ()


class Changes(Struct, frozen=True, kw_only=True):
    """Differences from the spec. ``gpus`` are by UUID."""

    count: int = 0
    gpus: Mapping[str, GpuState] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    injected: tuple[GpuFault, ...] = ()

    def injected_into(self, gpu: str) -> tuple[GpuFault, ...]:
        """The faults of that GPU and of its GPU instances."""
        return tuple(found for found in self.injected if found.gpu == gpu)

    def state(self, gpu: Gpu) -> GpuState:
        """The state of ``gpu``. Raises DriverUnavailableError for instances that its board cannot have."""
        found = self.gpus.get(gpu.uuid)
        if found is None or found.described not in (None, _digest(gpu)):
            return simulated_mig.described(gpu)
        simulated_mig.instances(gpu, found)
        return replace(found, instances=tuple(sorted(found.instances, key=lambda instance: instance.start)))

    def with_state(self, gpu: Gpu, state: GpuState) -> "Changes":
        """A copy with another state of ``gpu``."""
        return replace(self, gpus={**self.gpus, gpu.uuid: replace(state, described=_digest(gpu))})

    def strike(self, method: str, gpu: str | None) -> tuple["Changes", Fault | None]:
        """The faults left after a call of ``method`` for ``gpu``, and the fault of this call, if any."""
        for index, fault in enumerate(self.faults):
            if fault.method != method or fault.gpu not in (None, gpu):
                continue
            if fault.skip > 0:
                left: tuple[Fault, ...] = (replace(fault, skip=fault.skip - 1),)
            elif fault.times == 0:
                return self, fault
            else:
                left = (replace(fault, times=fault.times - 1),) if fault.times > 1 else ()
            rest = (*self.faults[:index], *left, *self.faults[index + 1 :])
            return replace(self, faults=rest), None if fault.skip > 0 else fault
        return self, None


class StateStore:
    def __init__(self, file: Path | None = None, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self.file = file
        self._lock_timeout_s = lock_timeout_s
        self._lock = threading.RLock()  # guards the fields below and stands for the file lock among threads
        self._changes = Changes()
        self._stamp: _Stamp = None
        self._depth = 0

    def read(self) -> Changes:
        with self._lock:
            if self.file is not None:
                self._reload(self.file)
            return self._changes

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other writers. The same thread may enter it again. Raises DriverUnavailableError."""
        with self._lock:
            if self.file is None or self._depth > 0:  # a second descriptor would wait for the first
                yield
                return
            descriptor = self._lock_file(self.file)
            try:
                self._depth += 1
                try:
                    yield
                finally:
                    self._depth -= 1
            finally:
                os.close(descriptor)

    def _lock_file(self, file: Path) -> int:
        try:
            return lock_file(file.with_name(f"{file.name}.lock"), timeout_s=self._lock_timeout_s)
        except BlockingIOError as error:
            raise DriverUnavailableError(
                f"simulated driver: another process has kept {file} locked for {self._lock_timeout_s:g} s"
            ) from error
        except OSError as error:
            raise DriverUnavailableError(f"simulated driver: cannot lock {file}: {error}") from error

    def write(self, changes: Changes) -> None:
        """Replace the changes, inside ``locked``. Raises DriverUnavailableError; then nothing changed."""
        changes = replace(changes, count=changes.count + 1)
        if self.file is not None:
            try:
                written = replace_file(self.file, _encode(changes))
            except OSError as error:
                raise DriverUnavailableError(f"simulated driver: cannot write {self.file}: {error}") from error
            self._stamp = stamp_of(written)
        self._changes = changes

    def marker(self) -> object:
        """A value that differs after any change. Cheap; never raises."""
        return self._changes.count if self.file is None else _stamp(self.file)

    def _reload(self, file: Path) -> None:
        stamp = _stamp(file)
        if stamp is not None and stamp == self._stamp:
            return
        try:
            self._changes = _decode(_content(file)) if stamp is not None else Changes()
        except (OSError, ValueError) as error:
            raise DriverUnavailableError(
                f"simulated driver: the state file {file} cannot be read ({error!r}): correct it, or delete it, which "
                "resets the GPUs to their spec"
            ) from error
        self._stamp = stamp


def _stamp(file: Path) -> _Stamp:
    try:
        return stamp_of(file.stat())
    except OSError:
        return None


def stamp_of(status: os.stat_result) -> _Stamp:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _content(file: Path) -> bytes:
    with file.open("rb") as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return content


def _digest(gpu: Gpu) -> str:
    """A digest of the spec's MIG mode, instances and profiles of ``gpu``."""
    described: tuple[object, ...] = (
        gpu.mig_enabled,
        gpu.mig_instances,
        [(p.profile_id, p.starts) for p in gpu.mig_profiles],
    )
    if gpu.fabric is not None:  # left out otherwise, so that states of earlier versions are found
        described = (*described, gpu.fabric)
    return str(simulated_mig.name_based(gpu.uuid, repr(described)))


def _encode(changes: Changes) -> bytes:
    injected = (
        _Injected(gpu=one.gpu, fault=str(one.fault), gi=one.gi_id, source=one.source) for one in changes.injected
    )
    file = _File(changes=changes.count, gpus=changes.gpus, faults=changes.faults, injected=tuple(injected))
    return msgspec.json.encode(file, order="deterministic")


def _decode(data: bytes) -> Changes:
    file = decode_json(data, _File)
    injected = (
        GpuFault(gpu=one.gpu, fault=HardwareFault.parse(one.fault), gi_id=one.gi, source=one.source)
        for one in file.injected[:MAX_INJECTED]
    )
    return Changes(count=file.changes, gpus=file.gpus, faults=file.faults, injected=tuple(injected))
