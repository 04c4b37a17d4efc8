"""The store has the API's semantics: versions, conflicts, defaults, subresources and watches."""

import threading

import pytest

from dra_driver.core.errors import AlreadyExistsError, ConflictError, GoneError, InvalidObjectError, NotFoundError
from dra_driver.sim.apiserver.kinds import CONFIG_MAPS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.apiserver.patching import JSON_PATCH
from dra_driver.sim.apiserver.store import Patch, Store
from dra_driver.sim.apiserver.writes import WriteOptions
from tests.unit.sim_apiserver.builders import claim, config_map, node, pod, resource_slice


def test_a_created_object_has_the_servers_metadata() -> None:
    """UID, creation time, generation and a resourceVersion; a status in the request is dropped."""
    made = Store().create(RESOURCE_CLAIMS, claim() | {"status": {"allocation": {}}})
    assert made["metadata"]["uid"]
    assert made["metadata"]["creationTimestamp"].endswith("Z")
    assert made["status"] == {}
    assert made["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1


def test_generated_names_are_cut_and_unique() -> None:
    """The base is cut at 58 characters so that five more fit a label."""
    store = Store()
    names = {store.create(NODES, {"metadata": {"generateName": "n" * 70 + "-"}})["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert {len(name) for name in names} == {63}


def test_callers_get_copies() -> None:
    """Changing an object that was passed in or returned does not change the stored one."""
    store = Store()
    sent = config_map("a", labels={"x": "1"})
    store.create(CONFIG_MAPS, sent)
    sent["metadata"]["labels"]["x"] = "2"
    store.get(CONFIG_MAPS, "a", "default")["metadata"]["labels"]["x"] = "3"
    assert store.get(CONFIG_MAPS, "a", "default")["metadata"]["labels"] == {"x": "1"}


def test_a_taken_name_and_a_missing_object_have_their_errors() -> None:
    """AlreadyExists and NotFound, with the Status details that clients read."""
    store = Store()
    store.create(CONFIG_MAPS, config_map("a"))
    with pytest.raises(AlreadyExistsError) as taken:
        store.create(CONFIG_MAPS, config_map("a"))
    assert taken.value.details == {"name": "a", "kind": "configmaps"}
    with pytest.raises(NotFoundError, match='configmaps "b" not found'):
        store.get(CONFIG_MAPS, "b", "default")


def test_a_stale_write_conflicts_and_an_unconditional_one_does_not() -> None:
    """resourceVersion is the precondition; without it the last writer wins."""
    store = Store()
    old = store.create(CONFIG_MAPS, config_map("a"))
    store.update(CONFIG_MAPS, old | {"data": {"x": "1"}})
    with pytest.raises(ConflictError, match="the object has been modified"):
        store.update(CONFIG_MAPS, old | {"data": {"x": "2"}})
    made = store.update(CONFIG_MAPS, config_map("a") | {"data": {"x": "3"}})
    assert made["data"] == {"x": "3"}


def test_a_write_without_a_change_is_not_stored() -> None:
    """The version stays, and watches get no event."""
    store = Store()
    made = store.create(CONFIG_MAPS, config_map("a"))
    with store.watch([CONFIG_MAPS], since=store.revision) as events:
        assert store.update(CONFIG_MAPS, made) == made
        assert events.take_all() == []


def test_status_is_written_through_its_subresource_only() -> None:
    """An update keeps the stored status, a status update keeps everything else."""
    store = Store()
    made = store.create(PODS, pod())
    store.update(PODS, made | {"status": {"phase": "Running"}})
    assert store.get(PODS, "p", "default")["status"]["phase"] == "Pending"
    renamed = made | {"metadata": made["metadata"] | {"labels": {"a": "b"}}, "status": {"phase": "Running"}}
    after = store.update_status(PODS, renamed)
    assert after["status"]["phase"] == "Running"
    assert "labels" not in after["metadata"]


def test_generation_counts_changes_of_the_spec() -> None:
    """Labels do not count, spec does."""
    store = Store()
    store.create(RESOURCE_SLICES, resource_slice())
    labelled = store.patch(RESOURCE_SLICES, "s", Patch(body={"metadata": {"labels": {"a": "b"}}}))
    assert labelled["metadata"]["generation"] == 1
    changed = store.patch(RESOURCE_SLICES, "s", Patch(body={"spec": {"devices": [{"name": "gpu-1"}]}}))
    assert changed["metadata"]["generation"] == 2


def test_dry_runs_are_checked_and_not_stored() -> None:
    """They fail like the write would, and store nothing."""
    store = Store()
    assert store.create(CONFIG_MAPS, config_map("a"), options=WriteOptions(dry_run=True))["metadata"]["uid"]
    assert store.find(CONFIG_MAPS, "a", "default") is None
    with pytest.raises(InvalidObjectError):
        store.create(RESOURCE_CLAIMS, claim(deviceClassName=""), options=WriteOptions(dry_run=True))


def test_lists_are_in_key_order_and_selected() -> None:
    """By namespace, labels and any dotted field; a watch can continue from the list's revision."""
    store = Store()
    for name in ("b", "a"):
        store.create(CONFIG_MAPS, config_map(name, labels={"app": name}))
    found = store.list(CONFIG_MAPS, "default")
    assert [item["metadata"]["name"] for item in found.items] == ["a", "b"]
    assert found.resource_version == store.revision
    assert len(store.list(CONFIG_MAPS, labels="app in (a)").items) == 1
    assert len(store.list(CONFIG_MAPS, fields="metadata.labels.app=b").items) == 1
    assert store.list(CONFIG_MAPS, "kube-system").items == []


def test_creating_in_an_unknown_namespace_fails() -> None:
    """NotFound for the namespace."""
    with pytest.raises(NotFoundError, match='namespaces "nowhere" not found'):
        Store().create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace="nowhere")


def test_a_watch_starts_with_existing_objects() -> None:
    """Existing objects as ADDED, then changes, each with the version to resume from."""
    store = Store()
    store.create(NODES, node("n1"))
    with store.watch([NODES]) as events:
        store.create(NODES, node("n2"))
        store.delete(NODES, "n1")
        seen = events.take_all()
        assert [(change.type, change.key[1]) for change in seen] == [
            ("ADDED", "n1"),
            ("ADDED", "n2"),
            ("DELETED", "n1"),
        ]
        assert seen[-1].record.revision == store.revision


def test_a_watch_resumes_or_fails_with_gone() -> None:
    """Changes after a revision, or GoneError if the history does not reach back."""
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


def test_a_watch_sees_only_its_kinds_and_namespace() -> None:
    """Other kinds and namespaces are left out."""
    store = Store()
    with store.watch([CONFIG_MAPS], since=store.revision, namespace="kube-system") as events:
        store.create(NODES, node())
        store.create(CONFIG_MAPS, config_map("a"))
        store.create(CONFIG_MAPS, {"metadata": {"name": "b", "namespace": "kube-system"}})
        assert [change.key[1] for change in events.take_all()] == ["b"]


def test_a_closed_watch_gets_no_changes() -> None:
    """Each write wakes an open watch; later writes do not reach a closed one."""
    store, woken = Store(), []
    with store.watch([NODES], since=store.revision, wake=lambda: woken.append(1)) as events:
        store.create(NODES, node())
        assert [change.type for change in events.take_all()] == ["ADDED"]
    store.delete(NODES, "n1")
    assert events.take_all() == []
    assert woken == [1]


def test_concurrent_writers_lose_no_update() -> None:
    """A counter that four threads increment, with retries on conflicts, has the exact sum."""
    store = Store()
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


def test_binding_assigns_a_pod_once() -> None:
    """The node name and the PodScheduled condition appear; a second binding conflicts."""
    store = Store()
    store.create(PODS, pod())
    bound = store.bind("default", "p", "n1")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["status"]["conditions"][0]["type"] == "PodScheduled"
    with pytest.raises(ConflictError, match='already assigned to node "n1"'):
        store.bind("default", "p", "n2")


def test_patches_name_their_type() -> None:
    """A JSON patch is a list of operations; anything else is refused as such."""
    store = Store()
    store.create(CONFIG_MAPS, config_map("a"))
    added = [{"op": "add", "path": "/data", "value": {"x": "1"}}]
    changed = store.patch(CONFIG_MAPS, "a", Patch(body=added, type=JSON_PATCH), namespace="default")
    assert changed["data"] == {"x": "1"}
    with pytest.raises(InvalidObjectError, match="must be an object"):
        store.patch(CONFIG_MAPS, "a", Patch(body=added), namespace="default")
    with pytest.raises(NotFoundError):
        store.patch(CONFIG_MAPS, "b", Patch(body={}), namespace="default")


def test_the_cel_compiler_is_asked_about_selectors() -> None:
    """The compiler's message becomes the problem of that expression's path."""
    store = Store(check_cel=lambda expression: "undeclared reference" if "nope" in expression else None)
    good = claim("a", selectors=[{"cel": {"expression": "device.driver == 'x'"}}])
    assert store.create(RESOURCE_CLAIMS, good)
    with pytest.raises(InvalidObjectError, match=r"exactly.selectors\[0\].cel.expression: .*undeclared reference"):
        store.create(RESOURCE_CLAIMS, claim("b", selectors=[{"cel": {"expression": "nope"}}]))
