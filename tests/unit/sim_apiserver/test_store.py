"""The store has the API's semantics: versions, conflicts, defaults, subresources and watches."""

import threading

import pytest

from dra_driver.core.errors import ConflictError, GoneError, InvalidObjectError
from dra_driver.sim.apiserver.kinds import CONFIG_MAPS, NODES, PODS, RESOURCE_CLAIMS
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.apiserver.writes import WriteOptions
from tests.unit.sim_apiserver.builders import claim, config_map, node, pod


def test_generated_names_are_cut_and_unique(store: Store) -> None:
    """The base is cut at 58 characters so that five more fit a label."""
    names = {store.create(NODES, {"metadata": {"generateName": "n" * 70 + "-"}})["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert {len(name) for name in names} == {63}


def test_callers_get_copies(store: Store) -> None:
    sent = config_map("a", labels={"x": "1"})
    store.create(CONFIG_MAPS, sent)
    sent["metadata"]["labels"]["x"] = "2"
    store.get(CONFIG_MAPS, "a", "default")["metadata"]["labels"]["x"] = "3"
    assert store.get(CONFIG_MAPS, "a", "default")["metadata"]["labels"] == {"x": "1"}


def test_status_is_written_through_its_subresource_only(store: Store) -> None:
    made = store.create(PODS, pod())
    store.update(PODS, made | {"status": {"phase": "Running"}})
    assert store.get(PODS, "p", "default")["status"]["phase"] == "Pending"
    renamed = made | {"metadata": made["metadata"] | {"labels": {"a": "b"}}, "status": {"phase": "Running"}}
    after = store.update_status(PODS, renamed)
    assert after["status"]["phase"] == "Running"
    assert "labels" not in after["metadata"]


def test_dry_runs_are_checked_and_not_stored(store: Store) -> None:
    assert store.create(CONFIG_MAPS, config_map("a"), options=WriteOptions(dry_run=True))["metadata"]["uid"]
    assert store.find(CONFIG_MAPS, "a", "default") is None
    with pytest.raises(InvalidObjectError):
        store.create(RESOURCE_CLAIMS, claim(deviceClassName=""), options=WriteOptions(dry_run=True))


def test_a_watch_resumes_or_fails_with_gone() -> None:
    store = Store(history_length=3)
    since = store.revision
    for name in "ab":
        store.create(NODES, node(name))
    with store.watch([NODES], since=since) as events:
        assert [change.key[1] for change in events.take_all()] == ["a", "b"]
    for name in "cd":
        store.create(NODES, node(name))
    with pytest.raises(GoneError, match="too old resource version"):
        store.watch([NODES], since=since)


def test_a_watch_sees_only_its_kinds_and_namespace(store: Store) -> None:
    with store.watch([CONFIG_MAPS], since=store.revision, namespace="kube-system") as events:
        store.create(NODES, node())
        store.create(CONFIG_MAPS, config_map("a"))
        store.create(CONFIG_MAPS, {"metadata": {"name": "b", "namespace": "kube-system"}})
        assert [change.key[1] for change in events.take_all()] == ["b"]


def test_a_closed_watch_gets_no_changes() -> None:
    store, woken = Store(), []
    with store.watch([NODES], since=store.revision, wake=lambda: woken.append(1)) as events:
        store.create(NODES, node())
        assert [change.type for change in events.take_all()] == ["ADDED"]
    store.delete(NODES, "n1")
    assert events.take_all() == []
    assert woken == [1]


def test_concurrent_writers_lose_no_update(store: Store) -> None:
    store.create(CONFIG_MAPS, config_map("a") | {"data": {"n": "0"}})

    def raise_counter() -> None:
        for _ in range(20):
            while True:
                current = store.get(CONFIG_MAPS, "a", "default")
                current["data"]["n"] = str(int(current["data"]["n"]) + 1)
                try:
                    store.update(CONFIG_MAPS, current)
                    break
                except ConflictError:
                    continue

    threads = [threading.Thread(target=raise_counter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get(CONFIG_MAPS, "a", "default")["data"]["n"] == "80"


def test_the_cel_compiler_is_asked_about_selectors() -> None:
    """The compiler's message becomes the problem of that expression's path."""
    store = Store(check_cel=lambda expression: "undeclared reference" if "nope" in expression else None)
    good = claim("a", selectors=[{"cel": {"expression": "device.driver == 'x'"}}])
    assert store.create(RESOURCE_CLAIMS, good)
    with pytest.raises(InvalidObjectError, match=r"exactly.selectors\[0\].cel.expression: .*undeclared reference"):
        store.create(RESOURCE_CLAIMS, claim("b", selectors=[{"cel": {"expression": "nope"}}]))
