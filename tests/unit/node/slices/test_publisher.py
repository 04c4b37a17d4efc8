"""The publisher against the API in memory, step by step on a clock that the test sets, and its schedule."""

import threading
from typing import Any

import pytest

from dra_driver.core.errors import (
    ApiUnreachableError,
    ConflictError,
    ForbiddenError,
    InvalidObjectError,
    ServerBusyError,
)
from dra_driver.kube.objects.core import ObjectReference
from dra_driver.kube.reflector import ReflectorChange
from dra_driver.node.slices.publisher import Publisher, Schedule
from tests.fakes.slices_api import FakeSlicesApi
from tests.unit.node.slices.gpus import Passes, gpu, node_of, snapshot

DOWN = ApiUnreachableError("connection refused")


class Bench(Passes):
    """A publisher, its API, its clock and what it reported."""

    def __init__(self, api: FakeSlicesApi | None = None) -> None:
        self.api = api or FakeSlicesApi()
        self.events: list[tuple[str, str, str]] = []
        self.publisher = Publisher(
            self.api, "gpu.nvidia.com", "node-a", recorder=self, schedule=Schedule(rand=lambda: 0.5),
            clock=lambda: self.now,
        )  # fmt: skip
        self.api.listeners.append(self.publisher.notice)

    def record(self, about: ObjectReference, kind: str, reason: str, message: str) -> None:
        self.events.append((about.name, reason, message))

    def devices(self) -> list[str]:
        return [
            device["name"] for _, item in sorted(self.api.objects.items()) for device in item["spec"].get("devices", [])
        ]

    def published(self, count: int = 2) -> "Bench":
        self.publisher.set_snapshot(node_of(count))
        self.run(0)
        self.api.writes.clear()
        return self

    @property
    def only(self) -> str:
        (name,) = self.api.objects
        return name


@pytest.fixture
def bench() -> Bench:
    """Whose two GPUs are published."""
    return Bench().published()


def test_before_the_first_snapshot_nothing_is_written() -> None:
    """What an earlier process published stays while the NVIDIA driver is not ready yet."""
    api = FakeSlicesApi()
    Bench(api).published()
    bench = Bench(api)
    bench.run(10_000)
    assert bench.devices() == ["gpu-0", "gpu-1"]
    assert bench.api.writes == []


def test_a_restart_and_a_repeated_snapshot_write_nothing() -> None:
    first = Bench().published(8)
    first.publisher.set_snapshot(node_of(8))
    first.run(1)
    second = Bench(first.api)
    second.publisher.set_snapshot(node_of(8))
    second.run(5000)
    assert first.api.writes == []
    assert second.publisher.published


def test_a_changed_gpu_is_one_update(bench: Bench) -> None:
    lists = bench.api.lists
    bench.publisher.set_snapshot(snapshot(gpu(0), gpu(1, numa_node=1)))
    bench.run(60)
    assert [verb for verb, _ in bench.api.writes] == ["update"]
    assert bench.api.lists == lists + 1


def test_slices_that_the_kubelet_deletes_are_back_within_two_seconds() -> None:
    bench = Bench().published(65)
    assert len(bench.api.objects) == 2
    bench.api.remove_all()
    bench.run(0.2)
    assert bench.api.objects == {}
    bench.run(1.8)
    assert len(bench.devices()) == 65
    assert bench.publisher.problem is None


def test_a_slice_deleted_during_a_write_is_repaired_too() -> None:
    bench = Bench()
    bench.publisher.set_snapshot(node_of(65))
    bench.api.during_write = bench.api.remove_all
    bench.publisher.step()
    bench.api.during_write = lambda: None
    bench.run(3)
    assert len(bench.devices()) == 65


def test_an_unreachable_api_server_at_start_is_retried() -> None:
    bench = Bench()
    bench.api.failures = [DOWN] * 6
    bench.publisher.set_snapshot(node_of(1))
    bench.run(0)
    assert not bench.publisher.published
    assert "connection refused" in (bench.publisher.problem or "")
    bench.run(120)
    assert bench.publisher.published
    assert bench.publisher.problem is None
    assert bench.api.failures == []


