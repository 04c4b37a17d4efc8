"""Sharing: claims share a GPU by policy, containers of one claim share by its config."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from dra_driver.claims.gpu_locks import GpuLocks
from dra_driver.claims.waiting import GpuLockedError
from dra_driver.claims.workflow.prepare import LOCK_S
from dra_driver.config.parameters import API_VERSION
from dra_driver.errors import (
    ClaimError,
    CommandError,
    DeviceInUseError,
    DraError,
    DriverUnavailableError,
    InvalidParametersError,
    MpsUnavailableError,
)
from dra_driver.gpu.backend import ComputeMode
from dra_driver.model.claim import AllocatedDevice, OpaqueConfig
from dra_driver.model.ids import GpuUuid
from dra_driver.model.terms import Form, GpuTerms, Interval, SharingTerms, Strategy
from dra_driver.published import ALL_PERCENT
from tests.fakes.claims import claim, ref, result, share_result, uid
from tests.unit.claims.conftest import ClaimsNode, Run, simulated


def shared(node: ClaimsNode, strategy: Strategy = Strategy.MPS, **more: Any) -> Run:
    """A run on a node with two H100, the first of which is shared."""
    node.backend = simulated()
    terms = SharingTerms(strategy=strategy, **more)
    node.terms = {node.gpus[0].uuid: GpuTerms(policy="shared-gpus", sharing=terms)}
    return node.run()


def config(kind: str, sharing: Mapping[str, Any], *requests: str, source: Any = "FromClaim") -> OpaqueConfig:
    return OpaqueConfig(
        source=source, requests=requests, parameters={"apiVersion": API_VERSION, "kind": kind, "sharing": sharing}
    )


def mps(**limits: Any) -> dict[str, Any]:
    return {"strategy": "MPS", "mpsConfig": limits}


def slicing(interval: str) -> dict[str, Any]:
    return {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}


def mode(run: Run, minor: int = 0) -> ComputeMode:
    assert run.node.backend is not None
    return run.node.backend.compute_mode(run.node.gpus[minor].uuid)


def file(run: Run, number: int) -> str:
    return run.node.writer.files[uid(number)].decode()


def uuid(run: Run, minor: int) -> GpuUuid:
    return run.node.gpus[minor].uuid


def one_of_some(number: int, memory: str = "1Gi", percent: int = 1, **more: Any) -> AllocatedDevice:
    """A share of a GPU whose policy limits their number."""
    share = share_result(number, memory, percent, **more)
    return replace(share, consumed_capacity={**share.consumed_capacity, "shares": "1"})


def test_three_mps_shares_get_their_limits_and_one_daemon(node: ClaimsNode) -> None:
    """Each container gets its memory and compute limits; the end of the last claim stops the daemon."""
    run = shared(node)
    for number, (gib, percent) in enumerate(((10, 20), (20, 30), (30, 50)), 1):
        answer = run.prepare(claim(number, share_result(number, f"{gib}Gi", percent)))
        assert answer[0].share_id == share_result(number, "1Gi", 1).share_id
        assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={gib * 1024}M" in file(run, number)
        assert f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percent}" in file(run, number)
        assert f"/mps/{uuid(run, 0)}/pipe" in file(run, number)
    assert list(node.sharing.running) == [uuid(run, 0)]
    assert mode(run) is ComputeMode.EXCLUSIVE_PROCESS
    for number in (2, 1):
        assert run.unprepare(ref(number)) is None
        assert not node.sharing.idle
    assert run.unprepare(ref(3)) is None
    assert node.is_whole_again()
    assert mode(run) is ComputeMode.DEFAULT


def test_a_share_that_does_not_fit_is_refused_with_numbers(node: ClaimsNode) -> None:
    """Scheduler and node may differ for a moment; no claim gets more memory than the GPU has."""
    run = shared(node)
    run.prepare(claim(1, share_result(1, "60Gi", 30), name="train"))
    error = run.refusal(claim(2, share_result(2, "30Gi", 30)))
    assert isinstance(error, DeviceInUseError)
    assert "asks for 30Gi of memory where 20119Mi of 81559Mi are left" in str(error)
    assert "beside the shares of claim default/train" in str(error)
    error = run.refusal(claim(3, share_result(3, "10Gi", 71)))
    assert f"asks for 71 percent of compute where 70 of {ALL_PERCENT} are left" in str(error)
    run.prepare(claim(4, share_result(4, "10Gi", 70)))


def test_the_number_of_shares_is_limited(node: ClaimsNode) -> None:
    """Time-sliced shares have no other limit that is enforced."""
    run = shared(node, Strategy.TIME_SLICING, max_shares=2)
    for number in (1, 2):
        run.prepare(claim(number, one_of_some(number)))
    assert "asks for 1 of 2 shares where 0 are left" in str(run.refusal(claim(3, one_of_some(3))))


def test_shares_from_before_the_limit_do_not_count_against_it(node: ClaimsNode) -> None:
    """They consumed none of it, so the scheduler allocates as many beside them: the node must not refuse those pods."""
    run = shared(node, Strategy.TIME_SLICING)
    for number in (1, 2, 3):
        run.prepare(claim(number, share_result(number, "1Gi", 1)))
    node.terms = {uuid(run, 0): GpuTerms(sharing=SharingTerms(strategy=Strategy.TIME_SLICING, max_shares=1))}
    run.prepare(claim(4, one_of_some(4)))
    run.prepare(claim(5, share_result(5, "1Gi", 1)))  # allocated before, prepared after
    assert "asks for 1 of 1 shares where 0 are left" in str(run.refusal(claim(6, one_of_some(6))))


def test_admin_access_to_the_claims_own_device_is_one_cdi_device(node: ClaimsNode) -> None:
    """Both results have the same name in the claim's CDI file, and a name can occur once."""
    node.backend = simulated()
    run = node.run()
    watched = result("gpu-0", request="watch", admin_access=True)
    asked = [config("GpuConfig", mps(defaultActiveThreadPercentage=10), "work")]
    answer = run.prepare(claim(1, watched, result("gpu-0", request="work"), configs=asked))
    assert answer[0].cdi_device_ids == answer[1].cdi_device_ids
    assert file(run, 1).count("CUDA_MPS_PIPE_DIRECTORY") == 1
    assert run.prepare(ref(1)) == answer
    assert run.unprepare(ref(1)) is None
    assert node.is_whole_again()


