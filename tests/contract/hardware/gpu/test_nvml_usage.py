"""What is in use through NVML: every kind of answer, and every answer missing."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.core.errors import DetachedError, DriverUnavailableError
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.usage import GpuUsage, ProcessUsage
from dra_driver.hardware.gpu.nvml.usage import NvmlUsage
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, parse_groups
from tests.fakes.nvml import state as codes
from tests.fakes.nvml.state import State

SPEC = "1xh100-sxm5-80gb,1xh100-sxm5-80gb+mig,1xa100-sxm4-40gb+mig,1xgh200-96gb"
CARD, CUT, OLD = range(3)
GI = 2**30
NOT_KNOWN = 2**64 - 1
LATER = 4_000_000_000_000_000
"""Microseconds since 1970: after the first look, whose window ends now."""
LISTS = [f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute")]


@pytest.fixture
def node() -> NodeSpec:
    return parse_groups(SPEC, "node-a")


@pytest.fixture
def source(nvml_library: Path, state: State, tmp_path: Path) -> Iterator[NvmlUsage]:
    found = NvmlUsage(str(nvml_library), str(tmp_path / "sys"), look_s=5.0)
    yield found
    found.close()


@pytest.fixture
def look(source: NvmlUsage, node: NodeSpec) -> Callable[[int], GpuUsage]:
    """One look, and what it says of the GPU at that index."""

    def found(index: int) -> GpuUsage:
        uuid = node.gpus[index].gpu.uuid
        return next(each for each in source.usage() if each.gpu_uuid == uuid)

    return found


@pytest.fixture
def write(tmp_path: Path, state: State) -> Callable[..., None]:
    def lines(*found: str) -> None:
        (tmp_path / "state.use").write_text("".join(f"{line}\n" for line in found))

    return lines


Look = Callable[[int], GpuUsage]
Write = Callable[..., None]


def test_a_gpu_tells_all(look: Look, write: Write) -> None:
    """In bytes, percent, milliwatts and millijoules."""
    write("gpu 0 70 35 312000 987654321 55 1980 2619", f"process 0 c 7 -1 {5 * GI} 40 20 1")
    found = look(CARD)
    assert (found.gpu_percent, found.memory_percent) == (70, 35)
    assert (found.power_mw, found.energy_mj, found.temperature_c) == (312000, 987654321, 55)
    assert (found.sm_clock_mhz, found.memory_clock_mhz) == (1980, 2619)
    assert found.memory_used == 5 * GI
    assert found.memory_total is not None
    assert found.memory_reserved
    assert not found.mig_enabled
    assert found.problem is None


def test_what_the_driver_does_not_report_is_none(look: Look, state: State) -> None:
    """Nothing in the file: no question is supported."""
    for function in LISTS:
        state.inject(function, codes.NOT_SUPPORTED)
    found = look(CARD)
    numbers = (found.gpu_percent, found.power_mw, found.energy_mj, found.temperature_c, found.sm_clock_mhz)
    assert (numbers, found.processes) == ((None,) * 5, None)
    assert "does not list processes" in str(found.problem)


def test_processes_of_all_kinds_are_listed_once(look: Look, write: Write) -> None:
    """A client of MPS is in two lists with the same memory; memory that is not told stays unknown."""
    write(
        "gpu 0 70 35 1 1 1 1 1",
        f"process 0 c 9 -1 {GI} 0 0 1",
        f"process 0 m 9 -1 {2 * GI} 0 0 1",
        f"process 0 g 5 -1 {NOT_KNOWN} 0 0 1",
    )
    found = look(CARD).processes
    assert found == (ProcessUsage(pid=5, memory_bytes=None), ProcessUsage(pid=9, memory_bytes=2 * GI))


@pytest.mark.parametrize("is_old", [False, True])
def test_utilisation_of_processes_is_that_since_the_last_look(
    look: Look, write: Write, state: State, is_old: bool
) -> None:
    """The first look has none; a process without a sample used nothing; more samples are averaged."""
    if is_old:
        state.inject("nvmlDeviceGetProcessesUtilizationInfo", codes.FUNCTION_NOT_FOUND)
    board = "gpu 0 70 35 1 1 1 1 1"
    write(board, f"process 0 c 7 -1 {GI} 90 90 {LATER}", f"process 0 c 8 -1 {GI} 0 0 0")
    assert [each.sm_percent for each in look(CARD).processes or ()] == [None, None]
    later = LATER + 5_000_000
    write(board, f"process 0 c 7 -1 {GI} 40 20 {later}", f"process 0 c 8 -1 {GI} 0 0 0")
    assert [(each.sm_percent, each.memory_percent) for each in look(CARD).processes or ()] == [(40, 20), (0, 0)]
    assert [each.sm_percent for each in look(CARD).processes or ()] == [0, 0]


def test_a_driver_without_samples_of_processes_leaves_them_unknown(look: Look, write: Write, state: State) -> None:
    """Which is not the same as a process that does nothing."""
    for function in ("nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization"):
        state.inject(function, codes.NOT_SUPPORTED)
    write("gpu 0 70 35 1 1 1 1 1", f"process 0 c 7 -1 {GI} 40 20 {LATER}")
    look(CARD)
    assert [each.sm_percent for each in look(CARD).processes or ()] == [None]


@pytest.mark.parametrize(("index", "percent"), [(CUT, 60), (OLD, None)])
def test_instances_tell_memory_and_on_hopper_utilisation(
    look: Look, write: Write, state: State, index: int, percent: int | None
) -> None:
    """GPM compares two looks; the GPU as a whole and its processes have no utilisation in MIG mode."""
    gi = state.foreign_create(index, 19, 0)
    board, process = f"gpu {index} 70 35 1 1 1 1 1", f"process {index} c 7 {gi} {GI} 50 5 {LATER}"
    write(board, process, f"instance {index} {gi} 50")
    first = look(index)
    assert (first.mig_enabled, first.gpu_percent) == (True, None)
    assert [each.sm_percent for each in first.instances] == [None]
    write(board, process, f"instance {index} {gi} 70")
    second = wait_for_a_second_sample(look, index)
    (instance,) = second.instances
    assert (instance.gi_id, instance.sm_percent) == (gi, percent)
    assert instance.uuid is not None
    assert instance.memory_total is not None
    assert second.processes == (ProcessUsage(pid=7, gi_id=gi, memory_bytes=GI),)


def wait_for_a_second_sample(look: Look, index: int) -> GpuUsage:
    """Samples lie at least 100 ms apart."""
    for _ in range(2000):
        found = look(index)
        if found.instances[0].sm_percent is not None or index == OLD:
            break
    return found


def test_a_lost_gpu_is_unreadable_and_the_others_are_read(
    look: Look, write: Write, state: State, node: NodeSpec, source: NvmlUsage
) -> None:
    """With NVML's reason, and the UUID of an earlier look."""
    write("gpu 0 70 35 1 1 1 1 1")
    source.usage()
    state.lose(CUT)
    found = look(CUT)
    assert "GPU_IS_LOST" in str(found.unreadable) or "lost" in str(found.unreadable).lower()
    assert found.processes is None
    assert look(CARD).gpu_percent == 70
    assert len(source.usage()) == len(node.gpus)


