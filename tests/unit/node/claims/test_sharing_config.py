"""Configs: precedence, daemons and settings of one claim's devices, and their end with the claim."""

from typing import Any, Literal

import pytest

from dra_driver.config.parameters import GpuConfig, MigDeviceConfig
from dra_driver.core.errors import CommandError, DriverUnavailableError, InvalidParametersError, MpsUnavailableError
from dra_driver.core.model.claim import AllocatedDevice, OpaqueConfig
from dra_driver.core.model.terms import Interval
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.node.claims.planning.sharing_plan import config_for, decode_all
from dra_driver.node.claims.waiting import GpuLockedError, GpuLocks
from dra_driver.node.claims.workflow.prepare import LOCK_S
from tests.fakes.claims import claim, ref, result, share_result, uid
from tests.fakes.stand_in import present
from tests.unit.node.claims.conftest import ClaimsNode, Run, config, file, mode, mps, shared, simulated, slicing, uuid

Source = Literal["FromClass", "FromClaim"]


def entry(interval: str, *requests: str, source: Source = "FromClaim", kind: str = "GpuConfig") -> OpaqueConfig:
    sharing: dict[str, Any] = {"strategy": "TimeSlicing"}
    if kind == "GpuConfig":
        sharing["timeSlicingConfig"] = {"interval": interval}
    return config(kind, sharing, *requests, source=source)


def winner(request: str, *configs: OpaqueConfig) -> str | None:
    """The setting of the config that applies to ``request``."""
    found = config_for(result(request=request), decode_all(ref(1), configs), GpuConfig)
    return found[1].asks_for if found else None


@pytest.mark.parametrize(
    ("configs", "wins"),
    [
        ([entry("Long"), entry("Short")], True),
        ([entry("Short"), entry("Long", source="FromClass")], True),
        *(([entry("Short", named)], True) for named in ("main", "main/small")),
        *(([entry("Short", named)], False) for named in ("main/large", "small", "other")),
        ([entry("Short", "main"), entry("Long", "b")], True),
        ([entry("Short"), entry("", kind="MigDeviceConfig")], True),
    ],
)
def test_the_last_config_that_applies_wins_and_the_claims_over_the_classs(
    configs: list[OpaqueConfig], wins: bool
) -> None:
    """It names the request in full, by its base, or names none; configs of another kind do not apply."""
    assert winner("main/small", *configs) == ("time-slicing with interval Short" if wins else None)


def test_a_mig_config_that_names_a_gpu_request_is_refused() -> None:
    """Naming the request says that it was meant, and it cannot be done."""
    with pytest.raises(InvalidParametersError, match="whole GPU; use kind GpuConfig"):
        winner("gpu", entry("", "gpu", kind="MigDeviceConfig"))


def test_a_gpu_config_is_passed_over_for_a_partition_and_refused_where_it_is_named() -> None:
    """As for MIG configs: a class default for whole GPUs does not exclude partitions."""
    part = result("gpu-0-mig-1g10gb-19-0")
    meant = entry("", kind="MigDeviceConfig")
    found = present(config_for(part, decode_all(ref(1), [meant, entry("Short")]), MigDeviceConfig))
    assert found[1].kind == "MigDeviceConfig"
    with pytest.raises(InvalidParametersError, match="is a MIG partition; use kind MigDeviceConfig"):
        config_for(part, decode_all(ref(1), [entry("Short", "gpu")]), MigDeviceConfig)


def test_a_wrong_config_is_refused_even_when_another_wins() -> None:
    wrong = OpaqueConfig(source="FromClass", requests=(), parameters={"kind": "GpuConfig"})
    with pytest.raises(InvalidParametersError) as caught:
        decode_all(ref(1), [wrong, entry("Short")])
    assert "config[0] (FromClass) of claim default/claim-1" in str(caught.value)
    assert caught.value.fields["source"] == "FromClass"


def test_a_config_sets_a_time_slice_and_unprepare_resets_it(h100: Run) -> None:
    h100.prepare(claim(1, configs=[config("GpuConfig", slicing("Medium"))]))
    assert h100.node.sharing.slices == {uuid(h100, 0): Interval.MEDIUM}
    assert h100.unprepare(ref(1)) is None
    assert h100.node.is_whole_again()
    assert h100.node.sharing.asked == ["slice Medium", "slice reset"]


def test_the_default_interval_runs_no_command(h100: Run) -> None:
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
    assert "request gpu" in str(error)
    assert "under 2 MPS daemons" in str(error)
    assert h100.node.is_whole_again()


@pytest.mark.parametrize("kind", ["GpuConfig", "MigDeviceConfig"])
def test_limits_for_unknown_devices_are_refused_before_any_change(h100: Run, kind: str) -> None:
    device: AllocatedDevice = result("gpu-0" if kind == "GpuConfig" else h100.node.part("1g.10gb", 0))
    limits = mps(defaultPerDevicePinnedMemoryLimit={"3": "1Gi"})
    error = h100.refusal(claim(1, device, configs=[config(kind, limits)]))
    assert isinstance(error, InvalidParametersError)
    assert "config[0] (FromClaim)" in str(error)
    assert "'3' names no device" in str(error)
    assert h100.node.sharing.asked == []


