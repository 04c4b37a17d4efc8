"""Evictions because of use: announced, waited for, looked at again, one at a time, and only pods of the node."""

from collections.abc import Mapping
from typing import Any

import pytest

from dra_driver.controller.eviction_api import BrakeRules
from dra_driver.controller.usage_evictions import UsageEvictionEvents, UsageEvictionRules, UsageEvictions
from dra_driver.controller.usage_requests import FRESH_S, NodeUse, node_use
from dra_driver.core.errors import ApiUnreachableError, NotFoundError, ServerBusyError
from dra_driver.core.telemetry.controller_metrics import REGISTRY
from dra_driver.kube.evictions import NO_EVICTION
from dra_driver.kube.objects.core import ObjectReference
from tests.unit.controller.objects import (
    DRIVER,
    FOREIGN,
    IDLE,
    Stage,
    budget_says_no,
    claim_object,
    gpu_node,
    over,
    pod,
)

BRAKE = BrakeRules(percent=20, window_s=600)


class World(Stage):
    """GpuNodes, claims and pods; the copies, the API, the leadership, the recorder and the clock of one controller."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes_: dict[str, dict[str, Any]] = {}
        self.claims: dict[str, dict[str, Any]] = {}
        self.stale: set[str] = set()
        self.evictions = self.controller()

    def controller(self, *, over_grant: bool = True, idle: bool = True, per_minute: int = 60) -> UsageEvictions:
        rules = UsageEvictionRules(driver=DRIVER, over_grant=over_grant, idle=idle, brake=BRAKE)
        events = UsageEvictionEvents(self, ObjectReference(kind="Lease", name="lease"))
        return UsageEvictions(self, self, self, rules, events, pace=self.pace(per_minute), clock=lambda: self.seconds)

    def tell(self, *entries: Mapping[str, Any], node: str = "gpu-a", kind: str = "overGrant", gpus: int = 8) -> None:
        self.nodes_[node] = gpu_node(node, gpus=gpus, **{kind: list(entries)})

    def run(self, *, names: tuple[str, ...] = ("llm",)) -> None:
        for name in names:
            self.claims[name] = claim_object(name)
            self.pods[f"{name}-0"] = pod(f"{name}-0")

    def run_until(self, seconds: float) -> None:
        while self.seconds < seconds:
            minute = int(self.seconds // 60)
            for name, node in self.nodes_.items():
                if name not in self.stale and "checkedAt" in node["status"]["usage"]:
                    node["status"]["usage"]["checkedAt"] = f"minute {minute}"
            wait_s = self.evictions.step()
            self.seconds += min(max(wait_s, 0.1), 1.0)

    def nodes(self) -> list[NodeUse]:
        return [found for item in self.nodes_.values() if (found := node_use(item)) is not None]

    def get(self, path: str) -> dict[str, Any]:
        kind, _, name = path.rpartition("/")
        found = {"gpunodes": self.nodes_, "resourceclaims": self.claims, "pods": self.pods}[kind.rpartition("/")[2]]
        if name not in found:
            raise NotFoundError(path)
        return found[name]


@pytest.fixture
def world() -> World:
    found = World()
    found.run()
    return found


def test_a_pod_over_its_grant_is_told_first_and_evicted_after_the_grace_time(world: World) -> None:
    world.tell(over())
    world.run_until(59)
    assert world.evicted == []
    assert world.reasons == [("llm-0", "GpuEvictionAnnounced")]
    assert all(fact in world.events[0][2] for fact in ("20Gi of gpu-0 on node gpu-a", "granted 12Gi", "in 60 s"))
    world.run_until(70)
    assert world.left == ["llm-0"]
    assert world.reasons[1:] == [("llm-0", "GpuEviction")]


def test_a_claim_that_keeps_its_grant_again_keeps_its_pod(world: World) -> None:
    world.tell(over())
    world.run_until(50)
    world.tell()
    world.run_until(100)
    world.tell(over())
    world.run_until(150)
    assert world.evicted == []


@pytest.mark.parametrize("action", ["Report", "Delete"])
def test_without_the_policys_consent_nothing_happens(world: World, action: str) -> None:
    world.tell(over(action=action))
    world.run_until(200)
    assert (world.evicted, world.events) == ([], [])


def test_processes_of_no_claim_never_lead_to_an_eviction(world: World) -> None:
    world.tell(FOREIGN | over() | {"pods": []}, FOREIGN)
    world.run_until(200)
    assert (world.evicted, world.events) == ([], [])
    world.tell(FOREIGN, FOREIGN | over(), kind="unattributed")
    world.run_until(400)
    assert (world.evicted, world.events) == ([], [])


@pytest.mark.parametrize("kind", ["overGrant", "idle"])
def test_a_node_reaches_only_pods_that_run_on_it(world: World, kind: str) -> None:
    """gpu-b names a claim that is allocated on gpu-a; then one of its own whose pod runs on gpu-a."""
    entry = over() if kind == "overGrant" else IDLE
    world.tell(entry, node="gpu-b", kind=kind)
    world.pods["llm-0"] = pod("llm-0", node="gpu-b")
    world.run_until(700)
    assert world.evicted == []
    world.claims["llm"], world.pods["llm-0"] = claim_object("llm", node="gpu-b"), pod("llm-0", node="gpu-a")
    world.run_until(1400)
    assert world.evicted == []
    world.pods["llm-0"] = pod("llm-0", node="gpu-b")
    world.run_until(2100)
    assert world.left == ["llm-0"]


@pytest.mark.parametrize(
    "changed",
    [
        {"claimUid": "uid-former"},
        {"gpu": "gpu-1"},
        {"pods": [{"name": "llm-0", "uid": "uid-former"}]},
        {"pods": [{"name": "web-0", "uid": "uid-web-0"}]},
    ],
)
def test_a_pod_without_the_claim_and_a_later_claim_or_pod_of_the_name_are_safe(
    world: World, changed: dict[str, Any]
) -> None:
    """A node may name any pod of the namespace; the claim's own status decides."""
    world.pods["web-0"] = pod("web-0")
    world.tell(over(**changed))
    world.run_until(300)
    assert world.evicted == []


