"""Watch the health of the node's GPUs and report it: in slices, to the kubelet, as the Node's events and as metrics.

``node/health/`` defines conditions. With health off there is no `HealthService`.
"""

import logging
import operator
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from dra_driver.config.settings import NodeSettings
from dra_driver.core.errors import DraError, DriverUnavailableError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.health import HealthCondition, HealthReading
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import GpuTerms, Terms, terms_of
from dra_driver.core.telemetry import metrics
from dra_driver.core.worker import Worker
from dra_driver.hardware.gpu.backend import HealthSource
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.node.claims import Journal
from dra_driver.node.health import HealthRules, NodeHealth
from dra_driver.node.process.health_conditions import ConditionEvents, HealthMetrics, Notice, amended, sentences
from dra_driver.node.process.health_report import DeviceReport, RateLimitedReports, ReportedDevice, devices_of, reports
from dra_driver.node.process.missing_gpus import Missing, MissingGpuTracker
from dra_driver.node.process.node_events import Tell
from dra_driver.node.process.terms_resolver import TermsResolver
from dra_driver.node.slices import pool_name

log = logging.getLogger(__name__)

THREAD_NAME: Final = "health"
EVENTS_THREAD_NAME: Final = "health-events"
LOOK_S: Final = 10.0
PAUSE_S: Final = 1.0
TICK_S: Final = 1.0
"""While there are conditions: some expire, and another process may have saved some."""
EVENT_WAIT_S: Final = 10.0
AFTER_FAILURE_S: Final = 5.0
BREATH_S: Final = 0.05
"""Pause between two waits for events, so that a burst of them is handled together."""
GONE: Final = "the NVIDIA driver no longer finds it"


