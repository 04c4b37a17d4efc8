"""The API for in-process users (scheduler, controllers, simulated kubelets), with the objects and rules of HTTP.

store.create(PODS, {"metadata": {"name": "p", "namespace": "default"}, "spec": {...}})
with store.watch([PODS, RESOURCE_CLAIMS], wake=changed.set) as changes:   # existing objects first, as ADDED
    while changed.wait(): changed.clear(); changes.take_all()
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from msgspec import Struct

from dra_driver.core.time import rfc3339
from dra_driver.sim.apiserver.api_errors import not_found
from dra_driver.sim.apiserver.jsonvalue import Clock, Obj, copy_json, utc_now
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.kinds import NAMESPACES, PODS
from dra_driver.sim.apiserver.patching import Patch, apply_patch
from dra_driver.sim.apiserver.removal import DeleteOptions, Removal
from dra_driver.sim.apiserver.selectors import field_match, label_match
from dra_driver.sim.apiserver.state import HISTORY_LENGTH, ObjectChange, ObjectState, Record, Subscription, object_key
from dra_driver.sim.apiserver.writes import PLAIN_WRITE, ObjectWriter, WriteOptions

MAX_LOG_BYTES = 1 << 20

Line = tuple[datetime, str]


class PodLogs:
    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the lines
        self._lines: dict[tuple[str, str], dict[str, list[Line]]] = {}

    def append(self, namespace: str, pod: str, container: str, text: str, at: datetime | None = None) -> None:
        """Add ``text`` (whole lines) to a container's log; drops the oldest lines beyond `MAX_LOG_BYTES`."""
        moment = at or utc_now()
        with self._lock:
            lines = self._lines.setdefault((namespace, pod), {}).setdefault(container, [])
            lines.extend((moment, line) for line in text.splitlines())
            excess = sum(len(line) + 1 for _, line in lines) - MAX_LOG_BYTES
            while excess > 0 and lines:
                excess -= len(lines.pop(0)[1]) + 1

    def read(self, namespace: str, pod: str, container: str) -> list[Line]:
        with self._lock:
            return list(self._lines.get((namespace, pod), {}).get(container, ()))

    def forget_removed(self, change: ObjectChange) -> None:
        if change.kind is PODS and change.type == "DELETED":
            with self._lock:
                self._lines.pop(change.key, None)