def test_a_node_that_has_died_asks_for_nothing(world: World) -> None:
    """Its GpuNode stays as it was; what it said must be renewed after the announcement."""
    world.tell(over())
    world.stale.add("gpu-a")
    world.run_until(FRESH_S + 200)
    assert world.evicted == []
    world.nodes_["gpu-a"] = gpu_node(checked=None, overGrant=[over()])
    world.run_until(FRESH_S + 500)
    assert (world.evicted, world.reasons) == ([], [("llm-0", "GpuEvictionAnnounced")])


def test_a_node_that_dies_during_a_long_grace_time_asks_for_nothing(world: World) -> None:
    world.tell(over(graceSeconds=600))
    world.run_until(130)  # renewed at 60 and 120 s, after the announcement
    world.stale.add("gpu-a")
    world.run_until(800)
    assert world.evicted == []


def test_what_no_longer_stands_at_the_last_look_is_left(world: World) -> None:
    world.tell(over())
    world.run_until(55)
    world.nodes_["gpu-a"]["status"]["usage"]["checkedAt"] = "later"
    copies = world.nodes()
    world.nodes = lambda: copies  # type: ignore[method-assign]
    world.evictions.step()
    fine, over_it = gpu_node(), world.nodes_["gpu-a"]
    world.nodes_["gpu-a"], world.seconds = fine, 80
    world.evictions.step()
    assert world.evicted == []
    world.nodes_["gpu-a"], world.seconds = over_it, 200
    world.evictions.step()
    assert len(world.evicted) == 1


def test_pods_that_opt_out_stay_and_are_told_why(world: World) -> None:
    world.pods["llm-0"] = pod("llm-0", annotations={NO_EVICTION: "true"})
    world.tell(over())
    world.run_until(100)
    assert world.evicted == []
    assert ("llm-0", "GpuEvictionOptedOut") in world.reasons


def test_a_budget_is_honoured(world: World) -> None:
    world.refusal = budget_says_no()
    world.tell(over())
    world.run_until(100)
    assert ("llm-0", "GpuEvictionRefused") in world.reasons
    world.refusal = None
    world.run_until(300)
    assert world.left == ["llm-0"]


@pytest.mark.parametrize("protection", ["Honor", "Ignore", None, "Other"])
def test_the_policy_says_whether_an_owners_protection_counts(world: World, protection: str | None) -> None:
    """The annotation and a budget are the tenant's own, and the memory is another tenant's."""
    world.refusal = budget_says_no()
    world.pods["llm-0"] = pod("llm-0", annotations={NO_EVICTION: "true"})
    world.tell(over(podProtection=protection))
    world.run_until(100)
    assert world.left == (["llm-0"] if protection == "Ignore" else [])
    assert not any("keep the pod with the annotation" in text for _, _, text in world.events)


def test_a_server_error_that_names_no_budget_deletes_no_pod(world: World) -> None:
    world.refusal = ServerBusyError("failed calling webhook: connection refused", status=500, reason="InternalError")
    world.tell(over(podProtection="Ignore"))
    world.run_until(100)
    assert world.left == []


