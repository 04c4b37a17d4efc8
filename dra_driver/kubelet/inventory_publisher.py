"""Keeps driver files, base CDI document and slices in step with the hardware.

Owns what happens when the inventory, policies or the driver's files change, and whether this node's devices are
offered: driver files first, slices after, so that no device is offered before a prepare could hand it out. Refuses to
know sockets and claims.

Devices that no container here could get are taken back, because the scheduler goes on placing pods where slices are,
and each of them waits more than a minute between two tries. How soon depends on what is lost by it:

- *Nothing was offered by this run*, and NVML or the driver's files are missing: after ``FIRST_S``. Slices may be there
  from an earlier run. When none are, the pool becomes known, with no devices in it.
- *Devices were offered*, or the first look at the hardware has not come back (which takes long without persistence
  mode): after ``KEEP_S``. What passes sooner, such as the reload of a driver, moves no pods.

They are offered again with the next good look. Prepared claims are not affected by any of this: the kubelet and their
containers do not look at slices, and what they hold stays allocated.
"""

import logging
import threading
import time
from collections.abc import Callable
from types import MappingProxyType
from typing import Protocol

from dra_driver.errors import DraError
from dra_driver.model.gpu import Snapshot
from dra_driver.model.terms import Terms
from dra_driver.telemetry import metrics

log = logging.getLogger(__name__)

FIRST_S = 5.0
KEEP_S = 60.0

NOTHING = Snapshot()
NO_TERMS: Terms = MappingProxyType({})


class HardwareStatus(Protocol):
    """The part of ``gpu.inventory.Inventory`` that is needed here."""

    @property
    def problem(self) -> str | None: ...
    @property
    def failing(self) -> bool: ...


class CdiFiles(Protocol):
    """The part of ``cdi.provider.CdiProvider`` that is needed here."""

    def refresh(self) -> bool: ...
    def ensure_base(self) -> bool: ...


class SnapshotSink(Protocol):
    """The part of ``slices.publisher.Publisher`` that is needed here."""

    def set_snapshot(self, snapshot: Snapshot, terms: Terms) -> None: ...


class TermsUpdater(Protocol):
    """The part of ``terms_resolver.TermsResolver`` that is needed here."""

    def update(self, snapshot: Snapshot) -> Terms: ...


class InventoryPublisher:
    """Carries each new snapshot to the driver files and the slices. ``changed`` and ``check`` from any thread.

    ``driver_root`` brings a simulated driver root up to date before it is searched.
    """

    def __init__(
        self,
        hardware: HardwareStatus,
        files: CdiFiles,
        slices: SnapshotSink,
        terms: TermsUpdater,
        *,
        driver_root: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hardware = hardware
        self._files = files
        self._slices = slices
        self._terms = terms
        self._driver_root = driver_root
        self._clock = clock
        self._lock = threading.Lock()  # one snapshot at a time goes through; guards the fields below
        self._newest: Snapshot | None = None
        self._offered: Snapshot | None = None
        self._offered_terms = NO_TERMS
        self._unusable_since: float | None = clock()
        self._problem: str | None = "the driver's files have not been looked for yet"

    @property
    def problem(self) -> str | None:
        """Why containers could not get a GPU; None while driver files are known and the base document is there."""
        return self._problem

    def changed(self, snapshot: Snapshot) -> None:
        """A callback of the inventory, whose thread it uses."""
        metrics.gpus.labels("usable").set(len(snapshot.gpus))
        metrics.gpus.labels("left-out").set(len(snapshot.left_out))
        with self._lock:
            self._newest = snapshot
            self._terms.update(snapshot)  # first: claims are prepared by them as soon as the inventory is there
            self._look_after(lambda: self._refresh_files(snapshot))
            self._offer()

    def check(self) -> None:
        """For every few seconds: brings back a base document that is gone, tries again what failed, takes devices back.

        Costs what ``CdiProvider.ensure_base`` does while all is well.
        """
        with self._lock:
            newest = self._newest
            if newest is not None:
                again = self._problem is not None
                self._look_after(lambda: self._refresh_files(newest) if again else self._ensure_base())
            self._offer()

    def _look_after(self, work: Callable[[], None]) -> None:
        try:
            work()
        except DraError as error:
            if str(error) != self._problem:
                log.warning("containers cannot get a GPU", extra={"reason": error})
            self._problem = str(error)
        else:
            self._problem = None

    def _refresh_files(self, snapshot: Snapshot) -> None:
        if snapshot.driver_version is not None:
            self._driver_root()
        self._files.refresh()

    def _ensure_base(self) -> None:
        if self._files.ensure_base():
            log.warning("the base CDI document was missing or different and is written again")

    def _offer(self) -> None:
        """What the slices should say now: the newest snapshot, nothing, or what they say already."""
        reason = self._hardware.problem or self._problem
        if reason is None:
            self._unusable_since = None
            self._show(self._newest)
        elif self._is_long():
            if self._offered is not NOTHING:
                log.warning("no devices are offered until containers can get them", extra={"reason": reason})
            self._show(NOTHING)
        elif self._offered not in (None, NOTHING):
            self._show(self._newest)

    def _is_long(self) -> bool:
        """Whether devices cannot be handed out for so long that they should not attract pods."""
        now = self._clock()
        if self._unusable_since is None:
            self._unusable_since = now
        failed = self._hardware.failing or self._newest is not None
        limit_s = FIRST_S if self._offered in (None, NOTHING) and failed else KEEP_S
        return now - self._unusable_since >= limit_s

    def _show(self, snapshot: Snapshot | None) -> None:
        if snapshot is None:
            return
        terms = self._terms.update(snapshot) if snapshot is not NOTHING else NO_TERMS
        if snapshot is not self._offered or terms is not self._offered_terms:
            self._slices.set_snapshot(snapshot, terms)
            self._offered, self._offered_terms = snapshot, terms
            metrics.withdrawn.set(snapshot is NOTHING)
