"""The reflector over real sockets, against a server that ends, breaks, hangs and sends garbage."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.backoff import Backoff
from dra_driver.core.errors import KubernetesApiError
from dra_driver.kube.connection import Connection
from dra_driver.kube.reflector import Reflector, ReflectorChange
from dra_driver.kube.rest import RestClient, Timeouts
from dra_driver.kube.watch import WatchStream
from tests.fakes.scripted_http import Exchange, ScriptedServer

PATH = "/apis/resource.k8s.io/v1/resourceslices"
EXPIRED = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}


def item(name: str, version: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version, "managedFields": [{"manager": "m"}]}}


def event(kind: str, name: str, version: str) -> dict[str, Any]:
    return {"type": kind, "object": item(name, version)}


class ShortWatches(RestClient):
    """Shortens the read timeout, in production minutes, to a fraction of a second."""

    def watch(self, path: str, query: Any, read_timeout_s: float) -> WatchStream:
        return super().watch(path, query, 0.2)


class Heard:
    """Collects changes and lets a test wait for one."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str]] = []
        self._arrived = threading.Condition()

    def __call__(self, change: ReflectorChange) -> None:
        with self._arrived:
            self.changes.append((change.kind, change.name))
            self._arrived.notify_all()

    def wait_for(self, *wanted: tuple[str, str], timeout_s: float = 5.0) -> None:
        with self._arrived:
            found = self._arrived.wait_for(lambda: set(wanted) <= set(self.changes), timeout_s)
            assert found, f"{wanted} not in {self.changes}"


@contextmanager
def reflecting(
    script: Callable[[Exchange], None],
    tmp_path: Path,
    longest_s: float = 0.05,
    client: type[RestClient] = ShortWatches,
    listener: type[Heard] = Heard,
    **options: Any,
) -> Iterator[tuple[ScriptedServer, Reflector, Heard]]:
    with ScriptedServer(script) as server:
        path = tmp_path / "kubeconfig"
        path.write_text(server.kubeconfig())
        rest = client(Connection.load(str(path)), timeouts=Timeouts(connect_s=1, read_s=0.5, total_s=1))
        heard = listener()
        backoff = Backoff(first_s=0.02, longest_s=longest_s)
        reflector = Reflector(rest, PATH, "spec.driver=d", heard, backoff=backoff, **options)
        reflector.start()
        try:
            yield server, reflector, heard
        finally:
            reflector.stop()


def scripted(first_list: dict[str, Any], *watches: Callable[[Exchange], None]) -> Callable[[Exchange], None]:
    """Lists answer ``first_list``; the n-th watch runs the n-th function, later ones stay silent."""
    rest = iter(watches)

    def script(x: Exchange) -> None:
        if "watch" not in x.seen.query:
            x.json(first_list)
        else:
            next(rest, lambda y: y.stream([], end="hang"))(x)

    return script


LIST_7 = {"metadata": {"resourceVersion": "7"}, "items": [item("a", "3")]}


def watches(server: ScriptedServer) -> list[str]:
    return [seen.query["resourceVersion"] for seen in server.requests if "watch" in seen.query]


def lists(server: ScriptedServer) -> int:
    return sum("watch" not in seen.query for seen in server.requests)


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_lists_then_follows_and_keeps_no_managed_fields(tmp_path: Path) -> None:
    script = scripted(LIST_7, lambda x: x.stream([event("ADDED", "b", "8"), event("DELETED", "a", "9")], end="hang"))
    with reflecting(script, tmp_path) as (server, reflector, heard):
        heard.wait_for(("listed", ""), ("added", "b"), ("deleted", "a"))
        assert reflector.items() == {"b": {"metadata": {"name": "b", "resourceVersion": "8"}}}
        assert server.requests[0].query["fieldSelector"] == "spec.driver=d"
        assert server.requests[1].query["allowWatchBookmarks"] == "true"


def test_resumes_from_the_last_bookmark_without_listing(tmp_path: Path) -> None:
    script = scripted(
        LIST_7,
        lambda x: x.stream([event("BOOKMARK", "", "40")]),
        lambda x: x.stream([event("ADDED", "b", "41")], end="hang"),
    )
    with reflecting(script, tmp_path) as (server, _, heard):
        heard.wait_for(("added", "b"))
        assert watches(server)[:2] == ["7", "40"]
        assert lists(server) == 1


def test_resumes_after_a_connection_that_broke_or_fell_silent(tmp_path: Path) -> None:
    """A cut and a half-open connection cost a wait, not a list, and lose nothing."""
    script = scripted(
        LIST_7,
        lambda x: x.stream([event("ADDED", "b", "8")], end="abort"),
        lambda x: x.stream([event("ADDED", "c", "9")], end="hang"),
        lambda x: x.stream([event("ADDED", "d", "10")], end="hang"),
    )
    with reflecting(script, tmp_path) as (server, reflector, heard):
        heard.wait_for(("added", "b"), ("added", "c"), ("added", "d"))
        assert watches(server)[:3] == ["7", "8", "9"]
        assert lists(server) == 1
        assert sorted(reflector.items()) == ["a", "b", "c", "d"]


