"""What the kubelet is told about which devices."""

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.health import HealthCause, Severity
from dra_driver.core.model.ids import DeviceName, PoolName
from dra_driver.core.model.mig import PartitionId
from dra_driver.node.process.health_report import (
    MAX_MESSAGE,
    STEADY_S,
    DeviceReport,
    DeviceState,
    RateLimitedReports,
    ReportedDevice,
    reports,
)
from dra_driver.node.process.missing_gpus import MissingGpu
from tests.unit.node.health import world
from tests.unit.node.slices.gpus import H100, instance, mig_gpu, snapshot

POOL = PoolName("node-a/gpu.nvidia.com")
FREE, OTHER = mig_gpu(H100), mig_gpu(H100, 1)
CUT = replace(FREE, mig_enabled=True, mig_mode_owned=True,
              mig_instances=(instance(FREE, 19, 0, owned=True), instance(FREE, 19, 6, owned=True)))  # fmt: skip
NODE = snapshot(CUT, OTHER)
WHOLE = ReportedDevice(pool=POOL, device=DeviceName("gpu-1"), gpu_uuid=OTHER.uuid)
PART = ReportedDevice(
    pool=POOL, device=DeviceName("gpu-0-mig-1g10gb-19-6"), gpu_uuid=FREE.uuid, partition=PartitionId(FREE.uuid, 19, 6)
)
condition = partial(world.condition, gpu_uuid=FREE.uuid)


def told(*claimed: ReportedDevice, conditions: Any = (), missing: Any = (), node: Snapshot = NODE) -> dict[str, Any]:
    found = reports(claimed, POOL, node, conditions, dict.fromkeys(missing, MissingGpu(since=1.0)))
    assert [each.device for each in found] == sorted({each.device for each in found})
    return {each.device: (each.state.name, each.message) for each in found}


def test_devices_of_claims_alone_on_a_healthy_node() -> None:
    assert told(WHOLE, PART) == {"gpu-0-mig-1g10gb-19-6": ("HEALTHY", ""), "gpu-1": ("HEALTHY", "")}
    assert told() == {}
    assert told(WHOLE, WHOLE) == {"gpu-1": ("HEALTHY", "")}, "two shares: the protocol has no share ids"


def test_a_gpus_condition_is_of_all_its_devices_that_exist() -> None:
    sick = ("UNHEALTHY", "XID 79")
    assert told(WHOLE, conditions=[condition()]) == {
        "gpu-0": sick, "gpu-0-mig-1g10gb-19-0": sick, "gpu-0-mig-1g10gb-19-6": sick, "gpu-1": ("HEALTHY", ""),
    }  # fmt: skip


def test_an_instances_condition_is_of_its_partition_alone() -> None:
    gi = CUT.mig_instances[1].gi_id
    assert told(WHOLE, conditions=[condition(gi_id=gi)]) == {
        "gpu-0-mig-1g10gb-19-6": ("UNHEALTHY", "XID 79"), "gpu-1": ("HEALTHY", ""),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"severity": Severity.COUNTED}, ("HEALTHY", "")), ({"severity": Severity.EVICT}, ("UNHEALTHY", "XID 79")),
     ({"cause": HealthCause.UNMONITORED, "message": "no events"}, ("UNKNOWN", "no events"))],
)  # fmt: skip
def test_the_state_follows_the_condition(changes: dict[str, Any], expected: tuple[str, str]) -> None:
    assert told(PART, conditions=[condition(**changes)])[PART.device] == expected


def test_a_missing_gpu_is_unhealthy_whatever_is_known() -> None:
    assert told(WHOLE, missing=[OTHER.uuid])["gpu-1"] == ("UNHEALTHY", "the GPU is no longer found on its node")
    lost = condition(cause=HealthCause.LOST, gpu_uuid=OTHER.uuid, message="lost")
    assert told(WHOLE, missing=[OTHER.uuid], conditions=[lost])["gpu-1"] == ("UNHEALTHY", "lost")
    (late,) = reports([WHOLE], POOL, NODE, [], {OTHER.uuid: MissingGpu(since=1.0, awaited=True)})
    assert (late.state.name, late.message) == ("UNKNOWN", "the GPU is not found on its node yet")
    assert told(WHOLE, node=snapshot(CUT))["gpu-1"][0] == "UNKNOWN", "of a claim whose GPU was replaced"


def test_several_messages_are_one_of_bounded_length() -> None:
    conditions = [
        condition(),
        condition(cause=HealthCause.ECC),
        condition(cause=HealthCause.NVLINK, message="y" * 2000),
    ]
    state, message = told(PART, conditions=conditions)[PART.device]
    assert (state, len(message)) == ("UNHEALTHY", MAX_MESSAGE)
    assert message.startswith("XID 79; yyy")


SICK = DeviceReport(pool=POOL, device=DeviceName("gpu-0"), state=DeviceState.UNHEALTHY, message="0 failed")
SECOND = replace(SICK, device=DeviceName("gpu-1"))
LOOK_S = 10.0


class Limited(RateLimitedReports):
    """On a clock that stands still until a test moves it."""

    now = 1000.0

    def __init__(self) -> None:
        super().__init__(lambda: self.now)


def test_a_sentence_that_changes_at_every_look_is_told_once_a_minute() -> None:
    limited = Limited()
    told = []
    for look in range(61):
        (report,) = limited.apply([replace(SICK, message=f"{look} failed")])
        told.append(report.message)
        limited.now += LOOK_S
    assert list(dict.fromkeys(told)) == [f"{look} failed" for look in range(0, 61, int(STEADY_S / LOOK_S))]


def test_the_last_sentence_is_told_in_the_end() -> None:
    limited = Limited()
    limited.apply([SICK])
    last = replace(SICK, message="Recovery detected")
    assert limited.apply([last]) == (SICK,)
    limited.now += STEADY_S
    assert limited.apply([last]) == (last,)


def test_devices_do_not_delay_each_other_and_those_that_are_gone_are_forgotten() -> None:
    limited = Limited()
    limited.apply([SICK])
    assert limited.apply([replace(SECOND, message="new")]) == (replace(SECOND, message="new"),)
    again = replace(SICK, message="again")
    assert limited.apply([again]) == (again,)
    for state, message in ((DeviceState.HEALTHY, ""), (DeviceState.UNHEALTHY, "lost"), (DeviceState.UNKNOWN, "late")):
        report = replace(SICK, state=state, message=message)
        assert limited.apply([report]) == (report,), "a new state is told immediately"
