"""Events on claims and their pods about the health of their devices."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import (
    ApiUnreachableError,
    ForbiddenError,
    KubernetesApiError,
    NotFoundError,
    ServerBusyError,
    StorageError,
)
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.kube.events import EventRecorder
from dra_driver.node.claims.entry import AssignedPartition, Entry
from dra_driver.node.process.claim_reports import (
    MAX_CLAIMS,
    MAX_NOTICES,
    MAX_PODS,
    RIGHTS,
    ClaimEvents,
    Refusals,
    told_objects,
)
from dra_driver.node.process.health_conditions import Notice
from dra_driver.node.process.usage_report import ClaimNotice
from tests.fakes.entries import device, entry, partition
from tests.fakes.stand_in import stand_in
from tests.unit.node.health.world import condition
from tests.unit.node.slices.gpus import H100, instance, mig_gpu

FREE = mig_gpu(H100)
CUT = replace(FREE, mig_enabled=True, mig_instances=(instance(FREE, 19, 6),))
PART = partition(6, gpu=CUT.uuid)
CONDITION = condition(gpu_uuid=CUT.uuid)
BEGUN = Notice(condition=CONDITION, gpu=CUT, kind="Warning", reason="GpuUnhealthy", message="gpu-0 is not healthy")
POD = {"resource": "pods", "name": "trainer", "uid": "pod-uid"}


def ref(name: str) -> ClaimRef:
    return ClaimRef(namespace="team", name=name, uid=ClaimUid(f"uid-of-{name}"))


def held(name: str, gpu: str = CUT.uuid, part: AssignedPartition | None = None) -> Entry:
    return entry("", device(gpu_uuid=GpuUuid(gpu), partition=part), ref=ref(name))


def stored(name: str, *users: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-of-{name}"}, "status": {"reservedFor": list(users)}}


class Node:
    """Claims of a node, and an API server that answers as it is told."""

    def __init__(self) -> None:
        self.claims: list[Entry] | StorageError = [held("one")]
        self.stored: dict[str, dict[str, Any] | KubernetesApiError] = {"one": stored("one", POD)}
        self.refuses: KubernetesApiError | None = None
        self.read: list[str] = []
        self.created: list[tuple[str, dict[str, Any]]] = []
        recorder = EventRecorder(self, "dra-driver", "node-a", refused=Refusals())
        self.events = ClaimEvents(stand_in(self), recorder, claims=self.listed)

    def listed(self) -> list[Entry]:
        if isinstance(self.claims, StorageError):
            raise self.claims
        return self.claims

    def get(self, path: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        self.read.append(name)
        answer = self.stored[name]
        if isinstance(answer, KubernetesApiError):
            raise answer
        return answer

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        if self.refuses is not None:
            raise self.refuses
        self.created.append((path, dict(body)))
        return dict(body)

    def merge_patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        raise AssertionError(f"{path} is not patched")

    def told(self, notice: Notice | ClaimNotice = BEGUN) -> list[tuple[str, str]]:
        """Kind and name of the objects that a notice reached."""
        self.created.clear()
        self.events.tell(notice)
        self.events.step()
        return [(body["involvedObject"]["kind"], body["involvedObject"]["name"]) for _, body in self.created]


@pytest.fixture
def node() -> Node:
    return Node()


def test_the_claim_and_its_pod_get_the_sentence_of_the_nodes_event(node: Node) -> None:
    """In their namespace, where kubectl describe looks for it; and so when it ends."""
    assert node.told() == [("ResourceClaim", "one"), ("Pod", "trainer")]
    for path, body in node.created:
        assert path == "/api/v1/namespaces/team/events"
        assert (body["type"], body["reason"], body["message"]) == ("Warning", "GpuUnhealthy", "gpu-0 is not healthy")
    assert [body["involvedObject"]["uid"] for _, body in node.created] == ["uid-of-one", "pod-uid"]
    assert node.created[0][1]["involvedObject"]["apiVersion"] == "resource.k8s.io/v1"
    assert node.told(replace(BEGUN, kind="Normal", reason="GpuRecovered", message="ended")) != []
    assert {(body["type"], body["reason"]) for _, body in node.created} == {("Normal", "GpuRecovered")}
    assert node.read == ["one", "one"], "once for each event"


def test_only_claims_that_have_the_device_are_told_and_read(node: Node) -> None:
    """A partition's error is not its neighbours'; the GPU's is everybody's on it."""
    node.claims = [held("one", part=PART), held("whole"), held("other", gpu="GPU-other")]
    node.stored["whole"] = stored("whole")
    in_part = replace(CONDITION, gi_id=CUT.mig_instances[0].gi_id)
    assert node.told(replace(BEGUN, condition=in_part))[0] == ("ResourceClaim", "one")
    assert node.read == ["one"]
    node.told(replace(BEGUN, message="the whole GPU"))
    assert node.read == ["one", "one", "whole"]


def test_news_of_one_claim_reach_it_and_its_pods_alone(node: Node) -> None:
    """What the usage exporter found; a later claim of the name is another one."""
    node.claims = [held("one"), held("other")]
    notice = ClaimNotice(claim=ref("one"), reason="GpuMemoryOverGrant", message="too much")
    assert node.told(notice) == [("ResourceClaim", "one"), ("Pod", "trainer")]
    assert {(body["type"], body["reason"], body["message"]) for _, body in node.created} == {
        ("Warning", "GpuMemoryOverGrant", "too much")
    }
    assert node.told(replace(notice, claim=replace(ref("one"), uid=ClaimUid("later")))) == []
    assert node.read == ["one", "one"]


@pytest.mark.parametrize(
    "user",
    [
        POD | {"resource": "podgroups"}, POD | {"apiGroup": "scheduling.example.com"}, POD | {"name": ""},
        POD | {"name": 7}, POD | {"uid": None}, POD | {"name": "x" * 254}, "trainer",
    ],
)  # fmt: skip
def test_users_that_are_no_pods_get_no_event(user: Any) -> None:
    """Whatever the object holds."""
    assert len(told_objects(ref("one"), stored("one", user))) == 1
    assert len(told_objects(ref("one"), stored("one", POD | {"apiGroup": ""}))) == 2


@pytest.mark.parametrize("document", [{}, {"metadata": []}, stored("another", POD)])
def test_a_claim_that_has_the_name_of_another_is_left_alone(document: dict[str, Any]) -> None:
    """Its pods have nothing to do with this device."""
    assert told_objects(ref("one"), document) == []


def test_the_number_of_claims_and_pods_is_bounded(node: Node) -> None:
    """A shared GPU and a shared claim can have many."""
    node.claims = [held(f"c{n}") for n in range(MAX_CLAIMS + 5)]
    node.stored = {f"c{n}": stored(f"c{n}") for n in range(MAX_CLAIMS + 5)}
    assert len(node.told()) == MAX_CLAIMS
    users = [POD | {"name": f"p{n}"} for n in range(MAX_PODS + 5)]
    assert len(told_objects(ref("one"), stored("one", *users))) == MAX_PODS + 1


def test_notices_that_nothing_takes_in_do_not_pile_up(node: Node) -> None:
    """The thread may wait for the API server while GPUs report without end."""
    for _ in range(MAX_NOTICES + 5):
        node.events.tell(BEGUN)
    taken = 0
    while node.events.step() is not None:
        taken += 1
    assert taken == MAX_NOTICES


def test_a_claim_that_is_gone_or_unreadable_does_not_stop_the_others(node: Node) -> None:
    """Nor does a damaged journal end the thread."""
    node.claims = [held("gone"), held("busy"), held("one")]
    node.stored |= {"gone": NotFoundError("no", status=404), "busy": ServerBusyError("no", status=500)}
    assert node.told() == [("ResourceClaim", "one"), ("Pod", "trainer")]
    node.claims = StorageError("disk")
    assert node.told() == []


def test_an_api_server_that_does_not_answer_is_asked_once(node: Node) -> None:
    """Each question costs its time limit."""
    node.claims = [held("one"), held("two")]
    node.stored["one"] = ApiUnreachableError("timed out")
    assert node.told() == []
    assert node.read == ["one"]


def test_a_missing_right_is_said_once_and_names_the_component(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Events are refused one by one; the log is not the place for that."""
    node.refuses = ForbiddenError("events is forbidden", status=403)
    with caplog.at_level(logging.INFO):
        assert node.told() == node.told(replace(BEGUN, message="another")) == []
    assert [RIGHTS in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("no such namespace", status=404),
        ForbiddenError("events is forbidden: x because it is being terminated", status=403),
    ],
)
def test_a_namespace_that_is_deleted_is_no_missing_right(
    node: Node, error: KubernetesApiError, caplog: pytest.LogCaptureFixture
) -> None:
    """Pods end with it; there is nothing to do."""
    node.refuses = error
    with caplog.at_level(logging.INFO):
        assert node.told() == []
    assert caplog.records == []