class PodPorts:
    """Ports on 127.0.0.1 by namespace, pod and the pod's own port. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the ports
        self._ports: dict[tuple[str, str], dict[int, int]] = {}

    def serve(self, namespace: str, pod: str, port: int, local_port: int) -> None:
        with self._lock:
            self._ports.setdefault((namespace, pod), {})[port] = local_port

    def find(self, namespace: str, pod: str, port: int) -> int | None:
        with self._lock:
            return self._ports.get((namespace, pod), {}).get(port)

    def forget_removed(self, change: ObjectChange) -> None:
        if change.kind is PODS and change.type == "DELETED":
            with self._lock:
                self._ports.pop(change.key, None)


__all__ = ["DeleteOptions", "Listing", "Patch", "Store", "Subscription"]

INITIAL_NAMESPACES = ("default", "kube-public", "kube-system")


class Listing(Struct, frozen=True):
    """Objects in key order, and the revision of the list, from which a watch can continue."""

    items: list[Obj]
    resource_version: int


class Store:
    """Every object of the embedded cluster. Thread-safe; every object in or out is a copy that the caller may change.

    ``check_cel`` returns None for a valid CEL expression, else the compiler's message. A deleted namespace keeps its
    contents for ``namespace_delay_s``, because kubectl deletes the objects of a manifest one by one. ``namespace`` is
    "" for cluster-scoped kinds. Errors: NotFoundError, AlreadyExistsError, ConflictError (stale resourceVersion, failed
    precondition), InvalidObjectError (with causes in ``details``), ForbiddenError, GoneError.
    """

    def __init__(
        self,
        *,
        check_cel: Callable[[str], str | None] | None = None,
        clock: Clock = utc_now,
        history_length: int = HISTORY_LENGTH,
        namespace_delay_s: float = 0.0,
    ) -> None:
        self.logs, self.ports = PodLogs(), PodPorts()
        self._clock = clock
        self._lock = threading.RLock()  # guards the state, its history and the list of subscriptions
        self._state = ObjectState(history_length)
        self._namespace_delay_s = namespace_delay_s
        self._removal = Removal(self._state, clock, self._empty_later if namespace_delay_s else None)
        self._writes = ObjectWriter(self._state, self._removal, clock, check_cel)
        self._state.listeners += [self.logs.forget_removed, self.ports.forget_removed]
        for name in INITIAL_NAMESPACES:
            self.create(NAMESPACES, {"metadata": {"name": name}})

    @property
    def revision(self) -> int:
        with self._lock:
            return self._state.revision

    def get(self, kind: ResourceKind, name: str, namespace: str = "") -> Obj:
        return self._copied(self.read(kind, name, namespace))

    def find(self, kind: ResourceKind, name: str, namespace: str = "") -> Obj | None:
        with self._lock:
            record = self._state.get(kind, (namespace, name))
        return self._copied(record) if record else None

    def list(self, kind: ResourceKind, namespace: str = "", *, labels: str = "", fields: str = "") -> Listing:
        """Objects of a kind; ``namespace`` "" means all. ``fields`` may name any dotted path."""
        records, revision = self.read_all(kind, namespace)
        matches = [match for match in (label_match(labels), field_match(fields)) if match]
        kept = [record for record in records if all(match(record.obj) for match in matches)]
        return Listing([copy_json(record.obj) for record in kept], revision)

    def create(self, kind: ResourceKind, obj: Obj, *, namespace: str = "", options: WriteOptions = PLAIN_WRITE) -> Obj:
        """Store a new object and return it as stored. Sets name (from generateName), uid and defaults; drops status."""
        with self._lock:
            return self._copied(self._writes.create(kind, copy_json(obj), namespace, options))

    def update(
        self, kind: ResourceKind, obj: Obj, *, subresource: str = "", options: WriteOptions = PLAIN_WRITE
    ) -> Obj:
        """Replace the object. Raises ConflictError if metadata.resourceVersion is set and not the current version."""
        metadata = obj.get("metadata", {})
        key = (metadata.get("namespace", "default") if kind.namespaced else "", metadata.get("name", ""))
        with self._lock:
            written = self._writes.update(kind, copy_json(obj), key, subresource=subresource, options=options)
            return self._copied(written)

    def update_status(self, kind: ResourceKind, obj: Obj, options: WriteOptions = PLAIN_WRITE) -> Obj:
        """Replace the status. Of the rest of ``obj``, only name, namespace and resourceVersion are used."""
        return self.update(kind, obj, subresource="status", options=options)

    def patch(
        self,
        kind: ResourceKind,
        name: str,
        patch: Patch,
        *,
        namespace: str = "",
        subresource: str = "",
        options: WriteOptions = PLAIN_WRITE,
    ) -> Obj:
        """Change the object by a JSON, merge, strategic merge or apply patch; an apply patch creates a missing object.
        Raises ConflictError for a stale resourceVersion in the patch, or an apply patch that conflicts with another
        manager."""
        with self._lock:
            record = self._state.get(kind, (namespace, name))
            if record is None and (subresource or not patch.is_apply):
                raise not_found(kind, name)
            old = record.obj if record else None
            new = apply_patch(kind, old, patch, now=rfc3339(self._clock()), subresource=subresource)
            if record is None:
                new.setdefault("metadata", {}).setdefault("name", name)
                return self._copied(self._writes.create(kind, new, namespace, options))
            key = (namespace, name)
            written = self._writes.update(kind, new, key, subresource=subresource, options=options)
            return self._copied(written)

    def delete(self, kind: ResourceKind, name: str, namespace: str = "", options: DeleteOptions | None = None) -> Obj:
        """Delete the object or mark it for deletion; returns the last version. Raises NotFoundError, and ConflictError
        if a precondition does not hold."""
        return self.remove(kind, name, namespace, options)[1]

    def remove(
        self, kind: ResourceKind, name: str, namespace: str = "", options: DeleteOptions | None = None
    ) -> tuple[bool, Obj]:
        """Like `delete`; returns also whether the object is removed. A grace period, finalizers or dependents delay
        that."""
        with self._lock:
            last = self._copied(self._removal.delete(kind, (namespace, name), options or DeleteOptions()))
            return self._state.by_uid(last["metadata"]["uid"]) is None, last

    def bind(self, namespace: str, pod: str, node: str) -> Obj:
        """Assign a pod to a node, as a POST to pods/binding does. Raises ConflictError if the pod has a node."""
        with self._lock:
            return self._copied(self._writes.bind(namespace, pod, node))

    def watch(
        self,
        kinds: Iterable[ResourceKind],
        *,
        since: int | None = None,
        namespace: str = "",
        wake: Callable[[], None] | None = None,
    ) -> Subscription:
        """Watch ``kinds``: the changes after ``since``, None for existing objects first, as ADDED. Raises GoneError if
        ``since`` is older than the history: list again. ``wake`` is called under the store's lock, so it must only
        signal."""
        chosen = tuple(kinds)
        subscription = Subscription(chosen, namespace, wake, self._detach)
        with self._lock:
            if since is None:
                backlog = [
                    ObjectChange("ADDED", kind, object_key(kind, record.obj), record, None)
                    for kind in chosen
                    for record in self._state.records(kind)
                ]
            else:
                backlog = list(self._state.changes_since(since))
            for change in backlog:
                subscription.offer(change)
            subscription.started_at = self._state.revision
            self._state.listeners.append(subscription.offer)
        return subscription

    def read(self, kind: ResourceKind, name: str, namespace: str = "") -> Record:
        """The stored version, not a copy: callers must not change it. Raises NotFoundError."""
        with self._lock:
            record = self._state.get(kind, (namespace, name))
        if record is None:
            raise not_found(kind, name)
        return record

    def read_all(self, kind: ResourceKind, namespace: str = "") -> tuple[Sequence[Record], int]:
        """The stored versions, not copies, in key order, and the revision of the list."""
        with self._lock:
            return self._state.records(kind, namespace), self._state.revision

    def _empty_later(self, name: str) -> None:
        def empty() -> None:
            with self._lock:
                self._removal.empty_namespace(name)

        timer = threading.Timer(self._namespace_delay_s, empty)
        timer.name, timer.daemon = f"empty-namespace-{name}", True
        timer.start()

    def _detach(self, subscription: Subscription) -> None:
        with self._lock:
            if subscription.offer in self._state.listeners:
                self._state.listeners.remove(subscription.offer)

    @staticmethod
    def _copied(record: Record) -> Obj:
        copied: Obj = copy_json(record.obj)
        return copied
