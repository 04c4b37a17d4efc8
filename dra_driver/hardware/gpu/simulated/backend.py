"""Provide simulated GPUs with the interface of real ones, for the embedded cluster and tests.

Health events are reported to each process separately, as NVML does; events from before this object was created, or
while the GPUs were detached, are lost.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import Self

from msgspec.structs import replace

from dra_driver.core.errors import CommandError, GpuBusyError
from dra_driver.core.model.fabric import Fabric
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.health import HealthEvent, HealthReading
from dra_driver.core.model.ids import DeviceName, GpuUuid
from dra_driver.core.model.mig import ComputeInstance, MigInstance, partition_name
from dra_driver.hardware.gpu.backend import DETACH_TIMEOUT_S, ComputeMode, MigModes, ModeAnswer
from dra_driver.hardware.gpu.simulated import faults
from dra_driver.hardware.gpu.simulated import mig as rules
from dra_driver.hardware.gpu.simulated.faults import FailureMode, GpuFault
from dra_driver.hardware.gpu.simulated.hardware import SimulatedHardware, is_open, raise_fault
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, SimulatedGpu, parse_groups
from dra_driver.hardware.gpu.simulated.state import Changes

MAX_EVENTS = 256
NO_EVENTS = "the simulated driver has no events of this GPU"


class SimulatedHealth(SimulatedHardware):
    """A ``backend.HealthSource``. One thread waits for events at a time; everything else from any thread."""

    _reported: Counter[HealthEvent] | None = None  # events that the waiting thread has reported, or missed
    _look = False
    _seen_faults: tuple[GpuFault, ...] | None = None
    _seen_at: tuple[object, object] | None = None  # what `_new_events` last saw
    _unmonitored: Mapping[GpuUuid, str] = {}
    _known: Mapping[GpuUuid, Gpu] = {}  # as last seen; replaced as a whole
    _unknown_links: Mapping[GpuUuid, Set[int]] = {}  # down with MIG, or with a fault since; replaced as a whole

    def wait_for_health_events(self, timeout_s: float) -> tuple[HealthEvent, ...]:
        deadline = time.monotonic() + timeout_s
        if not self._attachment.wait_attached(0.0):
            self._reported = None
            if not self._attachment.wait_attached(timeout_s):
                return ()
        self._call("wait_for_health_events", None, lambda: None)

        def look() -> tuple[HealthEvent, ...] | None:
            found = self._new_events() if self._may_have_events() else ()
            return found if found or self._look else None

        return self._await(look, deadline - time.monotonic()) or ()

    def health_look_wanted(self) -> bool:
        """See ``HealthSource``. Any change of injected faults requires a reading."""
        wanted, self._look = self._look, False
        return wanted

    def health_unmonitored(self) -> Mapping[GpuUuid, str]:
        return self._unmonitored

    def health_readings(self) -> tuple[HealthReading, ...]:
        return self._call("health_readings", None, self._readings)

    def forget_gpu(self, gpu: GpuUuid) -> None:
        with self._lock:
            self._known = {uuid: found for uuid, found in self._known.items() if uuid != gpu}

    def replace_injected(self, source: str, found: Iterable[GpuFault]) -> None:
        """Let ``found`` be all faults of that source. Nothing is written when they are already."""
        added = tuple(replace(one, source=source) for one in found)
        self._edit(lambda injected: (*(one for one in injected if one.source != source), *added))

    def injected(self, source: str) -> tuple[GpuFault, ...]:
        return tuple(one for one in self._store.read().injected if one.source == source)

    def devices(self) -> Mapping[DeviceName, tuple[GpuUuid, int | None]]:
        """UUID and, of a partition, the id of its GPU instance; also of lost GPUs. Raises DriverUnavailableError."""
        with self._lock:
            node, changes = self._current(), self._store.read()
        found: dict[DeviceName, tuple[GpuUuid, int | None]] = {}
        for gpu in (item.gpu for item in node.gpus):
            found[gpu.device_name] = gpu.uuid, None
            for one in rules.instances(gpu, changes.state(gpu)):
                found[partition_name(gpu.minor, one.profile_name, one.profile_id, one.start)] = gpu.uuid, one.gi_id
        return found

    def _edit(self, edit: Callable[[tuple[GpuFault, ...]], tuple[GpuFault, ...]]) -> None:
        with self._lock, self._store.locked():
            changes = self._store.read()
            injected = edit(changes.injected)
            if self._reported is None and self._attachment.detached is None:  # the first wait is still to come
                self._reported = faults.events_of(changes.injected)
            if injected != changes.injected:
                self._store.write(replace(changes, injected=injected))
                self._announce()

    def _may_have_events(self) -> bool:
        """Return whether description or state changed since the last `_new_events`; a wait calls it once a second."""
        with self._lock:
            now = (self._current(), self._store.marker())
        return self._reported is None or now != self._seen_at

    def _new_events(self) -> tuple[HealthEvent, ...]:
        with self._lock:
            node, marker, changes = self._current(), self._store.marker(), self._store.read()
            deaf = {item.gpu.uuid for item in node.gpus if FailureMode.NO_EVENTS in self._troubles(item, changes)}
            heard = {item.gpu.uuid for item in node.gpus} - deaf
        self._unmonitored = dict.fromkeys(deaf, NO_EVENTS)
        self._seen_at = (node, marker)
        now = faults.events_of(one for one in changes.injected if one.gpu in heard)
        self._look = self._look or self._seen_faults not in (None, changes.injected)
        self._seen_faults = changes.injected
        reported, self._reported = self._reported, now
        new = now - (now if reported is None else reported)
        return tuple(replace(event, count=count) for event, count in sorted(new.items(), key=str)[:MAX_EVENTS])

    def _readings(self) -> tuple[HealthReading, ...]:
        node, changes = self._current(), self._store.read()
        here = {item.gpu.uuid: item for item in node.gpus if FailureMode.UNBOUND not in self._troubles(item, changes)}
        now = {uuid: rules.apply(item.gpu, changes.state(item.gpu)) for uuid, item in here.items()}
        partitioned = {gpu.pci_bus_id for gpu in now.values() if gpu.mig_enabled}
        links = {}
        for uuid, gpu in now.items():
            health = faults.health_of(changes.injected_into(uuid))
            before = self._unknown_links.get(uuid, frozenset()) & health.links_down
            links[uuid] = before | faults.links_shut(gpu, health, partitioned)
        self._unknown_links = links
        read = {uuid: self._reading(item, now[uuid], changes) for uuid, item in here.items()}
        gone = {uuid: gpu for uuid, gpu in self._known.items() if uuid not in here}
        self._known = {uuid: item.gpu for uuid, item in here.items()} | gone
        return tuple(read.get(uuid) or _gone(gone[uuid]) for uuid in sorted(self._known))

    def _reading(self, item: SimulatedGpu, gpu: Gpu, changes: Changes) -> HealthReading:
        injected = changes.injected_into(item.gpu.uuid)
        health = faults.health_of(injected)
        found = self._troubles(item, changes)
        unreachable = self._lost_reason(item, changes) or faults.why_left_out(item.gpu.uuid, found)
        health = replace(health, hangs=FailureMode.HANGS in found and self._lost_reason(item, changes) is None)
        return faults.reading_of(gpu, health, unreachable, self._unknown_links[gpu.uuid])


def _gone(gpu: Gpu) -> HealthReading:
    return HealthReading(gpu_uuid=gpu.uuid, unreachable=f"GPU {gpu.uuid} is not on this node any more")


class SimulatedBackend(SimulatedHealth):
    """A ``backend.GpuBackend`` over a described node. Thread-safe."""

    @classmethod
    def from_spec(
        cls,
        spec: str,
        node_name: str,
        state_file: Path | None = None,
        on_change: Callable[[Snapshot], None] | None = None,
    ) -> Self:
        """``8xh100-sxm5-80gb`` or the path of a .yaml file (``spec.py``). Raises ConfigurationError."""
        path = Path(spec) if "/" in spec or spec.endswith((".yaml", ".yml")) else None
        node = NodeSpec() if path is not None else parse_groups(spec, node_name)
        backend = cls(node, file=path, node_name=node_name, state_file=state_file, on_change=on_change)
        backend.reload()
        return backend

    def open(self) -> None:
        self._call("open", None, lambda: None)

    def snapshot(self) -> Snapshot:
        """See ``Backend.snapshot``. An unreadable or wrong spec file counts as a missing driver."""
        return self._call("snapshot", None, self._snapshot)

    def close(self) -> None:
        self._attachment.close()

    def wait_for_event(self, timeout_s: float) -> bool:
        """See ``Backend.wait_for_event``. Each change is reported once, to the first thread that asks."""
        deadline = time.monotonic() + timeout_s
        if not self._attachment.wait_attached(timeout_s):
            return False
        self._call("wait_for_event", None, lambda: None)
        return self._await(lambda: self._has_changed() or None, deadline - time.monotonic()) is not None

    def detach(self, reason: str, timeout_s: float = DETACH_TIMEOUT_S) -> bool:
        """See ``Detachable.detach``. Other processes keep the same GPUs."""
        ended = self._attachment.detach(reason, timeout_s)
        self._wake()
        return ended

    def reattach(self) -> None:
        self._attachment.reattach()

    @property
    def detached(self) -> str | None:
        return self._attachment.detached

    def mig_mode(self, gpu: GpuUuid) -> bool:
        return self._read("mig_mode", gpu, rules.mig_mode)

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> None:
        self._change("set_mig_mode", gpu, lambda found, state: (rules.set_mode(found, state, enabled), None))

    def mig_modes(self, gpu: GpuUuid) -> MigModes:
        return self._read("mig_modes", gpu, rules.mig_modes)

    def request_mig_mode(self, gpu: GpuUuid, enabled: bool) -> ModeAnswer:
        return self._change("request_mig_mode", gpu, lambda found, state: rules.request_mode(found, state, enabled))

    def reset(self, gpu: GpuUuid, within_s: float) -> None:
        """See ``reset.Reset``: what ``nvidia-smi --gpu-reset`` does, also while this process is detached. Faults of
        method ``reset`` apply; one that waits longer than ``within_s`` ends it with the error of a timeout."""
        fault = self._strike("reset", gpu)
        if fault is not None and fault.delay_s > within_s:
            self._sleep(within_s)
            raise CommandError(f"the reset of {gpu} did not end within {within_s:.0f} s", reason="Timeout")
        if fault is not None and not fault.after:
            raise_fault(fault)
        if self._store.file is not None and is_open(self._store.file):
            raise GpuBusyError(f"{gpu} cannot be reset: in use by another client")
        self._change(None, gpu, lambda found, state: (rules.reset(found, state), None))
        self._edit(lambda injected: tuple(one for one in injected if one.gpu != gpu or not one.ends_with_reset))
        if fault is not None:
            raise_fault(fault)

    def mig_instances(self, gpu: GpuUuid) -> tuple[MigInstance, ...]:
        return self._read("mig_instances", gpu, rules.instances)

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int) -> int:
        return self._change(
            "create_gpu_instance", gpu, lambda found, state: rules.add_instance(found, state, profile_id, start)
        )

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int) -> ComputeInstance:
        """See ``GpuControl``. DeviceLostError also when the GPU instance does not exist."""
        return self._change("create_compute_instance", gpu, lambda found, state: rules.add_compute(found, state, gi_id))

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> None:
        self._change(
            "destroy_compute_instance",
            gpu,
            lambda found, state: (rules.drop_compute(found, state, gi_id, ci_id), None),
        )

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int) -> None:
        """See ``GpuControl``. GpuBusyError also while it has a compute instance."""
        self._change("destroy_gpu_instance", gpu, lambda found, state: (rules.drop_instance(found, state, gi_id), None))

    def fabric(self, gpu: GpuUuid) -> Fabric | None:
        return self._read("fabric", gpu, lambda found, state: rules.apply(found, state).fabric)

    def compute_mode(self, gpu: GpuUuid) -> ComputeMode:
        return self._read("compute_mode", gpu, lambda _, state: state.compute_mode)

    def set_compute_mode(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        """See ``GpuControl``. MigUnsupportedError while MIG mode is on."""
        self._change("set_compute_mode", gpu, lambda found, state: (rules.set_compute_mode(found, state, mode), None))
