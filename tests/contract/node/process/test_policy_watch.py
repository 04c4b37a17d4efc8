"""The watch of GpuPolicy objects: what it asks for, what it keeps, and what is no answer."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import Any

from dra_driver.core.errors import ForbiddenError, KubernetesApiError, NotFoundError
from dra_driver.kube.reflector import Reflector, ReflectorChange
from dra_driver.kube.watch import WatchEvent
from dra_driver.node.policy import MAX_POLICIES
from dra_driver.node.process.policy_watch import HOLD_S, PAGE, REFUSED_S, PolicyWatch
from tests.fakes.stand_in import stand_in


class Stream:
    """A watch that a test feeds."""

    def __init__(self) -> None:
        self.events: SimpleQueue[WatchEvent | None] = SimpleQueue()

    def __iter__(self) -> Iterator[WatchEvent]:
        while (event := self.events.get()) is not None:
            yield event

    def close(self) -> None:
        self.events.put(None)


class Api:
    """An API server with GpuPolicy objects, in pages."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, Any]] = {}
        self.error: KubernetesApiError | None = None
        self.pages: list[Mapping[str, str]] = []
        self.streams: SimpleQueue[Stream] = SimpleQueue()

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        assert path == "/apis/gpu.dra-driver.io/v1alpha1/gpupolicies"
        if self.error is not None:
            raise self.error
        asked = dict(query or {})
        self.pages.append(asked)
        begin, size = int(asked.get("continue", 0)), int(asked["limit"])
        items = [self.stored[name] for name in sorted(self.stored)]
        more = {"continue": str(begin + size)} if begin + size < len(items) else {}
        return {"metadata": {"resourceVersion": "7", **more}, "items": items[begin : begin + size]}

    def watch(self, path: str, query: Mapping[str, str], read_timeout_s: float) -> Stream:
        assert query["resourceVersion"]
        if self.error is not None:
            raise self.error
        stream = Stream()
        self.streams.put(stream)
        return stream

    def add(self, *names: str, **spec: Any) -> None:
        self.stored |= {name: policy(name, **spec) for name in names}


