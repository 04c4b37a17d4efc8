"""Trouble on one property or at one read never withdraws a GPU: each call of a snapshot fails, one at a time."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.hardware.gpu.nvml import last_values
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, parse_document
from tests.fakes.nvml import state as codes
from tests.fakes.nvml.state import State

CODES = [codes.UNKNOWN, codes.TIMEOUT, codes.NOT_SUPPORTED]
DRIVER = ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion")
PROPERTIES = {
    "nvmlDeviceGetName": "product_name",
    "nvmlDeviceGetBrand": "brand",
    "nvmlDeviceGetArchitecture": "architecture",
    "nvmlDeviceGetCudaComputeCapability": "cuda_compute_capability",
    "nvmlDeviceGetMemoryInfo": "memory_bytes",
    "nvmlDeviceGetPciInfo_v3": "pci_bus_id",
    "nvmlDeviceGetAddressingMode": "addressing_mode",
    "nvmlDeviceGetGpuFabricInfoV": "fabric",
}
CONSTANT = frozenset(PROPERTIES) - {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetGpuFabricInfoV"}  # once per session
# Read at each look.
MODE = "nvmlDeviceGetMigMode"
INSTANCES = (
    "nvmlDeviceGetGpuInstances",
    "nvmlGpuInstanceGetInfo",
    "nvmlGpuInstanceGetComputeInstances",
    "nvmlComputeInstanceGetInfo_v2",
)
RESERVED = "nvmlDeviceGetMemoryInfo_v2"  # read while MIG mode is off, else only until it is known
# Read once per session.
FACTS = (
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetVirtualizationMode",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
)
COMPUTE = "nvmlGpuInstanceGetComputeInstanceProfileInfoV"
OLDER = {"nvmlDeviceGetGpuInstanceProfileInfo", "nvmlGpuInstanceGetComputeInstanceProfileInfo"}  # asked when V fails
WHOLE = ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMinorNumber")
OPTIONAL = (*DRIVER, *PROPERTIES, MODE, *INSTANCES)
ELSEWHERE = ("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlSystemGetConfComputeState")
"""In test_nvlinks.py."""
ALL = {*OPTIONAL, *ELSEWHERE, RESERVED, *FACTS, COMPUTE, *OLDER, *WHOLE, "nvmlDeviceGetUUID", "nvmlDeviceGetCount_v2"}


@pytest.fixture
def node() -> NodeSpec:
    """GPU 0 is partitioned, GPU 1 is not."""
    return parse_document(
        """
gpus:
- model: h100-sxm5-80gb
  fabric: completed
  migEnabled: true
  instances: [{profile: 1g.10gb, start: 0}, {profile: 3g.40gb, start: 4}]
- model: h100-sxm5-80gb
  fabric: in progress
