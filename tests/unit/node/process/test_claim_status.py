"""status.devices of prepared claims."""

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
    StorageError,
)
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid, DeviceName, GpuUuid, PoolName
from dra_driver.kube.discovery import ServerVersion
from dra_driver.node.claims import Entry
from dra_driver.node.process.claim_reports import MANAGER, RETRY_S, ClaimStatus, data_of
from dra_driver.node.process.health_report import DeviceReport, DeviceState
from tests.fakes.entries import device, entry, partition, sharing
from tests.fakes.stand_in import stand_in

POOL = PoolName("node-a/gpu.nvidia.com")
UID = ClaimUid("b1c7e0f2-5d0a-4c61-9f7e-0f6f0a8c1d2e")
CLAIM = replace(
    entry(UID, device(pool=POOL, gpu_uuid=GpuUuid("GPU-0")), ref=ClaimRef(namespace="default", name="one", uid=UID)),
    changed_at=1_800_000_000.0,
)
SICK = DeviceReport(pool=POOL, device=DeviceName("gpu-0"), state=DeviceState.UNHEALTHY, message="XID 79")
WELL = replace(SICK, state=DeviceState.HEALTHY, message="")


class Node:
    """A node with one claim, and an API server that answers as it is told."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "claim-status.json"
        self.claims: list[Entry] | StorageError = [CLAIM]
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

    def listed(self) -> list[Entry]:
        if isinstance(self.claims, StorageError):
            raise self.claims
        return self.claims

    def apply(self, path: str, body: Mapping[str, Any], manager: str) -> dict[str, Any]:
        if self.answers:
            raise self.answers.pop(0)
        self.applied.append((path, body, manager))
        return {"status": {}} if self.drops else {"status": body["status"]}

    def conditions(self) -> list[tuple[str, str, str]]:
        """Status, reason and message of each device as it was written last."""
        found = [device["conditions"][0] for device in self.applied[-1][1]["status"]["devices"]]
        return [(each["status"], each["reason"], each["message"]) for each in found]

    def shows(self, *reports: DeviceReport) -> None:
        self.status.show(reports)
        self.status.step()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_what_is_written(node: Node) -> None:
    """Own entries, with the claim's UID: another claim of that name is not touched."""
    assert node.status.step() is None
    ((path, body, manager),) = node.applied
    assert path == "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/one/status"
    assert manager == MANAGER
    assert body["metadata"] == {"name": "one", "namespace": "default", "uid": UID}
    (device,) = body["status"]["devices"]
    condition = device.pop("conditions")[0]
    assert device == {"driver": "gpu.nvidia.com", "pool": POOL, "device": "gpu-0", "data": {"uuid": "GPU-0"}}
    assert condition == {"type": "Ready", "status": "True", "reason": "Prepared", "message": "",
                         "lastTransitionTime": "2027-01-15T08:00:00Z"}  # fmt: skip


def test_health_is_a_condition_that_comes_and_goes(node: Node) -> None:
    """And nothing is written while nothing changes, also after a restart."""
    node.status.step()
    node.shows(SICK)
    assert node.conditions() == [("False", "Unhealthy", "XID 79")]
    node.restart()
    node.shows(SICK)
    assert len(node.applied) == 2
    node.shows(WELL)
    assert (len(node.applied), node.conditions()[0][0]) == (3, "True")


def test_a_restart_does_not_say_that_a_sick_device_is_well(node: Node) -> None:
    """What a process that has just started does not know yet is not written."""
    node.shows(SICK)
    node.restart(waits_for_health=True)
    assert node.status.step() is None
    node.shows(SICK)
    assert [status for status, *_ in node.conditions()] == ["False"]
    assert len(node.applied) == 1


def test_devices_that_are_all_well_are_written_after_the_first_report(node: Node) -> None:
    """The first report may have no device."""
    node.restart(waits_for_health=True)
    node.status.show([])
    assert node.status.step() is None
    assert node.conditions()[0][0] == "True"