def test_a_share_that_does_not_fit_waits_for_another_to_end(node: ClaimsNode) -> None:
    """As with whole GPUs."""
    run = shared(node)
    run.prepare(claim(1, share_result(1, "60Gi", 50)))
    node.clock.after(3.0, lambda: run.unprepare(ref(1)))
    run.prepare(claim(2, share_result(2, "60Gi", 50)))
    assert node.sharing.asked.count(f"end {uuid(run, 0)}") == 1


def test_a_claim_that_consumed_everything_has_the_gpu_alone(node: ClaimsNode) -> None:
    """A plain claim on a GPU that could be shared gets no daemon, and its config applies."""
    run = shared(node)
    run.prepare(claim(1, share_result(1, "81559Mi", 100), configs=[config("GpuConfig", slicing("Long"))]))
    assert node.sharing.running == {}
    assert node.sharing.slices == {uuid(run, 0): Interval.LONG}
    assert run.journal.uses()[0].form is Form.WHOLE
    assert isinstance(run.refusal(claim(2, share_result(2, "1Gi", 1))), DeviceInUseError)
    assert run.unprepare(ref(1)) is None
    assert node.is_whole_again()


def test_time_sliced_shares_keep_their_interval_until_the_last_one_goes(node: ClaimsNode) -> None:
    """The time slice is a setting of the GPU, not of a claim."""
    run = shared(node, Strategy.TIME_SLICING, interval=Interval.SHORT)
    for number in (1, 2):
        run.prepare(claim(number, share_result(number, "10Gi", 40)))
        assert "CUDA_MPS" not in file(run, number)
    assert node.sharing.slices == {uuid(run, 0): Interval.SHORT}
    assert run.unprepare(ref(1)) is None
    assert node.sharing.slices == {uuid(run, 0): Interval.SHORT}
    assert node.sharing.asked == ["slice Short"], "once is enough"
    assert run.unprepare(ref(2)) is None
    assert node.is_whole_again()


