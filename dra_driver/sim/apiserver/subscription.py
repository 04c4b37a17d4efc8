"""A watch for in-process users: a queue of changes, filled under the store's lock and emptied without it.

A subscriber that is `MAX_BEHIND` changes behind gets a GoneError and must list again, as the real server closes a
slow HTTP watch.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from types import TracebackType

from dra_driver.sim.apiserver.api_errors import expired
from dra_driver.sim.apiserver.jsonvalue import Obj, copy_json
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.state import ObjectChange

MAX_BEHIND = 100_000


class Event:
    """One change. ``object`` is a copy that the subscriber may change.

    ``type`` is ADDED, MODIFIED or DELETED (``object`` is then the last version). A new watch can continue from
    ``resource_version``.
    """

    __slots__ = ("kind", "object", "resource_version", "type")

    def __init__(self, change: ObjectChange) -> None:
        self.type = change.type
        self.kind = change.kind
        self.object: Obj = copy_json(change.record.obj)
        self.resource_version = change.record.revision


class Subscription:
    """Changes of some kinds. Thread-safe; created by ``Store.watch``.

    Iterating yields events until the subscription is closed. ``wake`` is called after each change, from the writer's
    thread and under the store's lock: it must only signal.
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
        self._ready = threading.Condition()  # guards the three fields below
        self._queue: deque[ObjectChange] = deque()
        self._closed = False
        self._lost_at = 0

    def offer(self, change: ObjectChange) -> None:
        if change.kind not in self._kinds or (self._namespace and change.key[0] != self._namespace):
            return
        with self._ready:
            if len(self._queue) >= MAX_BEHIND:
                self._lost_at = change.record.revision
                self._queue.clear()
            if not self._lost_at:
                self._queue.append(change)
            self._ready.notify_all()
        if self._wake is not None:
            self._wake()

    def take_all(self) -> list[ObjectChange]:
        """All changes so far, without waiting. The objects are not copies and must not be changed."""
        with self._ready:
            self._check()
            taken = list(self._queue)
            self._queue.clear()
        return taken

    def next(self, timeout_s: float) -> Event | None:
        """The next event; None after ``timeout_s`` or when closed. Raises GoneError if events were lost."""
        deadline = monotonic() + timeout_s
        with self._ready:
            while not self._queue:
                self._check()
                left = deadline - monotonic()
                if self._closed or left <= 0:
                    return None
                self._ready.wait(left)
            change = self._queue.popleft()
        return Event(change)

    def __iter__(self) -> Iterator[Event]:
        while True:
            event = self.next(timeout_s=60.0)
            if event is not None:
                yield event
            elif self.closed:
                return

    @property
    def closed(self) -> bool:
        with self._ready:
            return self._closed

    def close(self) -> None:
        """Stop receiving changes and wake waiting readers. Idempotent."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        self._detach(self)

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self) -> None:
        if self._lost_at:
            raise expired(0, self._lost_at)