def test_an_unreachable_api_server_is_asked_rarely(bench: Bench) -> None:
    bench.api.failures = [DOWN] * 10_000
    bench.api.remove_all()
    bench.run(3600)
    attempts = 10_000 - len(bench.api.failures)
    assert 100 < attempts < 250
    bench.api.failures.clear()
    bench.run(60)
    assert bench.devices() == ["gpu-0", "gpu-1"]


def test_retry_after_is_respected() -> None:
    bench = Bench()
    bench.api.failures = [ServerBusyError("busy", status=429, retry_after_s=20.0)]
    bench.publisher.set_snapshot(node_of(1))
    bench.run(19)
    assert not bench.publisher.published
    bench.run(2)
    assert bench.publisher.published


def test_a_conflict_is_retried_on_a_new_list(bench: Bench) -> None:
    raced: list[object] = []

    def race() -> None:
        if not raced:
            raced.append(True)
            bench.api.edit(bench.only, lambda item: item["metadata"].update(labels={"x": "y"}))

    bench.api.during_write = race
    bench.publisher.set_snapshot(node_of(3))
    bench.run(5)
    assert bench.devices() == ["gpu-0", "gpu-1", "gpu-2"]
    assert bench.api.objects[bench.only]["metadata"]["labels"] == {"x": "y"}


@pytest.mark.parametrize(
    "error",
    [ForbiddenError("403: not allowed", status=403), InvalidObjectError("422: spec.devices[0]", status=422),
     ConflictError("409", status=409)],
)  # fmt: skip
def test_a_refusal_is_a_problem_that_people_can_read(error: Exception, bench: Bench) -> None:
    """In readiness and, where the API server takes it, as an event on the node."""
    bench.api.failures = [error] * 3  # type: ignore[list-item]
    bench.publisher.set_snapshot(node_of(3))
    bench.run(0)
    assert str(error) in (bench.publisher.problem or "")
    assert [(name, reason) for name, reason, _ in bench.events] == [("node-a", "ResourceSliceProblem")]
    bench.run(10)
    assert bench.publisher.problem is None
    assert len(bench.events) == 1


def test_a_node_that_does_not_exist_is_a_problem_until_it_does() -> None:
    bench = Bench()
    bench.api.uid = None
    bench.publisher.set_snapshot(node_of(1))
    bench.run(0)
    assert 'nodes "node-a" not found' in (bench.publisher.problem or "")
    bench.api.uid = "late"
    bench.run(5)
    assert bench.publisher.published


def test_a_recreated_node_object_owns_the_new_slices(bench: Bench) -> None:
    bench.api.uid = "node-uid-2"
    bench.api.remove_all()
    bench.run(3)
    owners = bench.api.objects[bench.only]["metadata"]["ownerReferences"]
    assert [owner["uid"] for owner in owners] == ["node-uid-2"]


def test_a_second_publisher_in_another_pool_is_reported_and_left_alone(bench: Bench) -> None:
    foreign = bench.api.add(
        {"metadata": {}, "spec": {"driver": "gpu.nvidia.com", "nodeName": "node-a", "pool": {"name": "node-a"}}}
    )
    bench.run(2)
    problem = bench.publisher.problem or ""
    assert "second publisher" in problem
    assert "(node-a)" in problem
    assert len(bench.events) == 1
    bench.run(4000)
    assert foreign in bench.api.objects
    assert bench.api.writes == []
    assert len(bench.events) == 1
    bench.api.remove(foreign)
    bench.run(2)
    assert bench.publisher.problem is None


def test_changes_of_other_drivers_count_as_noticed() -> None:
    publisher = Bench().publisher
    item = {"metadata": {"name": "theirs"}, "spec": {"driver": "other.example.com"}}
    for change in (ReflectorChange("listed"), ReflectorChange("added", "theirs", item), ReflectorChange("deleted")):
        before = publisher.noticed
        publisher.notice(change)
        assert publisher.noticed == before + 1


