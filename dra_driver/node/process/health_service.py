"""Reports the health of the GPUs in slices, on the kubelet's streams, as the Node's events and as metrics.

``node/health/`` decides what a condition is. ``health_taints.py`` (slices), ``health_stream.py`` (kubelet) and
``health_events.py`` (Node, metrics) publish it, when ``health_monitor.py`` says so. ``missing_gpus.py`` keeps GPUs
published that are not found any more.

With health off, nothing of this happens, and the kubelet's streams stay silent.
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
from dra_driver.core.errors import DraError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.health import HealthCondition
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import GpuTerms, Terms, terms_of
from dra_driver.hardware.gpu.backend import HealthSource
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.node.claims import Journal
from dra_driver.node.health import HealthRules, NodeHealth
from dra_driver.node.process.health_events import ConditionEvents, HealthMetrics, Notice, sentences
from dra_driver.node.process.health_monitor import HealthMonitor
from dra_driver.node.process.health_report import DeviceReport, RateLimitedReports, ReportedDevice, devices_of, reports
from dra_driver.node.process.health_taints import amended
from dra_driver.node.process.missing_gpus import Missing, MissingGpuTracker
from dra_driver.node.process.node_events import Tell
from dra_driver.node.process.terms_resolver import TermsResolver
from dra_driver.node.slices import pool_name

log = logging.getLogger(__name__)

FILE, KNOWN_FILE = "health.json", "last-known-gpus.json"
SIMULATED_CALM_S: Final = 30.0
"""The longest default calm time of simulated GPUs."""

CLAIMED_S: Final = 300.0
"""The claims are read again after this time, should a change of them have been missed: it reads all of them."""

MadeOf = tuple[tuple[ReportedDevice, ...], Snapshot, tuple[HealthCondition, ...]]


class ClaimedDevices:
    """``changed`` is for any thread, ``current`` for one. ``read`` reads the journal and may raise StorageError."""

    def __init__(
        self, read: Callable[[], Iterable[ReportedDevice]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._anew = threading.Event()  # claims changed since they were read
        self._devices: tuple[ReportedDevice, ...] = ()
        self._read_at = float("-inf")

    def changed(self) -> None:
        """Claims came or left. Returns at once."""
        self._anew.set()

    def current(self) -> tuple[ReportedDevice, ...]:
        """The devices, those of admin access too; the last ones that could be read."""
        now = self._clock()
        if not self._anew.is_set() and now - self._read_at < CLAIMED_S:
            return self._devices
        self._anew.clear()  # before the read: a change during it counts
        try:
            self._devices = tuple(self._read())
            self._read_at = now
        except DraError as error:
            self._anew.set()
            log.warning("the kubelet is told the health of the devices that claims had", extra={"reason": error})
        return self._devices


class HealthService:
    """The health of this node's GPUs. ``start`` and ``stop`` once, by one owner; the rest from any thread.

    ``held`` returns the GPUs that claims have, and may raise StorageError. ``publish`` brings new conditions to the
    slices; ``tell`` records an event on the Node; ``report`` are called with the state of claimed and
    unhealthy devices, ``notify`` with each event about a condition.
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
        self._is_on, self._inventory, self._report = settings.health, inventory, report
        self._pool = pool_name(settings.node_name, settings.driver_name)
        self._known = MissingGpuTracker(folder / KNOWN_FILE, held)
        self._health = NodeHealth.open(
            folder / FILE,
            boot_id=journal.boot_id,
            calm_s=SIMULATED_CALM_S if settings.simulate is not None else None,
            rules=partial(rules_in_force, terms, terms.expected(self._known.remembered)),
        )
        self._events = ConditionEvents(tell, notify=notify)
        self._metrics = HealthMetrics()
        self._limited = RateLimitedReports()
        self._reported: tuple[MadeOf, Missing, tuple[DeviceReport, ...]] | None = None
        self._claimed = ClaimedDevices(partial(_devices, journal))
        self._monitor = HealthMonitor(
            source,
            self._health,
            snapshot=inventory.current,
            missing=lambda: self._known.missing,
            publish=publish,
            tell=self._tell,
        )

    @property
    def remarks(self) -> list[str]:
        return sentences(self._health.conditions(), self._snapshot()) if self._is_on else []

    @property
    def conditions(self) -> tuple[HealthCondition, ...]:
        """What is known of the GPUs' health; the same value while nothing changed."""
        return self._health.conditions() if self._is_on else ()

    @property
    def missing(self) -> frozenset[GpuUuid]:
        return frozenset(self._known.missing) if self._is_on else frozenset()

    def amend(self, snapshot: Snapshot, terms: Terms) -> Mapping[GpuUuid, GpuTerms]:
        return amended(snapshot, terms, self._health.conditions(), self._known.missing) if self._is_on else {}

    def complete(self, snapshot: Snapshot) -> Snapshot:
        return self._known.complete(snapshot) if self._is_on else snapshot

    def claims_changed(self) -> None:
        if self._is_on:
            self._claimed.changed()
            self._monitor.devices_changed()

    def given_back(self, gpus: Iterable[GpuUuid]) -> None:
        if self._is_on:
            self._monitor.given_back(gpus)

    def start(self) -> None:
        """Call it before the publisher of the inventory subscribes: conditions of instances that are gone end first."""
        if self._is_on:
            self._inventory.subscribe(self._monitor.inventory_changed)
            self._monitor.start()

    def stop(self, timeout_s: float) -> None:
        """Saves what is not saved yet. Idempotent."""
        if self._is_on:
            self._monitor.stop(timeout_s)
            self._health.close()

    def _snapshot(self) -> Snapshot:
        return self._known.with_missing(self._inventory.current())

    def _tell(self) -> None:
        conditions, snapshot = self._health.conditions(), self._snapshot()
        if snapshot.gpus:  # before the first look, nothing is known about any device
            found = self._limited.apply(self._reports(snapshot, conditions))
            for report in self._report:
                report(found)
        self._events.update(conditions, snapshot)
        self._metrics.update(self._health.status(), conditions, snapshot)

    def _reports(self, snapshot: Snapshot, conditions: tuple[HealthCondition, ...]) -> tuple[DeviceReport, ...]:
        """Made anew only when something that they are made of was replaced: it looks at every claim."""
        made_of, missing = (self._claimed.current(), snapshot, conditions), self._known.missing
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
    """The rules in force, or ``early`` ones before the GPUs were read: conditions from before a restart are judged at
    once, and would else be weaker for a moment."""
    found = terms.of_gpu(gpu)
    return (found if found is not None else terms_of(early, gpu)).health