def policy(name: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "resourceVersion": "8", "generation": 1, "annotations": {"note": "x" * 100}}
    return {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuPolicy", "metadata": metadata, "spec": spec}


class Node:
    """A running watch, with a clock of its own."""

    def __init__(self, api: Api) -> None:
        self.api, self.now = api, 0.0
        self.noticed = threading.Event()
        self.on_clock: Callable[[], None] = lambda: None
        self._changes = threading.Condition()
        self.watch = PolicyWatch(stand_in(api), "node-1", self._changed, clock=self._clock)

    def _clock(self) -> float:
        self.on_clock()
        return self.now

    def _changed(self) -> None:
        with self._changes:
            self._changes.notify_all()

    def until(self, wanted: Callable[[], bool]) -> None:
        """Waits for ``wanted``, which may depend on the clock: it is asked again every few milliseconds."""
        deadline = time.monotonic() + 10.0
        with self._changes:
            while not wanted():
                assert time.monotonic() < deadline, self.watch.current()
                self._changes.wait(0.005)

    def names(self) -> list[str] | None:
        found = self.watch.current()
        return [each.name for each in found] if found is not None else None

    def has(self, *names: str) -> None:
        self.until(lambda: self.names() == list(names))

    def pass_time(self) -> "Node":
        self.now += HOLD_S
        self.names()
        return self

    def tell(self, stream: Stream, kind: str, item: dict[str, Any]) -> None:
        stream.events.put(WatchEvent(type=kind, object=item))


@contextmanager
def watching(*names: str, api: Api | None = None) -> Iterator[Node]:
    node = Node(api if api is not None else Api())
    node.api.add(*names)
    node.watch.start()
    try:
        yield node
    finally:
        node.watch.stop()


def settled(node: Node, stream: Stream) -> None:
    marker = policy("zz-marker", select={"nodeNames": ["node-1"]})
    node.tell(stream, "ADDED", marker)
    node.until(lambda: "zz-marker" in (node.names() or []))


def test_objects_for_this_node_are_listed_in_small_pages_and_followed() -> None:
    api = Api()
    api.add(*(f"p{number:03}" for number in range(PAGE + 1)))
    api.add(*(f"z{number}" for number in range(20 * PAGE)), select={"nodeNames": ["another"]})
    with watching(api=api) as node:
        node.until(lambda: len(node.names() or []) == PAGE + 1)
        assert [page["limit"] for page in api.pages] == [str(PAGE)] * 22
        stream = api.streams.get(timeout=5)
        node.tell(stream, "ADDED", policy("q"))
        node.until(lambda: "q" in (node.names() or []))
        node.tell(stream, "MODIFIED", policy("q", priority=5))
        node.until(lambda: any(b'"priority":5' in (each.data or b"") for each in node.watch.current() or ()))
        assert node.watch.problem is None


def test_of_a_flood_names_are_kept_and_contents_again_when_it_is_over() -> None:
    api = Api()
    api.add(*(f"p{number:03}" for number in range(MAX_POLICIES + 2)))
    with watching(api=api) as node:
        node.until(lambda: len(node.names() or []) == MAX_POLICIES + 2)
        assert [each.data is None for each in node.watch.current() or ()].count(True) == 2
        stream = api.streams.get(timeout=5)
        for name in ("p000", "p001"):
            node.tell(stream, "DELETED", api.stored.pop(name))
        node.until(lambda: len(node.pass_time().names() or []) == MAX_POLICIES)
        node.until(lambda: all(each.data for each in node.watch.current() or ()))


def test_a_deletion_counts_after_a_while() -> None:
    with watching("a", "b") as node:
        node.has("a", "b")
        stream = node.api.streams.get(timeout=5)
        node.tell(stream, "DELETED", node.api.stored.pop("a"))
        settled(node, stream)
        assert node.names() == ["a", "b", "zz-marker"]
        node.now += HOLD_S
        assert node.names() == ["b", "zz-marker"]


def test_a_deletion_during_the_copy_of_another_one_is_not_lost() -> None:
    with watching("a", "b", "c") as node:
        node.has("a", "b", "c")
        stream = node.api.streams.get(timeout=5)
        node.tell(stream, "DELETED", node.api.stored.pop("a"))
        settled(node, stream)
        here = threading.get_ident()

        def copied(frame: FrameType, event: str, _argument: object) -> None:
            if event == "return" and frame.f_code is Reflector.items.__code__ and "b" in node.api.stored:
                node.tell(stream, "DELETED", node.api.stored.pop("b"))
                node.noticed.wait(0.2)  # as far as the watch's thread can come

        def clock() -> None:
            if threading.get_ident() != here:
                node.noticed.set()

        node.on_clock = clock
        node.now += HOLD_S
        sys.setprofile(copied)
        try:
            node.names()
        finally:
            sys.setprofile(None)
        node.until(lambda: node.pass_time().names() == ["c", "zz-marker"])


def test_a_policy_without_content_is_read_when_another_one_shrank() -> None:
    api = Api()
    api.add(*(f"p{number:02}" for number in range(17)), padding="x" * 63 * 1024)
    with watching(api=api) as node:
        node.until(lambda: [each.data is None for each in node.watch.current() or ()].count(True) == 1)
        stream = api.streams.get(timeout=5)
        api.add("p00")
        node.tell(stream, "MODIFIED", api.stored["p00"])
        node.until(lambda: all(each.data for each in node.pass_time().watch.current() or ()))


def test_that_none_is_left_is_believed_after_a_list() -> None:
    with watching("a") as node:
        node.has("a")
        stream = node.api.streams.get(timeout=5)
        node.tell(stream, "DELETED", node.api.stored.pop("a"))
        node.tell(stream, "BOOKMARK", {"metadata": {"resourceVersion": "9"}})
        node.until(lambda: node.pass_time().names() == [])
        assert len(node.api.pages) == 2


def test_a_definition_that_is_deleted_keeps_the_policies() -> None:
    with watching("a", "b") as node:
        node.has("a", "b")
        stream = node.api.streams.get(timeout=5)
        node.api.error = NotFoundError("404 page not found")
        for name in ("a", "b"):
            node.tell(stream, "DELETED", node.api.stored.pop(name))
        node.until(lambda: node.pass_time().watch.is_absent)
        assert node.names() == ["a", "b"]
        assert "404" in str(node.watch.problem)


def test_a_kind_that_is_not_served_is_told_and_not_asked_for_again_soon() -> None:
    api = Api()
    api.error = NotFoundError("404 page not found")
    with watching(api=api) as node:
        node.until(lambda: node.watch.is_absent)
        assert node.names() is None
        assert len(api.pages) == 0
    with watching() as node:
        node.has()
        assert not node.watch.is_absent, "an empty list of a kind that is served"


def test_a_definition_that_comes_right_after_the_start_is_found_soon() -> None:
    """A node that starts with the installation is there before the definitions are; and where they never come, a fleet
    asks little."""
    watch = PolicyWatch(stand_in(Api()), "node-1", lambda: None)
    waits = [watch.patience(NotFoundError("404 page not found")) for _ in range(8)]
    assert sum(waits[:2]) <= 30
    assert all(150 <= wait <= 300 for wait in waits[5:])
    watch.notice(ReflectorChange("listed"))
    assert watch.patience(NotFoundError("404 page not found")) <= 10


def test_a_refusal_counts_when_it_lasts() -> None:
    """An API server that has just started refuses what it has not read the roles for."""
    api = Api()
    api.error = ForbiddenError("gpupolicies is forbidden: RBAC: not found")
    with watching(api=api) as node:
        node.until(lambda: node.watch.problem is not None)
        assert not node.watch.is_absent
        node.now += REFUSED_S
        node.until(lambda: node.watch.is_absent)
    api.add("a")
    with watching(api=api) as node:
        node.until(lambda: node.watch.problem is not None)
        api.error = None
        node.has("a")
        assert not node.watch.is_absent