def test_an_expired_version_means_list_again(tmp_path: Path) -> None:
    """410 as an event and as a status: what happened in between is found by listing."""
    lists_left = [LIST_7, {"metadata": {"resourceVersion": "90"}, "items": [item("z", "80")]}]
    watches_left = iter([[event("BOOKMARK", "", "8"), EXPIRED]])

    def script(x: Exchange) -> None:
        if "watch" not in x.seen.query:
            x.json(lists_left.pop(0) if len(lists_left) > 1 else lists_left[0])
        elif (lines := next(watches_left, None)) is not None:
            x.stream(lines)
        else:
            x.stream([event("ADDED", "y", "91")], end="hang")

    with reflecting(script, tmp_path) as (server, reflector, heard):
        heard.wait_for(("added", "y"))
        assert heard.changes.count(("listed", "")) == 2
        assert sorted(reflector.items()) == ["y", "z"]
        assert watches(server)[:2] == ["7", "90"]


def test_a_list_after_the_first_may_come_from_the_servers_cache(tmp_path: Path) -> None:
    script = scripted(
        LIST_7,
        lambda x: x.stream([event("ADDED", "b", "41"), EXPIRED]),
        lambda x: x.stream([event("ADDED", "c", "42")], end="hang"),
    )
    with reflecting(script, tmp_path) as (server, reflector, heard):
        heard.wait_for(("added", "c"))
        reflector.list_again()
        wait_until(lambda: lists(server) >= 3)
        found = [seen.query for seen in server.requests if "watch" not in seen.query]
        assert [query.get("resourceVersion") for query in found] == [None, "41", None]
        assert [query.get("resourceVersionMatch") for query in found] == [None, "NotOlderThan", None]


@pytest.mark.parametrize(("status", "expected"), [(429, 1), (503, 1), (500, 2)])
def test_a_busy_server_is_not_asked_for_the_list_again(tmp_path: Path, status: int, expected: int) -> None:
    """After a restart it answers all clients so: the watch goes on where it stopped."""
    refusal = {"kind": "Status", "code": status, "message": "storage is (re)initializing"}
    script = scripted(
        LIST_7,
        lambda x: x.stream([event("ADDED", "b", "8")]),
        *[lambda x: x.json(refusal, status)] * 6,
        lambda x: x.stream([event("ADDED", "c", "9")], end="hang"),
    )
    with reflecting(script, tmp_path) as (server, _, heard):
        heard.wait_for(("added", "c"))
        assert min(lists(server), 2) == expected


def test_a_failing_server_gets_fewer_and_fewer_requests(tmp_path: Path) -> None:
    """A broken API server must not get thousands of requests: the pauses are 0.02, 0.04, 0.08 s and so on."""
    with reflecting(lambda x: x.json({}, status=500), tmp_path, longest_s=10) as (server, reflector, _):
        time.sleep(0.6)
        assert 2 <= len(server.requests) <= 9
        assert "500" in (reflector.problem or "")


@pytest.mark.parametrize(("events", "most"), [([], 9), ([EXPIRED], 16)], ids=["ended", "expired"])
def test_watches_that_end_at_once_count_as_failures(tmp_path: Path, events: list[Any], most: int) -> None:
    """A proxy that closes each watch politely, or list, 410, list, 410, would otherwise cause a busy loop."""

    def script(x: Exchange) -> None:
        x.stream(events) if "watch" in x.seen.query else x.json(LIST_7)

    with reflecting(script, tmp_path, longest_s=10) as (server, _, __):
        time.sleep(0.6)
        assert 2 <= len(server.requests) <= most


def test_a_list_whose_version_expires_after_a_watch_is_no_busy_loop(tmp_path: Path) -> None:
    watched = iter([[event("BOOKMARK", "", "8"), EXPIRED]])
    listed = iter([LIST_7])

    def script(x: Exchange) -> None:
        if "watch" in x.seen.query:
            x.stream(next(watched))
        elif (found := next(listed, None)) is not None:
            x.json(found)
        else:
            x.json(EXPIRED["object"], status=410)

    with reflecting(script, tmp_path, longest_s=10) as (server, reflector, _):
        time.sleep(0.6)
        assert 3 <= len(server.requests) <= 10
        assert "410" in (reflector.problem or "")


def test_garbage_is_survived(tmp_path: Path) -> None:
    script = scripted(
        LIST_7,
        lambda x: x.stream([b"not json\n"]),
        lambda x: x.stream([b"[1,2]\n"]),
        lambda x: x.stream([{"type": "ADDED", "object": {"metadata": None}}]),
        lambda x: x.stream([{"type": "NEW", "object": item("n", "8")}]),
        lambda x: x.stream([event("ADDED", "b", "9")], end="hang"),
    )
    with reflecting(script, tmp_path) as (_, reflector, heard):
        heard.wait_for(("added", "b"))
        assert sorted(reflector.items()) == ["a", "b"]