def test_shares_exclude_whole_gpus_and_partitions_and_vice_versa(node: ClaimsNode) -> None:
    """A GPU has one form at a time."""
    run = shared(node)
    run.prepare(claim(1, share_result(1, "10Gi", 10)))
    assert isinstance(run.refusal(claim(2)), DeviceInUseError)
    assert isinstance(run.refusal(claim(3, result(node.part("1g.10gb", 0)))), DeviceInUseError)
    assert run.unprepare(ref(1)) is None
    run.prepare(claim(3))
    assert isinstance(run.refusal(claim(1)), DeviceInUseError)


def test_another_strategy_waits_until_the_gpu_is_free(node: ClaimsNode) -> None:
    """The policy changed while shares of the former one are in use."""
    run = shared(node)
    run.prepare(claim(1, share_result(1, "10Gi", 10)))
    node.terms = {uuid(run, 0): GpuTerms(sharing=SharingTerms(strategy=Strategy.TIME_SLICING))}
    assert isinstance(run.refusal(claim(2, share_result(2, "10Gi", 10))), DeviceInUseError)
    assert run.unprepare(ref(1)) is None
    run.prepare(claim(2, share_result(2, "10Gi", 10)))


def test_uses_include_the_terms_of_a_share(node: ClaimsNode) -> None:
    """A newer policy waits until these shares end."""
    run = shared(node, Strategy.TIME_SLICING, interval=Interval.SHORT, max_shares=4)
    run.prepare(claim(1, share_result(1, "10Gi", 10)))
    (use,) = run.journal.uses()
    assert (use.form, use.sharing) == (
        Form.SHARE,
        SharingTerms(strategy=Strategy.TIME_SLICING, interval=Interval.SHORT, max_shares=4),
    )


@pytest.mark.parametrize(
    ("sharing", "why"),
    [
        (slicing("Default"), "asks for TimeSlicing, but the node's policy shares that GPU by MPS"),
        (mps(defaultActiveThreadPercentage=10), "sets MPS limits, but those of a share are the memory"),
    ],
)
def test_a_config_that_contradicts_the_policy_of_a_share_is_refused(node: ClaimsNode, sharing: Any, why: str) -> None:
    """Otherwise this claim's config would apply to other claims' containers."""
    run = shared(node)
    error = run.refusal(claim(1, share_result(1, "10Gi", 10), configs=[config("GpuConfig", sharing)]))
    assert isinstance(error, InvalidParametersError)
    assert why in str(error)


def test_a_config_that_agrees_with_the_policy_is_accepted(node: ClaimsNode) -> None:
    """A DeviceClass for shared GPUs may contain it for clusters without a policy."""
    run = shared(node)
    run.prepare(claim(1, share_result(1, "10Gi", 10), configs=[config("GpuConfig", {"strategy": "MPS"})]))


def test_another_interval_than_the_policys_is_refused(node: ClaimsNode) -> None:
    """One GPU has one interval."""
    run = shared(node, Strategy.TIME_SLICING, interval=Interval.SHORT)
    for interval in ("Short", "Default"):
        configs = [config("GpuConfig", slicing(interval))]
        run.prepare(claim(1, share_result(1, "10Gi", 10), configs=configs))
        assert run.unprepare(ref(1)) is None
    error = run.refusal(claim(2, share_result(2, "10Gi", 10), configs=[config("GpuConfig", slicing("Long"))]))
    assert "asks for interval Long, but the node's policy sets Short" in str(error)


def test_a_share_of_a_gpu_that_is_not_shared_any_more_is_refused(node: ClaimsNode) -> None:
    """The policy was removed between scheduling and prepare, so nothing would enforce the share."""
    run = shared(node)
    node.terms = {}
    error = run.refusal(claim(1, share_result(1, "10Gi", 10)))
    assert isinstance(error, ClaimError)
    assert "no policy shares that GPU now; delete the pod" in str(error)


@pytest.mark.parametrize(
    ("memory", "percent"), [("-1Gi", 10), ("ten", 10), ("1023Ki", 10), ("10Gi", -1), ("10Gi", 101), ("1e30", 10)]
)
def test_numbers_that_no_scheduler_wrote_are_refused(node: ClaimsNode, memory: str, percent: int) -> None:
    """A client with the right to write the claim's status can edit an allocation."""
    run = shared(node)
    error = run.refusal(claim(1, share_result(1, memory, percent)))
    assert isinstance(error, DraError)
    assert "claim default/claim-1" in str(error)
    assert run.journal.entries() == ()


