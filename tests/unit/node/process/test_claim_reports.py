"""Events on claims and their pods about the health of their devices."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import (
    ApiUnreachableError,
    ConflictError,
    ForbiddenError,
    InvalidObjectError,
    KubernetesApiError,
    NotFoundError,
    ServerBusyError,
    StorageError,
)
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid, DeviceName, GpuUuid, PoolName
from dra_driver.kube.discovery import ServerVersion
from dra_driver.kube.events import EventRecorder
from dra_driver.node.claims.entry import AssignedPartition, Entry
from dra_driver.node.process.claim_reports import (
    MANAGER,
    MAX_CLAIMS,
    MAX_NOTICES,
    MAX_PODS,
    RETRY_S,
    RIGHTS,
    ClaimEvents,
    ClaimStatus,
    Refusals,
    data_of,
    reported_objects,
)
from dra_driver.node.process.health_conditions import Notice
from dra_driver.node.process.health_report import DeviceReport, DeviceState
from dra_driver.node.process.usage_report import ClaimNotice
from tests.fakes.claims import device, entry, partition, sharing
from tests.fakes.stand_in import stand_in
from tests.unit.node.health.world import condition
from tests.unit.node.slices.gpus import H100, instance, mig_gpu

FREE = mig_gpu(H100)
CUT = replace(FREE, mig_enabled=True, mig_instances=(instance(FREE, 19, 6),))
PART = partition(6, gpu=CUT.uuid)
CONDITION = condition(gpu_uuid=CUT.uuid)
BEGUN = Notice(condition=CONDITION, gpu=CUT, kind="Warning", reason="GpuUnhealthy", message="gpu-0 is unhealthy")
POD = {"resource": "pods", "name": "trainer", "uid": "pod-uid"}


def ref(name: str) -> ClaimRef:
    return ClaimRef(namespace="team", name=name, uid=ClaimUid(f"uid-of-{name}"))


def held(name: str, gpu: str = CUT.uuid, part: AssignedPartition | None = None) -> Entry:
    return entry("", device(gpu_uuid=GpuUuid(gpu), partition=part), ref=ref(name))


def stored(name: str, *users: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-of-{name}"}, "status": {"reservedFor": list(users)}}


class JournalOfNode:
    """Claims, or the error of reading them."""

    claims: list[Entry] | StorageError

    def listed(self) -> list[Entry]:
        if isinstance(self.claims, StorageError):
            raise self.claims
        return self.claims


class Node(JournalOfNode):
    """Claims of a node, and an API server that answers as it is told."""

    def __init__(self) -> None:
        self.claims = [held("one")]
        self.stored: dict[str, dict[str, Any] | KubernetesApiError] = {"one": stored("one", POD)}
        self.refuses: KubernetesApiError | None = None
        self.read: list[str] = []
        self.created: list[tuple[str, dict[str, Any]]] = []
        recorder = EventRecorder(self, "dra-driver", "node-a", refused=Refusals())
        self.events = ClaimEvents(stand_in(self), recorder, claims=self.listed)

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
        self.created.clear()
        self.events.tell(notice)
        self.events.step()
        return [(body["involvedObject"]["kind"], body["involvedObject"]["name"]) for _, body in self.created]


@pytest.fixture
def node() -> Node:
    return Node()


def test_the_claim_and_its_pod_get_the_sentence_of_the_nodes_event(node: Node) -> None:
    assert node.told() == [("ResourceClaim", "one"), ("Pod", "trainer")]
    for path, body in node.created:
        assert path == "/api/v1/namespaces/team/events"
        assert (body["type"], body["reason"], body["message"]) == ("Warning", "GpuUnhealthy", "gpu-0 is unhealthy")
    assert [body["involvedObject"]["uid"] for _, body in node.created] == ["uid-of-one", "pod-uid"]
    assert node.created[0][1]["involvedObject"]["apiVersion"] == "resource.k8s.io/v1"
    assert node.told(replace(BEGUN, kind="Normal", reason="GpuRecovered", message="ended")) != []
    assert {(body["type"], body["reason"]) for _, body in node.created} == {("Normal", "GpuRecovered")}
    assert node.read == ["one", "one"], "once for each event"


def test_only_claims_that_have_the_device_are_told_and_read(node: Node) -> None:
    node.claims = [held("one", part=PART), held("whole"), held("other", gpu="GPU-other")]
    node.stored["whole"] = stored("whole")
    in_part = replace(CONDITION, gi_id=CUT.mig_instances[0].gi_id)
    assert node.told(replace(BEGUN, condition=in_part))[0] == ("ResourceClaim", "one")
    assert node.read == ["one"]
    node.told(replace(BEGUN, message="the whole GPU"))
    assert node.read == ["one", "one", "whole"]


def test_news_of_one_claim_reach_it_and_its_pods_alone(node: Node) -> None:
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
    assert len(reported_objects(ref("one"), stored("one", user))) == 1
    assert len(reported_objects(ref("one"), stored("one", POD | {"apiGroup": ""}))) == 2


def test_a_claim_that_has_the_name_of_another_is_left_alone() -> None:
    documents: tuple[dict[str, Any], ...] = ({}, {"metadata": []}, stored("another", POD))
    for document in documents:
        assert reported_objects(ref("one"), document) == []


def test_the_number_of_claims_and_pods_is_bounded(node: Node) -> None:
    node.claims = [held(f"c{n}") for n in range(MAX_CLAIMS + 5)]
    node.stored = {f"c{n}": stored(f"c{n}") for n in range(MAX_CLAIMS + 5)}
    assert len(node.told()) == MAX_CLAIMS
    users = [POD | {"name": f"p{n}"} for n in range(MAX_PODS + 5)]
    assert len(reported_objects(ref("one"), stored("one", *users))) == MAX_PODS + 1


def test_notices_that_nothing_takes_in_do_not_pile_up(node: Node) -> None:
    for _ in range(MAX_NOTICES + 5):
        node.events.tell(BEGUN)
    taken = 0
    while node.events.step() is not None:
        taken += 1
    assert taken == MAX_NOTICES


def test_a_claim_that_is_gone_or_unreadable_does_not_stop_the_others(node: Node) -> None:
    node.claims = [held("gone"), held("busy"), held("one")]
    node.stored |= {"gone": NotFoundError("no", status=404), "busy": ServerBusyError("no", status=500)}
    assert node.told() == [("ResourceClaim", "one"), ("Pod", "trainer")]
    node.claims = StorageError("disk")
    assert node.told() == []
    node.read.clear()
    node.claims, node.stored["one"] = [held("one"), held("two")], ApiUnreachableError("timed out")
    assert (node.told(), node.read) == ([], ["one"]), "an API server that does not answer is asked once"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ForbiddenError("events is forbidden", status=403), [True]),
        (NotFoundError("no such namespace", status=404), []),
        (ForbiddenError("events is forbidden: x because it is being terminated", status=403), []),
    ],
)
def test_a_missing_right_is_said_once_but_not_of_a_namespace_that_is_deleted(
    node: Node, error: KubernetesApiError, said: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    node.refuses = error
    with caplog.at_level(logging.INFO):
        assert node.told() == node.told(replace(BEGUN, message="another")) == []
    assert [RIGHTS in record.getMessage() for record in caplog.records] == said


POOL = PoolName("node-a/gpu.nvidia.com")
UID = ClaimUid("b1c7e0f2-5d0a-4c61-9f7e-0f6f0a8c1d2e")
CLAIM = replace(
    entry(UID, device(pool=POOL, gpu_uuid=GpuUuid("GPU-0")), ref=ClaimRef(namespace="default", name="one", uid=UID)),
    changed_at=1_800_000_000.0,
)
SICK = DeviceReport(pool=POOL, device=DeviceName("gpu-0"), state=DeviceState.UNHEALTHY, message="XID 79")
WELL = replace(SICK, state=DeviceState.HEALTHY, message="")


class Claimed(JournalOfNode):
    """A node with one claim, and an API server that answers as it is told."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "claim-status.json"
        self.claims = [CLAIM]
        self.answers: list[KubernetesApiError] = []
        self.drops = False
        self.minor = 36
        self.applied: list[tuple[str, Mapping[str, Any], str]] = []
        self.events: list[str] = []
        self.restart()

    def restart(self, *, waits_for_health: bool = False) -> None:
        self.status = ClaimStatus(
            stand_in(self), "gpu.nvidia.com", self.path,
            version=lambda: ServerVersion(git_version=f"v1.{self.minor}.2", major=1, minor=self.minor),
            claims=self.listed, warn=self.events.append, now=lambda: 1_800_000_100.0,
            waits_for_health=waits_for_health,
        )  # fmt: skip

    def apply(self, path: str, body: Mapping[str, Any], manager: str) -> dict[str, Any]:
        if self.answers:
            raise self.answers.pop(0)
        self.applied.append((path, body, manager))
        return {"status": {}} if self.drops else {"status": body["status"]}

    def conditions(self) -> list[tuple[str, str, str]]:
        found = [device["conditions"][0] for device in self.applied[-1][1]["status"]["devices"]]
        return [(each["status"], each["reason"], each["message"]) for each in found]

    def shows(self, *reports: DeviceReport) -> None:
        self.status.show(reports)
        self.status.step()