def test_a_second_publisher_in_the_same_pool_is_not_fought(bench: Bench) -> None:
    def stranger(change: Any) -> None:
        devices = (change.item or {}).get("spec", {}).get("devices", [])
        if change.kind == "modified" and [device["name"] for device in devices] == ["gpu-0", "gpu-1"]:
            bench.api.edit(change.name, lambda item: item["spec"]["devices"].pop())

    bench.api.listeners.append(stranger)
    bench.api.edit(bench.only, lambda item: item["spec"]["devices"].pop())
    bench.run(600)
    assert 5 < len(bench.api.writes) < 20
    assert "second publisher" in (bench.publisher.problem or "")
    assert len(bench.events) >= 1
    bench.api.listeners.remove(stranger)
    bench.run(1000)
    assert bench.publisher.problem is None
    assert bench.devices() == ["gpu-0", "gpu-1"]


def test_two_processes_that_publish_the_same_do_not_disturb_each_other() -> None:
    first = Bench().published()
    second = Bench(first.api)
    second.publisher.set_snapshot(node_of(2))
    for _ in range(5):
        second.run(10)
        first.run(10)
    assert first.api.writes == []


def test_a_dropped_field_is_reported_and_not_written_again() -> None:
    bench = Bench()
    bench.api.drops = {"capacity"}
    bench.publisher.set_snapshot(node_of(1))
    bench.run(5000)
    assert [verb for verb, _ in bench.api.writes] == ["create"]
    assert "spec.devices[0].capacity" in (bench.publisher.problem or "")
    assert bench.publisher.published
    bench.api.drops = set()
    bench.publisher.set_snapshot(node_of(2))
    bench.run(10)
    assert bench.publisher.problem is None
    assert [verb for verb, _ in bench.api.writes] == ["create", "update"]


def test_a_bug_in_a_pass_does_not_kill_the_thread() -> None:
    class Buggy(FakeSlicesApi):
        def list(self) -> Any:
            if self.lists == 0:
                self.lists = 1
                raise ZeroDivisionError
            return super().list()

    api = Buggy()
    done = threading.Event()
    api.listeners.append(lambda change: done.set())
    publisher = Publisher(api, "gpu.nvidia.com", "node-a", schedule=Schedule(rand=lambda: 1.0))
    publisher.set_snapshot(node_of(1))
    publisher.start()
    assert done.wait(5)
    publisher.stop()


def test_stopping_leaves_the_slices() -> None:
    api = FakeSlicesApi()
    done = threading.Event()
    api.listeners.append(lambda change: done.set())
    publisher = Publisher(api, "gpu.nvidia.com", "node-a")
    publisher.start()
    publisher.set_snapshot(node_of(1))
    assert done.wait(5)
    publisher.stop()
    publisher.stop()
    assert len(api.objects) == 1
    assert not any(thread.name == "publisher" for thread in threading.enumerate())


def schedule(rand: float = 1.0) -> Schedule:
    return Schedule(rand=lambda: rand)


def test_own_changes_are_due_at_once_even_while_waiting_after_a_failure() -> None:
    compute_writes = schedule()
    compute_writes.failed(100.0)
    compute_writes.wanted(100.1)
    assert compute_writes.due_s() == 100.1


def test_more_changes_do_not_delay_a_repair() -> None:
    compute_writes = schedule()
    compute_writes.disturbed(100.0)
    first = compute_writes.due_s()
    compute_writes.disturbed(101.0)
    assert compute_writes.due_s() == first


def test_a_disturbance_does_not_shorten_the_wait_after_a_failure() -> None:
    """Otherwise every event would be another attempt against an overloaded server."""
    compute_writes = schedule(0.0)
    for _ in range(6):
        compute_writes.failed(100.0)
    compute_writes.disturbed(100.0)
    assert compute_writes.due_s() == 116.0