def test_a_claim_that_is_refused_does_not_stop_the_others(node: Node) -> None:
    """It may not be allocated any more, while it is still prepared here."""
    other = replace(CLAIM, ref=ClaimRef(namespace="default", name="two", uid=ClaimUid("two")))
    node.claims = [CLAIM, other]
    node.answers = [InvalidObjectError("422", status=422)]
    assert node.status.step() is None
    assert [path.rsplit("/", 2)[1] for path, _, _ in node.applied] == ["two"]
    assert node.status.problem is None


def test_entries_of_a_device(node: Node) -> None:
    """Two shares of it are two entries. To the API server entries are a map, so two requests for it are one."""
    (device,) = CLAIM.devices
    for devices, key, written in (
        ((replace(device, share_id="c1"), replace(device, share_id="c2")), "shareID", ["c1", "c2"]),
        ((device, device), "device", ["gpu-0"]),
    ):
        node.claims = [replace(CLAIM, devices=devices)]
        node.status.step()
        assert [each[key] for each in node.applied[-1][1]["status"]["devices"]] == written


def test_an_older_api_server_is_refused_with_a_sentence(node: Node) -> None:
    """There the right would allow to write every claim's allocation; nothing is asked of it again."""
    node.minor = 35
    assert node.status.step() is None
    assert node.status.step() is None
    assert node.applied == []
    assert len(node.events) == 1
    assert "the API server is v1.35.2, expected Kubernetes 1.36 or newer" in (node.status.problem or "")


@pytest.mark.parametrize("error", [NotFoundError("404", status=404), ConflictError("409", status=409)])
def test_a_claim_that_is_gone_is_left_alone(node: Node, error: KubernetesApiError) -> None:
    """It is not tried again."""
    node.answers = [error]
    assert node.status.step() is None
    assert node.status.step() is None
    assert (node.applied, node.events) == ([], [])


def test_an_api_server_that_is_away_is_tried_again_later(node: Node) -> None:
    """Without an event."""
    node.answers = [ApiUnreachableError("no answer")]
    assert node.status.step() == RETRY_S
    assert node.events == []
    assert node.status.step() is None
    assert len(node.applied) == 1


def test_missing_rights_are_an_event_and_tried_again(node: Node) -> None:
    """Once, until it works."""
    node.answers = [ForbiddenError("403: may not", status=403), ForbiddenError("403: may not", status=403)]
    assert [node.status.step(), node.status.step()] == [RETRY_S, RETRY_S]
    assert len(node.events) == 1
    assert node.status.step() is None
    assert node.status.problem is None


def test_a_status_that_is_dropped_is_not_written_again(node: Node) -> None:
    """A feature gate is off."""
    node.drops = True
    node.status.step()
    node.status.step()
    assert len(node.applied) == 1
    assert "DRAResourceClaimDeviceStatus" in node.events[0]


def test_a_claim_that_left_is_forgotten(node: Node) -> None:
    """One of the same name has another UID; and the file does not grow."""
    node.status.step()
    node.claims = []
    node.status.step()
    assert UID not in node.path.read_text()


def test_a_journal_that_cannot_be_read_is_tried_again(node: Node) -> None:
    """What was written stays noted."""
    node.status.step()
    node.claims = StorageError("no disk")
    assert node.status.step() == RETRY_S
    node.claims = [CLAIM]
    node.status.step()
    assert len(node.applied) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"claims": 5}', '{"claims": {"x": 5}}'])
def test_a_file_that_cannot_be_used_only_repeats_writes(node: Node, text: str) -> None:
    """They change nothing."""
    node.path.write_text(text)
    node.restart()
    node.status.step()
    assert len(node.applied) == 1


def test_data_of_devices() -> None:
    """Whole, partition and share."""
    whole = device(gpu_uuid=GpuUuid("GPU-0"))
    part = partition(6, gpu=whole.gpu_uuid, gi_id=7)
    place = {"profile": "1g.10gb", "start": 6, "size": 1}
    share = {"strategy": "TimeSlicing", "computePercent": 20, "memoryBytes": 1024}
    assert data_of(whole) == {"uuid": "GPU-0"}
    assert data_of(replace(whole, partition=part)) == {"uuid": "MIG-x", "parentUUID": "GPU-0", "placement": place}
    assert data_of(replace(whole, sharing=sharing(1024)))["share"] == share
