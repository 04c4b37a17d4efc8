"""The eviction limit, and the loop of evictions against an API in memory that counts requests."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.controller.eviction_api import FIRST_RETRY_S, BrakeRules, Pace, brake_state
from dra_driver.controller.evictions import EvictionEvents, EvictionRules, Evictions
from dra_driver.controller.pending_evictions import Fleet, SliceView, SpecialClaim, fleet_of, slice_view, special_claim
from dra_driver.core.errors import (
    ApiUnreachableError,
    ConflictError,
    KubernetesApiError,
    NotFoundError,
    ServerBusyError,
)
from dra_driver.core.telemetry.controller_metrics import REGISTRY
from dra_driver.kube.evictions import NO_EVICTION
from dra_driver.kube.objects.core import ObjectReference
from tests.fakes.stand_in import present
from tests.unit.controller.objects import (
    DRIVER,
    Obj,
    Stage,
    at,
    budget_says_no,
    device,
    pod_object,
    resource_slice,
    special_claim_object,
    taint,
)

RULES = EvictionRules(grace_s=60, brake=BrakeRules(percent=20, window_s=600))


class World(Stage):
    """Slices, claims and pods; the copies, the API, the leadership, the recorder and both clocks of one controller."""

    def __init__(self, *, gpus: int = 20) -> None:
        super().__init__()
        self.devices = [device(number) for number in range(gpus)]
        self.claims_: list[dict[str, Any]] = []
        self.evictions = self.controller()

    def controller(self, rules: EvictionRules = RULES) -> Evictions:
        events = EvictionEvents(self, ObjectReference(kind="Lease", name="dra-driver-controller"))
        return Evictions(self, self, self, rules, events, pace=self.pace(10), clock=lambda: self.seconds, now=self.now)

    def now(self) -> datetime:
        return at(self.seconds)

    def run_pod(self, number: int, name: str = "", **metadata: Any) -> None:
        name = name or f"pod-{number}"
        self.claims_.append(special_claim_object(number, name=f"claim-{name}", pod=name))
        self.pods[name] = pod_object(name, claim=f"claim-{name}", **metadata)

    def fall_ill(self, number: int, *, seconds: float = 0.0) -> None:
        self.devices[number] = device(number, taint(seconds))

    def run_sick(self, number: int, name: str = "", **metadata: Any) -> None:
        self.run_pod(number, name, **metadata)
        self.fall_ill(number)

    def run_until(self, seconds: float) -> None:
        while self.seconds < seconds:
            wait_s = self.evictions.step()
            self.seconds += min(max(wait_s, 0.05), 1.0)

    # Copies
    def slices(self) -> list[SliceView]:
        view = slice_view(resource_slice(*self.devices))
        assert view is not None
        return [view]

    def claims(self) -> list[SpecialClaim]:
        found = (special_claim(item, DRIVER) for item in self.claims_)
        return [claim for claim in found if claim is not None]

    # The API
    def get(self, path: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        if "resourceslices" in path:
            return resource_slice(*self.devices)
        if name not in self.pods:
            raise NotFoundError(path)
        return self.pods[name]

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        answer = super().create(path, body)
        gone = f"claim-{body['metadata']['name']}"
        self.claims_ = [item for item in self.claims_ if item["metadata"]["name"] != gone]
        return answer


@pytest.fixture
def world() -> World:
    return World()


def test_a_pod_on_a_gpu_that_stays_ill_is_evicted_after_the_grace_time_and_no_other(world: World) -> None:
    world.run_sick(3)
    world.run_pod(4)
    world.run_sick(5)
    world.run_until(59)
    assert world.evicted == []
    world.devices[5] = device(5)
    world.run_until(70)
    assert world.left == ["pod-3"]
    assert world.reasons == [("pod-3", "GpuEviction")]
    world.run_until(300)
    assert world.left == ["pod-3"]


def test_a_taint_that_goes_while_the_copy_still_has_it_evicts_no_pod(world: World) -> None:
    """A watch may be minutes behind, when the connection is half open."""
    world.run_sick(3)
    stale = world.slices()
    world.slices = lambda: stale  # type: ignore[method-assign]
    world.devices[3] = device(3)
    world.run_until(120)
    assert (world.evicted, world.asked) == ([], 0)


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"uid": "another"}},
        {"metadata": {"uid": "uid-pod-3", "deletionTimestamp": "now"}},
        {"status": {"phase": "Succeeded", "extendedResourceClaimStatus": {"resourceClaimName": "claim-pod-3"}}},
        {"status": {"phase": "Running", "extendedResourceClaimStatus": {"resourceClaimName": "foreign"}}},
        {"status": {"phase": "Running"}},
        {"spec": {}},
    ],
)
def test_pods_that_are_not_those_of_the_claim_are_left_alone(world: World, change: dict[str, Any]) -> None:
    """The pod's status names its claim, and only scheduler and kubelet write that."""
    world.run_pod(3)
    world.pods["pod-3"].update(change)
    world.fall_ill(3)
    world.run_until(120)
    assert world.asked == 0


