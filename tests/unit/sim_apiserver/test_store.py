"""The store has the API's semantics: versions, conflicts, defaults, subresources and watches."""

import threading

import pytest

from dra_driver.core.errors import ConflictError, ForbiddenError, GoneError, InvalidObjectError
from dra_driver.sim.apiserver.kinds import (
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SECRETS,
)
from dra_driver.sim.apiserver.removal import DeleteOptions
from dra_driver.sim.apiserver.store import Patch, Store
from tests.unit.sim_apiserver.builders import Obj, claim, config_map, node, owned_by, pod, resource_slice


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
    store = Store(check_cel=lambda expression: "undeclared reference" if "nope" in expression else None)
    good = claim("a", selectors=[{"cel": {"expression": "device.driver == 'x'"}}])
    assert store.create(RESOURCE_CLAIMS, good)
    with pytest.raises(InvalidObjectError, match=r"exactly.selectors\[0\].cel.expression: .*undeclared reference"):
        store.create(RESOURCE_CLAIMS, claim("b", selectors=[{"cel": {"expression": "nope"}}]))


def _family(store: Store, **reference: bool) -> Obj:
    owner = store.create(CONFIG_MAPS, config_map("owner"))
    metadata = {"name": "child", "namespace": "default", "ownerReferences": [owned_by(owner, **reference)]}
    store.create(SECRETS, {"metadata": metadata})
    return owner


def test_dependents_are_deleted_with_their_last_owner(store: Store) -> None:
    first = _family(store)
    second = store.create(NODES, node())
    child = store.get(SECRETS, "child", "default")
    child["metadata"]["ownerReferences"].append(owned_by(second))
    store.update(SECRETS, child)
    store.delete(CONFIG_MAPS, first["metadata"]["name"], "default")
    assert [ref["kind"] for ref in store.get(SECRETS, "child", "default")["metadata"]["ownerReferences"]] == ["Node"]
    store.delete(NODES, "n1")
    assert store.find(SECRETS, "child", "default") is None


def test_an_object_whose_owner_does_not_exist_is_collected(store: Store) -> None:
    """A reference with the UID of a node that was re-created does not keep a slice."""
    owner = store.create(NODES, node())
    store.delete(NODES, "n1")
    mine = resource_slice()
    mine["metadata"]["ownerReferences"] = [owned_by(owner)]
    assert store.create(RESOURCE_SLICES, mine)["metadata"]["uid"]
    assert store.list(RESOURCE_SLICES).items == []


def test_foreground_deletion_waits_for_blocking_dependents(store: Store) -> None:
    _family(store, blockOwnerDeletion=True)
    store.patch(SECRETS, "child", Patch(body={"metadata": {"finalizers": ["a.io/b"]}}), namespace="default")
    gone, _ = store.remove(CONFIG_MAPS, "owner", "default", DeleteOptions(propagation="Foreground"))
    assert not gone
    assert store.get(CONFIG_MAPS, "owner", "default")["metadata"]["finalizers"] == ["foregroundDeletion"]
    store.patch(SECRETS, "child", Patch(body={"metadata": {"finalizers": None}}), namespace="default")
    assert store.find(SECRETS, "child", "default") is None
    assert store.find(CONFIG_MAPS, "owner", "default") is None


def test_orphans_stay_without_their_reference(store: Store) -> None:
    _family(store)
    store.delete(CONFIG_MAPS, "owner", "default", DeleteOptions(propagation="Orphan"))
    assert "ownerReferences" not in store.get(SECRETS, "child", "default")["metadata"]


def test_a_running_pod_is_removed_by_its_kubelet(store: Store) -> None:
    """It is marked with its grace period; a second delete can only shorten it; grace period 0 removes."""
    store.create(PODS, pod(terminationGracePeriodSeconds=20))
    store.bind("default", "p", "n1")
    marked = store.delete(PODS, "p", "default")
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 20
    store.delete(PODS, "p", "default", DeleteOptions(grace_period_s=50))
    assert store.get(PODS, "p", "default")["metadata"]["deletionGracePeriodSeconds"] == 20
    store.delete(PODS, "p", "default", DeleteOptions(grace_period_s=5))
    assert store.get(PODS, "p", "default")["metadata"]["deletionGracePeriodSeconds"] == 5
    store.delete(PODS, "p", "default", DeleteOptions(grace_period_s=0, uid=marked["metadata"]["uid"]))
    assert store.find(PODS, "p", "default") is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pods_that_do_not_run_are_removed_at_once(phase: str, store: Store) -> None:
    store.create(PODS, pod("unassigned"))
    store.delete(PODS, "unassigned", "default")
    made = store.create(PODS, pod("ended"))
    store.bind("default", "ended", "n1")
    store.update_status(PODS, {"metadata": {"name": "ended", "namespace": "default"}, "status": {"phase": phase}})
    store.delete(PODS, "ended", "default", DeleteOptions(uid=made["metadata"]["uid"]))
    assert store.list(PODS).items == []


def test_deleting_a_namespace_deletes_its_contents(store: Store) -> None:
    store.create(NAMESPACES, {"metadata": {"name": "team"}})
    store.create(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "team"}})
    running = pod()
    running["metadata"]["namespace"] = "team"
    store.create(PODS, running)
    store.bind("team", "p", "n1")
    store.delete(NAMESPACES, "team")
    assert store.get(NAMESPACES, "team")["status"]["phase"] == "Terminating"
    assert store.list(CONFIG_MAPS, "team").items == []
    with pytest.raises(ForbiddenError, match="because it is being terminated"):
        store.create(CONFIG_MAPS, {"metadata": {"name": "b", "namespace": "team"}})
    store.delete(PODS, "p", "team", DeleteOptions(grace_period_s=0))
    assert store.find(NAMESPACES, "team") is None


def test_logs_are_dropped_with_their_pod(store: Store) -> None:
    store.create(PODS, pod())
    store.logs.append("default", "p", "main", "hello\n")
    assert [text for _, text in store.logs.read("default", "p", "main")] == ["hello"]
    store.delete(PODS, "p", "default")
    assert store.logs.read("default", "p", "main") == []