def test_two_mps_shares_in_one_claim_are_refused(node: ClaimsNode) -> None:
    """A container has one pipe directory, so one share would not be used."""
    run = shared(node)
    error = run.refusal(claim(1, share_result(1, "10Gi", 10), share_result(2, "10Gi", 10, request="b")))
    assert "has 2 MPS shares" in str(error)


def test_a_config_sets_a_time_slice_and_unprepare_resets_it(h100: Run) -> None:
    """Two containers of one claim take turns with the requested interval."""
    h100.prepare(claim(1, configs=[config("GpuConfig", slicing("Medium"))]))
    assert h100.node.sharing.slices == {uuid(h100, 0): Interval.MEDIUM}
    assert h100.unprepare(ref(1)) is None
    assert h100.node.is_whole_again()
    assert h100.node.sharing.asked == ["slice Medium", "slice reset"]


def test_the_default_interval_runs_no_command(h100: Run) -> None:
    """Not every GPU has the setting."""
    h100.prepare(claim(1, configs=[config("GpuConfig", slicing("Default"))]))
    h100.prepare(claim(2, result("gpu-1"), configs=[config("GpuConfig", {"strategy": "TimeSlicing"})]))
    assert h100.unprepare(ref(1)) is None
    assert h100.node.sharing.asked == []


def test_gpus_under_one_config_share_a_daemon_with_the_configs_limits(h100: Run) -> None:
    """Positions are those in the sorted list of UUIDs, as in NVIDIA's driver; containers have no own limits."""
    limits = mps(defaultActiveThreadPercentage=50, defaultPerDevicePinnedMemoryLimit={"1": "4Gi"})
    h100.prepare(claim(1, result("gpu-1"), result("gpu-0", request="b"), configs=[config("GpuConfig", limits)]))
    (daemon,) = h100.node.sharing.running.values()
    gpus = tuple(sorted((uuid(h100, 0), uuid(h100, 1))))
    assert daemon.devices == daemon.gpus == gpus
    assert (daemon.default_percentage, dict(daemon.memory_limits)) == (50, {gpus[1]: 4096})
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in file(h100, 1)
    assert f"/mps/{daemon.id}/pipe" in file(h100, 1)
    assert {mode(h100, 0), mode(h100, 1)} == {ComputeMode.EXCLUSIVE_PROCESS}
    assert h100.unprepare(ref(1)) is None
    assert h100.node.is_whole_again()
    assert {mode(h100, 0), mode(h100, 1)} == {ComputeMode.DEFAULT}


def test_each_config_has_its_own_group(h100: Run) -> None:
    """Two requests share in two different ways."""
    h100.prepare(
        claim(
            1,
            result("gpu-0", request="ts"),
            result("gpu-1", request="mps"),
            configs=[config("GpuConfig", slicing("Long"), "ts"), config("GpuConfig", mps(), "mps")],
        )
    )
    assert h100.node.sharing.slices == {uuid(h100, 0): Interval.LONG}
    assert [daemon.devices for daemon in h100.node.sharing.running.values()] == [(uuid(h100, 1),)]
    assert h100.unprepare(ref(1)) is None
    assert h100.node.is_whole_again()


def test_partitions_under_mps_get_a_daemon_each(h100: Run) -> None:
    """A daemon serves one MIG device; the compute mode stays unchanged."""
    parts = [result(h100.node.part("1g.10gb", start), request=f"r{start}") for start in (0, 1)]
    limits = mps(defaultPinnedDeviceMemoryLimit="2Gi", defaultPerDevicePinnedMemoryLimit={"0": "1Gi"})
    h100.prepare(claim(1, *parts, configs=[config("MigDeviceConfig", limits)]))
    daemons = h100.node.sharing.running.values()
    found = sorted((daemon.devices[0], daemon.memory_limits[daemon.devices[0]]) for daemon in daemons)
    uuids = sorted(one.compute[0].uuid or "" for one in h100.node.gpus[0].mig_instances)
    assert found == [(uuids[0], 1024), (uuids[1], 2048)]
    assert {daemon.gpus for daemon in daemons} == {()}
    assert h100.prepare(ref(1))
    assert h100.unprepare(ref(1)) is None
    assert h100.node.is_whole_again()