def test_a_pod_with_the_annotation_stays_until_it_is_taken_away(world: World) -> None:
    world.run_sick(3, annotations={NO_EVICTION: "true"})
    world.run_until(120)
    assert world.asked == 0
    assert {reason for _, reason, _ in world.events} == {"GpuEvictionOptedOut"}
    world.pods["pod-3"]["metadata"]["annotations"] = {}
    world.run_until(160)
    assert world.left == ["pod-3"]


def test_a_budget_is_honoured_with_growing_pauses_and_the_pod_goes_when_it_may(world: World) -> None:
    world.run_sick(3)
    world.refusal = budget_says_no()
    world.run_until(660)
    assert 5 <= world.asked <= 20, "pauses from 5 s to 2 min"
    assert world.evicted == []
    assert {reason for _, reason, _ in world.events} == {"GpuEvictionRefused"}
    assert "needs 1 healthy pods and has 1" in world.events[0][2]
    world.refusal = None
    world.run_until(800)
    assert world.left == ["pod-3"]


def test_a_pod_that_may_not_go_holds_up_no_other(world: World) -> None:
    world.run_pod(3, "a-first")
    world.run_sick(3, "b-second")
    refuse_first = budget_says_no()
    real = world.create

    def create(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if body["metadata"]["name"] == "a-first":
            raise refuse_first
        return real(path, body)

    world.create = create  # type: ignore[method-assign]
    world.run_until(70)
    assert world.left == ["b-second"]


def test_never_more_than_the_pace_in_any_minute_across_restarts_and_takeovers() -> None:
    world = World(gpus=100)
    for number in range(60):
        world.run_pod(1, f"pod-{number:02}")
    world.fall_ill(1)
    for second in range(0, 600, 7):
        world.run_until(60 + second)
        if second % 35 == 0:  # another replica takes over, or this one starts again: it knows nothing of before
            world.evictions = world.controller()
            world.leading_since = world.seconds
    times = [time for time, _ in world.evicted]
    assert len(times) > 30
    assert all(sum(begin <= time < begin + 60 for time in times) <= 10 for begin in times)


def test_a_replica_that_leads_again_waits_as_a_new_one(world: World) -> None:
    """Another one may have evicted a moment ago."""
    world.run_sick(1)
    world.run_until(70)
    world.leading_since = None
    world.run_until(200)
    world.run_pod(1, "later")
    world.leading_since = 200.0
    world.run_until(205)
    assert world.left == ["pod-1"]
    world.run_until(208)
    assert world.left == ["pod-1", "later"]


def test_the_brake_holds_all_back_and_says_so_once() -> None:
    world = World(gpus=20)
    for number in range(5):
        world.run_sick(number)
    world.run_until(599)
    assert world.evicted == []
    assert world.reasons == [("dra-driver-controller", "GpuEvictionBraked")]
    assert "5 of 20 GPUs" in world.events[0][2]
    assert "5 pods wait" in world.events[0][2]
    world.evictions = world.controller()  # a restart forgets nothing
    world.run_until(599)
    assert world.evicted == []
    world.run_until(700)
    assert len(world.evicted) == 5
    assert "GpuEvictionResumed" in [reason for _, reason, _ in world.events]


def test_a_replica_that_does_not_lead_does_nothing_and_tells_nothing(world: World) -> None:
    """Its gauges are 0, so that the sum over all replicas is right after a takeover."""
    world.run_sick(3)
    world.run_until(10)
    assert REGISTRY.get_sample_value("dra_driver_fleet_gpus") == 20
    world.leading_since = None
    world.run_until(300)
    assert world.asked == 0
    assert REGISTRY.get_sample_value("dra_driver_fleet_gpus") == 0
    assert REGISTRY.get_sample_value("dra_driver_pods_endangered") == 0


def test_leadership_that_ends_between_the_look_and_the_write_ends_the_write(world: World) -> None:
    world.run_sick(3)
    real = world.get

    def get(path: str) -> dict[str, Any]:
        if "resourceslices" in path:
            world.leading_since = None
        return real(path)

    world.get = get  # type: ignore[method-assign]
    world.run_until(120)
    assert world.asked == 0


def test_outdated_copies_evict_no_pod(world: World) -> None:
    world.run_sick(3)
    world.problem = "cannot watch ResourceSlices"
    world.run_until(120)
    assert world.asked == 0
    world.problem = None
    world.run_until(130)
    assert len(world.evicted) == 1


@pytest.mark.parametrize(
    "error",
    [
        ApiUnreachableError("no answer"),
        ServerBusyError("overloaded", status=429, retry_after_s=7),
        ServerBusyError("down", status=503),
    ],
)
def test_an_unclear_answer_counts_for_the_pace_and_is_tried_again(world: World, error: KubernetesApiError) -> None:
    for number in range(10):
        world.run_sick(3, f"pod-{number}")
    world.refusal = error
    world.run_until(119)
    assert 1 < world.asked <= 11, "six seconds between two tries"
    assert world.events == []


def test_a_pod_that_was_replaced_is_no_failure(world: World) -> None:
    world.run_sick(3)
    world.refusal = ConflictError("UID")
    world.run_until(61 + FIRST_RETRY_S)
    assert world.events == []


FLEET_RULES = RULES.brake


def fleet(size: int, tainted: int, *, seconds: float = 0.0, key: str = "gpu.nvidia.com/xid") -> Fleet:
    return fleet_with(*(device(n, taint(seconds, key=key)) if n < tainted else device(n) for n in range(size)))


def fleet_with(*devices: Obj) -> Fleet:
    return fleet_of([present(slice_view(resource_slice(*devices)))])


@pytest.mark.parametrize(
    ("size", "tainted", "on"),
    [
        (0, 0, False),
        (1, 1, False),  # one broken GPU is the ordinary case, whatever part of the fleet it is
        (4, 1, False),
        (2, 2, True),
        (4, 2, True),
        (10, 2, False),  # exactly 20 %
        (9, 2, True),
        (1000, 200, False),
        (1000, 201, True),
    ],
)
def test_fleets_of_all_sizes(size: int, tainted: int, on: bool) -> None:
    state = brake_state(fleet(size, tainted), FLEET_RULES, at(60))
    assert (state.on, state.recent, state.fleet) == (on, tainted, size)


@pytest.mark.parametrize(("grace_s", "policy_grace_s", "end_s"), [(0, None, 600), (900, None, 1800), (0, 3600, 7200)])
def test_the_window_is_that_of_the_taints_and_outlasts_the_grace_time(
    grace_s: int, policy_grace_s: int | None, end_s: int
) -> None:
    """Taints survive a restart. Pods of a false alarm must not all become due just after the window."""
    rules = BrakeRules(percent=20, window_s=600, grace_s=grace_s)
    found = fleet(8, 4)
    tainted = {key: replace(gpu, grace_s=policy_grace_s) for key, gpu in found.tainted.items()}
    found = replace(found, tainted=tainted)
    before = brake_state(found, rules, at(end_s - 1))
    assert (before.on, before.until) == (True, at(end_s))
    assert not brake_state(found, rules, at(end_s)).on


def test_the_newest_taint_counts_also_from_a_node_whose_clock_is_ahead() -> None:
    assert brake_state(fleet(8, 4, seconds=3600), FLEET_RULES, at(0)).on
    again = fleet_with(*(device(n, taint(-9999), taint(0, key="k")) for n in range(4)))
    assert brake_state(again, FLEET_RULES, at(1)).on


@pytest.mark.parametrize("key", ["gpu.dra-driver.io/drained", "gpu.dra-driver.io/detached"])
def test_taints_that_a_person_asked_for_do_not_count(key: str) -> None:
    assert not brake_state(fleet(8, 8, key=key), FLEET_RULES, at(1)).on


def test_partitions_count_for_their_gpu_and_once() -> None:
    parts = [device(0, taint(), part=f"-mig-{n}") for n in range(10)]
    state = brake_state(fleet_with(*parts, *(device(n) for n in range(1, 8))), FLEET_RULES, at(1))
    assert (state.recent, state.fleet, state.on) == (1, 8, False)


def node_slice(node: int, tainted: int = 0, size: int = 8) -> SliceView:
    devices = [device(n, *([taint()] if n < tainted else [])) for n in range(size)]
    return present(slice_view(resource_slice(*devices, pool=f"gpu-{node}/{DRIVER}", name=f"slice-{node}")))


@pytest.mark.parametrize(
    ("stolen", "others", "on"),
    [
        ((128, 128), (0, 0, 0), False),
        ((128, 128), (1, 1, 0), False),
        ((128, 128), (8, 0, 0), True),  # 25 % of the fleet on another node, as without the stolen token
        ((8, 8), (2, 0, 0), False),
        ((0, 128), (4, 4, 4), True),
        ((0, 0), (4, 4, 4), True),
        ((2, 128), (1, 1, 1), False),
    ],
)
def test_one_stolen_node_token_neither_holds_nor_loosens_the_brake(
    stolen: tuple[int, int], others: tuple[int, int, int], on: bool
) -> None:
    """The node invents GPUs and taints; the other nodes have 8 GPUs each."""
    views = [node_slice(0, *stolen), *(node_slice(node, count) for node, count in enumerate(others, 1))]
    assert brake_state(fleet_of(views), FLEET_RULES, at(60)).on is on


@pytest.mark.parametrize(("tainted", "on"), [((8, 8), True), ((8, 1), True), ((8, 0), False), ((0, 1), False)])
def test_a_fleet_of_two_nodes_brakes_when_both_are_tainted(tainted: tuple[int, int], on: bool) -> None:
    views = [node_slice(0, tainted[0]), node_slice(1, tainted[1], size=8 if tainted[1] > 1 else 1)]
    assert brake_state(fleet_of(views), FLEET_RULES, at(60)).on is on


def test_one_hundred_percent_switches_it_off() -> None:
    assert not brake_state(fleet(8, 8), BrakeRules(percent=100, window_s=600), at(1)).on


def test_the_pace_spreads_a_minute_evenly() -> None:
    assert Pace(10, lambda: None, lambda: 0.0).left_s() == 6.0
    assert Pace(600, lambda: None, lambda: 0.0).left_s() == 0.1
