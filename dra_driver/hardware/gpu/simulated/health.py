"""Health of simulated GPUs: delivers the events of injected faults once, and reads what they left.

``faults.py`` says what each fault does. Events are told to each process for itself, as NVML does; those of the time
before this object was made, or while the GPUs were detached, are not told.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.health import HealthEvent, HealthReading
from dra_driver.core.model.ids import DeviceName, GpuUuid
from dra_driver.core.model.mig import partition_name
from dra_driver.hardware.gpu.simulated import faults, troubles
from dra_driver.hardware.gpu.simulated.faults import GpuFault, HardwareFault
from dra_driver.hardware.gpu.simulated.hardware import EVENT_POLL_S, SimulatedHardware
from dra_driver.hardware.gpu.simulated.spec import SimulatedGpu
from dra_driver.hardware.gpu.simulated.state import Changes
from dra_driver.hardware.gpu.simulated.troubles import Trouble

MAX_EVENTS = 256
NO_EVENTS = "the simulated driver has no events of this GPU"


class SimulatedHealth(SimulatedHardware):
    """A ``backend.HealthSource``. One thread waits for events at a time; everything else from any thread."""

    _told: Counter[HealthEvent] | None = None  # what the waiting thread has told, or was too late to tell
    _look = False
    _seen_faults: tuple[GpuFault, ...] | None = None
    _seen_at: tuple[object, object] | None = None  # what `_new_events` last saw
    _unmonitored: Mapping[GpuUuid, str] = {}
    _known: Mapping[GpuUuid, Gpu] = {}  # as last seen; replaced as a whole

    def wait_for_health_events(self, timeout_s: float) -> tuple[HealthEvent, ...]:
        """See ``HealthSource``."""
        deadline = time.monotonic() + timeout_s
        if not self._attachment.wait_attached(0.0):
            self._told = None
            if not self._attachment.wait_attached(timeout_s):
                return ()
        self._call("wait_for_health_events", None, lambda: None)
        while True:
            change_count = self._change_count
            if self._attachment.detached is not None:
                return ()
            if (found := self._new_events() if self._may_have_events() else ()) or self._look:
                return found
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return ()
            with self._changed:
                if change_count == self._change_count:
                    self._changed.wait(left_s if self._store.file is None else min(left_s, EVENT_POLL_S))

    def health_look_wanted(self) -> bool:
        """See ``HealthSource``. Here any change of injected faults wants a look."""
        wanted, self._look = self._look, False
        return wanted

    def health_unmonitored(self) -> Mapping[GpuUuid, str]:
        """See ``HealthSource``."""
        return self._unmonitored

    def health_readings(self) -> tuple[HealthReading, ...]:
        """See ``HealthSource``."""
        return self._call("health_readings", None, self._readings)

    def forget_gpu(self, gpu: GpuUuid) -> None:
        """See ``HealthSource``."""
        with self._lock:
            self._known = {uuid: found for uuid, found in self._known.items() if uuid != gpu}

    def inject(self, gpu: GpuUuid, *found: str, gi_id: int | None = None) -> None:
        """Add faults to the GPU, or to one of its GPU instances: ``xid=79`` and so on. Raises ValueError."""
        added = tuple(GpuFault(gpu=gpu, fault=HardwareFault.parse(text), gi_id=gi_id) for text in found)
        self._edit(lambda injected: (*injected, *added))

    def recover(self, gpu: GpuUuid) -> None:
        """Remove all injected faults of the GPU and its GPU instances. Idempotent."""
        self._edit(lambda injected: tuple(one for one in injected if one.gpu != gpu))

    def replace_injected(self, source: str, found: Iterable[GpuFault]) -> None:
        """Let ``found`` be all faults of that source. Nothing is written when they are already."""
        added = tuple(replace(one, source=source) for one in found)
        self._edit(lambda injected: (*(one for one in injected if one.source != source), *added))

    def injected(self, source: str) -> tuple[GpuFault, ...]:
        """The present faults of that source."""
        return tuple(one for one in self._store.read().injected if one.source == source)

    def devices(self) -> Mapping[DeviceName, tuple[GpuUuid, int | None]]:
        """UUID and, for an existing partition, the id of its GPU instance, by device name; also of GPUs that do not
        answer. Raises DriverUnavailableError."""
        with self._lock:
            node, changes = self._current(), self._store.read()
        found: dict[DeviceName, tuple[GpuUuid, int | None]] = {}
        for gpu in (item.gpu for item in node.gpus):
            found[gpu.device_name] = gpu.uuid, None
            for one in changes.state(gpu).instances:
                found[partition_name(gpu.minor, one.profile_name, one.profile_id, one.start)] = gpu.uuid, one.gi_id
        return found

    def _edit(self, edit: Callable[[tuple[GpuFault, ...]], tuple[GpuFault, ...]]) -> None:
        with self._lock, self._store.locked():
            changes = self._store.read()
            injected = edit(changes.injected)
            if self._told is None and self._attachment.detached is None:  # the first wait is still to come
                self._told = faults.events_of(changes.injected)
            if injected != changes.injected:
                self._store.write(replace(changes, injected=injected))
                self._announce()

    def _may_have_events(self) -> bool:
        """Whether description or state changed since `_new_events` looked: between two changes this is all that is
        done, once a second."""
        with self._lock:
            now = (self._current(), self._store.marker())
        return self._told is None or now != self._seen_at

    def _new_events(self) -> tuple[HealthEvent, ...]:
        with self._lock:
            node, marker, changes = self._current(), self._store.marker(), self._store.read()
            deaf = {item.gpu.uuid for item in node.gpus if Trouble.NO_EVENTS in self._troubles(item, changes)}
            heard = {item.gpu.uuid for item in node.gpus} - deaf
        self._unmonitored = dict.fromkeys(deaf, NO_EVENTS)
        self._seen_at = (node, marker)
        now = faults.events_of(one for one in changes.injected if one.gpu in heard)
        self._look = self._look or self._seen_faults not in (None, changes.injected)
        self._seen_faults = changes.injected
        told, self._told = self._told, now
        new = now - (now if told is None else told)
        return tuple(replace(event, count=count) for event, count in sorted(new.items(), key=str)[:MAX_EVENTS])

    def _readings(self) -> tuple[HealthReading, ...]:
        node, changes = self._current(), self._store.read()
        here = {item.gpu.uuid: item for item in node.gpus if Trouble.UNBOUND not in self._troubles(item, changes)}
        read = {uuid: self._reading(item, changes) for uuid, item in here.items()}
        gone = {uuid: gpu for uuid, gpu in self._known.items() if uuid not in here}
        self._known = {uuid: item.gpu for uuid, item in here.items()} | gone
        return tuple(read.get(uuid) or _gone(gone[uuid]) for uuid in sorted(self._known))

    def _reading(self, item: SimulatedGpu, changes: Changes) -> HealthReading:
        injected = changes.injected_into(item.gpu.uuid)
        health = faults.health_of(injected)
        found = self._troubles(item, changes)
        unreachable = self._lost_reason(item, changes) or troubles.why_left_out(item.gpu.uuid, found)
        health = replace(health, hangs=Trouble.HANGS in found and self._lost_reason(item, changes) is None)
        gpu = replace(item.gpu, fabric=changes.state(item.gpu).fabric)
        return faults.reading_of(gpu, health, unreachable)


def _gone(gpu: Gpu) -> HealthReading:
    return HealthReading(
        gpu_uuid=gpu.uuid,
        unreachable=f"GPU {gpu.uuid} is not on this node any more",
        on_bus=None if gpu.pci_bus_id is None else True,
    )
