"""The shared parts of the embedded cluster's controllers: a level-triggered loop, the writer of their events, and the
client of manifests.

The loop reads all objects, makes one step, and waits for a change: lost events, conflicts and restarts are harmless. A
repeated event raises the count of the existing object (client-go tools/record/events_cache.go); a failed write is
logged and not repeated.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from dra_driver.core import yaml_text
from dra_driver.core.errors import ConfigurationError, DraError, NotFoundError
from dra_driver.core.time import rfc3339
from dra_driver.core.worker import Worker
from dra_driver.sim.apiserver.jsonvalue import Obj, utc_now
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.kinds import ALL_KINDS, EVENTS
from dra_driver.sim.apiserver.state import ObjectChange, Subscription
from dra_driver.sim.apiserver.store import DeleteOptions, Store

log = logging.getLogger(__name__)

MAX_MESSAGE = 1024
# client-go remembers the same number (maxLruCacheEntries) to count repeats.
REMEMBERED = 4096


class StoreEventRecorder:
    """Writes events for one component; ``host`` is the node that it runs on, "" for none. Thread-safe."""

    def __init__(self, store: Store, component: str, host: str = "") -> None:
        self._store = store
        self._source = {"component": component, **({"host": host} if host else {})}
        self._lock = threading.Lock()  # guards _names
        self._names: OrderedDict[tuple[str, ...], str] = OrderedDict()

    def normal(self, obj: Obj, reason: str, message: str, field_path: str = "") -> None:
        self._record("Normal", obj, reason, message, field_path)

    def warning(self, obj: Obj, reason: str, message: str, field_path: str = "") -> None:
        self._record("Warning", obj, reason, message, field_path)

    def _record(self, kind: str, obj: Obj, reason: str, message: str, field_path: str) -> None:
        message = message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"
        metadata = obj["metadata"]
        name = self._name(metadata["name"], (metadata.get("uid", ""), kind, reason, message, field_path))
        namespace = metadata.get("namespace", "default")
        try:
            known = self._store.find(EVENTS, name, namespace)
            if known is None:
                what = {"type": kind, "reason": reason, "message": message}
                self._store.create(EVENTS, self._event(obj, name, what, field_path), namespace=namespace)
            else:
                known["count"] = known.get("count", 1) + 1
                known["lastTimestamp"] = rfc3339(utc_now())
                self._store.update(EVENTS, known)
        except DraError as error:
            log.debug("event not recorded", extra={"reason": error})

    def _name(self, subject: str, what: tuple[str, ...]) -> str:
        """The event's name, the same for a repeat. The time in it, in ns, keeps events of one second in order."""
        with self._lock:
            name = self._names.setdefault(what, f"{subject[:200]}.{time.time_ns():016x}")
            self._names.move_to_end(what)
            if len(self._names) > REMEMBERED:
                self._names.popitem(last=False)
            return name

    def _event(self, obj: Obj, name: str, what: Obj, field_path: str) -> Obj:
        metadata, now = obj["metadata"], rfc3339(utc_now())
        involved = {
            "apiVersion": obj.get("apiVersion", "v1"),
            "kind": obj.get("kind", ""),
            "namespace": metadata.get("namespace", ""),
            "name": metadata["name"],
            "uid": metadata.get("uid", ""),
        }
        if field_path:
            involved["fieldPath"] = field_path
        return {
            "metadata": {"name": name, "namespace": metadata.get("namespace", "default")},
            "involvedObject": {key: value for key, value in involved.items() if value},
            **what,
            "source": self._source,
            "reportingComponent": self._source["component"],
            "reportingInstance": self._source.get("host", ""),
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


# After a conflict, the event of the conflicting write wakes the loop; this is the longest wait without it.
RETRY_S = 0.2
STOP_TIMEOUT_S = 10.0


class Controller:
    """A named thread that calls `step` at the start and after changes of ``kinds``; start it once, stop it once.
    Repeats `step` within 0.2 s after a DraError, within 1 s after another exception, which is logged. ``component`` is
    the source of the events, by default ``name``, and ``host`` its node."""

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


_BY_TYPE = {(kind.api_version, kind.kind): kind for kind in ALL_KINDS}


def load(path: Path) -> list[Obj]:
    """The objects of a YAML file, in order. Raises ConfigurationError that names the file."""
    try:
        documents = list(yaml_text.load_all(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error
    objects: list[Obj] = []
    for obj in documents:
        if obj is not None and not isinstance(obj, dict):
            raise ConfigurationError(f"{path}: expected a Kubernetes object, found a {type(obj).__name__}")
        if obj is not None:
            kind_of(obj)
            objects.append(obj)
    return objects


def kind_of(obj: Obj) -> ResourceKind:
    """The kind of an object. Raises ConfigurationError for a kind that the embedded cluster does not serve."""
    wanted = (str(obj.get("apiVersion")), str(obj.get("kind")))
    kind = _BY_TYPE.get(wanted)
    if kind is None:
        raise ConfigurationError(f"the embedded cluster does not serve kind {wanted[1]} in {wanted[0]}")
    return kind


def split_namespace(objects: Iterable[Obj], namespace: str) -> tuple[Obj, list[Obj]]:
    """The Namespace object, by default a new one called ``namespace``, and further objects."""
    everything = list(objects)
    own = next((obj for obj in everything if obj.get("kind") == "Namespace"), None)
    plain = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    return own or plain, [obj for obj in everything if obj is not own]


def deletion_order(objects: Iterable[Obj]) -> list[Obj]:
    return list(objects)[::-1]


class Client(Protocol):
    """Objects and logs of a cluster. ``namespace`` is "" for cluster-scoped kinds. Raises KubernetesApiError."""

    def create(self, obj: Obj, namespace: str) -> Obj: ...
    def find(self, kind: ResourceKind, name: str, namespace: str) -> Obj | None: ...
    def list(self, kind: ResourceKind, namespace: str) -> list[Obj]: ...
    def delete(self, kind: ResourceKind, name: str, namespace: str) -> None: ...
    def log(self, namespace: str, pod: str, container: str) -> str: ...


class StoreClient:
    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, obj: Obj, namespace: str) -> Obj:
        kind = kind_of(obj)
        return self._store.create(kind, obj, namespace=namespace if kind.namespaced else "")

    def find(self, kind: ResourceKind, name: str, namespace: str) -> Obj | None:
        return self._store.find(kind, name, namespace)

    def list(self, kind: ResourceKind, namespace: str) -> list[Obj]:
        return self._store.list(kind, namespace).items

    def delete(self, kind: ResourceKind, name: str, namespace: str) -> None:
        """Delete the object and its dependents, as kubectl does. Does nothing if the object does not exist."""
        with suppress(NotFoundError):
            self._store.delete(kind, name, namespace, DeleteOptions(propagation="Background"))

    def log(self, namespace: str, pod: str, container: str) -> str:
        lines = self._store.logs.read(namespace, pod, container)
        return "".join(f"{text}\n" for _, text in lines)