def test_a_policy_that_protects_again_keeps_the_pod(world: World) -> None:
    world.pods["llm-0"] = pod("llm-0", annotations={NO_EVICTION: "true"})
    world.tell(over(podProtection="Ignore"))
    world.run_until(59)
    copies = world.nodes()
    world.tell(over())
    world.nodes = lambda: copies  # type: ignore[method-assign]
    world.run_until(70)
    assert world.evicted == []


def test_one_pod_leaves_at_a_time_the_one_with_most_memory_first(world: World) -> None:
    world.claims["llm"] = claim_object("llm", pods=("llm-0", "llm-1"))
    world.pods["llm-1"] = pod("llm-1")
    world.tell(over(pods=[{"name": "llm-1", "uid": "uid-llm-1"}, {"name": "llm-0", "uid": "uid-llm-0"}]))
    world.run_until(70)
    assert world.left == ["llm-1"]
    world.run_until(120)
    assert len(world.evicted) == 1
    world.run_until(140)
    assert world.left == ["llm-1", "llm-0"]


def test_a_pod_that_came_after_the_announcement_is_told_before_it_leaves(world: World) -> None:
    world.tell(over())
    world.run_until(50)
    world.pods = {"llm-9": pod("llm-9")}
    world.claims["llm"] = claim_object("llm", pods=("llm-9",))
    world.tell(over(pods=[{"name": "llm-9", "uid": "uid-llm-9"}]))
    world.run_until(110)
    assert world.evicted == []
    assert ("llm-9", "GpuEvictionAnnounced") in world.reasons
    world.run_until(140)
    assert world.left == ["llm-9"]


def test_an_idle_claim_is_reclaimed_after_as_many_minutes_more(world: World) -> None:
    world.claims["llm"] = claim_object("llm", pods=("llm-0", "llm-1"))
    world.pods["llm-1"] = pod("llm-1")
    world.tell(IDLE, kind="idle")
    world.run_until(299)
    assert world.evicted == []
    assert world.reasons == [("llm-0", "GpuEvictionAnnounced"), ("llm-1", "GpuEvictionAnnounced")]
    world.run_until(330)
    assert world.left == ["llm-0", "llm-1"]


@pytest.mark.parametrize(
    "owners",
    [
        [],
        [{"kind": "Node", "name": "x", "uid": "u"}],
        [{"kind": "X", "name": "x", "uid": "u", "controller": False}],
        [{"kind": "X", "controller": True}],
    ],
)
def test_an_idle_pod_without_a_controller_is_never_evicted(world: World, owners: Any) -> None:
    """It would not come back. Nor are others of its claim, which stays in use by it."""
    world.claims["llm"] = claim_object("llm", pods=("llm-1", "llm-0"))
    world.pods |= {"llm-0": pod("llm-0", ownerReferences=owners), "llm-1": pod("llm-1")}
    world.tell(IDLE, kind="idle")
    world.run_until(900)
    assert world.evicted == []


@pytest.mark.parametrize(("over_grant", "idle", "leaves"), [(True, False, "a-0"), (False, True, "b-0")])
def test_each_kind_has_its_switch(world: World, over_grant: bool, idle: bool, leaves: str) -> None:
    world.run(names=("a", "b"))
    world.evictions = world.controller(over_grant=over_grant, idle=idle)
    world.nodes_["gpu-a"] = gpu_node(overGrant=[over("a")], idle=[IDLE | {"claim": "b", "claimUid": "uid-b"}])
    world.run_until(700)
    assert world.left == [leaves]


def test_many_at_once_are_a_wrong_rule_and_held_by_the_brake(world: World) -> None:
    world.run(names=("a", "b"))
    world.claims["b"] = claim_object("b", device="gpu-1")
    world.tell(over("a"), over("b", gpu="gpu-1"))
    world.run_until(500)
    assert world.evicted == []
    assert ("lease", "GpuEvictionBraked") in world.reasons
    assert REGISTRY.get_sample_value("dra_driver_usage_brake") == 1
    world.run_until(700)
    assert len(world.evicted) == 2
    assert ("lease", "GpuEvictionResumed") in world.reasons


