"""Connects the health of the GPUs with what asks for it: slices, the kubelet's streams, the Node's events and metrics.

What a condition is: ``node/health/``. Who publishes it: ``health_taints.py`` (slices), ``health_stream.py`` (kubelet),
``health_events.py`` (Node), ``health_metrics.py``. When: ``health_monitor.py``. What is published of a GPU that is not
found any more: ``last_known.py``.

With health off, nothing of this happens, and the kubelet's streams stay silent.
"""

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from dra_driver.config.settings import NodeSettings
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.health import HealthCondition
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import GpuTerms, Terms, terms_of
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.node.claims import Journal
from dra_driver.node.health import HealthRules, NodeHealth
from dra_driver.node.process.claim_events import ClaimEvents
from dra_driver.node.process.claim_manager import ClaimManager
from dra_driver.node.process.claim_status import ClaimStatus
from dra_driver.node.process.claimed_devices import ClaimedDevices
from dra_driver.node.process.health_events import ConditionEvents, Tell, sentences
from dra_driver.node.process.health_metrics import HealthMetrics
from dra_driver.node.process.health_monitor import HealthMonitor, HealthReader
from dra_driver.node.process.health_report import DeviceReport, ReportedDevice, reports
from dra_driver.node.process.health_stream import HealthStreams
from dra_driver.node.process.health_taints import HealthTaints
from dra_driver.node.process.last_known import LastKnownGpus, Missing
from dra_driver.node.process.steady_reports import SteadyReports
from dra_driver.node.process.terms_resolver import TermsResolver
from dra_driver.node.slices import pool_name

FILE, KNOWN_FILE = "health.json", "last-known-gpus.json"
SIMULATED_CALM_S: Final = 30.0
"""The longest default calm time of simulated GPUs."""

MadeOf = tuple[tuple[ReportedDevice, ...], Snapshot, tuple[HealthCondition, ...]]


class HealthService:
    """The health of this node's GPUs. ``start`` and ``stop`` once, by one owner; the rest from any thread.

    ``held`` returns the GPUs that claims have, and may raise StorageError. ``publish`` brings new conditions to the
    slices; ``tell`` records an event on the Node.
    """

    def __init__(
        self,
        settings: NodeSettings,
        folder: Path,
        source: HealthReader,
        inventory: Inventory,
        streams: HealthStreams,
        *,
        claims: ClaimManager,
        held: Callable[[], Collection[GpuUuid]],
        terms: TermsResolver,
        publish: Callable[[], None],
        tell: Tell,
        status: ClaimStatus | None = None,
        claim_events: ClaimEvents | None = None,
    ) -> None:
        self._is_on, self._status, self._claim_events = settings.health, status, claim_events
        self._inventory, self._streams = inventory, streams
        self._pool = pool_name(settings.node_name, settings.driver_name)
        self._known = LastKnownGpus(folder / KNOWN_FILE, held)
        self._health = NodeHealth.open(
            folder / FILE,
            boot_id=claims.journal.boot_id,
            calm_s=SIMULATED_CALM_S if settings.simulate is not None else None,
            rules=partial(rules_in_force, terms, terms.expected(self._known.remembered)),
        )
        self._taints = HealthTaints(self._health.conditions, lambda: self._known.missing)
        self._events = ConditionEvents(tell, notify=claim_events.tell if claim_events is not None else None)
        self._metrics = HealthMetrics()
        self._steady = SteadyReports()
        self._reported: tuple[MadeOf, Missing, tuple[DeviceReport, ...]] | None = None
        self._claimed = ClaimedDevices(partial(_devices, claims.journal))
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
        """One sentence for each condition, and why claims have no status."""
        problem = self._status.problem if self._status is not None else None
        found = sentences(self._health.conditions(), self._snapshot()) if self._is_on else []
        return [*found, problem] if problem is not None else found

    @property
    def conditions(self) -> tuple[HealthCondition, ...]:
        """What is known of the GPUs' health; the same value while nothing changed."""
        return self._health.conditions() if self._is_on else ()

    @property
    def missing(self) -> frozenset[GpuUuid]:
        """GPUs that are published and not found."""
        return frozenset(self._known.missing) if self._is_on else frozenset()

    def amend(self, snapshot: Snapshot, terms: Terms) -> Mapping[GpuUuid, GpuTerms]:
        """See ``HealthTaints.amend``."""
        return self._taints.amend(snapshot, terms) if self._is_on else {}

    def complete(self, snapshot: Snapshot) -> Snapshot:
        """See ``LastKnownGpus.complete``."""
        return self._known.complete(snapshot) if self._is_on else snapshot

    @property
    def claim_events(self) -> ClaimEvents | None:
        """Writes events on claims and their pods; None where that is not allowed."""
        return self._claim_events

    def claims_changed(self) -> None:
        """See ``HealthMonitor.devices_changed``."""
        if self._status is not None:
            self._status.wake()
        if self._is_on:
            self._claimed.changed()
            self._monitor.devices_changed()

    def given_back(self, gpus: Iterable[GpuUuid]) -> None:
        """See ``HealthMonitor.given_back``."""
        if self._is_on:
            self._monitor.given_back(gpus)

    def start(self) -> None:
        """Call it before the publisher of the inventory subscribes: conditions of instances that are gone end first."""
        if self._is_on:
            self._inventory.subscribe(self._monitor.inventory_changed)
            self._monitor.start()
        if self._status is not None:
            self._status.start()
        if self._claim_events is not None:
            self._claim_events.start()

    def stop(self, timeout_s: float) -> None:
        """Saves what is not saved yet. Idempotent."""
        if self._status is not None:
            self._status.stop(timeout_s)
        if self._is_on:
            self._monitor.stop(timeout_s)
            self._health.close()
        if self._claim_events is not None:
            self._claim_events.stop(timeout_s)

    def _snapshot(self) -> Snapshot:
        return self._known.with_missing(self._inventory.current())

    def _tell(self) -> None:
        conditions, snapshot = self._health.conditions(), self._snapshot()
        if snapshot.gpus:  # before the first look, nothing is known about any device
            found = self._steady.of(self._reports(snapshot, conditions))
            self._streams.report(found)
            if self._status is not None:
                self._status.show(found)
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


def _devices(journal: Journal) -> Iterable[ReportedDevice]:
    """The devices of prepared claims, those of admin access too."""
    for entry in journal.entries():
        for device in entry.devices if entry.state == "prepared" else ():
            yield ReportedDevice(
                pool=device.pool,
                device=device.device,
                gpu_uuid=device.gpu_uuid,
                partition=device.partition.id if device.partition is not None else None,
            )


def rules_in_force(terms: TermsResolver, early: Terms, gpu: GpuUuid) -> HealthRules:
    """The rules in force, or ``early`` ones before the GPUs were read: conditions from before a restart are judged at
    once, and would else be weaker for a moment."""
    found = terms.of_gpu(gpu)
    return (found if found is not None else terms_of(early, gpu)).health