def test_a_request_under_several_daemons_is_refused(h100: Run) -> None:
    """A container gets all devices of a request, and can use one daemon."""
    parts = [result(h100.node.part("1g.10gb", start)) for start in (0, 1)]
    error = h100.refusal(claim(1, *parts, configs=[config("MigDeviceConfig", mps())]))
    assert "request gpu of claim" in str(error)
    assert "under 2 MPS daemons" in str(error)
    assert h100.node.is_whole_again()


@pytest.mark.parametrize("kind", ["GpuConfig", "MigDeviceConfig"])
def test_limits_for_unknown_devices_are_refused_before_any_change(h100: Run, kind: str) -> None:
    """The config has a limit for a position that no device has."""
    device: AllocatedDevice = result("gpu-0" if kind == "GpuConfig" else h100.node.part("1g.10gb", 0))
    limits = mps(defaultPerDevicePinnedMemoryLimit={"3": "1Gi"})
    error = h100.refusal(claim(1, device, configs=[config(kind, limits)]))
    assert isinstance(error, InvalidParametersError)
    assert "config[0] (FromClaim)" in str(error)
    assert "'3' names no device" in str(error)
    assert h100.node.sharing.asked == []


def test_admin_access_sets_nothing_and_resets_nothing(h100: Run) -> None:
    """The GPU's settings belong to the claim that has the GPU."""
    h100.prepare(claim(1, configs=[config("GpuConfig", slicing("Long"))]))
    asked = list(h100.node.sharing.asked)
    h100.prepare(claim(2, result(admin_access=True), configs=[config("GpuConfig", mps())]))
    assert h100.unprepare(ref(2)) is None
    assert h100.node.sharing.asked == asked


def test_a_setting_that_fails_leaves_nothing(h100: Run) -> None:
    """nvidia-smi is missing: the claim is refused and the GPU is free for others."""
    h100.node.sharing.failure = CommandError("nvidia-smi is not in the driver root")
    error = h100.refusal(claim(1, configs=[config("GpuConfig", slicing("Long"))]))
    assert isinstance(error, CommandError)
    h100.node.sharing.failure = None
    assert h100.journal.entries() == ()
    h100.prepare(claim(2))


def test_a_daemon_that_is_never_ready_leaves_no_partition(h100: Run) -> None:
    """Partitions created before the failure are removed."""
    h100.node.sharing.failure = MpsUnavailableError("no mps-host runs on this node")
    part = result(h100.node.part("1g.10gb", 0))
    error = h100.refusal(claim(1, part, configs=[config("MigDeviceConfig", mps())]))
    assert isinstance(error, MpsUnavailableError)
    assert h100.journal.entries() == ()
    assert h100.node.is_whole_again()


def test_a_repeat_starts_a_daemon_that_is_gone(node: ClaimsNode) -> None:
    """The MPS host's folder was emptied, and the container restarts."""
    run = shared(node)
    first = run.prepare(claim(1, share_result(1, "10Gi", 10)))
    node.sharing.running.clear()
    assert run.prepare(ref(1)) == first
    assert list(node.sharing.running) == [uuid(run, 0)]


def test_settings_of_a_claim_that_an_older_version_freed_are_restored(node: ClaimsNode) -> None:
    """An older version does not know daemons, time slices and compute modes; the notes record them."""
    run = shared(node)
    run.prepare(claim(1, share_result(1, "10Gi", 10)))
    run.prepare(claim(2, result("gpu-1"), configs=[config("GpuConfig", slicing("Long"))]))
    run.journal._connection.execute("DELETE FROM claim")
    run.service.maintain()
    assert node.is_whole_again()
    assert mode(run) is ComputeMode.DEFAULT


def test_a_whole_gpu_claim_restores_leftover_settings(node: ClaimsNode) -> None:
    """The next claim does not wait for maintenance, and does not get the previous claim's compute mode."""
    run = shared(node)
    run.prepare(claim(1, share_result(1, "10Gi", 10)))
    run.journal._connection.execute("DELETE FROM claim")
    run.prepare(claim(2))
    assert mode(run) is ComputeMode.DEFAULT
    assert node.is_whole_again()