def test_events_split_over_packets_arrive_whole(tmp_path: Path) -> None:
    halves = [b'{"type":"ADDED","object":{"metadata":{"na', b'me":"b","resourceVersion":"8"}}}\n']
    with reflecting(scripted(LIST_7, lambda x: x.stream(halves, end="hang")), tmp_path) as (_, __, heard):
        heard.wait_for(("added", "b"))


def test_a_listener_that_raises_ends_nothing(tmp_path: Path) -> None:
    class Raising(Heard):
        def __call__(self, change: ReflectorChange) -> None:
            super().__call__(change)
            raise RuntimeError("a bug")

    script = scripted(LIST_7, lambda x: x.stream([event("ADDED", "b", "8")], end="hang"))
    with reflecting(script, tmp_path, listener=Raising) as (_, __, heard):
        heard.wait_for(("listed", ""), ("added", "b"))


def test_stop_ends_an_open_watch_at_once(tmp_path: Path) -> None:
    with reflecting(scripted(LIST_7), tmp_path, client=RestClient) as (server, reflector, heard):
        heard.wait_for(("listed", ""))
        wait_until(lambda: bool(watches(server)))
        began = time.monotonic()
        reflector.stop()
        assert time.monotonic() - began < 5.0
        assert not any(thread.name == "reflector" for thread in threading.enumerate())


def test_objects_are_kept_by_namespace_and_only_those_that_are_wanted(tmp_path: Path) -> None:
    def claim(namespace: str, version: str, keep: str) -> dict[str, Any]:
        return {"metadata": {"name": "c", "namespace": namespace, "resourceVersion": version, "keep": keep}}

    listed = {"metadata": {"resourceVersion": "7"}, "items": [claim("x", "1", "yes"), claim("y", "2", "no")]}
    events = [
        {"type": "MODIFIED", "object": claim("y", "8", "no")},  # was and is not kept: no news
        {"type": "MODIFIED", "object": claim("y", "9", "yes")},
        {"type": "MODIFIED", "object": claim("x", "10", "no")},
    ]

    def slim(obj: dict[str, Any]) -> str | None:
        return "kept " + obj["metadata"]["namespace"] if obj["metadata"]["keep"] == "yes" else None

    script = scripted(listed, lambda x: x.stream(events, end="hang"))
    with reflecting(script, tmp_path, slim=slim) as (_, reflector, heard):
        heard.wait_for(("deleted", "x/c"))
        assert heard.changes == [("listed", ""), ("modified", "y/c"), ("deleted", "x/c")]
        assert reflector.items() == {"y/c": "kept y"}


def test_a_list_that_was_asked_for_and_fails_is_still_due(tmp_path: Path) -> None:
    """The next watch would bring later changes alone. Three failures: an idle connection that broke is tried again."""
    first, failures = iter([LIST_7]), iter(range(3))

    def script(x: Exchange) -> None:
        if "watch" in x.seen.query:
            x.stream([], end="hang")
        elif found := next(first, None):
            x.json(found)
        elif next(failures, None) is not None:
            x.drop()
        else:
            x.json({"metadata": {"resourceVersion": "9"}, "items": [item("b", "8")]})

    with reflecting(script, tmp_path) as (_, reflector, heard):
        heard.wait_for(("listed", ""))
        reflector.list_again()
        wait_until(lambda: list(reflector.items()) == ["b"])


def test_waits_long_after_an_error_that_is_no_failure_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A kind that the API server does not serve is not asked for twice a minute by every node."""
    waits = [0.01, 0.01, 3600.0]
    not_served = {"kind": "Status", "code": 404, "message": "no such page"}

    def patience(_: KubernetesApiError) -> float:
        return waits.pop(0)

    with reflecting(lambda x: x.json(not_served, 404), tmp_path, patience=patience) as (server, reflector, _):
        wait_until(lambda: not waits)
        reflector.stop()
        assert lists(server) == 3
        assert [record.message for record in caplog.records].count("watch failed; will retry") == 1


def test_unreadable_objects_end_no_list_and_no_watch(tmp_path: Path) -> None:
    """Anyone who may create a claim could otherwise blind every client of claims."""
    deep = b'{"metadata":{"name":"deep","resourceVersion":"%d"},"spec":[' + b"[" * 5_000 + b"]" * 5_000 + b"]}"
    odd = {"type": "ADDED", "object": {**item("odd", "5"), "spec": 5}}

    def script(x: Exchange) -> None:
        if "watch" not in x.seen.query:
            x.raw(b'{"metadata":{"resourceVersion":"3"},"items":[' + deep % 2 + b"]}")
        elif x.seen.query["resourceVersion"] == "3":
            x.stream([b'{"type":"MODIFIED","object":' + deep % 4 + b"}\n", odd])
        else:
            x.stream([event("ADDED", "good", "6")], end="hang")

    def first_of_spec(found: dict[str, Any]) -> Any:
        return found.get("spec", [1])[0]

    with reflecting(script, tmp_path, slim=first_of_spec) as (server, reflector, heard):
        heard.wait_for(("listed", ""), ("modified", "deep"), ("added", "good"))
        assert (lists(server), watches(server)[:2]) == (1, ["3", "5"])
        assert sorted(reflector.items()) == ["deep", "good"]
