"""Keep the health of a node's GPUs: events and readings in, conditions out, saved in a file."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, Self

from dra_driver.core.errors import StorageError
from dra_driver.core.model.health import HealthCause, HealthCondition, HealthEvent, HealthReading
from dra_driver.core.model.health_rules import DEFAULT_RULES, HealthRules
from dra_driver.core.model.ids import GpuUuid
from dra_driver.node.health import machine
from dra_driver.node.health.conditions import HealthStatus, Statistics, conditions, unmonitored
from dra_driver.node.health.fault import MOST_GPUS, FaultKey, Faults, HealthRecord
from dra_driver.node.health.storage import HealthFile, merged_records, same_boot, until

log = logging.getLogger(__name__)

SAVES: Final = 5
"""Most writes of the file in as many seconds."""
SAVE_SEEN_S: Final = 5.0
"""Maximum age of the saved time of the last error."""
UNLISTED_S: Final = 30.0
"""Limit for the first read of a GPU after an instance was created, because changes of the GPU delay reads."""


class NodeHealth:
    """Conditions of a node's GPUs. Thread-safe. No method raises for reports of the hardware or a failing disk.

    A change of conditions is in the file when the method returns, or after a `tick` when writes are limited or another
    thread is writing. Memory is bounded by GPUs and by XIDs of each.
    """

    def __init__(
        self,
        path: Path,
        *,
        boot_id: str,
        wall_clock: Callable[[], float],
        clock: Callable[[], float],
        calm_s: float | None,
        rules: Callable[[GpuUuid], HealthRules],
    ) -> None:
        self._boot_id, self._calm_s, self._rules = boot_id, calm_s, rules
        self._wall_clock, self._clock = wall_clock, clock
        self._save_lock = threading.Lock()  # guards the file; taken before the lock below, never waited for
        self._file = HealthFile(path)
        self._lock = threading.Lock()  # guards everything below
        self._gpus: dict[GpuUuid, Faults] = {}
        self._instances: dict[GpuUuid, frozenset[int]] = {}
        self._unmonitored: dict[GpuUuid, tuple[str, float]] = {}
        self._forgotten: dict[GpuUuid, float] = {}
        self._conditions: tuple[HealthCondition, ...] = ()
        self._statistics = Statistics()
        self._unsaved = False
        self._unsaved_seen = False
        self._saved_at: deque[float] = deque([float("-inf")], SAVES)
        self._logged: str | None = None

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        boot_id: str,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        calm_s: float | None = None,
        rules: Callable[[GpuUuid], HealthRules] = lambda _gpu: DEFAULT_RULES,
    ) -> Self:
        """The health that processes of this node saved in ``path``, whose directory has to exist.

        An unusable file is moved aside and logged. ``wall_clock`` gives seconds of the Unix epoch, ``clock`` seconds
        since the boot, the same in all processes of the node (``time.monotonic`` on Linux). ``calm_s`` limits default
        stabilization periods, for simulated GPUs. ``rules`` returns the current rules of a GPU; it is called often,
        with a lock held and also for GPUs that have disappeared, and must not wait or take a lock.
        """
        health = cls(path, boot_id=boot_id, wall_clock=wall_clock, clock=clock, calm_s=calm_s, rules=rules)
        health._load()
        return health

    def observe(self, events: Iterable[HealthEvent]) -> bool:
        """Take events of the hardware. Returns whether ``conditions`` changed."""
        with self._lock:
            of_gpu: dict[GpuUuid, list[HealthEvent]] = {}
            for event in events:
                self._statistics.count(event)
                of_gpu.setdefault(event.gpu_uuid, []).append(self._placed(event))
            for gpu, found in of_gpu.items():
                faults, at = self._known(gpu)
                self._put(gpu, machine.after_events(faults, found, at))
                self._unsaved_seen = True
            changed = self._refresh()
        self._save_when_due()
        return changed

    def look(self, readings: Iterable[HealthReading], unmonitored: Mapping[GpuUuid, str]) -> bool:
        """Take one reading of every GPU, and the GPUs whose events are not available. Returns whether ``conditions``
        changed."""
        with self._lock:
            for reading in readings:
                faults, at = self._known(reading.gpu_uuid)
                self._put(reading.gpu_uuid, machine.after_reading(faults, reading, at))
            now = self._wall_clock()
            before = self._unmonitored
            self._unmonitored = {
                gpu: (reason, before[gpu][1] if gpu in before else now)
                for gpu, reason in list(unmonitored.items())[:MOST_GPUS]
            }
            changed = self._refresh()
        self._save_when_due()
        return changed

    def instances(self, existing: Mapping[GpuUuid, Collection[int]]) -> bool:
        """Take the ids of the GPU instances of each GPU that was read. Returns whether ``conditions`` changed.

        Conditions of other instances of these GPUs end. Call it after each change of instances and each poll. An
        instance that was never listed may be new: its errors stay for `UNLISTED_S`. Some drivers name instance 0 for a
        GPU without instances: events of an instance of such a GPU count for the whole GPU.
        """
        with self._lock:
            for gpu, ids in existing.items():
                faults, at = self._known(gpu)
                existed, self._instances[gpu] = self._instances.get(gpu), frozenset(ids)
                self._put(gpu, machine.after_instances(faults, {*ids, *_not_listed_yet(faults, existed, at)}, at))
            changed = self._refresh()
        self._save_when_due()
        return changed

    def repaired(self, gpu: GpuUuid) -> bool:
        """Take an administrator's report of a reset or repair as a reset. Faults that readings still show stay. Returns
        whether ``conditions`` changed."""
        with self._lock:
            faults, at = self._known(gpu)
            self._put(gpu, machine.after_repair(faults, at))
            changed = self._refresh()
        self._save_when_due()
        return changed

    def tick(self) -> bool:
        """End calm conditions, merge the file of another process, save pending changes. Call it about every second.
        Returns whether ``conditions`` changed."""
        self._save_when_due(or_changed=True)
        with self._lock:
            for gpu in self._gpus:
                faults, at = self._known(gpu)
                self._put(gpu, machine.after_time(faults, at))
            changed = self._refresh()
        self._save_when_due()
        return changed

    def conditions(self) -> tuple[HealthCondition, ...]:
        """The conditions that taint and the informational ones (`HealthCause.UNMONITORED`), in a stable order.

        At most one for each GPU or instance and cause. ``since`` is when it reached its severity.
        """
        with self._lock:
            return self._conditions

    def status(self) -> HealthStatus:
        with self._lock:
            return self._statistics.status(self._clock())

    def forget(self, gpu: GpuUuid) -> bool:
        """Drop all faults of a GPU that has disappeared and that no claim has. Returns whether ``conditions``
        changed."""
        with self._lock:
            self._unsaved = self._unsaved or bool(self._gpus.pop(gpu, None))
            self._instances.pop(gpu, None)
            self._unmonitored.pop(gpu, None)
            self._forgotten.pop(gpu, None)  # so that it is the last one
            self._forgotten = dict([*self._forgotten.items(), (gpu, self._clock())][-MOST_GPUS:])
            self._statistics.forget(gpu)
            changed = self._refresh()
        self._save_when_due()
        return changed

    def close(self) -> None:
        """Save pending changes. Call it last; never raises."""
        with self._lock:
            waits = self._unsaved or self._unsaved_seen
        if waits:
            self._save()

    def _load(self) -> None:
        with self._save_lock:
            record = self._file.read()
        if record is None:
            return
        with self._lock:
            same = same_boot(self._boot_id, record.boot_id)
            self._forgotten = dict(record.forgotten) if same else {}
            saved = until(record, self._clock(), self._wall_clock())
            for gpu, faults in saved.gpus.items():
                _, at = self._known(gpu)
                self._put(gpu, machine.after_time(faults if same else machine.after_boot(faults, at), at))
            self._unsaved = not same
            self._refresh()
        self._save_when_due()

    def _placed(self, event: HealthEvent) -> HealthEvent:
        """The event, of the whole GPU if it names an instance of a GPU without instances."""
        if event.gi_id is None or self._instances.get(event.gpu_uuid, frozenset({event.gi_id})):
            return event
        return HealthEvent(kind=event.kind, gpu_uuid=event.gpu_uuid, xid=event.xid, count=event.count)

    def _known(self, gpu: GpuUuid) -> tuple[Faults, machine.Moment]:
        return self._gpus.get(gpu, {}), self._moment(gpu)

    def _put(self, gpu: GpuUuid, after: Faults) -> None:
        """Replace the faults of a GPU, up to `MOST_GPUS`. The lock is held."""
        if gpu not in self._gpus and len(self._gpus) >= MOST_GPUS:
            return
        before, self._gpus[gpu] = self._gpus.get(gpu, {}), after
        if _lasting(before) != _lasting(after):
            self._unsaved = True
            self._statistics.count_ends(gpu, before, after)

    def _moment(self, gpu: GpuUuid) -> machine.Moment:
        return machine.Moment(
            clock=self._clock(), wall=self._wall_clock(), rules=self._rules(gpu), longest_calm_s=self._calm_s
        )

    def _refresh(self) -> bool:
        """Derive conditions and states. The lock is held."""
        before = self._conditions
        found = [one for gpu in sorted(self._gpus) for one in conditions(gpu, self._gpus[gpu], self._moment(gpu))]
        found += [
            unmonitored(gpu, reason, since)
            for gpu, (reason, since) in sorted(self._unmonitored.items())
            if HealthCause.UNMONITORED not in self._rules(gpu).ignored_causes
        ]
        self._conditions = tuple(found)
        self._statistics.note_states(self._gpus, self._clock())
        return self._conditions != before

    def _save_when_due(self, *, or_changed: bool = False) -> None:
        with self._lock:
            now, times = self._clock(), self._saved_at
            may = len(times) < SAVES or now - times[0] >= SAVES
            due = (self._unsaved and may) or (self._unsaved_seen and now - times[-1] >= SAVE_SEEN_S)
        if due or (or_changed and self._file.changed()):
            self._save()

    def _save(self) -> None:
        """Exchange with the file, unless another thread does."""
        if not self._save_lock.acquire(blocking=False):
            return
        try:
            with self._lock:
                own = self._record()
                self._saved_at.append(self._clock())
                waits, waits_seen = self._unsaved, self._unsaved_seen
                self._unsaved = self._unsaved_seen = False
            self._exchange(own, waits=waits, waits_seen=waits_seen)
        finally:
            self._save_lock.release()

    def _exchange(self, own: HealthRecord, *, waits: bool, waits_seen: bool) -> None:
        try:
            found = self._file.exchange(own, clock=self._clock(), wall=self._wall_clock())
        except StorageError as error:
            with self._lock:
                self._unsaved, self._unsaved_seen = self._unsaved or waits, self._unsaved_seen or waits_seen
            if str(error) != self._logged:
                log.warning("cannot save the health of GPUs", extra={"reason": error})
            self._logged = str(error)
            return
        self._logged = None
        with self._lock:
            unsaved = self._unsaved  # what came during the exchange
            all_known = merged_records(self._record(), found)
            for gpu in {*self._gpus, *all_known.gpus}:
                self._put(gpu, all_known.gpus.get(gpu, {}))
            self._forgotten = dict(list(all_known.forgotten.items())[-MOST_GPUS:])
            self._unsaved = unsaved

    def _record(self) -> HealthRecord:
        """The lock is held."""
        return HealthRecord(boot_id=self._boot_id, gpus=dict(self._gpus), forgotten=dict(self._forgotten))


def _not_listed_yet(faults: Faults, existed: Collection[int] | None, at: machine.Moment) -> set[int]:
    """Instances with new errors that did not exist at the last read of the GPU; none before the first read."""
    if existed is None:
        return set()
    return {
        key.gi_id
        for key, fault in faults.items()
        if key.gi_id is not None and key.gi_id not in existed and at.clock - fault.seen < UNLISTED_S
    }


def _lasting(faults: Faults) -> dict[FaultKey, tuple[object, ...]]:
    """The fields that are saved soon: all but the time of the last detection."""
    return {
        key: (fault.severity, fault.since, fault.detail, fault.recovered, fault.ended, fault.repeats, fault.passing)
        for key, fault in faults.items()
    }