class HealthMonitor:
    """``start`` and ``stop`` once, by one owner; ``inventory_changed`` from any thread.

    Two threads, because a poll can take seconds while a GPU hangs: ``health-events`` receives events of the hardware
    and publishes the result, then wakes ``health``, which polls all GPUs, expires conditions and calls ``tell``.
    It polls every `LOOK_S`, soon after an event, and at most once per `PAUSE_S`.

    ``snapshot`` is the inventory's; ``missing`` are GPUs that stay published without being in it. ``publish`` is called
    in either thread after conditions changed; ``tell`` every `LOOK_S` and after each change, in one.
    """

    def __init__(
        self,
        source: HealthSource,
        health: NodeHealth,
        *,
        snapshot: Callable[[], Snapshot],
        missing: Callable[[], Missing],
        publish: Callable[[], None],
        tell: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._health = source, health
        self._snapshot, self._missing = snapshot, missing
        self._publish, self._tell, self._clock = publish, tell, clock
        self._news = threading.Event()  # conditions changed and were published, but not reported yet
        self._wanted = threading.Event()  # a poll is due soon
        self._devices = threading.Event()  # claimed devices changed, but were not reported to the kubelet yet
        self._looked = self._reported = float("-inf")
        self._stale: frozenset[GpuUuid] = frozenset()
        self._judged: Snapshot | None = None
        self._worker = Worker(THREAD_NAME, self.step, on_error=self._failed, after_error_s=LOOK_S)
        # Without this thread, only polls detect errors.
        self._listener = Worker(
            EVENTS_THREAD_NAME,
            self._listen,
            on_error=partial(metrics.internal_error, "health"),
            after_error_s=AFTER_FAILURE_S,
        )

    def start(self) -> None:
        self._worker.start()
        self._listener.start()

    def stop(self, timeout_s: float) -> None:
        """End the threads; one that waits for the hardware ends later. Idempotent."""
        self._listener.stop(0.0)
        self._worker.stop(timeout_s)

    def undrained(self, gpus: Iterable[GpuUuid]) -> None:
        """Clear the errors of undrained GPUs that need a GPU reset. Some drivers leave no trace of a reset, so these
        errors would stay until a reboot. Call it before the end of the drain is published."""
        changed = [self._health.repaired(gpu) for gpu in gpus]
        if any(changed):
            self._news.set()
            self._worker.wake()

    def inventory_changed(self, snapshot: Snapshot) -> None:
        """End the conditions of destroyed instances. Call it before the snapshot is published."""
        if self._health.instances(_instances(snapshot)):
            self._news.set()
            self._worker.wake()
        self.devices_changed()

    def devices_changed(self) -> None:
        """Have the kubelet receive changed devices within `PAUSE_S`. Returns immediately: prepares call it."""
        if not self._devices.is_set():
            self._devices.set()
            self._worker.wake()

    def collect_events(self) -> None:
        """Wait for events once and handle them. One step of the thread ``health-events``."""
        events = self._source.wait_for_health_events(EVENT_WAIT_S)
        if not (self._source.health_look_wanted() or events):
            return
        if events and self._health.observe(events):
            self._publish()
            self._news.set()
        self._wanted.set()
        self._worker.wake()

    def step(self) -> float:
        """Report changes, poll if due, expire conditions; return the seconds until the next step."""
        news, wanted = self._news.is_set(), self._wanted.is_set()
        self._news.clear()
        if any([self._instances_ended(), self._health.tick()]):
            self._publish()
            news = True
        if news or (self._devices.is_set() and self._clock() - self._reported >= PAUSE_S):
            self._tell_now()
        if self._since_look_s() >= (PAUSE_S if wanted else LOOK_S):
            self._wanted.clear()
            wanted = False
            if self.look():
                self._publish()
            self._looked = self._clock()
            self._tell_now()
        left_s = max(0.0, (PAUSE_S if wanted else LOOK_S) - self._since_look_s())
        often = self._devices.is_set() or self._health.conditions()
        return min(left_s, TICK_S) if often else left_s

    def _instances_ended(self) -> bool:
        """Return whether conditions ended with their instances; skipped for a known snapshot without conditions."""
        snapshot = self._snapshot()
        if snapshot is self._judged and not self._health.conditions():
            return False
        self._judged = snapshot
        return self._health.instances(_instances(snapshot))

    def _tell_now(self) -> None:
        self._devices.clear()
        self._tell()
        self._reported = self._clock()

    def look(self) -> bool:
        """Poll all GPUs; return whether the conditions changed."""
        try:
            readings = self._source.health_readings()
            unmonitored = self._source.health_unmonitored()
        except DriverUnavailableError:
            return False  # the inventory reports the failure; known conditions stay
        read = {reading.gpu_uuid for reading in readings}
        missing = self._missing()
        lost = [gpu for gpu, each in missing.items() if gpu not in read and not each.awaited]
        gone = tuple(HealthReading(gpu_uuid=gpu, unreachable=GONE) for gpu in lost)
        return any([self._health.look((*readings, *gone), unmonitored), self._drop_absent(readings, missing)])

    def _drop_absent(self, readings: Iterable[HealthReading], missing: Missing) -> bool:
        """Drop GPUs that are neither on this node nor published, at the second poll: the first may come between two
        changes of the inventory."""
        snapshot = self._snapshot()
        if not (snapshot.gpus or snapshot.left_out):
            return False
        here = {*missing, *(gpu.uuid for gpu in snapshot.gpus), *(left_out.label for left_out in snapshot.left_out)}
        here |= {reading.gpu_uuid for reading in readings if reading.unreachable is None}
        known = {condition.gpu_uuid for condition in self._health.conditions()}
        stale = frozenset({*known, *(reading.gpu_uuid for reading in readings)} - here)
        again, self._stale = stale & self._stale, stale
        for gpu in again:
            self._source.forget_gpu(gpu)
        forgotten = [self._health.forget(gpu) for gpu in again]
        return any(forgotten)

    def _failed(self) -> None:
        metrics.internal_error("health")
        self._worker.pause(PAUSE_S)  # events wake the thread, also while every poll fails

    def _since_look_s(self) -> float:
        return self._clock() - self._looked

    def _listen(self) -> float:
        try:
            self.collect_events()
        except DriverUnavailableError:
            return AFTER_FAILURE_S
        return BREATH_S


def _instances(snapshot: Snapshot) -> dict[GpuUuid, list[int]]:
    return {gpu.uuid: [instance.gi_id for instance in gpu.mig_instances] for gpu in snapshot.gpus}


FILE, KNOWN_FILE = "health.json", "last-known-gpus.json"
SIMULATED_CALM_S: Final = 30.0
"""The longest default stabilization period of simulated GPUs."""

CLAIMED_S: Final = 300.0
"""Interval of a full read of the claims, in case a change is missed."""

MadeOf = tuple[tuple[ReportedDevice, ...], Snapshot, tuple[HealthCondition, ...]]


class ClaimedDevices:
    """``changed`` is for any thread, ``current`` for one. ``read`` reads the journal and can raise StorageError."""

    def __init__(
        self, read: Callable[[], Iterable[ReportedDevice]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._anew = threading.Event()  # claims changed since they were read
        self._devices: tuple[ReportedDevice, ...] = ()
        self._read_at = float("-inf")

    def changed(self) -> None:
        self._anew.set()

    def current(self) -> tuple[ReportedDevice, ...]:
        """The devices, also with admin access; the last readable ones after an error."""
        now = self._clock()
        if not self._anew.is_set() and now - self._read_at < CLAIMED_S:
            return self._devices
        self._anew.clear()  # before the read: a change during it counts
        try:
            self._devices = tuple(self._read())
            self._read_at = now
        except DraError as error:
            self._anew.set()
            log.warning(
                "cannot read prepared claims; reporting health for the last known devices", extra={"reason": error}
            )
        return self._devices


class HealthService:
    """The health of this node's GPUs. ``start`` and ``stop`` once, by one owner; the rest from any thread.

    ``held`` returns the GPUs that claims have, and can raise StorageError. ``publish`` publishes new conditions in the
    slices; ``report`` receive the state of claimed and unhealthy devices, ``notify`` each event about a condition.
    """

    def __init__(
        self,
        settings: NodeSettings,
        folder: Path,
        source: HealthSource,
        inventory: Inventory,
        *,
        journal: Journal,
        held: Callable[[], Collection[GpuUuid]],
        terms: TermsResolver,
        publish: Callable[[], None],
        tell: Tell,
        report: Sequence[Callable[[tuple[DeviceReport, ...]], None]],
        notify: Callable[[Notice], None] | None = None,
    ) -> None:
        self._inventory, self._report = inventory, report
        self._pool = pool_name(settings.node_name, settings.driver_name)
        self.known = MissingGpuTracker(folder / KNOWN_FILE, held)
        self._health = NodeHealth.open(
            folder / FILE,
            boot_id=journal.boot_id,
            calm_s=SIMULATED_CALM_S if settings.simulate is not None else None,
            rules=partial(rules_in_force, terms, terms.expected(self.known.remembered)),
        )
        self._events = ConditionEvents(tell, notify=notify)
        self._metrics = HealthMetrics()
        self._limited = RateLimitedReports()
        self._reported: tuple[MadeOf, Missing, tuple[DeviceReport, ...]] | None = None
        self._claimed = ClaimedDevices(partial(_devices, journal))
        self.monitor = HealthMonitor(
            source,
            self._health,
            snapshot=inventory.current,
            missing=lambda: self.known.missing,
            publish=publish,
            tell=self._tell,
        )

    def remarks(self) -> list[str]:
        return sentences(self._health.conditions(), self._snapshot())

    @property
    def conditions(self) -> tuple[HealthCondition, ...]:
        """The same value while nothing changed."""
        return self._health.conditions()

    @property
    def missing(self) -> frozenset[GpuUuid]:
        return frozenset(self.known.missing)

    def amend(self, snapshot: Snapshot, terms: Terms) -> Mapping[GpuUuid, GpuTerms]:
        return amended(snapshot, terms, self._health.conditions(), self.known.missing)

    def claims_changed(self) -> None:
        self._claimed.changed()
        self.monitor.devices_changed()

    def start(self) -> None:
        """Call it before the publisher subscribes to the inventory: conditions of destroyed instances end first."""
        self._inventory.subscribe(self.monitor.inventory_changed)
        self.monitor.start()

    def stop(self, timeout_s: float) -> None:
        """Save unsaved conditions. Idempotent."""
        self.monitor.stop(timeout_s)
        self._health.close()

    def _snapshot(self) -> Snapshot:
        return self.known.with_missing(self._inventory.current())

    def _tell(self) -> None:
        conditions, snapshot = self._health.conditions(), self._snapshot()
        if snapshot.gpus:  # before the first poll, the state of devices is unknown
            found = self._limited.apply(self._reports(snapshot, conditions))
            for report in self._report:
                report(found)
        self._events.update(conditions, snapshot)
        self._metrics.update(self._health.status(), conditions, snapshot)

    def _reports(self, snapshot: Snapshot, conditions: tuple[HealthCondition, ...]) -> tuple[DeviceReport, ...]:
        """Computed only after an input was replaced: it reads every claim."""
        made_of, missing = (self._claimed.current(), snapshot, conditions), self.known.missing
        said = self._reported
        if said is None or not all(map(operator.is_, made_of, said[0])) or missing != said[1]:
            found = reports(made_of[0], self._pool, snapshot, conditions, missing)
            self._reported = said = made_of, missing, found
        return said[2]


def _devices(journal: Journal) -> Iterator[ReportedDevice]:
    for entry in journal.entries():
        if entry.state == "prepared":
            yield from devices_of(entry)


def rules_in_force(terms: TermsResolver, early: Terms, gpu: GpuUuid) -> HealthRules:
    """The rules in force, or ``early`` ones before the GPUs were read."""
    found = terms.of_gpu(gpu)
    return (found if found is not None else terms_of(early, gpu)).health
