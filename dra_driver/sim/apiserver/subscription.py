"""A watch for in-process users: a queue of changes, filled under the store's lock and emptied without it.

A subscriber that is `MAX_BEHIND` changes behind gets a GoneError and must list again, as the real server closes a
slow HTTP watch.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable

from dra_driver.sim.apiserver.api_errors import expired
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.state import ObjectChange

MAX_BEHIND = 100_000


class Subscription:
    """Changes of some kinds. Thread-safe; created by ``Store.watch``.

    ``wake`` is called after each change, from the writer's thread and under the store's lock: it must only signal.
    """

    def __init__(
        self,
        kinds: Iterable[ResourceKind],
        namespace: str,
        wake: Callable[[], None] | None,
        detach: Callable[["Subscription"], None],
    ) -> None:
        self.started_at = 0  # the store's revision when the watch began; set by the store
        self._kinds = frozenset(kinds)
        self._namespace = namespace
        self._wake = wake
        self._detach = detach
        self._lock = threading.Lock()  # guards the two fields below
        self._queue: deque[ObjectChange] = deque()
        self._lost_at = 0

    def offer(self, change: ObjectChange) -> None:
        if change.kind not in self._kinds or (self._namespace and change.key[0] != self._namespace):
            return
        with self._lock:
            if len(self._queue) >= MAX_BEHIND:
                self._lost_at = change.record.revision
                self._queue.clear()
            if not self._lost_at:
                self._queue.append(change)
        if self._wake is not None:
            self._wake()

    def take_all(self) -> list[ObjectChange]:
        """All changes so far, not copies: they must not be changed. Raises GoneError if changes were lost."""
        with self._lock:
            if self._lost_at:
                raise expired(0, self._lost_at)
            taken = list(self._queue)
            self._queue.clear()
        return taken

    def close(self) -> None:
        """Stop receiving changes. Idempotent."""
        self._detach(self)

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
