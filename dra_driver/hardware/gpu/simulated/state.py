"""The state file of simulated GPUs: format, lock and change detection.

The state outlives the process, as that of real hardware does. Without a file it is kept in memory.

The file is JSON, replaced by a rename and changed under ``flock`` of ``<file>.lock``, so that any number of processes
share one node's hardware and a reader sees the state before or after a change. It is not synced: a crash of the machine
also ends real MIG instances. Deleting it acts as a reboot. People and tests may edit it::

    {"version": 1,
     "changes": 12,                               counts up; only a change of the value matters
     "gpus": {"GPU-…": {                          GPUs in the state of their spec are not listed
        "described": "…",                         digest of the spec: when the spec changes, this entry is ignored;
                                                  without the digest it never is
        "migMode": true,
        "computeMode": 0,
        "busy": null,                             or the program that has the GPU open, which keeps its MIG mode
        "busyOnCreate": null,                     or the program that keeps its first instance from being created
        "fabric": null,                           or {"state": "in progress", "status": 0}, see ``core/model/fabric.py``
        "fabricAfterMig": null,                   or what it becomes when the last instance is destroyed
        "troubles": [],                           or names of ``faults.py``
        "instances": [{"profile": 19, "start": 6, "gi": 13, "compute": [{"ci": 0, "spans": true}], "inUse": false}]}},
     "faults": [{"method": "create_compute_instance", "gpu": "GPU-…", "error": "NoRoomError", "message": "…",
                 "skip": 0, "times": 1, "delayS": 0, "after": false}],
     "injected": [{"gpu": "GPU-…", "fault": "xid=79", "gi": null, "source": ""}]}

Removing or adding an instance's line acts as another program that destroys or creates it. A fault applies to calls of
``method`` (a name of ``GpuBackend``) for ``gpu`` (null: any) after ``skip`` of them, ``times`` times (0: always): the
call waits ``delayS`` seconds and raises ``error`` (a HardwareError of ``errors.py``; null: none), with ``after`` when
it has done its work.

Adding a line to ``injected`` makes the GPU, or its GPU instance ``gi``, ill as ``faults.py`` says; removing it is the
repair. XIDs and ECC errors are told once for each line, and again when the line's count (``xid=13*2``) goes up.
"""

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.core.files import lock_file, replace_file
from dra_driver.core.model.fabric import Fabric, FabricState
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigInstance
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.hardware.gpu.simulated import faults
from dra_driver.hardware.gpu.simulated import faults as hardware_faults
from dra_driver.hardware.gpu.simulated import mig as simulated_mig
from dra_driver.hardware.gpu.simulated.faults import GpuFault
from dra_driver.hardware.gpu.simulated.mig import GpuState

VERSION = 1
MAX_BYTES = 4 * 1024 * 1024
MAX_GI_ID, MAX_CI_ID = 14, 7  # the kernel module has device numbers for no more
MAX_INJECTED = 256
LOCK_TIMEOUT_S = 20.0
_Stamp = tuple[int, int, int] | None


class Fault(Struct, frozen=True, kw_only=True):
    method: str
    gpu: str | None = None
    error: str | None = None
    message: str = ""
    skip: int = 0
    times: int = 1
    delay_s: float = 0.0
    after: bool = False


