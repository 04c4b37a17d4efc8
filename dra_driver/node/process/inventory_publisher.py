"""Update driver files, the base CDI document and the slices after changes of inventory and policies.

No device is published before a prepare could serve it. Devices that containers cannot use are withdrawn, because each
pod placed on them waits more than a minute between attempts. Before the first publication of a run that is after
`FIRST_S`, later and during a slow first read after `KEEP_S`, so that a driver reload moves no pods, and immediately
while a second publisher offers the same GPUs (``node_follower.py``).

GPUs that claims have stay published with a taint, so that readers of slices find the devices of running pods. While
detached, the last inventory stays published with a taint, and driver files are left alone: a search could load the
driver again.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection
from types import MappingProxyType

from msgspec.structs import replace

from dra_driver.core.errors import DraError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Terms
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.cdi import CdiProvider
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.node.process.detaching import Detaching
from dra_driver.node.process.node_follower import NodeFollower
from dra_driver.node.process.terms_resolver import DetachTaint, PublishedTerms
from dra_driver.node.slices import Publisher

log = logging.getLogger(__name__)

FIRST_S = 5.0
KEEP_S = 60.0

NOTHING = Snapshot()
UNAVAILABLE = "unavailable"
"""Value of the taint of claimed GPUs while containers cannot use a GPU."""
SECOND_PUBLISHER = "second-publisher"
"""Value of the taint of claimed GPUs while a second publisher offers them, too."""
NO_TERMS: Terms = MappingProxyType({})


class InventoryPublisher:
    """Updates driver files and slices for each new snapshot. ``changed`` and ``check`` run in any thread.

    ``driver_root`` updates a simulated driver root before the driver files are searched. ``terms`` includes ``taint``.
    ``held`` returns the GPUs that claims have and can raise StorageError. ``complete`` adds missing GPUs that stay
    published; it returns the same object while nothing changed.
    """

    def __init__(
        self,
        hardware: Inventory,
        files: CdiProvider,
        slices: Publisher,
        terms: PublishedTerms,
        *,
        detach: Detaching,
        conflict: NodeFollower,
        taint: DetachTaint,
        held: Callable[[], Collection[GpuUuid]],
        complete: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot,
        driver_root: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hardware, self._files, self._slices, self._terms = hardware, files, slices, terms
        self._detach, self._conflict, self._taint = detach, conflict, taint
        self._held, self._complete, self._driver_root, self._clock = held, complete, driver_root, clock
        self._lock = threading.Lock()  # serializes snapshots; guards the fields below
        self._newest: Snapshot | None = None
        self._offered: Snapshot | None = None
        self._offered_terms = NO_TERMS
        self._unusable_since: float | None = clock()
        self.problem: str | None = "the driver's files have not been searched yet"
        """The reason why containers cannot get a GPU; None while driver files and the base document exist."""
        self._search_due = False  # a snapshot arrived while detached

    @property
    def known(self) -> tuple[Snapshot, Terms] | None:
        """All known GPUs and their published terms; None before the first publication."""
        with self._lock:
            snapshot = self._known()
            if snapshot is None or self._offered is None:
                return None
            return snapshot, self._offered_terms

    def changed(self, snapshot: Snapshot) -> None:
        """Take a new snapshot; runs in the inventory's thread."""
        metrics.gpus.labels("usable").set(len(snapshot.gpus))
        metrics.gpus.labels("left-out").set(len(snapshot.left_out))
        with self._lock:
            self._newest = snapshot
            self._terms.update(self._complete(snapshot))  # first: prepares use them once the inventory is published
            if self._detach.is_detached:  # read before detaching
                self._search_due = True
            else:
                self._look_after(lambda: self._refresh_files(snapshot))
            self._offer()

    def check(self) -> None:
        """Restore a missing base document, retry failed work, withdraw devices. Call it every few seconds. Costs no
        more than ``CdiProvider.check_base`` while there is no problem."""
        with self._lock:
            newest = self._newest
            if newest is not None and not self._detach.is_detached:
                again = self.problem is not None or self._search_due
                self._look_after(lambda: self._refresh_files(newest) if again else self._ensure_base())
            self._offer()

    def _look_after(self, work: Callable[[], None]) -> None:
        try:
            work()
        except DraError as error:
            if str(error) != self.problem:
                log.warning("containers cannot get a GPU", extra={"reason": error})
            self.problem = str(error)
        else:
            self.problem = None

    def _refresh_files(self, snapshot: Snapshot) -> None:
        self._search_due = False
        if snapshot.driver_version is not None:
            self._driver_root()
        self._files.refresh()

    def _ensure_base(self) -> None:
        if self._files.check_base():
            log.warning("base CDI document was missing or different; written again")

    def _offer(self) -> None:
        """Publish the newest snapshot, a part of it or an empty one, or leave the slices as they are. A process that
        starts detached has read no GPUs: the tainted slices of the previous run stay."""
        if not self._terms.is_known and self._offered is None and self._conflict.is_known and self._newest is not None:
            self._terms.update(self._complete(self._newest))  # looks for policies
        if self._offered is None and not (self._conflict.is_known and self._terms.is_known):
            return
        reason = self._hardware.problem or self.problem
        asked = self._detach.taint_value
        if asked is not None:
            self._unusable_since = None
            self._show(self._known(), asked)
        elif self._newest is not None and (conflict := self._conflict.conflict) is not None:
            self._withdraw(conflict, SECOND_PUBLISHER)
        elif reason is None:
            self._unusable_since = None
            self._show(self._known())
        elif self._is_long():
            self._withdraw(reason, UNAVAILABLE)
        elif self._offered not in (None, NOTHING):
            self._show(self._known(), self._taint.value)

    def _withdraw(self, reason: str, taint_value: str) -> None:
        """Publish only the GPUs that claims have, tainted; none when no GPU was read yet."""
        newest = self._known() or NOTHING
        try:
            held = self._held()
        except DraError as error:
            log.warning("cannot read which GPUs claims have; withdrawing none", extra={"reason": error})
            held = [gpu.uuid for gpu in newest.gpus]
        kept = tuple(gpu for gpu in newest.gpus if gpu.uuid in held)
        if self._offered is None or len(kept) != len(self._offered.gpus):
            facts = {"reason": reason, "kept_for_claims": len(kept)}
            log.warning("withdrew devices until containers can get them", extra=facts)
        self._show(replace(newest, gpus=kept) if kept else NOTHING, taint_value if kept else None)

    def _known(self) -> Snapshot | None:
        return self._complete(self._newest) if self._newest is not None else None

    def _is_long(self) -> bool:
        """Return whether devices have been unusable for so long that they must not attract pods."""
        now = self._clock()
        if self._unusable_since is None:
            self._unusable_since = now
        failed = self._hardware.failing or self._newest is not None
        limit_s = FIRST_S if self._offered in (None, NOTHING) and failed else KEEP_S
        return now - self._unusable_since >= limit_s

    def _show(self, snapshot: Snapshot | None, taint_value: str | None = None) -> None:
        if snapshot is None:
            return
        self._taint.value = taint_value
        # Terms of the whole inventory, whatever part of it is published: prepares use them as well.
        known = self._known() or snapshot
        terms = self._terms.update(known) if snapshot is not NOTHING else NO_TERMS
        if snapshot != self._offered or terms is not self._offered_terms:
            self._slices.set_snapshot(snapshot, terms)
            self._offered, self._offered_terms = snapshot, terms
            metrics.withdrawn.set(snapshot is NOTHING)