def test_after_a_reboot_daemons_are_released_and_notes_dropped(node: ClaimsNode) -> None:
    """Files on disk survive a reboot; the GPU's modes do not."""
    run = shared(node)
    run.prepare(claim(1, share_result(1, "10Gi", 10)))
    run.prepare(claim(2, result("gpu-1"), configs=[config("GpuConfig", slicing("Long"))]))
    node.backend = simulated()
    node.sharing.slices.clear()
    again = node.run("run-2", boot_id="boot-2")
    assert again.journal.entries() == ()
    assert node.is_whole_again()


def test_a_rebuilt_journal_knows_shares_and_settings_again(node: ClaimsNode) -> None:
    """Files and claims have everything, so the end of the last claim stops the daemon."""
    run = shared(node)
    first = run.prepare(claim(1, share_result(1, "10Gi", 10)))
    run.journal.close()
    for path in node.folder.glob("state.db*"):
        path.unlink()
    again = node.run("run-2")
    assert again.prepare(ref(1)) == first
    assert again.unprepare(ref(1)) is None
    assert node.sharing.idle


def test_verifying_many_daemons_takes_no_longer_than_one(node: ClaimsNode) -> None:
    """After a restart of the MPS host all daemons start anew, while the GPU is locked and the kubelet waits."""
    node.backend = simulated()
    run = node.run()
    parts = [result(node.part("1g.10gb", start), request=f"r-{start}") for start in range(4)]
    run.prepare(claim(1, *parts, configs=[config("MigDeviceConfig", mps(defaultActiveThreadPercentage=10))]))
    node.sharing.takes = node.clock.wait
    before = node.clock.now()
    run.prepare(ref(1))
    assert 0 < node.clock.now() - before <= LOCK_S


def test_a_pod_ends_without_nvidia_smi_and_its_time_slice_is_reset_later(h100: Run) -> None:
    """The next claim waits until the GPU is restored; the pod that ends does not."""
    h100.prepare(claim(1, configs=[config("GpuConfig", slicing("Long"))]))
    h100.node.sharing.failure = CommandError("nvidia-smi did not end in time")
    assert h100.unprepare(ref(1)) is None
    assert h100.journal.entries() == ()
    h100.service.reclaim_orphans()
    assert isinstance(h100.refusal(claim(2)), CommandError)
    h100.node.sharing.failure = None
    h100.service.reclaim_orphans()
    assert h100.node.is_whole_again()
    h100.prepare(ref(2))


@pytest.mark.parametrize("kind", ["GpuConfig", "MigDeviceConfig"])
def test_a_pod_under_mps_ends_without_a_driver(h100: Run, kind: str) -> None:
    """Compute mode and partition are restored when the driver is back."""
    device = "gpu-0" if kind == "GpuConfig" else h100.node.part("1g.10gb", 0)
    h100.prepare(claim(1, result(device), configs=[config(kind, mps())]))
    hardware = h100.node.backend
    assert hardware is not None
    for method in ("mig_instances", "mig_mode", "compute_mode"):
        hardware.fail_next(method, DriverUnavailableError("being replaced"), times=0)
    assert h100.unprepare(ref(1)) is None
    assert h100.journal.entries() == ()
    h100.service.reclaim_orphans()
    hardware.clear_faults()
    h100.service.reclaim_orphans()
    assert h100.node.is_whole_again()
    assert mode(h100) is ComputeMode.DEFAULT


def test_an_orphaned_daemon_stays_while_another_call_has_one_of_its_gpus_locked(h100: Run) -> None:
    """Stopping it restores the modes of all its GPUs, and that call may just have set one of them."""
    h100.prepare(claim(1, result("gpu-0"), result("gpu-1", request="b"), configs=[config("GpuConfig", mps())]))
    h100.journal._connection.execute("DELETE FROM claim WHERE uid = ?", (uid(1),))  # as an older version frees it
    (daemon,) = h100.node.sharing.running
    with GpuLocks(h100.node.folder / "locks").acquire((uuid(h100, 1),), 0.0) as acquired:
        assert acquired
        h100.service.reclaim_orphans()
        assert isinstance(h100.refusal(claim(2, result("gpu-0"))), GpuLockedError)
        assert list(h100.node.sharing.running) == [daemon]
        assert mode(h100, 1) is ComputeMode.EXCLUSIVE_PROCESS
    h100.prepare(ref(2))
    assert h100.node.sharing.idle
    assert {mode(h100, minor) for minor in (0, 1)} == {ComputeMode.DEFAULT}
