"""When a GpuNode is read, made and written, and what it says."""

from collections.abc import Mapping
from typing import Any

import pytest

from dra_driver.config.status import node_status, node_status_of
from dra_driver.core.errors import (
    AlreadyExistsError,
    ApiUnreachableError,
    ConflictError,
    DraError,
    ForbiddenError,
    NotFoundError,
)
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.gpu import LeftOutGpu, Snapshot
from dra_driver.core.model.gpu_node import GpuNodeStatus, HealthWord, NodeProblem, PublishedForm, ReportedUsage
from dra_driver.core.model.health import HealthCause
from dra_driver.core.model.ids import ClaimUid
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy, Taint
from dra_driver.node.process.gpu_node import (
    ABSENT_S,
    CHECK_S,
    LONGEST_PAUSE_S,
    PAUSE_S,
    RETRY_S,
    STEADY_S,
    GpuNodeKeeper,
    NodeFacts,
    claims_by_gpu,
    status_of,
)
from tests.fakes.stand_in import present, stand_in
from tests.unit.node.health.world import condition
from tests.unit.node.policy.hardware import gpu, node, partition, share, uuid, whole
from tests.unit.node.process.test_usage_report import TOLD

STATUS = GpuNodeStatus(driver_name="gpu.nvidia.com", driver_version="580.65.06")
OBJECT = "/apis/gpu.dra-driver.io/v1alpha1/gpunodes/node-1"


