"""A level-triggered loop: look at everything, make one step towards what should be, wait for a change.

Owns the thread of a controller, its wake-ups and what happens on errors. A whole look costs little in an embedded
cluster, and it makes lost events, conflicts and restarts harmless, which queues of keys do not.
"""

import logging
import threading
from collections.abc import Callable, Iterable

from dra_driver.errors import DraError
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.state import ObjectChange
from dra_driver.sim.apiserver.store import Store

log = logging.getLogger(__name__)

# Another writer won: its event is on the way, this is only the longest time without it.
RETRY_S = 0.2
STOP_TIMEOUT_S = 10.0


class ControllerLoop:
    """Calls ``step`` in one thread, at the start and after changes of ``kinds``.

    ``step`` returns the seconds after which it wants to be called without a change, None for no wish. A DraError (a
    conflict, an object that is gone) means "look again soon"; anything else is logged and means the same. ``observe``
    sees every change before the step that follows it, in order, and must not change its object.
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
        self._changed = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin. Once."""
        self._thread.start()

    def stop(self) -> None:
        """End after the step at hand. Idempotent; also without a start."""
        self._stop.set()
        self._changed.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_TIMEOUT_S)

    def wake(self) -> None:
        """Look again now. From any thread."""
        self._changed.set()

    def _run(self) -> None:
        with self._store.watch(self._kinds, since=self._store.revision, wake=self._changed.set) as changes:
            while not self._stop.is_set():
                self._changed.clear()
                try:
                    for change in changes.take_all():
                        self._observe(change)
                    wait_s = self._step()
                except DraError as error:
                    log.debug("looking again", extra={"loop": self._name, "reason": error})
                    wait_s = RETRY_S
                except Exception:  # thread boundary: one bad object must not end the controller
                    log.exception("step failed", extra={"loop": self._name})
                    wait_s = 1.0
                self._changed.wait(wait_s)