def test_admin_access_sets_nothing_and_resets_nothing(h100: Run) -> None:
    h100.prepare(claim(1, configs=[config("GpuConfig", slicing("Long"))]))
    asked = list(h100.node.sharing.asked)
    h100.prepare(claim(2, result(admin_access=True), configs=[config("GpuConfig", mps())]))
    assert h100.unprepare(ref(2)) is None
    assert h100.node.sharing.asked == asked


def test_a_setting_that_fails_leaves_nothing(h100: Run) -> None:
    h100.node.sharing.failure = CommandError("nvidia-smi is not in the driver root")
    error = h100.refusal(claim(1, configs=[config("GpuConfig", slicing("Long"))]))
    assert isinstance(error, CommandError)
    h100.node.sharing.failure = None
    assert h100.journal.entries() == ()
    h100.prepare(claim(2))


def test_a_daemon_that_is_never_ready_leaves_no_partition(h100: Run) -> None:
    h100.node.sharing.failure = MpsUnavailableError("no mps-host runs on this node")
    part = result(h100.node.part("1g.10gb", 0))
    error = h100.refusal(claim(1, part, configs=[config("MigDeviceConfig", mps())]))
    assert isinstance(error, MpsUnavailableError)
    assert h100.journal.entries() == ()
    assert h100.node.is_whole_again()


def test_a_repeat_starts_a_daemon_that_is_gone(node: ClaimsNode) -> None:
    run = shared(node)
    first = run.prepare(claim(1, share_result(1, "10Gi", 10)))
    node.sharing.running.clear()
    assert run.prepare(ref(1)) == first
    assert list(node.sharing.running) == [uuid(run, 0)]


def test_settings_of_a_claim_that_an_older_version_freed_are_restored(node: ClaimsNode) -> None:
    run = shared(node)
    run.prepare(claim(1, share_result(1, "10Gi", 10)))
    run.prepare(claim(2, result("gpu-1"), configs=[config("GpuConfig", slicing("Long"))]))
    run.journal._connection.execute("DELETE FROM claim")
    run.service.maintain()
    assert node.is_whole_again()
    assert mode(run) is ComputeMode.DEFAULT


def test_a_whole_gpu_claim_restores_leftover_settings(node: ClaimsNode) -> None:
    run = shared(node)
    run.prepare(claim(1, share_result(1, "10Gi", 10)))
    run.journal._connection.execute("DELETE FROM claim")
    run.prepare(claim(2))
    assert mode(run) is ComputeMode.DEFAULT
    assert node.is_whole_again()


def test_after_a_reboot_daemons_are_released_and_notes_dropped(node: ClaimsNode) -> None:
    run = shared(node)
    run.prepare(claim(1, share_result(1, "10Gi", 10)))
    run.prepare(claim(2, result("gpu-1"), configs=[config("GpuConfig", slicing("Long"))]))
    node.backend = simulated()
    node.sharing.slices.clear()
    again = node.run("run-2", boot_id="boot-2")
    assert again.journal.entries() == ()
    assert node.is_whole_again()


def test_verifying_many_daemons_takes_no_longer_than_one(node: ClaimsNode) -> None:
    """After a restart of the MPS host all daemons start again, while the GPU is locked and the kubelet waits."""
    node.backend = simulated()
    run = node.run()
    parts = [result(node.part("1g.10gb", start), request=f"r-{start}") for start in range(4)]
    run.prepare(claim(1, *parts, configs=[config("MigDeviceConfig", mps(defaultActiveThreadPercentage=10))]))
    node.sharing.takes = node.clock.wait
    before = node.clock.now()
    run.prepare(ref(1))
    assert 0 < node.clock.now() - before <= LOCK_S


def test_a_pod_ends_without_nvidia_smi_and_its_time_slice_is_reset_later(h100: Run) -> None:
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


def test_a_time_slice_is_reset_after_and_not_during_mig_mode(h100: Run) -> None:
    """nvidia-smi refuses to set it in MIG mode as on a GPU without time slices; the note must stay until then."""
    h100.prepare(claim(1, configs=[config("GpuConfig", slicing("Long"))]))
    h100.node.sharing.failure = CommandError("nvidia-smi did not end in time")
    assert h100.unprepare(ref(1)) is None
    h100.node.sharing.failure = None
    h100.prepare(claim(2, result(h100.node.part("1g.10gb", 0))))
    h100.service.reclaim_orphans()
    assert h100.node.sharing.asked == ["slice Long"]
    assert h100.unprepare(ref(2)) is None
    h100.service.reclaim_orphans()
    assert h100.node.sharing.asked == ["slice Long", "slice reset"]
    assert h100.node.is_whole_again()


@pytest.mark.parametrize("kind", ["GpuConfig", "MigDeviceConfig"])
def test_a_pod_under_mps_ends_without_a_driver(h100: Run, kind: str) -> None:
    device = "gpu-0" if kind == "GpuConfig" else h100.node.part("1g.10gb", 0)
    h100.prepare(claim(1, result(device), configs=[config(kind, mps())]))
    hardware = present(h100.node.backend)
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