def test_a_gpu_that_hangs_holds_up_no_other(
    nvml_library: Path, state: State, tmp_path: Path, node: NodeSpec, write: Write
) -> None:
    """Its call stays with one thread; the look goes on."""
    source = NvmlUsage(str(nvml_library), str(tmp_path / "sys"), look_s=0.2)
    write("gpu 0 70 35 1 1 1 1 1")
    source.usage()
    with_hang = GpuUuid(node.gpus[CUT].gpu.uuid)
    state.hang("nvmlDeviceGetMigMode", device=CUT)
    try:
        found = {each.gpu_uuid: each for each in source.usage()}
        assert found[with_hang].unreadable == "a call of the NVIDIA driver has not returned"
        assert found[node.gpus[CARD].gpu.uuid].gpu_percent == 70
    finally:
        state.release()
        source.close()


def test_while_detached_nothing_is_open(source: NvmlUsage, state: State) -> None:
    """A GPU can be cut then; the next look opens a session again."""
    source.usage()
    assert state.opened()
    assert source.detach("a GPU is cut")
    with pytest.raises(DetachedError, match="a GPU is cut"):
        source.usage()
    assert not state.opened()
    source.reattach()
    assert source.usage()


def test_without_a_driver_it_says_so(nvml_library: Path, state: State, source: NvmlUsage) -> None:
    """And works as soon as there is one."""
    state.inject("nvmlInitWithFlags", codes.DRIVER_NOT_LOADED)
    with pytest.raises(DriverUnavailableError):
        source.usage()
    state.clear_faults()
    assert source.usage()
