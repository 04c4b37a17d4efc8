"""The thread of a controller: a level-triggered loop that reads all objects, makes one step, and waits for a change.

Reading everything is cheap in an embedded cluster. Unlike a queue of keys, it makes lost events, conflicts and restarts
harmless.
"""

import logging
from collections.abc import Iterable

from dra_driver.core.errors import DraError
from dra_driver.core.worker import Worker
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.state import ObjectChange
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.apiserver.subscription import Subscription
from dra_driver.sim.recorder import StoreEventRecorder

log = logging.getLogger(__name__)

# After a conflict, the other writer's event wakes the loop; this is the longest wait without it.
RETRY_S = 0.2
STOP_TIMEOUT_S = 10.0


class Controller:
    """A named thread that calls `step` at the start and after changes of ``kinds``. Start it once, stop it once.

    After a DraError (conflict, missing object) `step` is called again within 0.2 s; after another exception, which is
    logged, within 1 s. ``component`` is the source of the events, by default ``name``, and ``host`` its node.
    """

    def __init__(
        self, name: str, store: Store, kinds: Iterable[ResourceKind], component: str = "", host: str = ""
    ) -> None:
        self._name = name
        self._store = store
        self._recorder = StoreEventRecorder(store, component or name, host)
        self._kinds = tuple(kinds)
        self._changes: Subscription | None = None
        self._worker = Worker(name, self._turn, at_end=self._close)

    def step(self) -> float | None:
        """Reconcile everything once; returns after how many seconds to do so without a change, None for never."""
        raise NotImplementedError

    def observe(self, change: ObjectChange) -> None:
        """Get every change, in order, before the step that follows it. The object must not be modified."""

    def start(self) -> None:
        self._changes = self._store.watch(self._kinds, since=self._store.revision, wake=self._worker.wake)
        self._worker.start()

    def stop(self) -> None:
        """Stop after the current step; waits up to 10 s. Idempotent; allowed without a start."""
        self._worker.stop(STOP_TIMEOUT_S)

    def wake(self) -> None:
        self._worker.wake()

    def _turn(self) -> float | None:
        try:
            for change in self._changes.take_all() if self._changes is not None else ():
                self.observe(change)
            return self.step()
        except DraError as error:
            log.debug("step will be retried", extra={"loop": self._name, "reason": error})
            return RETRY_S

    def _close(self) -> None:
        if self._changes is not None:
            self._changes.close()
