"""When MIG instances are listed, who lists them, and that a listing does not hold up a change."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.gpu.nvml.listings import LIST_EVERY
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, parse_document
from tests.contract.hardware.gpu.conftest import until
from tests.fakes.nvml import state as codes
from tests.fakes.nvml.state import State

LIST = "nvmlDeviceGetGpuInstances"
OTHER_PROCESS = """
import sys
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
backend = NvmlBackend(sys.argv[1], sys.argv[2], reads_instances=lambda: False)
for _ in sys.stdin:
    print(len(backend.snapshot().gpus[0].mig_instances), flush=True)
"""


@pytest.fixture
def node() -> NodeSpec:
    """GPU 0 has two instances."""
    return parse_document(
        """
gpus:
- model: h100-sxm5-80gb
  migEnabled: true
  instances: [{profile: 1g.10gb, start: 0}, {profile: 3g.40gb, start: 4}]
""",
        "node-a",
    )


@pytest.fixture
def gpu(node: NodeSpec) -> GpuUuid:
    return node.gpus[0].gpu.uuid


@pytest.fixture
def listening(nvml: NvmlBackend) -> NvmlBackend:
    nvml.snapshot()
    nvml.wait_for_event(0.002)
    nvml.snapshot()
    return nvml


def listings(nvml: NvmlBackend, state: State, looks: int = 1) -> list[bool]:
    found = []
    for _ in range(looks):
        before = state.calls(LIST)
        nvml.snapshot()
        found.append(state.calls(LIST) > before)
    return found


def test_instances_are_listed_at_each_sixth_look_while_nothing_happens(listening: NvmlBackend, state: State) -> None:
    """A listing takes seconds on a busy node, and events report changes."""
    assert listings(listening, state, 2 * LIST_EVERY) == ([False] * (LIST_EVERY - 1) + [True]) * 2


def test_an_event_leads_to_a_listing(listening: NvmlBackend, state: State, node: NodeSpec) -> None:
    state.foreign_destroy(0, node.gpus[0].gpu.mig_instances[0].gi_id)
    until(lambda: listening.wait_for_event(1.0))
    assert len(listening.snapshot().gpus[0].mig_instances) == 1
    assert listings(listening, state) == [False]


@pytest.mark.parametrize("event", [True, False])
def test_an_own_change_leads_to_a_listing(listening: NvmlBackend, state: State, gpu: GpuUuid, event: bool) -> None:
    listening.create_gpu_instance(gpu, 19, 1)
    if event:
        until(lambda: listening.wait_for_event(1.0))
    assert len(listening.snapshot().gpus[0].mig_instances) == 3


def test_a_change_that_failed_leads_to_a_listing(listening: NvmlBackend, state: State, gpu: GpuUuid) -> None:
    state.inject("nvmlGpuInstanceDestroy", codes.UNKNOWN, times=1)
    with pytest.raises(Exception, match="nvmlGpuInstanceDestroy"):
        listening.destroy_gpu_instance(gpu, listening.mig_instances(gpu)[0].gi_id)
    assert listings(listening, state) == [True]


def test_changes_of_the_time_without_an_event_set_are_found(
    listening: NvmlBackend, state: State, node: NodeSpec
) -> None:
    """NVML does not repeat those events, for example during a switch of MIG mode."""
    with listening._events.paused():
        state.foreign_destroy(0, node.gpus[0].gpu.mig_instances[0].gi_id)
    listening.wait_for_event(0.002)
    assert len(listening.snapshot().gpus[0].mig_instances) == 1


def test_without_events_instances_are_listed_at_every_look(nvml: NvmlBackend, state: State) -> None:
    state.inject("nvmlEventSetCreate", codes.NOT_SUPPORTED)
    nvml.snapshot()
    nvml.wait_for_event(0.002)
    assert listings(nvml, state, 3) == [True] * 3


def test_a_change_does_not_wait_for_a_listing(listening: NvmlBackend, state: State, gpu: GpuUuid) -> None:
    before = listening.snapshot()
    listening.close()  # so that the next look lists
    state.inject(LIST, 0, latency_ms=50)
    calls = state.calls(LIST)
    found: list[Snapshot] = []
    look = threading.Thread(target=lambda: found.append(listening.snapshot()))
    look.start()
    until(lambda: state.calls(LIST) > calls)
    listening.compute_mode(gpu)
    assert state.calls(LIST) - calls <= 2, "it waited for more than the calls that were in progress"
    look.join(20)
    assert found == [before]
    assert state.calls(LIST) - calls <= 2
    state.clear_faults()
    assert listings(listening, state) == [True], "it is made up for"


def test_the_first_listing_is_not_cut_short(nvml: NvmlBackend, state: State, gpu: GpuUuid) -> None:
    state.inject(LIST, 0, latency_ms=5)
    found: list[Snapshot] = []
    look = threading.Thread(target=lambda: found.append(nvml.snapshot()))
    look.start()
    until(lambda: state.calls(LIST) > 0)
    nvml.compute_mode(gpu)
    look.join(20)
    assert len(found[0].gpus[0].mig_instances) == 2


@pytest.fixture
def other_process(nvml_library: Path, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", OTHER_PROCESS, str(nvml_library), str(tmp_path / "sys")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        yield child
        assert child.stdin is not None
        child.stdin.close()
        child.wait(20)


def look(child: "subprocess.Popen[str]") -> int:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    return int(child.stdout.readline())


def test_a_process_that_is_not_to_read_instances_does_not_get_in_the_way(
    nvml: NvmlBackend, state: State, node: NodeSpec, gpu: GpuUuid, other_process: "subprocess.Popen[str]"
) -> None:
    nvml.snapshot()
    gi_id = node.gpus[0].gpu.mig_instances[0].gi_id
    assert [look(other_process), look(other_process)] == [2, 2]
    assert state.subscribers(0, gi_id) == {os.getpid()}
    nvml.destroy_compute_instance(gpu, gi_id, 0)
    nvml.destroy_gpu_instance(gpu, gi_id)
    calls = state.calls(LIST)
    assert [look(other_process) for _ in range(LIST_EVERY + 1)] == [2] * (LIST_EVERY + 1)
    assert state.calls(LIST) == calls


def test_a_process_that_is_not_to_read_lists_after_its_own_change(
    nvml_library: Path, state: State, gpu: GpuUuid, tmp_path: Path
) -> None:
    backend = NvmlBackend(str(nvml_library), str(tmp_path / "sys"), reads_instances=lambda: False)
    assert len(backend.snapshot().gpus[0].mig_instances) == 2
    gi_id = backend.create_gpu_instance(gpu, 19, 1)
    assert len(backend.snapshot().gpus[0].mig_instances) == 3
    assert state.subscribers(0, gi_id) == set()
    backend.close()