@pytest.fixture
def claimed(tmp_path: Path) -> Claimed:
    return Claimed(tmp_path)


def test_what_is_written(claimed: Claimed) -> None:
    """Own entries, with the claim's UID: another claim of that name is not touched."""
    assert claimed.status.step() is None
    ((path, body, manager),) = claimed.applied
    assert path == "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/one/status"
    assert manager == MANAGER
    assert body["metadata"] == {"name": "one", "namespace": "default", "uid": UID}
    (device,) = body["status"]["devices"]
    condition = device.pop("conditions")[0]
    assert device == {"driver": "gpu.nvidia.com", "pool": POOL, "device": "gpu-0", "data": {"uuid": "GPU-0"}}
    assert condition == {"type": "Ready", "status": "True", "reason": "Prepared", "message": "",
                         "lastTransitionTime": "2027-01-15T08:00:00Z"}  # fmt: skip


def test_health_is_a_condition_that_comes_and_goes(claimed: Claimed) -> None:
    claimed.status.step()
    claimed.shows(SICK)
    assert claimed.conditions() == [("False", "Unhealthy", "XID 79")]
    claimed.restart()
    claimed.shows(SICK)
    assert len(claimed.applied) == 2
    claimed.shows(WELL)
    assert (len(claimed.applied), claimed.conditions()[0][0]) == (3, "True")