@pytest.mark.parametrize("gpus", [8, 128])
@pytest.mark.parametrize("exist", [False, True])
def test_a_stolen_node_token_does_not_hold_the_brake(world: World, gpus: int, exist: bool) -> None:
    """The node invents 32 idle claims, or says that of claims that it has."""
    invented = [IDLE | {"claim": f"x-{n}", "claimUid": f"uid-x-{n}"} for n in range(32)]
    if exist:
        world.claims |= {f"x-{n}": claim_object(f"x-{n}", node="gpu-b") for n in range(32)}
        world.pods |= {f"x-{n}-0": pod(f"x-{n}-0", node="gpu-b", annotations={NO_EVICTION: "true"}) for n in range(32)}
    world.tell(*invented, node="gpu-b", kind="idle", gpus=gpus)
    world.tell(over())
    world.run_until(80)
    assert world.left == ["llm-0"]
    assert REGISTRY.get_sample_value("dra_driver_usage_brake") == 0


def test_claims_that_do_not_exist_do_not_count_for_the_brake(world: World) -> None:
    """Also in a fleet of one node."""
    world.tell(IDLE, *(IDLE | {"claim": f"x-{n}", "claimUid": f"uid-x-{n}"} for n in range(31)), kind="idle")
    world.run_until(330)
    assert world.left == ["llm-0"]


def test_invented_gpus_of_a_stolen_node_token_do_not_loosen_the_brake(world: World) -> None:
    for node in ("gpu-a", "gpu-b", "gpu-c"):
        for number in range(4):
            name = f"{node}-{number}"
            world.claims[name] = claim_object(name, node=node, device=f"gpu-{number}")
            world.pods[f"{name}-0"] = pod(f"{name}-0", node=node)
        world.tell(*(over(f"{node}-{number}", gpu=f"gpu-{number}") for number in range(4)), node=node)
    world.tell(node="gpu-d", gpus=128)
    world.run_until(500)
    assert world.evicted == []


def test_two_claims_on_one_gpu_are_one_gpu_for_the_brake(world: World) -> None:
    world.run(names=("a", "b"))
    world.tell(over("a"), over("b"))
    world.run_until(80)
    assert len(world.evicted) == 2


@pytest.mark.parametrize(
    ("told", "until_s"),
    [
        ([(f"gpu-{name}", {"overGrant": [over(name)]}) for name in "abc"], 500),
        ([("gpu-a", {"idle": [IDLE | {"claim": name, "claimUid": f"uid-{name}"} for name in "ab"]})], 590),
        ([(f"gpu-{name}", {"overGrant": [over(name, graceSeconds=900)]}) for name in "abc"], 1700),
    ],
    ids=["one device name on three nodes", "idle claims name no device", "twice a wait longer than the window"],
)
def test_what_counts_as_two_gpus_for_the_brake(world: World, told: Any, until_s: float) -> None:
    """The node with most cases does not count, so that three nodes have two."""
    world.run(names=("a", "b"))
    for node, usage in told:
        world.nodes_[node] = gpu_node(node, gpus=2, **usage)
    for name in "bc" if len(told) == 3 else "":
        world.claims[name] = claim_object(name, node=f"gpu-{name}")
        world.pods[f"{name}-0"] = pod(f"{name}-0", node=f"gpu-{name}")
    world.run_until(until_s)
    assert world.evicted == []
    world.run_until(until_s + 300)
    assert len(world.evicted) == max(2, len(told))


def test_the_pace_holds(world: World) -> None:
    world.run(names=("a", "b"))
    world.evictions = world.controller(per_minute=2)
    world.tell(over("a"), over("b"))
    world.run_until(75)
    assert len(world.evicted) == 1
    world.run_until(100)
    assert len(world.evicted) == 2


def test_a_new_leader_announces_again(world: World) -> None:
    world.tell(over())
    world.run_until(50)
    world.leading_since = None
    world.run_until(55)
    world.leading_since = 55.0
    world.run_until(110)
    assert world.evicted == []
    world.run_until(140)
    assert len(world.evicted) == 1


def test_without_current_copies_or_an_api_server_nothing_happens(world: World) -> None:
    world.tell(over())
    world.problem = "cannot watch GpuNodes"
    world.run_until(100)
    assert world.events == []
    world.problem = None
    world.refusal = ApiUnreachableError("down")
    world.run_until(200)
    assert world.evicted == []
    world.refusal = None
    world.run_until(400)
    assert len(world.evicted) == 1


@pytest.mark.parametrize(
    "broken",
    [
        {"status": {"reservedFor": 7}},
        {"status": {"allocation": {"devices": {"results": [None]}}}},
        {"metadata": None},
        {"metadata": {"uid": "uid-llm"}, "status": {"allocation": []}},
    ],
)
def test_a_malformed_claim_is_no_reason_to_end(world: World, broken: dict[str, Any]) -> None:
    world.claims["llm"] = world.claims["llm"] | broken
    world.tell(over())
    world.run_until(100)
    assert world.evicted == []
