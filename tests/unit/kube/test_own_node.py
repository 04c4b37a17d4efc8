"""Which fields of a Node object are kept, and who hears of a change."""

from collections.abc import Mapping
from typing import Any

from dra_driver.kube.own_node import MAX_ENTRIES, MAX_VALUE, OwnNode, OwnNodeWatch, slim_node
from dra_driver.kube.reflector import ReflectorChange


class NoApi:
    """Nothing is requested in these tests."""

    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        raise AssertionError(path)

    def watch(self, path: str, query: Mapping[str, str], read_timeout_s: float) -> Any:
        raise AssertionError(path)


def node(*, annotations: Any = None, labels: Any = None, allocatable: Any = None) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "node-a",
            "uid": "u-1",
            "resourceVersion": "7",
            "annotations": annotations,
            "labels": labels,
            "managedFields": [{"manager": "kubelet"}],
        },
        "status": {"allocatable": allocatable, "images": [{"names": ["x" * 1000]}]},
    }


def modified(item: dict[str, Any]) -> ReflectorChange:
    return ReflectorChange("modified", "node-a", slim_node(item))


def test_only_fields_that_are_used_are_kept() -> None:
    annotations = {"gpu.dra-driver.io/detach": "why", "other.example/x": "y"}
    labels = {"nvidia.com/gpu.deploy.client": "true", "kubernetes.io/os": "linux"}
    item = node(annotations=annotations, labels=labels, allocatable={"nvidia.com/gpu": "8", "cpu": "64"})
    system = {"containerRuntimeVersion": "containerd://2.1.9", "kernelVersion": "6.1.0", "bootID": "b"}
    item["status"]["nodeInfo"] = system
    assert slim_node(item) == {
        "metadata": {
            "name": "node-a",
            "uid": "u-1",
            "resourceVersion": "7",
            "annotations": {"gpu.dra-driver.io/detach": "why"},
            "labels": {"nvidia.com/gpu.deploy.client": "true"},
        },
        "status": {
            "allocatable": {"nvidia.com/gpu": "8"},
            "nodeInfo": {"containerRuntimeVersion": "containerd://2.1.9", "kernelVersion": "6.1.0"},
        },
    }
    assert OwnNode.of(slim_node(item)) == OwnNode.of(item)


def test_hostile_objects_cost_no_memory_and_no_traceback() -> None:
    many = {f"gpu.dra-driver.io/{number}": "x" * 100_000 for number in range(1000)}
    kept = OwnNode.of(node(annotations=many, labels=["a"], allocatable="none"))
    assert len(kept.annotations) == MAX_ENTRIES
    assert {len(value) for value in kept.annotations.values()} == {MAX_VALUE}
    assert (kept.labels, kept.allocatable) == ({}, {})
    assert OwnNode.of({"metadata": None, "status": 3}).annotations == {}


def test_subscribers_hear_of_changes_to_kept_fields_alone() -> None:
    """The kubelet writes the status every few minutes."""
    watch, heard = OwnNodeWatch(NoApi(), "node-a"), list[str]()
    watch.subscribe(lambda: heard.append("changed"))
    watch.notice(modified(node()))
    watch.notice(modified({**node(), "spec": {"unschedulable": True}}))
    assert heard == ["changed"]
    watch.notice(modified(node(annotations={"gpu.dra-driver.io/detach": ""})))
    assert heard == ["changed", "changed"]
    current = watch.current()
    assert current is not None
    assert current.annotations == {"gpu.dra-driver.io/detach": ""}


def test_a_deleted_node_object_keeps_the_last_value() -> None:
    """Its deletion does not say that the driver upgrade has ended."""
    watch = OwnNodeWatch(NoApi(), "node-a")
    watch.notice(modified(node(annotations={"gpu.dra-driver.io/detach": "upgrade"})))
    before = watch.current()
    watch.notice(ReflectorChange("deleted", "node-a", slim_node(node())))
    watch.notice(ReflectorChange("listed"))
    assert watch.current() == before is not None


def test_an_answer_without_a_node_is_an_answer() -> None:
    watch = OwnNodeWatch(NoApi(), "node-a")
    assert not watch.wait_first(0.0)
    watch.notice(ReflectorChange("listed"))
    assert watch.wait_first(0.0)
    assert watch.current() is None