def test_a_restart_does_not_say_that_a_sick_device_is_well(claimed: Claimed) -> None:
    claimed.shows(SICK)
    claimed.restart(waits_for_health=True)
    assert claimed.status.step() is None
    claimed.shows(SICK)
    assert [status for status, *_ in claimed.conditions()] == ["False"]
    assert len(claimed.applied) == 1
    claimed.restart(waits_for_health=True)
    claimed.shows()
    assert claimed.conditions()[0][0] == "True", "the first report may have no device"


def test_a_claim_that_is_refused_does_not_stop_the_others(claimed: Claimed) -> None:
    other = replace(CLAIM, ref=ClaimRef(namespace="default", name="two", uid=ClaimUid("two")))
    claimed.claims = [CLAIM, other]
    claimed.answers = [InvalidObjectError("422", status=422)]
    assert claimed.status.step() is None
    assert [path.rsplit("/", 2)[1] for path, _, _ in claimed.applied] == ["two"]
    assert claimed.status.problem is None


def test_entries_of_a_device(claimed: Claimed) -> None:
    """Two shares of it are two entries. To the API server entries are a map, so two requests for it are one."""
    (device,) = CLAIM.devices
    for devices, key, written in (
        ((replace(device, share_id="c1"), replace(device, share_id="c2")), "shareID", ["c1", "c2"]),
        ((device, device), "device", ["gpu-0"]),
    ):
        claimed.claims = [replace(CLAIM, devices=devices)]
        claimed.status.step()
        assert [each[key] for each in claimed.applied[-1][1]["status"]["devices"]] == written


def test_an_older_api_server_is_refused_with_a_sentence(claimed: Claimed) -> None:
    """There the right would allow to write every claim's allocation; nothing is asked of it again."""
    claimed.minor = 35
    assert claimed.status.step() is None
    assert claimed.status.step() is None
    assert claimed.applied == []
    assert len(claimed.events) == 1
    assert "the API server is v1.35.2, expected Kubernetes 1.36 or newer" in (claimed.status.problem or "")


@pytest.mark.parametrize("error", [NotFoundError("404", status=404), ConflictError("409", status=409)])
def test_a_claim_that_is_gone_is_left_alone(claimed: Claimed, error: KubernetesApiError) -> None:
    claimed.answers = [error]
    assert claimed.status.step() is None
    assert claimed.status.step() is None
    assert (claimed.applied, claimed.events) == ([], [])


@pytest.mark.parametrize(
    ("error", "events"), [(ForbiddenError("403: may not", status=403), 1), (ApiUnreachableError("no answer"), 0)]
)
def test_a_failed_write_is_tried_again_and_a_missing_right_is_an_event(
    claimed: Claimed, error: KubernetesApiError, events: int
) -> None:
    claimed.answers = [error, error]
    assert [claimed.status.step(), claimed.status.step()] == [RETRY_S, RETRY_S]
    assert len(claimed.events) == events
    assert claimed.status.step() is None
    assert (claimed.status.problem, len(claimed.applied)) == (None, 1)


def test_a_status_that_is_dropped_is_not_written_again(claimed: Claimed) -> None:
    claimed.drops = True
    claimed.status.step()
    claimed.status.step()
    assert len(claimed.applied) == 1
    assert "DRAResourceClaimDeviceStatus" in claimed.events[0]


def test_a_journal_that_cannot_be_read_is_tried_again(claimed: Claimed) -> None:
    claimed.status.step()
    claimed.claims = StorageError("no disk")
    assert claimed.status.step() == RETRY_S
    claimed.claims = [CLAIM]
    claimed.status.step()
    assert len(claimed.applied) == 1
    claimed.claims = []
    claimed.status.step()
    assert UID not in claimed.path.read_text(), "the file does not grow"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"claims": 5}', '{"claims": {"x": 5}}'])
def test_a_file_that_cannot_be_used_only_repeats_writes(claimed: Claimed, text: str) -> None:
    claimed.path.write_text(text)
    claimed.restart()
    claimed.status.step()
    assert len(claimed.applied) == 1


def test_data_of_devices() -> None:
    whole = device(gpu_uuid=GpuUuid("GPU-0"))
    part = partition(6, gpu=whole.gpu_uuid, gi_id=7)
    place = {"profile": "1g.10gb", "start": 6, "size": 1}
    share = {"strategy": "TimeSlicing", "computePercent": 20, "memoryBytes": 1024}
    assert data_of(whole) == {"uuid": "GPU-0"}
    assert data_of(replace(whole, partition=part)) == {"uuid": "MIG-x", "parentUUID": "GPU-0", "placement": place}
    assert data_of(replace(whole, sharing=sharing(1024)))["share"] == share
