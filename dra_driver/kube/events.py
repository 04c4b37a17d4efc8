"""Record Kubernetes events (core/v1 Event, fields as in client-go's tools/record) without blocking the caller. A
bounded queue and one writer thread; repeats become one event with a count; an event that cannot be written is dropped
and counted."""

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal, Protocol

from msgspec import Struct, field, to_builtins

from dra_driver.core.errors import KubernetesApiError, NotFoundError
from dra_driver.core.time import rfc3339
from dra_driver.core.worker import Worker
from dra_driver.kube import paths
from dra_driver.kube.objects.core import ObjectReference

log = logging.getLogger(__name__)

MAX_PENDING = 64
# How many written events are remembered, so that a repeat raises a count instead of creating an event.
MAX_REMEMBERED = 128
# A repeat within this time is counted on the old event; the API server deletes events after an hour.
REMEMBER_S = 600.0
# At most one write per event in this time, however often it is reported.
REPEAT_S = 10.0
MAX_MESSAGE = 1024  # the API server's limit

EventType = Literal["Normal", "Warning"]
Key = tuple[ObjectReference, str, str]
Refused = Callable[[str, KubernetesApiError], None]


class Writer(Protocol):
    """The part of ``rest.RestClient`` that recording needs."""

    def create(self, path: str, body: Mapping[str, object], *, dry_run: bool = False) -> dict[str, object]: ...
    def merge_patch(self, path: str, body: Mapping[str, object]) -> dict[str, object]: ...


class Recorder(Protocol):
    """Subset of `EventRecorder` for its users."""

    def record(self, about: ObjectReference, kind: EventType, reason: str, message: str) -> None: ...


class _Pending(Struct):
    about: ObjectReference
    kind: EventType
    reason: str
    message: str
    seen_at: datetime
    count: int = 1


class _Written(Struct):
    namespace: str
    name: str
    count: int
    written_s: float = field(default=0.0)


class EventRecorder:
    """``record`` from any thread; ``start`` and ``stop`` once, by one owner. ``refused`` gets each event that the API
    server refused, with the reason, in the writer thread."""

    def __init__(
        self,
        rest: Writer,
        component: str,
        host: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        refused: Refused | None = None,
    ) -> None:
        self._refused = refused if refused is not None else _log_refused
        self._rest, self._component, self._host = rest, component, host
        self._clock, self._now = clock, now
        self._lock = threading.Lock()  # guards the next two
        self._pending: OrderedDict[Key, _Pending] = OrderedDict()
        self._dropped = 0
        self._written: OrderedDict[Key, _Written] = OrderedDict()  # of the writer thread alone
        self._worker = Worker("events", self._turn, at_end=self.flush)

    @property
    def dropped(self) -> int:
        with self._lock:
            return self._dropped

    def record(self, about: ObjectReference, kind: EventType, reason: str, message: str) -> None:
        """Queues an event about an object; returns at once. ``reason`` is one word in CamelCase."""
        text = message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
        key = (about, reason, text)
        with self._lock:
            if (waiting := self._pending.get(key)) is not None:
                waiting.count += 1
                waiting.seen_at = self._now()
            elif len(self._pending) >= MAX_PENDING:
                self._dropped += 1
            else:
                self._pending[key] = _Pending(about, kind, reason, text, self._now())
        self._worker.wake()

    def start(self) -> None:
        self._worker.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """Write queued events for at most ``timeout_s``. Idempotent."""
        self._worker.stop(timeout_s)

    def _turn(self) -> float | None:
        self.flush()
        with self._lock:
            return min((self._due_in_s(key) for key in self._pending), default=None)

    def _due_in_s(self, key: Key) -> float:
        written = self._written.get(key)
        if written is None or self._worker.is_stopping:
            return 0.0
        return max(0.0, written.written_s + REPEAT_S - self._clock())

    def flush(self) -> None:
        """Writes all due events. One step of the writer thread; tests call it instead of starting the thread."""
        with self._lock:
            due = [key for key in self._pending if self._due_in_s(key) <= 0]
            events = [(key, self._pending.pop(key)) for key in due]
        for key, event in events:
            try:
                self._write(key, event)
            except KubernetesApiError as error:
                with self._lock:
                    self._dropped += event.count
                self._refused(event.reason, error)

    def _write(self, key: Key, event: _Pending) -> None:
        known = self._written.get(key)
        if known is not None and self._clock() - known.written_s < REMEMBER_S and self._repeat(known, event):
            return
        namespace = event.about.namespace or "default"  # the API server accepts no other for cluster-scoped objects
        name = f"{(event.about.name or 'unknown')[:200]}.{os.urandom(8).hex()}"
        self._rest.create(paths.events(namespace), self._body(namespace, name, event))
        self._remember(key, _Written(namespace, name, event.count, self._clock()))

    def _repeat(self, known: _Written, event: _Pending) -> bool:
        count = known.count + event.count
        try:
            self._rest.merge_patch(
                paths.events(known.namespace, known.name), {"count": count, "lastTimestamp": rfc3339(event.seen_at)}
            )
        except NotFoundError:
            return False
        known.count, known.written_s = count, self._clock()
        return True

    def _remember(self, key: Key, written: _Written) -> None:
        self._written[key] = written
        self._written.move_to_end(key)
        if len(self._written) > MAX_REMEMBERED:
            self._written.popitem(last=False)

    def _body(self, namespace: str, name: str, event: _Pending) -> dict[str, object]:
        at = rfc3339(event.seen_at)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": to_builtins(event.about),
            "type": event.kind,
            "reason": event.reason,
            "message": event.message,
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": event.count,
        }


def _log_refused(reason: str, error: KubernetesApiError) -> None:
    log.warning("event not written; dropped", extra={"reason": reason, "error": str(error)})
