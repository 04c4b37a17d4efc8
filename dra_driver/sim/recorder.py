"""Writes v1 Events for components of the embedded cluster, as `kubectl describe` shows them under an object.

A repeated event raises the count of the existing object (as in client-go tools/record/events_cache.go). Best effort: a
failed write is logged and not repeated.
"""

import logging
import threading
import time
from collections import OrderedDict

from dra_driver.core.errors import DraError
from dra_driver.core.time import rfc3339
from dra_driver.sim.apiserver.jsonvalue import Obj, utc_now
from dra_driver.sim.apiserver.kinds import EVENTS
from dra_driver.sim.apiserver.store import Store

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
        """Record an event of type Normal."""
        self._record("Normal", obj, reason, message, field_path)

    def warning(self, obj: Obj, reason: str, message: str, field_path: str = "") -> None:
        """Record an event of type Warning."""
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