""",
        "node-a",
    )


def count(kind: str) -> float:
    return metrics.REGISTRY.get_sample_value("dra_driver_gpu_read_errors_total", {"kind": kind}) or 0.0


@contextmanager
def counted(kind: str) -> Iterator[Callable[[], float]]:
    before = count(kind)
    yield lambda: count(kind) - before


def warnings(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.levelno == logging.WARNING and one.getMessage() == event]


def test_the_table_has_every_call_of_a_snapshot(nvml: NvmlBackend, state: State) -> None:
    nvml.snapshot()
    assert state.functions() - {"nvmlInitWithFlags"} == ALL


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("function", [RESERVED, *(one for one in OPTIONAL if one not in CONSTANT)])
def test_a_failing_optional_call_changes_nothing_that_is_known(
    nvml: NvmlBackend, state: State, caplog: pytest.LogCaptureFixture, function: str, code: int
) -> None:
    caplog.set_level(logging.INFO)
    before = nvml.snapshot()
    device = codes.ABSENT if function in DRIVER else int(function == RESERVED)
    with counted("property") as failures:
        state.inject(function, code, device=device, times=1)
        assert nvml.snapshot() == before
    if code == codes.NOT_SUPPORTED and function in INSTANCES:
        return  # the instance seemed to be gone, and the second read found it
    assert failures() == 1
    (record,) = warnings(caplog, "GPU property cannot be read")
    assert f"(NVML code {code})" in vars(record)["reason"]
    assert function in (vars(record)["function"], vars(record)["reason"].partition(" ")[0])
    assert vars(record)["gpu"] == ("all" if function in DRIVER else before.gpus[device].uuid)
    assert vars(record)["last_value"] == "kept"
    assert nvml.snapshot() == before
    assert any(one.getMessage() == "GPU property can be read again" for one in caplog.records)


@pytest.mark.parametrize("function", sorted({*CONSTANT, *FACTS}))
def test_what_cannot_change_in_a_session_is_read_once_in_it(nvml: NvmlBackend, state: State, function: str) -> None:
    """The next session asks again; trouble then keeps the value, and a lost GPU shows."""
    before = nvml.snapshot()
    asked = state.calls(function)
    assert nvml.snapshot() == before
    assert state.calls(function) == asked
    nvml.close()
    state.inject(function, codes.UNKNOWN, device=0, times=1)
    assert nvml.snapshot() == before
    assert state.calls(function) > asked
    nvml.close()
    state.inject(function, codes.GPU_IS_LOST, device=0)
    found = nvml.snapshot()
    assert (found.gpus, found.left_out[0].label) == (before.gpus[1:], before.gpus[0].uuid)


@pytest.mark.parametrize("function", [*OPTIONAL, *FACTS, COMPUTE])
def test_trouble_that_lasts_keeps_the_last_value_and_is_logged_once(
    nvml: NvmlBackend, state: State, caplog: pytest.LogCaptureFixture, function: str
) -> None:
    before = nvml.snapshot()
    state.inject(function, codes.UNKNOWN)
    for _ in range(last_values.KEPT_LOOKS + 2):
        assert nvml.snapshot() == before
    nvml.close()
    assert nvml.snapshot() == before
    logged = [(vars(one)["gpu"], vars(one)["function"]) for one in warnings(caplog, "GPU property cannot be read")]
    assert len(logged) == len(set(logged)) > 0


@pytest.mark.parametrize("code", [codes.UNKNOWN, codes.NOT_SUPPORTED])
@pytest.mark.parametrize("function", [*DRIVER, *PROPERTIES, *FACTS])
def test_what_was_never_known_is_absent_and_the_gpu_is_published(
    nvml: NvmlBackend, state: State, node: NodeSpec, function: str, code: int
) -> None:
    state.inject(function, code)
    snapshot = nvml.snapshot()
    assert [gpu.uuid for gpu in snapshot.gpus] == [item.gpu.uuid for item in node.gpus]
    if function in PROPERTIES:
        assert getattr(snapshot.gpus[0], PROPERTIES[function]) is None
    state.clear_faults()
    if code != codes.NOT_SUPPORTED:
        assert known(nvml.snapshot()) == known(Snapshot(gpus=tuple(item.gpu for item in node.gpus)))


def known(snapshot: Snapshot) -> list[tuple[object, ...]]:
    def of(gpu: Gpu) -> tuple[object, ...]:
        return (*(getattr(gpu, field) for field in PROPERTIES.values()), gpu.mig_profiles, gpu.mig_instances)

    return [of(gpu) for gpu in snapshot.gpus]


@pytest.mark.parametrize("function", [MODE, *INSTANCES, COMPUTE])
def test_the_unknown_state_of_a_partitioned_gpu_is_tried_again(
    nvml: NvmlBackend, state: State, node: NodeSpec, function: str
) -> None:
    """At the start of the process, one failed call must not withdraw what an earlier process published."""
    state.inject(function, codes.UNKNOWN, device=0, times=last_values.FIRST_TRIES - 1)
    assert [gpu.mig_instances for gpu in nvml.snapshot().gpus] == [item.gpu.mig_instances for item in node.gpus]


@pytest.mark.parametrize("function", [MODE, *INSTANCES, COMPUTE])
def test_a_partitioned_gpu_whose_state_stays_unknown_is_left_out(
    nvml: NvmlBackend, state: State, node: NodeSpec, function: str
) -> None:
    state.inject(function, codes.TIMEOUT, device=0)
    snapshot = nvml.snapshot()
    assert [gpu.uuid for gpu in snapshot.gpus] == [node.gpus[1].gpu.uuid]
    assert f"{function} failed" in snapshot.left_out[0].reason


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("function", [*WHOLE, "nvmlDeviceGetUUID"])
def test_a_gpu_that_fails_as_a_whole_stays_for_three_looks(
    nvml: NvmlBackend, state: State, caplog: pytest.LogCaptureFixture, function: str, code: int
) -> None:
    before = nvml.snapshot()
    state.inject(function, code, device=0)
    with counted("gpu") as failures:
        for _ in range(last_values.KEPT_LOOKS):
            assert nvml.snapshot() == before
        assert failures() == last_values.KEPT_LOOKS
    records = warnings(caplog, "GPU cannot be read, keeping its last description")
    assert [vars(one)["reads"] for one in records] == [1, 2, 3]
    assert vars(records[0])["gpu"] == before.gpus[0].uuid
    gone = nvml.snapshot()
    assert (gone.gpus, gone.left_out[0].label) == (before.gpus[1:], before.gpus[0].uuid)
    assert nvml.snapshot() == gone
    state.clear_faults()
    assert nvml.snapshot() == before


def test_a_good_look_in_between_starts_the_count_of_failed_looks_again(nvml: NvmlBackend, state: State) -> None:
    before = nvml.snapshot()
    for _ in range(2):
        state.inject("nvmlDeviceGetMinorNumber", codes.TIMEOUT, device=0, times=last_values.KEPT_LOOKS)
        for _ in range(last_values.KEPT_LOOKS + 1):
            assert nvml.snapshot() == before


def test_a_gpu_that_fails_at_the_first_look_of_a_session_is_kept_when_it_is_the_only_one_missed(
    nvml: NvmlBackend, state: State, node: NodeSpec
) -> None:
    before = nvml.snapshot()
    state.set_node(replace(node, gpus=tuple(reversed(node.gpus))))
    nvml.close()
    state.inject("nvmlDeviceGetHandleByIndex_v2", codes.UNKNOWN, device=1)
    for _ in range(last_values.KEPT_LOOKS):
        assert nvml.snapshot() == before
    found = nvml.snapshot()
    assert (found.gpus, found.left_out[0].label) == (before.gpus[1:], before.gpus[0].uuid)


def test_two_gpus_that_fail_at_the_first_look_of_a_session_stand_for_no_known_gpu(
    nvml: NvmlBackend, state: State
) -> None:
    """A wrong name beside a reason would be worse than none."""
    nvml.snapshot()
    nvml.close()
    state.inject("nvmlDeviceGetHandleByIndex_v2", codes.UNKNOWN)
    assert [gpu.label for gpu in nvml.snapshot().left_out] == ["NVML index 0", "NVML index 1"]


@pytest.mark.parametrize("function", FACTS)
def test_mig_facts_that_could_not_be_read_are_read_again(
    nvml: NvmlBackend, state: State, caplog: pytest.LogCaptureFixture, function: str
) -> None:
    caplog.set_level(logging.INFO)
    before = nvml.snapshot()
    nvml.close()
    state.inject(function, codes.UNKNOWN, device=1, times=1)
    assert nvml.snapshot() == before
    calls = state.calls(function)
    assert nvml.snapshot() == before
    assert state.calls(function) > calls
    assert [one.getMessage() for one in caplog.records] == [
        "GPU property cannot be read",
        "GPU property can be read again",
    ]


@pytest.mark.parametrize("code", [codes.GPU_IS_LOST, codes.RESET_REQUIRED])
@pytest.mark.parametrize("function", sorted({*PROPERTIES, MODE, *WHOLE, *INSTANCES} - CONSTANT))
def test_a_lost_gpu_and_one_that_needs_a_reset_are_left_out_at_once(
    nvml: NvmlBackend, state: State, function: str, code: int
) -> None:
    before = nvml.snapshot()
    state.inject(function, code, device=0)
    found = nvml.snapshot()
    assert (found.gpus, found.left_out[0].label) == (before.gpus[1:], before.gpus[0].uuid)


def test_an_instance_that_another_program_destroyed_is_dropped(nvml: NvmlBackend, state: State) -> None:
    before = nvml.snapshot().gpus[0]
    state.foreign_destroy(0, before.mig_instances[0].gi_id)
    assert nvml.snapshot().gpus[0].mig_instances == before.mig_instances[1:]
    state.foreign_mode(0, False)
    after = nvml.snapshot().gpus[0]
    assert (after.mig_enabled, after.mig_instances) == (False, ())


def test_a_look_that_fails_as_a_whole_changes_nothing_in_the_inventory(nvml: NvmlBackend, state: State) -> None:
    inventory = Inventory(nvml, 3600.0)
    assert inventory._poll() == 3600.0
    before = inventory.current()
    assert len(before.gpus) == 2
    state.inject("nvmlDeviceGetCount_v2", codes.TIMEOUT, times=1)
    with counted("driver") as failures:
        inventory._poll()
        assert failures() == 1
    assert inventory.current() == before
    assert f"(NVML code {codes.TIMEOUT})" in (inventory.problem or "")
    inventory._poll()
    assert (inventory.current(), inventory.problem) == (before, None)


def test_a_mode_without_profiles_is_no_mig_on_boards_that_never_have_it(nvml: NvmlBackend, state: State) -> None:
    """NVIDIA's mock answers ``[0, 0]`` for T4 and L40S, where a real driver says Not Supported; a policy that selects
    GPUs with MIG must not find them, and their profiles are read once, not at each look."""
    state.set_node(parse_document("gpus: [{model: t4-16gb}, {model: l40s-48gb}, {model: h100-sxm5-80gb}]", "n"))
    for index in (0, 1):
        state.configure(index, mig_current=0, mig_pending=0)
    found = nvml.snapshot()
    assert [(gpu.mig_capable, gpu.mig_resetless) for gpu in found.gpus] == [(False, None), (False, None), (True, True)]
    calls = state.calls("nvmlDeviceGetGpuInstanceProfileInfoV")
    assert nvml.snapshot() == found
    assert state.calls("nvmlDeviceGetGpuInstanceProfileInfoV") == calls


def test_profiles_that_cannot_be_read_do_not_make_a_gpu_one_without_mig(nvml: NvmlBackend, state: State) -> None:
    state.set_node(parse_document("gpus: [{model: l40s-48gb}]", "n"))
    state.configure(0, mig_current=0, mig_pending=0)
    state.inject("nvmlDeviceGetGpuInstanceProfileInfoV", codes.UNKNOWN, times=1)
    assert nvml.snapshot().gpus[0].mig_capable
    assert not nvml.snapshot().gpus[0].mig_capable


def test_a_profile_whose_placements_are_not_supported_cannot_be_created_and_is_no_trouble(
    nvml: NvmlBackend, state: State, caplog: pytest.LogCaptureFixture
) -> None:
    """Legal in nvml.h; NVIDIA's DRA driver skips such profiles, too."""
    state.inject("nvmlDeviceGetGpuInstancePossiblePlacements_v2", codes.NOT_SUPPORTED, device=1, times=1)
    found = nvml.snapshot()
    assert len(found.gpus[1].mig_profiles) == len(found.gpus[0].mig_profiles) - 1
    assert nvml.snapshot() == found, "and they are not read again"
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_without_sysfs_only_the_place_of_a_gpu_is_unknown(nvml_library: Path, state: State, node: NodeSpec) -> None:
    backend = NvmlBackend(str(nvml_library), "/no/such/sysfs")
    found = backend.snapshot()
    backend.close()
    assert [(gpu.pcie_root, gpu.numa_node) for gpu in found.gpus] == [(None, None)] * 2
    assert known(found) == known(Snapshot(gpus=tuple(item.gpu for item in node.gpus)))
