"""Deletion: dependents, what blocks it, and what stays."""

import pytest

from dra_driver.core.errors import ForbiddenError
from dra_driver.sim.apiserver.kinds import CONFIG_MAPS, NAMESPACES, NODES, PODS, RESOURCE_SLICES, SECRETS
from dra_driver.sim.apiserver.removal import DeleteOptions
from dra_driver.sim.apiserver.store import Patch, Store
from tests.unit.sim_apiserver.builders import Obj, config_map, node, owned_by, pod, resource_slice


def _family(store: Store, **reference: bool) -> Obj:
    owner = store.create(CONFIG_MAPS, config_map("owner"))
    metadata = {"name": "child", "namespace": "default", "ownerReferences": [owned_by(owner, **reference)]}
    store.create(SECRETS, {"metadata": metadata})
    return owner


def test_dependents_are_deleted_with_their_last_owner(store: Store) -> None:
    """With one owner left they stay, without the dangling reference."""
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
    """The owner stays, marked, until the dependent with a finalizer is removed."""
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
    """Unassigned and finished pods have no kubelet to wait for."""
    store.create(PODS, pod("unassigned"))
    store.delete(PODS, "unassigned", "default")
    made = store.create(PODS, pod("ended"))
    store.bind("default", "ended", "n1")
    store.update_status(PODS, {"metadata": {"name": "ended", "namespace": "default"}, "status": {"phase": phase}})
    store.delete(PODS, "ended", "default", DeleteOptions(uid=made["metadata"]["uid"]))
    assert store.list(PODS).items == []


def test_deleting_a_namespace_deletes_its_contents(store: Store) -> None:
    """It stays Terminating and refuses new objects while a running pod is in it."""
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
    """A new pod of the same name does not show the old pod's log."""
    store.create(PODS, pod())
    store.logs.append("default", "p", "main", "hello\n")
    assert [text for _, text in store.logs.read("default", "p", "main")] == ["hello"]
    store.delete(PODS, "p", "default")
    assert store.logs.read("default", "p", "main") == []