class Changes(Struct, frozen=True, kw_only=True):
    count: int = 0
    gpus: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    injected: tuple[GpuFault, ...] = ()

    def injected_into(self, gpu: str) -> tuple[GpuFault, ...]:
        return tuple(found for found in self.injected if found.gpu == gpu)

    def state(self, gpu: Gpu) -> GpuState:
        found = self.gpus.get(gpu.uuid)
        if found is None or found.get("described") not in (None, _digest(gpu)):
            return simulated_mig.described(gpu)
        try:
            return _decode_state(gpu, found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DriverUnavailableError(
                f"simulated driver: the state of {gpu.uuid} cannot be decoded: {error!r}"
            ) from error

    def with_state(self, gpu: Gpu, state: GpuState) -> "Changes":
        return replace(self, gpus={**self.gpus, gpu.uuid: _encode_state(gpu, state)})

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
                written = replace_file(self.file, json.dumps(_encode(changes), separators=(",", ":")).encode())
            except OSError as error:
                raise DriverUnavailableError(f"simulated driver: cannot write {self.file}: {error}") from error
            self._stamp = _stamp_of(written)
        self._changes = changes

    def marker(self) -> object:
        """A value that differs after any change. Cheap; never raises."""
        return self._changes.count if self.file is None else _stamp(self.file)

    def _reload(self, file: Path) -> None:
        stamp = _stamp(file)
        if stamp is not None and stamp == self._stamp:
            return
        try:
            self._changes = _decode(json.loads(_content(file))) if stamp is not None else Changes()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DriverUnavailableError(
                f"simulated driver: the state file {file} cannot be read ({error!r}): correct it, or delete it, which "
                "resets the GPUs to their spec"
            ) from error
        self._stamp = stamp


def _stamp(file: Path) -> _Stamp:
    try:
        return _stamp_of(file.stat())
    except OSError:
        return None


def _stamp_of(status: os.stat_result) -> _Stamp:
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


def _encode(changes: Changes) -> dict[str, Any]:
    return {
        "version": VERSION,
        "changes": changes.count,
        "gpus": dict(changes.gpus),
        "faults": [
            {
                "method": fault.method,
                "gpu": fault.gpu,
                "error": fault.error,
                "message": fault.message,
                "skip": fault.skip,
                "times": fault.times,
                "delayS": fault.delay_s,
                "after": fault.after,
            }
            for fault in changes.faults
        ],
        "injected": [
            {"gpu": found.gpu, "fault": str(found.fault), "gi": found.gi_id, "source": found.source}
            for found in changes.injected
        ],
    }


def _decode(raw: dict[str, Any]) -> Changes:
    if raw.get("version") != VERSION:
        raise ValueError(f"version {VERSION} expected, got {raw.get('version')!r}")
    return Changes(
        count=int(raw.get("changes", 0)),
        gpus=dict(raw.get("gpus", {})),
        faults=tuple(
            Fault(
                method=fault["method"],
                gpu=fault.get("gpu"),
                error=fault.get("error"),
                message=fault.get("message", ""),
                skip=int(fault.get("skip", 0)),
                times=int(fault.get("times", 1)),
                delay_s=float(fault.get("delayS", 0.0)),
                after=bool(fault.get("after", False)),
            )
            for fault in raw.get("faults", ())
        ),
        injected=tuple(_decode_injected(found) for found in raw.get("injected", ())[:MAX_INJECTED]),
    )


def _decode_injected(raw: Mapping[str, Any]) -> GpuFault:
    gi_id = raw.get("gi")
    return GpuFault(
        gpu=GpuUuid(str(raw["gpu"])),
        fault=hardware_faults.HardwareFault.parse(str(raw["fault"])),
        gi_id=None if gi_id is None else _bounded(gi_id, MAX_GI_ID),
        source=str(raw.get("source", "")),
    )


def _encode_state(gpu: Gpu, state: GpuState) -> dict[str, Any]:
    return {
        "described": _digest(gpu),
        "migMode": state.mig_enabled,
        "computeMode": int(state.compute_mode),
        "busy": state.busy,
        "busyOnCreate": state.busy_on_create,
        "fabric": _encode_fabric(state.fabric),
        "fabricAfterMig": _encode_fabric(state.fabric_after_mig),
        "troubles": sorted(state.troubles),
        "instances": [
            {
                "profile": instance.profile_id,
                "start": instance.start,
                "gi": instance.gi_id,
                "compute": [{"ci": compute.ci_id, "spans": compute.spans} for compute in instance.compute],
                "inUse": instance.gi_id in state.in_use,
            }
            for instance in state.instances
        ],
    }


def _decode_state(gpu: Gpu, raw: Mapping[str, Any]) -> GpuState:
    entries: list[dict[str, Any]] = sorted(raw["instances"], key=lambda entry: int(entry["start"]))
    return GpuState(
        mig_enabled=bool(raw["migMode"]),
        instances=tuple(_decode_instance(gpu, entry) for entry in entries),
        in_use=frozenset(int(entry["gi"]) for entry in entries if entry.get("inUse")),
        busy=raw.get("busy"),
        busy_on_create=raw.get("busyOnCreate"),
        fabric=_decode_fabric(raw["fabric"]) if "fabric" in raw else gpu.fabric,
        fabric_after_mig=_decode_fabric(raw.get("fabricAfterMig")),
        troubles=faults.parse_failure_modes(raw.get("troubles", ())),
        compute_mode=ComputeMode(raw.get("computeMode", 0)),
    )


def _decode_instance(gpu: Gpu, raw: Mapping[str, Any]) -> MigInstance:
    profile = gpu.profile(raw["profile"])
    if profile is None:
        raise ValueError(f"no MIG profile {raw['profile']!r}")
    gi_id = _bounded(raw["gi"], MAX_GI_ID)
    compute = (
        simulated_mig.compute_instance(
            gpu, gi_id, ci_id=_bounded(entry["ci"], MAX_CI_ID), spans=bool(entry.get("spans", True))
        )
        for entry in raw.get("compute", ())
    )
    return MigInstance(
        gi_id=gi_id,
        profile_id=profile.profile_id,
        profile_name=profile.name,
        start=int(raw["start"]),
        size=profile.memory_slices,
        compute=tuple(sorted(compute, key=lambda made: made.ci_id)),
    )


def _encode_fabric(fabric: Fabric | None) -> dict[str, Any] | None:
    return None if fabric is None else {"state": fabric.state.value, "status": fabric.status}


def _decode_fabric(raw: Mapping[str, Any] | None) -> Fabric | None:
    return None if raw is None else Fabric(state=FabricState(raw["state"]), status=int(raw.get("status", 0)))


def _bounded(value: Any, highest: int) -> int:
    if type(value) is not int or not 0 <= value <= highest:
        raise ValueError(f"a number from 0 to {highest} expected, got {value!r}")
    return value