class Api:
    """An API server with one GpuNode at most."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] | None = None
        self.is_served = True
        self.error: DraError | None = None
        self.asked: list[str] = []

    def _asked(self, verb: str, path: str) -> None:
        self.asked.append(verb)
        if self.error is not None:
            raise self.error
        if not self.is_served or (self.stored is None and verb != "create"):
            raise NotFoundError(f"{verb} {path}: 404")

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        assert path == OBJECT
        self._asked("get", path)
        assert self.stored is not None
        return self.stored

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        self._asked("create", path)
        self.stored = dict(body)
        return self.stored

    def apply(self, path: str, body: Mapping[str, Any], manager: str) -> dict[str, Any]:
        assert path == f"{OBJECT}/status"
        self._asked("apply", path)
        assert self.stored is not None
        self.stored["status"] = body["status"]
        return self.stored


class Node:
    def __init__(self) -> None:
        self.api, self.status, self.uid = Api(), STATUS, "uid-1"
        self.known = True
        self.now = 1000.0
        self.warned: list[str] = []
        self.keeper = self.start()

    def start(self) -> GpuNodeKeeper:
        self.keeper = GpuNodeKeeper(
            stand_in(self.api), "node-1", self.collect, lambda: self.uid, self.warned.append, clock=lambda: self.now
        )
        return self.keeper

    def collect(self) -> GpuNodeStatus | None:
        return self.status if self.known else None

    def change(self, version: str) -> None:
        self.status = GpuNodeStatus(driver_name="gpu.nvidia.com", driver_version=version)


@pytest.fixture
def node_1() -> Node:
    return Node()


@pytest.fixture
def written(node_1: Node) -> Node:
    assert node_1.keeper.step() == CHECK_S
    node_1.api.asked.clear()
    return node_1


def test_it_is_made_once_and_owned_by_its_node(node_1: Node) -> None:
    assert node_1.keeper.step() == CHECK_S
    assert node_1.api.asked == ["get", "apply", "create", "apply"]
    stored = present(node_1.api.stored)
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "uid-1"}
    assert stored["metadata"] == {"name": "node-1", "ownerReferences": [owner]}
    assert node_status_of(stored) == STATUS
    node_1.api.asked.clear()
    assert node_1.keeper.step() == CHECK_S
    assert node_1.api.asked == []
    node_1.change("590.1")
    node_1.keeper.step()
    assert node_1.api.asked == ["apply"], "only a change is written"


@pytest.mark.parametrize("problems", [(), (NodeProblem(reason="NotReady", message="x" * 2000),)], ids=["", "cut text"])
def test_a_restart_writes_nothing_where_nothing_changed(node_1: Node, problems: tuple[NodeProblem, ...]) -> None:
    """A fleet that is restarted must not write 10,000 objects, also where texts are stored in part."""
    node_1.status = GpuNodeStatus(driver_name="gpu.nvidia.com", problems=problems)
    node_1.keeper.step()
    node_1.api.asked.clear()
    assert node_1.start().step() == CHECK_S
    assert node_1.api.asked == ["get"]


def test_writes_come_further_apart_while_changes_keep_coming(node_1: Node) -> None:
    pauses = []
    for number in range(8):
        node_1.change(f"{number}")
        node_1.keeper.step()
        pauses.append(node_1.keeper.pause_s())
    assert pauses[0] == 2 * PAUSE_S
    assert pauses[-1] == LONGEST_PAUSE_S
    node_1.now += LONGEST_PAUSE_S + 1
    assert node_1.keeper.pause_s() == 0.0
    node_1.change("last")
    node_1.keeper.step()
    assert node_1.keeper.pause_s() == 2 * PAUSE_S


def test_an_object_of_an_earlier_node_is_made_anew_when_it_has_gone(written: Node) -> None:
    """A Node that is deleted and registered again has another UID, and Kubernetes deletes what the former one owned,
    seconds later."""
    written.uid = "uid-2"
    assert written.keeper.step() == ABSENT_S[0]
    assert written.api.stored is not None
    written.keeper.check()
    assert written.keeper.step() == 2 * ABSENT_S[0]
    written.api.stored = None
    written.keeper.check()
    assert written.keeper.step() == CHECK_S
    assert present(written.api.stored)["metadata"]["ownerReferences"][0]["uid"] == "uid-2"
    written.keeper.check()
    assert written.keeper.step() == CHECK_S


def test_sentences_that_differ_in_numbers_are_written_now_and_then(node_1: Node) -> None:

    def say(text: str) -> float:
        problem = NodeProblem(reason="Degraded", message=text)
        node_1.status = GpuNodeStatus(driver_name="gpu.nvidia.com", problems=(problem,))
        return node_1.keeper.step()

    say("gpu-0 has 3 errors in links 1, 2")
    node_1.api.asked.clear()
    node_1.now += 100
    assert say("gpu-0 has 4 errors in links 1, 2, 10") == STEADY_S - 100
    assert node_1.api.asked == []
    say("gpu-0 has fallen off the bus")
    assert node_1.api.asked == ["apply"]
    say("gpu-0 has 4 errors in links 1, 2")
    node_1.now += STEADY_S
    say("gpu-0 has 5 errors in links 1, 2")
    assert node_1.api.asked == ["apply"] * 3


def test_where_the_kind_is_not_served_the_node_works_without(node_1: Node) -> None:
    node_1.api.is_served = False
    waits = [node_1.keeper.step() for _ in range(7)]
    assert (waits[0], waits[-1]) == ABSENT_S
    assert node_1.keeper.problem is None
    assert node_1.warned == []
    node_1.api.is_served = True
    node_1.keeper.step()
    assert node_1.api.stored is not None
    node_1.api.error = NotFoundError("deleted again")
    node_1.keeper.check()
    assert node_1.keeper.step() == ABSENT_S[0]


def test_a_missing_right_is_told_once(node_1: Node) -> None:
    node_1.api.error = ForbiddenError("gpunodes is forbidden")
    assert node_1.keeper.step() == ABSENT_S[0]
    node_1.keeper.step()
    assert len(node_1.warned) == 1
    assert "gpunodes is forbidden" in str(node_1.keeper.problem)
    node_1.api.error = None
    node_1.keeper.step()
    assert node_1.keeper.problem is None


@pytest.mark.parametrize(
    ("error", "wait_s"),
    [(ConflictError("c"), PAUSE_S), (AlreadyExistsError("a"), PAUSE_S), (ApiUnreachableError("away"), RETRY_S)],
)
def test_what_passes_is_tried_again(node_1: Node, error: DraError, wait_s: float) -> None:
    node_1.api.error = error
    assert node_1.keeper.step() == wait_s
    assert node_1.warned == []


def test_before_anything_or_the_uid_of_its_node_is_known_it_is_not_made(node_1: Node) -> None:
    node_1.known = False
    assert (node_1.keeper.step(), node_1.api.asked) == (RETRY_S, [])
    node_1.known, node_1.uid = True, ""
    assert node_1.keeper.step() == RETRY_S
    assert node_1.api.stored is None


def test_what_an_older_release_wrote_is_replaced(node_1: Node) -> None:
    node_1.api.stored = {"metadata": {"name": "node-1"}, "status": {**node_status(STATUS, "t"), "driverName": 3}}
    node_1.keeper.step()
    assert node_status_of(node_1.api.stored) == STATUS


def status(snapshot: Snapshot | None = None, **changes: Any) -> GpuNodeStatus:
    facts = NodeFacts(snapshot=snapshot or node(), **{"terms": {}, **changes})
    return status_of(facts, "d")


def test_forms_of_gpus() -> None:
    shared = GpuTerms(policy="mps", sharing=SharingTerms(strategy=Strategy.MPS), profiles=frozenset())
    terms = {uuid(0): shared, uuid(1): GpuTerms(policy="hidden", offered=False)}
    three = Snapshot(gpus=tuple(gpu(minor) for minor in range(4)))
    uses = (share(), whole(2), partition(9, minor=3))
    found = status(three, terms=terms, uses=uses).gpus
    both = (PublishedForm.WHOLE, PublishedForm.PARTITIONS)
    assert [each.offered_as for each in found] == [(PublishedForm.SHARED,), (), both, both]
    assert [each.used_as.value for each in found] == ["Shared", "Free", "Whole", "Partitions"]
    assert [each.policy for each in found] == ["mps", "hidden", "", ""]
    gpus = (gpu(0, mig_resetless=False), gpu(1, mig_resetless=False, mig_enabled=True))
    published = [each.offered_as for each in status(Snapshot(gpus=gpus)).gpus]
    assert [PublishedForm.PARTITIONS in each for each in published] == [False, True], "MIG mode takes a reset"


def test_health_of_gpus() -> None:
    xid = condition(gpu_uuid=uuid(0))
    blind = condition(cause=HealthCause.UNMONITORED, gpu_uuid=uuid(1))
    taint = Taint(key="gpu.dra-driver.io/xid", value="79", effect="NoSchedule")
    terms = {uuid(0): GpuTerms(condition_taints=(taint,))}
    three = Snapshot(gpus=tuple(gpu(minor) for minor in range(3)))
    found = status(three, terms=terms, conditions=(xid, blind), missing=frozenset({uuid(2)})).gpus
    assert [(each.health, each.causes) for each in found] == [
        (HealthWord.UNHEALTHY, ("xid",)),
        (HealthWord.UNKNOWN, ("unmonitored",)),
        (HealthWord.UNHEALTHY, ("lost",)),
    ]
    assert [(each.key, each.value, each.effect) for each in found[0].taints] == [(taint.key, "79", "NoSchedule")]
    assert {each.health for each in status(watches_health=False).gpus} == {HealthWord.UNKNOWN}


def test_what_the_exporter_found_is_told_and_read_back() -> None:
    told = ReportedUsage(over_grant=(TOLD,), checked_at="2026-07-01T12:00:00Z")
    written = node_status(status(usage=told), "2026-07-01T12:00:00Z")
    assert present(node_status_of({"status": written})).usage == told
    assert written["summary"]["usage"] == "1 over grant: team/llm"


def test_versions_and_problems() -> None:
    snapshot = Snapshot(
        driver_version="580.65.06",
        nvml_version="13.580.65.06",
        cuda_driver_version=(13, 0),
        left_out=(LeftOutGpu(label="0000:65:00.0", reason="it does not answer"),),
    )
    problem = NodeProblem(reason="NotReady", message="starting")
    found = status(snapshot, problems=(problem,))
    assert (found.cuda_version, found.nvml_version) == ("13.0", "13.580.65.06")
    assert [each.reason for each in found.problems] == ["NotReady", "GpuLeftOut"]
    assert found.problems[1].message == "GPU 0000:65:00.0 cannot be used: it does not answer"
    # A GPU with a condition is a problem once, with the condition's advice.
    gone = Snapshot(left_out=(LeftOutGpu(label=uuid(0), reason="it does not answer"),))
    assert status(gone, conditions=(condition(gpu_uuid=uuid(0)),)).problems == ()


def test_claims_of_a_gpu_are_named_once() -> None:
    """As ``namespace/name``, which the GpuNode and the policy's status promise; people look claims up by it."""
    first, second = (ClaimRef(namespace=each, name="c", uid=ClaimUid(f"uid-{each}")) for each in "ab")
    held = [(uuid(0), second), (uuid(0), first), (uuid(0), second), (uuid(1), first)]
    assert claims_by_gpu(held) == {uuid(0): ["a/c", "b/c"], uuid(1): ["a/c"]}
