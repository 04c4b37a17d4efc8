"""Plans of allocations, and the errors for allocations that are refused."""

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import ClaimError, DraError, UnknownDeviceError
from dra_driver.core.model.claim import AllocatedClaim, PreparedDevice
from dra_driver.core.model.gpu import LeftOutGpu, Snapshot
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy
from dra_driver.node.claims.entry import AttemptToken, Entry, OwnerId, State
from dra_driver.node.claims.planning.plan import PreparePlan, plan_claim, restore_plan
from tests.fakes.claims import DRIVER, NAMES, POOL, changed, claim, gpu, machine, result, uid

SHARE = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"


def planned(of: AllocatedClaim, snapshot: Snapshot | None = None) -> PreparePlan:
    return plan_claim(of, snapshot or machine(2), NAMES, POOL)


def refusal(of: AllocatedClaim, snapshot: Snapshot | None = None) -> DraError:
    with pytest.raises(DraError) as caught:
        planned(of, snapshot)
    return caught.value


def test_each_result_becomes_one_answer_in_order() -> None:
    """The kubelet uses pool and device as keys of health and pod resources, so no result may be missing or merged.

    It shows the health of each by its first CDI id, which no other device may have.
    """
    done = planned(claim(1, result("gpu-1", request="b"), result("gpu-0", request="a/small")))
    assert done.prepared == tuple(
        PreparedDevice(
            request_names=(request,),
            pool=POOL,
            device=gpu(minor).device_name,
            cdi_device_ids=(f"k8s.{DRIVER}/claim={uid(1)}-gpu-{minor}", f"k8s.{DRIVER}/device=common"),
        )
        for minor, request in ((1, "b"), (0, "a"))
    )


def test_a_share_is_part_of_the_name_and_of_the_answer() -> None:
    """Two shares of one device in one claim must not have one CDI device."""
    shared = {"memory": "1Gi", "computePercent": "10"}
    other = SHARE[::-1].replace("-", "a")
    done = plan_claim(
        claim(1, *(result(share_id=each, consumed_capacity=shared) for each in (SHARE, other))),
        machine(1),
        NAMES,
        POOL,
        {gpu(0).uuid: GpuTerms(sharing=SharingTerms(strategy=Strategy.TIME_SLICING))},
    )
    assert done.devices[0].cdi_device == f"{uid(1)}-gpu-0-{SHARE}"
    assert done.prepared[0].share_id == SHARE
    # What a share hides is hidden only when its own edits come after the common ones.
    assert [each.cdi_device_ids[0] for each in done.prepared] == [f"k8s.{DRIVER}/device=common"] * 2
    assert done.devices[0].cdi_device != done.devices[1].cdi_device


def test_a_device_twice_is_refused() -> None:
    error = refusal(claim(1, result(request="a"), result(request="b")))
    assert isinstance(error, ClaimError)
    assert "lists device gpu-0 twice" in str(error)


def test_an_unknown_gpu_is_refused_with_the_gpus_that_exist_and_why_one_is_missing() -> None:
    """The reader sees whether the device or the node is wrong; a GPU that fell off the bus explains the error."""
    snapshot = replace(machine(2), left_out=(LeftOutGpu(label="0000:65:00.0", reason="injected-1"),))
    error = refusal(claim(1, result("gpu-7")), snapshot)
    assert isinstance(error, UnknownDeviceError)
    assert "device gpu-7 of claim default/claim-1" in str(error)
    assert all(name in str(error) for name in ("gpu-0, gpu-1", "0000:65:00.0", "injected-1"))


def test_another_pool_is_refused() -> None:
    """A claim of another node must not get this node's GPU of the same name."""
    error = refusal(claim(1, result(pool=f"node-b/{DRIVER}")))
    assert isinstance(error, UnknownDeviceError)
    assert f"pool node-b/{DRIVER}, but this node's pool is {POOL}" in str(error)


def test_another_kind_of_device_is_refused_as_such() -> None:
    assert refusal(claim(1, result("vfio-0"))).reason == "UnsupportedDevice"


def test_a_gpu_in_mig_mode_is_refused_but_not_for_admin_access() -> None:
    snapshot = changed(machine(1), 0, mig_enabled=True)
    assert "in MIG mode" in str(refusal(claim(1), snapshot))
    assert planned(claim(1, result(admin_access=True)), snapshot).devices[0].gpu.mig_enabled


@pytest.mark.parametrize("count", [0, 33])
def test_the_number_of_devices_is_bounded(count: int) -> None:
    results = tuple(result(f"gpu-{minor}") for minor in range(count))
    error = refusal(replace(claim(1), results=results), machine(40))
    assert f"has {count} devices of this driver, expected 1 to 32" in str(error)


def journalled(done: PreparePlan) -> Entry:
    attempt = AttemptToken(owner=OwnerId("run-1"), number=1)
    return Entry(
        ref=done.ref, state=State.PREPARED, attempt=attempt, boot_id="b", changed_at=0.0, devices=done.assigned
    )


def test_a_plan_restored_from_the_journal_equals_the_first() -> None:
    done = planned(
        claim(1, result("gpu-1", request="main/a", share_id=SHARE), result(admin_access=True, request="watch"))
    )
    assert restore_plan(journalled(done), machine(2), NAMES) == replace(done, claim=None)


def test_monitor_is_prepared_for_admin_access_only() -> None:
    """Any claim can tolerate the taint of the device: then the scheduler allocates it, and the node process refuses."""
    error = refusal(claim(1, result("gpu-0-monitor")))
    assert (type(error), error.reason) == (ClaimError, "AdminAccessRequired")
    (device,) = planned(claim(1, result("gpu-0-monitor", admin_access=True))).devices
    assert (device.gpu.uuid, device.partition, device.changes_hardware) == (gpu(0).uuid, None, False)
    assert isinstance(refusal(claim(1, result("gpu-7-monitor", admin_access=True))), UnknownDeviceError)
