"""The thread of a controller: a level-triggered loop that reads all objects, makes one step, and waits for a change.

Reading everything is cheap in an embedded cluster. Unlike a queue of keys, it makes lost events, conflicts and restarts
harmless.
"""

import logging
from collections.abc import Callable, Iterable

from dra_driver.core.errors import DraError
from dra_driver.core.worker import Worker
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.state import ObjectChange
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.apiserver.subscription import Subscription

log = logging.getLogger(__name__)

# After a conflict, the other writer's event wakes the loop; this is the longest wait without it.
RETRY_S = 0.2
STOP_TIMEOUT_S = 10.0


class ControllerLoop:
    """Calls ``step`` in one thread, at the start and after changes of ``kinds``.

    ``step`` returns after how many seconds to call it again without a change, None for never. After a DraError (a
    conflict, a missing object) it is called again within 0.2 s, after any other exception, which is logged, within 1 s.
    ``observe`` gets every change, in order, before the step that follows it, and must not modify the object.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        kinds: Iterable[ResourceKind],
        step: Callable[[], float | None],
        *,
        observe: Callable[[ObjectChange], None] = lambda _change: None,
    ) -> None:
        self._name = name
        self._store = store
        self._kinds = tuple(kinds)
        self._step = step
        self._observe = observe
        self._changes: Subscription | None = None
        self._worker = Worker(name, self._turn, at_end=self._close)

    def start(self) -> None:
        """Start the thread. Call it once."""
        self._changes = self._store.watch(self._kinds, since=self._store.revision, wake=self._worker.wake)
        self._worker.start()

    def stop(self) -> None:
        """Stop after the current step; waits up to 10 s. Idempotent; allowed without a start."""
        self._worker.stop(STOP_TIMEOUT_S)

    def wake(self) -> None:
        """Call ``step`` again now. Thread-safe."""
        self._worker.wake()

    def _turn(self) -> float | None:
        try:
            for change in self._changes.take_all() if self._changes is not None else ():
                self._observe(change)
            return self._step()
        except DraError as error:
            log.debug("step will be retried", extra={"loop": self._name, "reason": error})
            return RETRY_S

    def _close(self) -> None:
        if self._changes is not None:
            self._changes.close()
