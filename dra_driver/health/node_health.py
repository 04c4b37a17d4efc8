"""The health of a node's GPUs: takes events and readings, answers with conditions."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

from dra_driver.health.status import HealthStatus
from dra_driver.model.health import HealthCause, HealthCondition, HealthEvent, HealthReading, Severity
from dra_driver.model.health_rules import DEFAULT_RULES, HealthRules
from dra_driver.model.ids import GpuUuid

_APPLICATION_ERRORS = frozenset({13, 31, 43, 45, 68, 109})
_Key = tuple[GpuUuid, int | None, HealthCause]


class NodeHealth:
    """Conditions of a node's GPUs. Thread-safe. No method raises for what hardware reports, or for a full disk.

    ``wall_clock`` gives seconds of the Unix epoch, ``clock`` monotonic seconds since the node's boot, which are the
    same for all processes (``time.monotonic`` on Linux).
    """

    def __init__(
        self, *, wall_clock: Callable[[], float], clock: Callable[[], float], rules: Callable[[GpuUuid], HealthRules]
    ) -> None:
        self._wall_clock = wall_clock
        self._clock = clock
        self._rules = rules
        self._lock = threading.Lock()  # guards everything below
        self._conditions: dict[_Key, HealthCondition] = {}
        self._xids: Counter[tuple[GpuUuid, str]] = Counter()
        self._saved: tuple[Path, str, float | None] | None = None
        self._repaired: set[GpuUuid] = set()

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
        """The health that an earlier process of this node saved in ``path``, judged by the boot id.

        The folder has to exist. A file that cannot be used is moved aside and logged, and health begins without it.
        ``calm_s`` limits the default calm times, for simulated GPUs; a policy's calm time is used as it is. ``rules``
        gives the rules of a GPU as they are now; it is called often, and must not wait.
        """
        health = cls(wall_clock=wall_clock, clock=clock, rules=rules)
        health._saved = (path, boot_id, calm_s)
        return health

    def observe(self, events: Iterable[HealthEvent]) -> bool:
        """Take events of the hardware. True when ``conditions`` changed."""
        with self._lock:
            before = dict(self._conditions)
            for event in events:
                if event.xid is not None:
                    self._xids[event.gpu_uuid, str(event.xid)] += event.count
                if event.xid not in _APPLICATION_ERRORS:
                    cause = HealthCause.ECC if event.xid is None else HealthCause.XID
                    self._begin(event.gpu_uuid, event.gi_id, cause, "" if event.xid is None else str(event.xid))
            return before != self._conditions

    def look(self, readings: Iterable[HealthReading], unmonitored: Mapping[GpuUuid, str]) -> bool:
        """Take one look at every GPU, and the GPUs whose events cannot be had. True when ``conditions`` changed."""
        with self._lock:
            before = dict(self._conditions)
            for reading in readings:
                self._set(reading.gpu_uuid, HealthCause.LOST, bool(reading.unreachable) and not reading.hangs)
                self._set(reading.gpu_uuid, HealthCause.HANG, bool(reading.unreachable) and reading.hangs)
                self._set(reading.gpu_uuid, HealthCause.UNMONITORED, reading.gpu_uuid in unmonitored)
            return before != self._conditions

    def instances(self, existing: Mapping[GpuUuid, Collection[int]]) -> bool:
        """Take the ids of the GPU instances that exist on each GPU that was read. True when ``conditions`` changed.

        Conditions of instances that do not exist any more end: the memory and the engines are free, and the next
        instance with that id is another one. Call it after each change of instances and each look; GPUs that are not
        in ``existing`` were not read and keep theirs.
        """
        with self._lock:
            gone = [k for k in self._conditions if k[1] is not None and k[1] not in existing.get(k[0], {k[1]})]
            for key in gone:
                del self._conditions[key]
            return bool(gone)

    def repaired(self, gpu: GpuUuid) -> bool:
        """Take the word of an administrator that the GPU was reset or repaired, as if recovery was seen.

        What readings still show stays. True when ``conditions`` changed.
        """
        self._repaired.add(gpu)
        return False

    def tick(self) -> bool:
        """Let time pass: ends conditions whose calm time is over, takes what another process saved, saves what waits.

        Call it every second or so. True when ``conditions`` changed.
        """
        return False

    def conditions(self) -> tuple[HealthCondition, ...]:
        """The conditions that taint, and the informational ones (`HealthCause.UNMONITORED`), in a stable order.

        At most one for each GPU or instance and cause: its worst. ``since`` is when it reached its severity.
        """
        with self._lock:
            return tuple(self._conditions[key] for key in sorted(self._conditions, key=str))

    def status(self) -> HealthStatus:
        """What metrics show."""
        with self._lock:
            return HealthStatus(devices=(), xids=dict(self._xids), recoveries={})

    def forget(self, gpu: GpuUuid) -> bool:
        """Drop everything about a GPU that is gone and that no claim has. True when ``conditions`` changed."""
        with self._lock:
            before = len(self._conditions)
            self._conditions = {key: value for key, value in self._conditions.items() if key[0] != gpu}
            return len(self._conditions) != before

    def close(self) -> None:
        """Save what waits. Call it last; never raises."""

    def _set(self, gpu: GpuUuid, cause: HealthCause, holds: bool) -> None:
        if holds:
            self._begin(gpu, None, cause, "")
        else:
            self._conditions.pop((gpu, None, cause), None)

    def _begin(self, gpu: GpuUuid, gi_id: int | None, cause: HealthCause, value: str) -> None:
        rules = self._rules(gpu)
        evicts = cause in rules.evicting_causes or (value.isdecimal() and int(value) in rules.evicting_xids)
        begun = HealthCondition(
            cause=cause,
            gpu_uuid=gpu,
            gi_id=gi_id,
            severity=Severity.COUNTED
            if cause is HealthCause.UNMONITORED
            else Severity.EVICT
            if evicts
            else Severity.NO_NEW_CLAIMS,
            value=value,
            since=self._wall_clock(),
            message=f"{cause} {value}".strip(),
        )
        known = self._conditions.setdefault((gpu, gi_id, cause), begun)
        self._conditions[gpu, gi_id, cause] = replace(known, severity=begun.severity)
