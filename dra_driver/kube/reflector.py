"""Keep a copy of a collection and report its changes: list, then watch, for as long as the process runs.

Three nested generators each handle one kind of ending, so that the endless loop is the smallest of them:

    _forever     the API server fails       -> wait (backoff with jitter), then continue where the watch stopped
    _generation  the version has expired    -> ends; the collection is listed again
    _one_watch   the server ends a request  -> ends; the next request resumes from the last version

The informer of kubernetes 37.0.2 has no backoff, no read timeout and no bookmarks (KEP-956). Source: Kubernetes API
concepts, "Efficient detection of changes" and "Semantics for get and list".
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from msgspec import Struct

from dra_driver.core.backoff import Backoff
from dra_driver.core.errors import ApiUnreachableError, GoneError, KubernetesApiError, ServerBusyError
from dra_driver.core.telemetry import metrics
from dra_driver.core.worker import Worker
from dra_driver.kube.rest import pages
from dra_driver.kube.watch import WatchEvent

# The answer to a version that the cache does not reach within 3 s (Timeout, "Too large resource version").
_BEHIND = 504
# After so many such answers in a row the version is not one that the server will reach: etcd was restored.
MOST_BEHIND = 6


class NewestVersion:
    """The newest known version of one collection, so that lists come from the API server's cache and are current.
    Thread-safe. For a list without resourceVersion, a server with an outdated cache reads all objects of the kind from
    etcd (apiserver/pkg/storage/cacher/delegator.go of 1.34 to 1.36, GetList); resourceVersionMatch=NotOlderThan avoids
    that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards both fields below
        self._newest = 0
        self._behind = 0

    def saw(self, version: str) -> None:
        """Take in the version of an answer or event: a number (KEP-5504); anything else is ignored."""
        if not (version.isascii() and version.isdigit()):
            return
        with self._lock:
            if int(version) >= self._newest:
                self._newest, self._behind = int(version), 0

    def query(self) -> dict[str, str]:
        """Return the query parameters of a list besides its selectors; {} requests the current state."""
        with self._lock:
            if not self._newest:
                return {}
            return {"resourceVersion": str(self._newest), "resourceVersionMatch": "NotOlderThan"}

    def failed(self, error: KubernetesApiError) -> None:
        with self._lock:
            if isinstance(error, ServerBusyError) and error.status == _BEHIND:
                self._behind += 1
                if self._behind < MOST_BEHIND:
                    return
            elif isinstance(error, ApiUnreachableError | ServerBusyError):
                return
            self._newest = self._behind = 0

    def forget(self) -> None:
        with self._lock:
            self._newest = self._behind = 0


log = logging.getLogger(__name__)

# The server ends each watch after a time drawn from this range, so that clients spread again after an API server's
# restart.
WATCH_S = (120, 180)
_BUSY = (429, 503)
# Silence beyond the server's own limit means that the connection is dead.
_GRACE_S = 10.0
# A watch that ends at once without an event is a failure, however politely it ended.
_TOO_SHORT_S = 1.0
UNREADABLE = (KeyError, TypeError, AttributeError, ValueError, RecursionError)


class Stream(Protocol):
    """One open watch."""

    def __iter__(self) -> Iterator[WatchEvent]: ...
    def close(self) -> None: ...


class ListWatch(Protocol):
    """Subset of ``rest.RestClient`` that a reflector uses."""

    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]: ...
    def watch(self, path: str, query: Mapping[str, str], read_timeout_s: float) -> Stream: ...


class PagedApi(Protocol):
    """Subset of ``rest.RestClient`` that `ReducedLists` uses."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, object]: ...
    def watch(self, path: str, query: Mapping[str, str], read_timeout_s: float) -> Stream: ...


View = TypeVar("View")
_REDUCED: Final = "reduced"


class _Reduced(Struct, Generic[View], frozen=True):
    """A reduced object in a list; no JSON has a value of this type."""

    view: View


class ReducedLists(Generic[View]):
    """A `ListWatch` that lists in pages of ``page`` objects, each replaced by the result of ``reduce``, which also gets
    the results kept so far. At most one page is in memory."""

    def __init__(
        self, api: PagedApi, reduce: Callable[[Mapping[str, object], Iterable[View]], View | None], page: int
    ) -> None:
        self._api, self._reduce, self._page = api, reduce, page

    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The whole list, each object as its name and result. Raises the errors of ``get``."""
        found: dict[str, View] = {}
        items: list[dict[str, object]] = []
        page: dict[str, Any] = {}
        for page in pages(self._api.get, path, query, self._page):
            for item in page["items"]:
                if (name := key(item)) and (view := self._reduced(item, found.values())) is not None:
                    found[name] = view
                    metadata = {part: item["metadata"].get(part) for part in ("name", "namespace")}
                    items.append({"metadata": metadata, _REDUCED: _Reduced(view)})
        return {**page, "items": items}

    def watch(self, path: str, query: Mapping[str, str], read_timeout_s: float) -> Stream:
        return self._api.watch(path, query, read_timeout_s)

    def slim(self, item: Mapping[str, Any], beside: Iterable[View] = ()) -> View | None:
        """For the reflector: reduce an object of a watch; one of a list has been reduced."""
        reduced = item.get(_REDUCED)
        return reduced.view if isinstance(reduced, _Reduced) else self._reduce(item, beside)

    def _reduced(self, item: Mapping[str, object], beside: Iterable[View]) -> View | None:
        try:
            return self._reduce(item, beside)
        except UNREADABLE as error:
            log.warning("cannot read an object; it is skipped", extra={"object": key(item), "error": repr(error)})
            return None


