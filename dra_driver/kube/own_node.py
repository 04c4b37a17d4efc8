"""Watch this node's Node object and keep the few bounded fields that the node process uses: the kubelet changes the
object, up to hundreds of kilobytes, every few minutes.

While the API server is away, and after the Node object is deleted, the last known value stays: neither ends a request
that an annotation made.
"""

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field

from dra_driver.kube import paths
from dra_driver.kube.reflector import ListWatch, Reflector, ReflectorChange

THREAD_NAME: Final = "own-node"
ANNOTATION_PREFIX: Final = "gpu.dra-driver.io/"
NVIDIA_PREFIX: Final = "nvidia.com/"
MAX_ENTRIES: Final = 64  # entries kept of each mapping, in order of their keys
MAX_VALUE: Final = 1024
"""Characters kept of an annotation's value; the API server bounds all annotations of an object by 256 KiB."""

_EMPTY: Final[Mapping[str, str]] = MappingProxyType({})


class OwnNode(Struct, frozen=True, kw_only=True):
    """Fields of this node's Node object: ``annotations`` whose keys begin with ``gpu.dra-driver.io/``, ``labels`` and
    ``allocatable`` (quantities as text) whose keys begin with ``nvidia.com/``, and the versions of the container
    ``runtime`` and the ``kernel``."""

    name: str
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    labels: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    allocatable: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    runtime: str = ""
    kernel: str = ""

    @classmethod
    def of(cls, item: Mapping[str, object]) -> "OwnNode":
        """Read a Node object. Fields of a wrong type count as empty."""
        metadata, status = _mapping(item, "metadata"), _mapping(item, "status")
        system = _mapping(status, "nodeInfo")
        return cls(
            name=str(metadata.get("name", "")),
            uid=str(metadata.get("uid", "")),
            annotations=_kept(_mapping(metadata, "annotations"), ANNOTATION_PREFIX),
            labels=_kept(_mapping(metadata, "labels"), NVIDIA_PREFIX),
            allocatable=_kept(_mapping(status, "allocatable"), NVIDIA_PREFIX),
            runtime=str(system.get("containerRuntimeVersion", ""))[:MAX_VALUE],
            kernel=str(system.get("kernelVersion", ""))[:MAX_VALUE],
        )


class OwnNodeWatch:
    """Keeps the newest `OwnNode`. ``start`` and ``stop`` once, by one owner; everything else from any thread."""

    def __init__(self, rest: ListWatch, name: str) -> None:
        self._lock = threading.Lock()  # guards the next two fields
        self._current: OwnNode | None = None
        self._subscribers: list[Callable[[], None]] = []
        self._first = threading.Event()
        self._reflector = Reflector(
            rest,
            paths.nodes(),
            f"metadata.name={name}",
            self.notice,
            slim=OwnNode.of,
            name=THREAD_NAME,
            place="own-node",
        )

    def start(self) -> None:
        self._reflector.start()

    def stop(self) -> None:
        self._reflector.stop()

    @property
    def problem(self) -> str | None:
        """Return the reason why the value may be outdated; None while it is current."""
        return self._reflector.problem

    def current(self) -> OwnNode | None:
        """The last known value; None before the first, and where no such Node object has existed yet."""
        with self._lock:
            return self._current

    def wait_first(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` for the API server's first answer; whether it came."""
        return self._first.wait(timeout_s)

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after each change, in the watch's thread: it must return at once."""
        with self._lock:
            self._subscribers.append(callback)

    def notice(self, change: ReflectorChange) -> None:
        item = next(iter(self._reflector.items().values()), None) if change.kind == "listed" else change.item
        if item is not None and change.kind != "deleted":
            self._update(item)
        self._first.set()

    def _update(self, node: OwnNode) -> None:
        with self._lock:
            if node == self._current:
                return
            self._current = node
            subscribers = tuple(self._subscribers)
        for callback in subscribers:
            callback()


def _mapping(item: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = item.get(key)
    return found if isinstance(found, dict) else {}


def _kept(found: Mapping[str, object], prefix: str) -> Mapping[str, str]:
    keys = sorted(key for key in found if isinstance(key, str) and key.startswith(prefix))[:MAX_ENTRIES]
    return MappingProxyType({key: str(found[key])[:MAX_VALUE] for key in keys})
