"""Overlapping devices are never offered without the counters that exclude them, whatever the API server does."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_driver.core.errors import ApiUnreachableError, ForbiddenError
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy, Taint
from dra_driver.kube.discovery import ServerVersion
from dra_driver.kube.reflector import ReflectorChange
from dra_driver.node.slices.features import FeatureWatch
from dra_driver.node.slices.publisher import Publisher, Schedule
from tests.fakes.slices_api import FakeSlicesApi
from tests.unit.node.slices.gpus import (
    A100,
    ALL,
    H100,
    Passes,
    doubly_offered,
    gpu,
    h100s,
    instance,
    mig_gpu,
    offered,
    snapshot,
)

COUNTERS = {"sharedCounters", "consumesCounters"}
TAINTED = GpuTerms(policy="p", taints=(Taint(key="example.com/reserved", effect="NoSchedule"),))
SHARED = GpuTerms(policy="p", sharing=SharingTerms(strategy=Strategy.TIME_SLICING))


class Server(Passes):
    """An API server that is checked after every change, and the publishers that use it."""

    def __init__(self, minor: int = 36) -> None:
        self.api = FakeSlicesApi()
        self.patch = -1
        self.become(minor)
        self.api.listeners.append(self.heard)
        self.start()

    def start(self) -> None:
        """A new node process."""
        features = FeatureWatch(self.api, self.version, "gpu.nvidia.com", "node-a")
        self.publisher = Publisher(
            self.api, "gpu.nvidia.com", "node-a", features=features, schedule=Schedule(rand=lambda: 0.5),
            clock=lambda: self.now,
        )  # fmt: skip

    def become(self, minor: int) -> None:
        """Another version of Kubernetes."""
        self.minor = minor
        self.patch += 1
        self.api.is_1_34 = minor == 34

    def version(self) -> ServerVersion:
        return ServerVersion(git_version=f"v1.{self.minor}.{self.patch}", major=1, minor=self.minor)

    def heard(self, change: ReflectorChange) -> None:
        assert doubly_offered(self.api.objects, is_1_34=self.api.is_1_34) == []
        self.publisher.notice(change)

    def show(self, shot: Snapshot, terms: GpuTerms | None = None, seconds: float = 0.0) -> None:
        self.publisher.set_snapshot(shot, {one.uuid: terms for one in shot.gpus} if terms is not None else {})
        self.run(seconds)

    def names(self) -> list[str]:
        return [device["name"] for device in offered(self.api.objects)]


@pytest.fixture
def server() -> Server:
    return Server()


def test_the_server_is_asked_before_anything_is_written(server: Server) -> None:
    asked_first: list[int] = []
    server.api.during_write = lambda: asked_first.append(server.api.asked)
    server.show(h100s(2))
    assert asked_first[0] == server.api.asked == 5
    assert len(server.names()) == 52
    assert server.publisher.published
    assert server.publisher.features == ALL
    assert server.publisher.left_out == ()


def test_partitions_that_claims_get_and_release_cost_no_request(server: Server) -> None:
    server.show(h100s(1))
    lists = server.api.lists
    board = mig_gpu(H100, mig_enabled=True, mig_mode_owned=True)
    for profile_id, start in ((19, 6), (19, 5), (9, 0)):
        server.show(
            snapshot(replace(board, mig_instances=(instance(board, profile_id, start, owned=True),))), seconds=5
        )
    assert server.api.lists == lists
    assert server.publisher.published


def test_a_server_without_counters_gets_whole_gpus_with_a_reason(server: Server) -> None:
    """1.34 and 1.35 with their default gates."""
    server.api.drops = COUNTERS
    server.show(h100s(2))
    assert server.names() == ["gpu-0", "gpu-1"]
    assert all("DRAPartitionableDevices" in gpu.reason for gpu in server.publisher.left_out)
    assert server.publisher.problem is None
    assert server.publisher.published


def test_counters_that_come_with_a_new_version_are_used_and_those_that_go_are_withdrawn(server: Server) -> None:
    server.api.drops = COUNTERS
    server.show(h100s(1))
    server.api.drops, server.minor = set(), 37
    server.run(700)
    assert len(server.names()) == 26
    server.api.drops, server.minor = COUNTERS, 36
    server.run(700)
    assert server.names() == ["gpu-0"]


def test_partitions_survive_an_upgrade_from_1_34_to_1_35_and_back() -> None:
    server = Server(34)
    server.show(h100s(2))
    before = {str(device) for device in offered(server.api.objects)}
    assert len(before) == 52
    assert sorted(len(item["spec"].get("sharedCounters", [])) for item in server.api.objects.values()) == [1, 1]
    server.become(35)
    server.run(700)
    assert {str(device) for device in offered(server.api.objects)} == before
    assert sorted(len(item["spec"].get("sharedCounters", [])) for item in server.api.objects.values()) == [0, 2]
    server.become(34)
    server.run(700)
    assert {str(device) for device in offered(server.api.objects)} == before


def test_in_1_34_a_gpu_that_gets_partitions_gets_its_counters_first() -> None:
    """Its slice would offer all partitions side by side if the gate had gone off; an update keeps what is in use."""
    server = Server(34)
    server.show(h100s(2), GpuTerms(policy="c", whole=False, profiles=frozenset({19, 9})))
    board = mig_gpu(H100, 1, mig_enabled=True)
    blocked = replace(board, mig_instances=(instance(board, 0, 0),))  # another manager has the whole of the second GPU
    server.show(snapshot(mig_gpu(H100, 0), blocked), GpuTerms(policy="c", whole=False, profiles=frozenset({19, 9})))
    assert {name[:5] for name in server.names()} == {"gpu-0"}
    server.api.drops = COUNTERS
    server.show(h100s(2), GpuTerms(policy="c", whole=False, profiles=frozenset({19, 9})))
    assert not server.publisher.features.counters
    assert server.names() == []


@pytest.mark.parametrize("minor", [34, 36])
def test_counters_that_a_write_loses_are_withdrawn_at_once(minor: int) -> None:
    server = Server(minor)
    server.show(snapshot(mig_gpu(A100)))
    server.api.drops = COUNTERS
    server.show(h100s(3))
    assert server.names() == ["gpu-0", "gpu-1", "gpu-2"]
    assert not server.publisher.features.counters
    assert server.publisher.features.taints
    assert server.publisher.published
    assert server.publisher.problem is None
    writes = len(server.api.writes)
    server.run(5000)
    assert len(server.api.writes) == writes


@pytest.mark.parametrize(
    ("minor", "unlucky"),
    [
        *((36, n) for n in range(5)),
        *((34, n) for n in range(0, 14, 3)),
        *(pytest.param(34, n, marks=pytest.mark.slow) for n in range(14) if n % 3),
    ],
)
def test_no_write_that_loses_counters_offers_anything_twice(minor: int, unlucky: int) -> None:
    """Two API servers behind one address with different gates: any one request may go to the wrong one."""
    server = Server(minor)
    writes: list[None] = []

    def skew() -> None:
        # What is dropped is decided before this is called, so it is for the write that follows.
        writes.append(None)
        server.api.drops = COUNTERS if len(writes) == unlucky else set()

    server.publisher.set_snapshot(h100s(6))
    server.api.drops = set()
    server.api.during_write = skew
    server.run()
    assert server.publisher.published
    harmful = (1, 2, 3) if minor == 36 else (2, 4, 6, 8, 10)  # in 1.34 every other write has the devices
    assert len(server.names()) == (6 if unlucky in harmful else 156)


def test_a_deleted_slice_of_partitions_comes_back_before_its_counters(server: Server) -> None:
    """The gate may have gone off since it was written; then all partitions are withdrawn instead."""
    server.show(h100s(3))
    first, second = (name for name, item in sorted(server.api.objects.items()) if "devices" in item["spec"])
    server.api.remove(second)
    server.run(5)
    assert len(server.names()) == 78
    server.api.drops = COUNTERS
    server.api.remove(first)
    server.run(5)
    assert server.names() == ["gpu-0", "gpu-1", "gpu-2"]


def test_a_gpu_whose_taint_is_dropped_is_withdrawn(server: Server) -> None:
    server.show(snapshot(gpu(0)))
    server.api.drops = {"taints"}
    server.show(snapshot(gpu(0)), TAINTED)
    assert server.names() == []
    assert "DRADeviceTaints" in server.publisher.left_out[0].reason
    assert server.publisher.features.counters


def test_a_gpu_that_cannot_be_shared_is_exclusive(server: Server) -> None:
    """The API server drops the fields of shared devices: exclusive is safe."""
    server.show(snapshot(gpu(0)))
    server.api.drops = {"allowMultipleAllocations", "requestPolicy"}
    server.show(snapshot(gpu(0)), SHARED)
    (device,) = offered(server.api.objects)
    assert "sharingStrategy" not in device["attributes"]
    assert server.publisher.published


def test_without_the_right_to_probe_only_ungated_forms_are_published(server: Server) -> None:
    server.api.failures = [ForbiddenError("403: dry runs are not allowed", status=403)]
    server.show(h100s(1))
    assert server.names() == ["gpu-0"]
    assert "403: dry runs are not allowed" in (server.publisher.problem or "")
    server.run(700)
    assert server.publisher.problem is None
    assert len(server.names()) == 26


@pytest.mark.parametrize("minor", [34, 37])
def test_a_pass_that_dies_half_way_is_finished_by_the_next_process(minor: int) -> None:
    for after in range(8):
        server = Server()
        server.api.drops = COUNTERS
        server.show(h100s(3))
        for drops, version, names in ((set(), minor, 78), (COUNTERS, 36, 3)):
            server.api.drops = drops
            server.become(version)
            server.start()
            _die_after(server, after)
            server.show(h100s(3))
            server.api.failures, server.api.during_write = [], lambda: None
            server.start()
            server.show(h100s(3))
            assert len(server.names()) == names
        assert server.names() == ["gpu-0", "gpu-1", "gpu-2"]


def _die_after(server: Server, writes: int) -> None:
    done = []

    def die() -> None:
        done.append(True)
        if len(done) > writes:
            raise ApiUnreachableError("killed")

    server.api.during_write = die


def _states() -> st.SearchStrategy[Callable[[int], Gpu]]:
    """The states of a GPU, as functions of its minor number."""
    owned_mode = {"mig_enabled": True, "mig_mode_owned": True}

    def cut(key: str, profile_id: int, start: int, **changes: Any) -> Callable[[int], Gpu]:
        def build(minor: int) -> Gpu:
            board = mig_gpu(key, minor, mig_enabled=True)
            return replace(board, mig_instances=(instance(board, profile_id, start, **changes),))

        return build

    return st.sampled_from(
        [
            lambda minor: mig_gpu(H100, minor),
            lambda minor: mig_gpu(H100, minor, **owned_mode),
            lambda minor: mig_gpu(H100, minor, mig_enabled=True),
            lambda minor: mig_gpu(A100, minor),
            lambda minor: mig_gpu(A100, minor, mig_enabled=True),
            cut(H100, 9, 4),
            cut(H100, 19, 0, whole=False),
            cut(H100, 19, 3, owned=True),
            cut(A100, 0, 0),
        ]
    )


TERMS = (
    None,
    GpuTerms(policy="w", profiles=frozenset()),
    GpuTerms(policy="c", whole=False, profiles=frozenset({19, 9})),
    GpuTerms(policy="o", offered=False),
    SHARED,
    TAINTED,
)


@given(
    st.lists(
        st.tuples(
            st.lists(_states(), min_size=1, max_size=5),
            st.sampled_from(TERMS),
            st.sampled_from([set(), set(), COUNTERS, {"taints"}]),
            st.sampled_from(["same", "restart", "upgrade", "to 1.34"]),
            st.integers(0, 12),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_no_moment_of_any_history_offers_anything_twice(history: list[Any]) -> None:
    """Hardware, policies, gates, restarts and broken connections in any order; checked after every single change.

    At the end, with everything available again, the slices equal those of a first start.
    """
    server = Server()
    for states, terms, drops, event, survived in history:
        server.api.drops = drops
        if event == "restart":
            server.start()
        elif event == "upgrade":
            server.become(server.minor + 1)
        elif event == "to 1.34":
            server.become(34)
        _die_after(server, survived)
        server.show(snapshot(*(state(minor) for minor, state in enumerate(states))), terms)
        server.api.during_write = lambda: None
        last = states, terms
    server.api.drops = set()
    server.become(server.minor + 1)
    server.run(2000)
    fresh = Server()
    for one in (server, fresh):
        one.show(snapshot(*(state(minor) for minor, state in enumerate(last[0]))), last[1])
        assert one.publisher.published
    assert offered(server.api.objects) == offered(fresh.api.objects)
