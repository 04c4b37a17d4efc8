"""Recording events (bounded, joined, without blocking the caller), and the kept fields of a Node."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dra_driver.core.errors import ForbiddenError, KubernetesApiError, NotFoundError
from dra_driver.kube.events import MAX_PENDING, EventRecorder
from dra_driver.kube.objects.core import ObjectReference
from dra_driver.kube.own_node import MAX_ENTRIES, MAX_VALUE, OwnNode, OwnNodeWatch
from dra_driver.kube.reflector import ReflectorChange

NODE = ObjectReference(api_version="v1", kind="Node", name="node-a", uid="u")
POD = ObjectReference(api_version="v1", kind="Pod", namespace="ns", name="p", uid="v")


class Api:
    """Keeps what is written; ``failures`` are raised one per call."""

    def __init__(self) -> None:
        self.created: list[tuple[str, Mapping[str, Any]]] = []
        self.patched: list[tuple[str, Mapping[str, Any]]] = []
        self.failures: list[KubernetesApiError] = []

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        if self.failures:
            raise self.failures.pop(0)
        self.created.append((path, body))
        return {}

    def merge_patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.failures:
            raise self.failures.pop(0)
        self.patched.append((path, body))
        return {}


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.api = Api()
        self.recorder = EventRecorder(
            self.api, "gpu.nvidia.com", "node-a", clock=lambda: self.now, now=lambda: datetime(2026, 1, 1, tzinfo=UTC)
        )

    def say(self, text: str = "hello", about: ObjectReference = NODE, after_s: float = 0.0) -> None:
        self.now += after_s
        self.recorder.record(about, "Warning", "Reason", text)
        self.recorder.flush()


def test_an_event_is_written_where_kubectl_describe_looks() -> None:
    """In the object's namespace, in "default" for a node, with the object's UID."""
    bench = Bench()
    bench.say()
    bench.say(about=POD)
    (path, body), (pod_path, _) = bench.api.created
    assert path == "/api/v1/namespaces/default/events"
    assert pod_path == "/api/v1/namespaces/ns/events"
    assert body["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "u"}
    assert (body["type"], body["reason"], body["message"], body["count"]) == ("Warning", "Reason", "hello", 1)
    assert body["firstTimestamp"] == "2026-01-01T00:00:00Z"


def test_repeats_raise_a_count_every_ten_seconds() -> None:
    """A failure every second for a minute is one event with a count, written every ten seconds."""
    bench = Bench()
    for _ in range(61):
        bench.say(after_s=1.0)
    assert len(bench.api.created) == 1
    assert [body["count"] for _, body in bench.api.patched] == [11, 21, 31, 41, 51, 61]


def test_an_old_or_deleted_event_is_created_again() -> None:
    """The API server forgets events after an hour; a count on a deleted event would be lost."""
    bench = Bench()
    bench.say()
    bench.api.failures = [NotFoundError("gone", status=404, reason="NotFound")]
    bench.say(after_s=20)
    bench.say(after_s=700)
    assert len(bench.api.created) == 3
    assert bench.recorder.dropped == 0


def test_a_full_queue_and_a_refusal_drop_and_count() -> None:
    bench = Bench()
    for number in range(MAX_PENDING + 5):
        bench.recorder.record(NODE, "Normal", "Reason", f"text {number}")
    assert bench.recorder.dropped == 5
    bench.recorder.flush()
    assert len(bench.api.created) == MAX_PENDING
    bench = Bench()  # whose first event is refused
    bench.api.failures = [ForbiddenError("403", status=403)]
    bench.say("one")
    bench.say("two")
    assert bench.recorder.dropped == 1
    assert len(bench.api.created) == 1


def test_a_long_message_is_cut() -> None:
    """1024 characters are the API server's limit."""
    bench = Bench()
    bench.say("x" * 5000)
    assert len(bench.api.created[0][1]["message"]) == 1024


def test_stop_writes_what_is_queued() -> None:
    bench = Bench()
    bench.recorder.start()
    bench.recorder.record(NODE, "Normal", "Stopping", "bye")
    bench.recorder.stop(5)
    bench.recorder.stop(5)
    assert [body["reason"] for _, body in bench.api.created] == ["Stopping"]


class NoApi:
    """Nothing is requested in these tests."""

    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        raise AssertionError(path)

    def watch(self, path: str, query: Mapping[str, str], read_timeout_s: float) -> Any:
        raise AssertionError(path)


IDENTITY = {"name": "node-a", "uid": "u-1", "resourceVersion": "7"}


def node(*, annotations: Any = None, labels: Any = None, allocatable: Any = None) -> dict[str, Any]:
    metadata = {**IDENTITY, "annotations": annotations, "labels": labels, "managedFields": [{"manager": "kubelet"}]}
    return {"metadata": metadata, "status": {"allocatable": allocatable, "images": [{"names": ["x" * 1000]}]}}


def modified(item: dict[str, Any]) -> ReflectorChange:
    return ReflectorChange("modified", "node-a", OwnNode.of(item))


def test_only_fields_that_are_used_are_kept() -> None:
    annotations = {"gpu.dra-driver.io/detach": "why", "other.example/x": "y"}
    labels = {"nvidia.com/gpu.deploy.client": "true", "kubernetes.io/os": "linux"}
    item = node(annotations=annotations, labels=labels, allocatable={"nvidia.com/gpu": "8", "cpu": "64"})
    system = {"containerRuntimeVersion": "containerd://2.1.9", "kernelVersion": "6.1.0", "bootID": "b"}
    item["status"]["nodeInfo"] = system
    assert OwnNode.of(item) == OwnNode(
        name="node-a",
        uid="u-1",
        annotations={"gpu.dra-driver.io/detach": "why"},
        labels={"nvidia.com/gpu.deploy.client": "true"},
        allocatable={"nvidia.com/gpu": "8"},
        runtime="containerd://2.1.9",
        kernel="6.1.0",
    )


def test_hostile_objects_cost_no_memory_and_no_traceback() -> None:
    many = {f"gpu.dra-driver.io/{number}": "x" * 100_000 for number in range(1000)}
    kept = OwnNode.of(node(annotations=many, labels=["a"], allocatable="none"))
    assert len(kept.annotations) == MAX_ENTRIES
    assert {len(value) for value in kept.annotations.values()} == {MAX_VALUE}
    assert (kept.labels, kept.allocatable) == ({}, {})
    assert OwnNode.of({"metadata": None, "status": 3}).annotations == {}


def test_subscribers_hear_of_changes_to_kept_fields_alone() -> None:
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
    watch.notice(ReflectorChange("deleted", "node-a", OwnNode.of(node())))
    watch.notice(ReflectorChange("listed"))
    assert watch.current() == before is not None


def test_an_answer_without_a_node_is_an_answer() -> None:
    watch = OwnNodeWatch(NoApi(), "node-a")
    assert not watch.wait_first(0.0)
    watch.notice(ReflectorChange("listed"))
    assert watch.wait_first(0.0)
    assert watch.current() is None