class ReflectorChange(Struct, frozen=True):
    """One change of the copy. ``listed`` means any number of changes: the collection was listed again."""

    kind: Literal["listed", "added", "modified", "deleted"]
    name: str = ""
    item: Any = None


class Reflector:
    """A copy of the objects at ``path`` that match ``field_selector``, by `key`. ``on_event`` runs in the reflector's
    thread and must return soon; its exceptions are logged. ``slim`` makes the kept form of an object, which it may
    change; None drops the object, as if deleted. ``start`` and ``stop`` are called once, by one owner; everything else
    from any thread."""

    def __init__(
        self,
        rest: ListWatch,
        path: str,
        field_selector: str,
        on_event: Callable[[ReflectorChange], None],
        *,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
        slim: Callable[[dict[str, object]], object] | None = None,
        name: str = "reflector",
        place: metrics.Place = "publisher",
        patience: Callable[[KubernetesApiError], float] | None = None,
        newest: NewestVersion | None = None,
    ) -> None:
        """``name`` is the thread's; errors of ``on_event`` are counted under ``place``. ``newest`` is shared with the
        client that writes objects of this collection. ``patience`` returns the least seconds until the next attempt
        after an expected error, such as a collection that is not served (logged once); 0 for any other error.
        """
        self._rest, self._path, self._selector, self._place = rest, path, field_selector, place
        self._on_event, self._slim = on_event, slim or _slim
        self._patience = patience or (lambda _: 0.0)
        self._newest = newest or NewestVersion()
        self._backoff = backoff or Backoff(first_s=0.5, longest_s=30.0, rand=random.random)
        self._clock = clock
        self._lock = threading.Lock()  # guards the four fields below
        self._items: dict[str, object] = {}
        self._problem: str | None = None
        self._open: Stream | None = None
        self._list_due = False
        self._version = ""  # used by the reflector's thread alone; empty means that a list is due
        self._progress = False  # whether a watch has worked since the last list; same thread
        self._worker = Worker(
            name, self._run, on_error=partial(metrics.internal_error, place), interrupt=self._end_watch
        )

    @property
    def problem(self) -> str | None:
        """Return the reason why the copy may be outdated; None while it is current."""
        with self._lock:
            return self._problem

    def items(self) -> dict[str, Any]:
        """The current copy, by name. The objects are shared and must not be changed."""
        with self._lock:
            return dict(self._items)

    def list_again(self) -> None:
        """Ends the open watch, after which the collection is listed. Returns at once."""
        with self._lock:
            self._list_due = True
        self._end_watch()

    def start(self) -> None:
        self._worker.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Ends the open request and waits for the thread. Idempotent."""
        self._worker.stop(timeout_s)

    def _end_watch(self) -> None:
        with self._lock:
            stream = self._open
        if stream is not None:
            stream.close()

    def _run(self) -> float:
        for change in self._forever():
            try:
                self._on_event(change)
            except Exception:
                log.exception("listener failed", extra={"path": self._path})
                metrics.internal_error(self._place)
        return 0.0

    def _forever(self) -> Iterator[ReflectorChange]:
        while not self._worker.is_stopping:
            try:
                yield from self._generation()
            except KubernetesApiError as error:
                self._wait_after(error)

    def _generation(self) -> Iterator[ReflectorChange]:
        """List once, unless there is a version to resume from, then watch."""
        try:
            if not self._version or self._is_list_due():
                yield self._list()
            while not self._worker.is_stopping and not self._is_list_due():
                yield from self._one_watch()
        except GoneError:
            self._version = ""  # an ordinary event: the copy was away for longer than the server remembers
            if not self._progress:
                raise  # right after a list, an immediate repeat would be a busy loop
        except ApiUnreachableError:
            raise
        except KubernetesApiError as error:
            if isinstance(error, ServerBusyError) and error.status in _BUSY:
                raise  # unrelated to the version: after a restart of the API server all clients get it at the same time
            self._version = (
                ""  # the server may not know the version at all, e.g. when its store was restored from a backup
            )
            raise

    def _list(self) -> ReflectorChange:
        self._progress = (
            False  # before the request: an expired version of the list itself must not cause the next list immediately
        )
        self._version = ""  # a failed list is still due: a watch cannot replace it
        with self._lock:
            if self._list_due:
                self._newest.forget()  # the copy may be wrong because the server's cache is wrong
            self._list_due = False
        try:
            document = self._rest.list(self._path, {"fieldSelector": self._selector, **self._newest.query()})
        except KubernetesApiError as error:
            self._newest.failed(error)
            raise
        named = {name: self._slimmed(item) for item in document["items"] if (name := key(item))}
        items = {name: item for name, item in named.items() if item is not None}
        with self._lock:
            self._items = items
        self._version = _version(document)
        if not self._version:
            raise ApiUnreachableError(f"list {self._path}: the answer has no metadata.resourceVersion")
        self._newest.saw(self._version)
        return ReflectorChange("listed")

    def _one_watch(self) -> Iterator[ReflectorChange]:
        limit_s = random.randint(*WATCH_S)  # noqa: S311 - spreads load, keeps no secret
        query = {
            "fieldSelector": self._selector,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(limit_s),
        }
        began = self._clock()
        stream = self._rest.watch(self._path, query, limit_s + _GRACE_S)
        self._opened(stream)
        heard = False
        try:
            for event in stream:
                heard = True
                self._made_progress()
                yield from self._apply(event)
        finally:
            self._opened(None)
            stream.close()
            if self._clock() - began >= _TOO_SHORT_S:
                self._made_progress()
        if not (heard or self._worker.is_stopping or self._is_list_due()) and self._clock() - began < _TOO_SHORT_S:
            raise ApiUnreachableError(f"watch {self._path}: the server ended the request at once")

    def _is_list_due(self) -> bool:
        with self._lock:
            return self._list_due

    def _opened(self, stream: Stream | None) -> None:
        with self._lock:
            self._open = stream
            is_due = self._list_due
            recovered = stream is not None and self._problem is not None
            if recovered:
                self._problem = None
        if recovered:
            log.info("watch works again", extra={"path": self._path})
        if stream is not None and (is_due or self._worker.is_stopping):
            stream.close()  # stop() or list_again() came while the request was being opened

    def _apply(self, event: WatchEvent) -> Iterator[ReflectorChange]:
        item, kind = event.object, event.type
        version = _version(item)
        self._newest.saw(version)
        if kind == "BOOKMARK":
            self._version = version or self._version
            return
        name = key(item)
        if not name or not version or kind not in {"ADDED", "MODIFIED", "DELETED"}:
            raise ApiUnreachableError(f"watch {self._path}: a {kind} event for an object without name or version")
        slim = self._slimmed(item)
        with self._lock:
            if slim is None and name not in self._items:
                self._version = version
                return
            if kind == "DELETED" or slim is None:
                former, kind = self._items.pop(name, None), "DELETED"
                slim = former if slim is None else slim
            else:
                self._items[name] = slim
        self._version = version
        lowered: Any = kind.lower()
        yield ReflectorChange(lowered, name, slim)

    def _slimmed(self, item: dict[str, object]) -> object:
        """None for an object that `slim` cannot read: one object ends no list and no watch."""
        try:
            return self._slim(item)
        except UNREADABLE as error:
            facts = {"path": self._path, "object": f"{key(item)} at version {_version(item)}", "error": repr(error)}
            log.warning("cannot read an object; it counts as deleted", extra=facts)
            return None

    def _made_progress(self) -> None:
        self._progress = True
        self._backoff.reset()

    def _wait_after(self, error: KubernetesApiError) -> None:
        least_s = self._patience(error)
        wait_s = max(least_s, self._backoff.next_s())
        if isinstance(error, ServerBusyError):
            wait_s = max(wait_s, error.retry_after_s)
        if self._worker.is_stopping:
            return
        with self._lock:
            is_known, self._problem = self._problem == str(error), str(error)
        if least_s and is_known:
            self._worker.pause(wait_s)
            return
        # One line for the first failures, then one per doubling: the longest wait bounds the rest to two a minute.
        log.warning(
            "watch failed; will retry", extra={"path": self._path, "error": str(error), "wait_s": round(wait_s, 1)}
        )
        self._worker.pause(wait_s)


def _slim(item: dict[str, object]) -> dict[str, object]:
    """Drops managedFields, about half of a small object. Changes the item, which no other code has yet."""
    metadata = item.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
    return item


def key(item: object) -> str:
    """Return ``namespace/name`` or ``name`` of the object; "" for a value that is not an object."""
    metadata = item.get("metadata") if isinstance(item, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        return ""
    return f"{namespace}/{name}" if isinstance(namespace, str) and namespace else name


def _version(item: Mapping[str, object]) -> str:
    metadata = item.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return version if isinstance(version, str) else ""
