"""Current versions of all objects, the history for watches, the index of owners, and the watch of in-process users.
`store.Store` calls it under its lock. Stored objects are immutable, so a reader may keep them and needs no copy."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import islice

from msgspec import Struct

from dra_driver.sim.apiserver.api_errors import expired
from dra_driver.sim.apiserver.jsonvalue import Obj, dump, entries
from dra_driver.sim.apiserver.kind import ResourceKind

Key = tuple[str, str]  # namespace ("" for cluster-scoped), name

# Number of writes a watch can be behind before its client has to list again. etcd keeps five minutes; an embedded
# cluster with 500 slices and a few hundred pods makes fewer writes than this in five minutes.
HISTORY_LENGTH = 10_000


class Record(Struct, eq=False, dict=True):
    """One version of one object; its JSON text is made once for all readers."""

    obj: Obj
    revision: int

    @cached_property
    def json(self) -> bytes:
        return dump(self.obj)

    @property
    def list_item(self) -> bytes:
        """The object as a list item: without kind and apiVersion, which only the list has."""
        return b"{" + self.json.split(b",", 2)[2]


class ObjectChange(Struct, frozen=True, eq=False):
    """One write. ``type`` is ADDED, MODIFIED or DELETED; ``previous`` is the former version, None for ADDED."""

    type: str
    kind: ResourceKind
    key: Key
    record: Record
    previous: Record | None


def object_key(kind: ResourceKind, obj: Obj) -> Key:
    metadata = obj["metadata"]
    return (metadata.get("namespace", "") if kind.namespaced else "", metadata["name"])


class ObjectState:
    """Current objects, history and indexes. Calls every listener with every write, in order."""

    def __init__(self, history_length: int = HISTORY_LENGTH) -> None:
        self.revision = 1
        self.listeners: list[Callable[[ObjectChange], None]] = []
        self._objects: dict[ResourceKind, dict[Key, Record]] = {}
        self._by_uid: dict[str, tuple[ResourceKind, Key]] = {}
        self._owned: dict[str, set[tuple[ResourceKind, Key]]] = {}
        self._history: deque[ObjectChange] = deque(maxlen=history_length)

    def get(self, kind: ResourceKind, key: Key) -> Record | None:
        return self._objects.get(kind, {}).get(key)

    def records(self, kind: ResourceKind, namespace: str = "") -> list[Record]:
        """Current versions in key order, as etcd lists them; ``namespace`` "" means all."""
        found = self._objects.get(kind, {})
        return [found[key] for key in sorted(found) if not namespace or key[0] == namespace]

    def kinds(self) -> Iterable[ResourceKind]:
        return tuple(self._objects)

    def put(self, kind: ResourceKind, obj: Obj) -> Record:
        """Store ``obj`` as a new version; sets its metadata.resourceVersion."""
        key = object_key(kind, obj)
        previous = self.get(kind, key)
        record = self._stamp(obj)
        self._objects.setdefault(kind, {})[key] = record
        self._by_uid[obj["metadata"]["uid"]] = (kind, key)
        if previous is not None:
            self._forget_owners(kind, key, previous.obj)
        for reference in entries(obj, "metadata", "ownerReferences"):
            self._owned.setdefault(reference.get("uid", ""), set()).add((kind, key))
        self._announce(ObjectChange("ADDED" if previous is None else "MODIFIED", kind, key, record, previous))
        return record

    def remove(self, kind: ResourceKind, key: Key) -> Record:
        """Remove the object; returns its last version with the revision of the removal. Raises KeyError."""
        previous = self._objects[kind].pop(key)
        self._by_uid.pop(previous.obj["metadata"]["uid"], None)
        self._forget_owners(kind, key, previous.obj)
        record = self._stamp(previous.obj | {"metadata": dict(previous.obj["metadata"])})
        self._announce(ObjectChange("DELETED", kind, key, record, previous))
        return record

    def by_uid(self, uid: str) -> tuple[ResourceKind, Key] | None:
        return self._by_uid.get(uid)

    def owned_by(self, uid: str) -> list[tuple[ResourceKind, Record]]:
        found = [(kind, key, self.get(kind, key)) for kind, key in self._owned.get(uid, ())]
        found.sort(key=lambda item: (item[0].plural, item[1]))
        return [(kind, record) for kind, _, record in found if record is not None]

    def changes_since(self, revision: int) -> Iterator[ObjectChange]:
        """Writes after ``revision``, oldest first. Raises GoneError if the history does not reach back to it."""
        missing = self.revision - revision
        if missing > len(self._history):
            raise expired(revision, self.revision - len(self._history))
        return islice(self._history, len(self._history) - max(missing, 0), None)

    def _stamp(self, obj: Obj) -> Record:
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        # kind and apiVersion come first, so that `Record.list_item` can cut them off.
        return Record({"kind": obj["kind"], "apiVersion": obj["apiVersion"], **obj}, self.revision)

    def _forget_owners(self, kind: ResourceKind, key: Key, obj: Obj) -> None:
        for reference in entries(obj, "metadata", "ownerReferences"):
            uid = reference.get("uid", "")
            if uid in self._owned:
                self._owned[uid].discard((kind, key))
                if not self._owned[uid]:
                    del self._owned[uid]

    def _announce(self, change: ObjectChange) -> None:
        self._history.append(change)
        for listener in tuple(self.listeners):
            listener(change)


MAX_BEHIND = 100_000


class Subscription:
    """A queue of changes of some kinds, made by ``Store.watch``. Thread-safe. ``wake`` is called after each change,
    under the store's lock: it must only signal. `MAX_BEHIND` unread changes end it with GoneError, as the real server
    closes a slow watch."""

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
        self._detach(self)

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
