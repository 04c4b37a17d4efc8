"""NVML calls that do not return: the other GPUs go on, and the GPU is there again when they do."""

import logging
import time
from pathlib import Path

import pytest

from dra_driver.core.errors import DeviceLostError
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.gpu.simulated.spec import NodeSpec
from tests.contract.hardware.gpu.conftest import LONG_S, SHORT, Call, readers, until
from tests.fakes.nvml.state import State
from tests.fakes.nvml.sysfs import unbind_in_sysfs


def looks(nvml: NvmlBackend, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        nvml.snapshot()
        time.sleep(0.02)


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetMemoryInfo"])
def test_a_gpu_that_hangs_is_left_out_and_the_others_go_on(impatient: NvmlBackend, state: State, function: str) -> None:
    """First it stays as it was, because a slow answer is no loss; at most one thread hangs with it."""
    before = impatient.snapshot()
    state.hang(function, device=2)
    begin = time.monotonic()
    assert impatient.snapshot() == before
    assert time.monotonic() - begin < 5 * SHORT.look_s
    looks(impatient, SHORT.stuck_s)
    state.lose(4)  # the others are read, not only remembered
    found = impatient.snapshot()
    assert [gpu.minor for gpu in found.gpus] == [0, 1, 3, 5, 6]
    (hangs,) = [gpu for gpu in found.left_out if gpu.label == before.gpus[2].uuid]
    assert "an NVML call has not returned" in hangs.reason
    assert impatient.snapshot() == found, "the reason stays the same, so that nothing is published again"
    assert readers() == 1
    state.lose(4, False)
    state.release()
    until(lambda: readers() == 0)
    assert impatient.snapshot() == before


def test_a_gpu_that_hangs_at_its_first_look_is_left_out_by_its_index(impatient: NvmlBackend, state: State) -> None:
    state.hang("nvmlDeviceGetHandleByIndex_v2", device=0)
    found = impatient.snapshot()
    assert [gpu.minor for gpu in found.gpus] == [1, 2, 3, 4, 5, 6]
    assert found.left_out[0].label == "NVML index 0"
    state.release()
    until(lambda: readers() == 0)
    assert len(impatient.snapshot().gpus) == 7


def test_a_gpu_that_hangs_at_the_first_look_of_a_new_session_is_not_kept_for_ever(
    impatient: NvmlBackend, state: State
) -> None:
    before = impatient.snapshot()
    impatient.close()
    state.hang("nvmlDeviceGetHandleByIndex_v2", device=0)
    assert impatient.snapshot() == before
    looks(impatient, SHORT.stuck_s)
    found = impatient.snapshot()
    assert (found.gpus, found.left_out[0].label) == (before.gpus[1:], before.gpus[0].uuid)
    assert "has not returned" in found.left_out[0].reason
    with pytest.raises(DeviceLostError, match="has not returned"):
        impatient.compute_mode(before.gpus[0].uuid)
    state.release()
    until(lambda: readers() == 0)
    assert impatient.snapshot() == before


def test_a_change_of_a_gpu_that_hangs_fails_and_one_of_another_gpu_works(impatient: NvmlBackend, state: State) -> None:
    first, second = (gpu.uuid for gpu in impatient.snapshot().gpus[:2])
    state.hang("nvmlDeviceGetMemoryInfo", device=0)
    impatient.snapshot()
    begin = time.monotonic()
    with pytest.raises(DeviceLostError, match="has not returned"):
        impatient.compute_mode(first)
    with pytest.raises(DeviceLostError, match="has not returned"):
        impatient.set_compute_mode(first, ComputeMode.DEFAULT)
    assert time.monotonic() - begin < 2 * SHORT.change_s
    assert impatient.compute_mode(second) is ComputeMode.DEFAULT
    state.release()
    until(lambda: readers() == 0)
    assert impatient.compute_mode(first) is ComputeMode.DEFAULT


def test_a_gpu_is_found_beside_one_that_hangs_at_its_first_look(impatient: NvmlBackend, state: State) -> None:
    gpu = impatient.snapshot().gpus[3].uuid
    impatient.close()
    state.hang("nvmlDeviceGetHandleByIndex_v2", device=0)
    looking = Call(state, None, impatient.snapshot)
    until(lambda: readers() == 1 and state.calls("nvmlInitWithFlags") == 2)
    looking.result()
    state.hang("nvmlDeviceGetHandleByIndex_v2", device=0)  # a second call would hang, too
    impatient._node.knowledge(2).uuids.clear()
    begin = time.monotonic()
    assert impatient.compute_mode(gpu) is ComputeMode.DEFAULT
    assert time.monotonic() - begin < 1


def test_a_change_that_hangs_does_not_stop_the_looks(impatient: NvmlBackend, state: State) -> None:
    before = impatient.snapshot()
    gpu = before.gpus[1].uuid
    change = Call(state, "nvmlDeviceGetComputeMode", lambda: impatient.compute_mode(gpu))
    assert impatient.snapshot() == before
    looks(impatient, SHORT.stuck_s)
    assert [gpu.label for gpu in impatient.snapshot().left_out] == [gpu]
    assert readers() == 0
    change.release()
    assert change.result() is ComputeMode.DEFAULT
    assert impatient.snapshot() == before


def test_events_of_the_other_gpus_come_while_one_hangs(impatient: NvmlBackend, state: State) -> None:
    impatient.snapshot()
    state.hang("nvmlDeviceGetMemoryInfo", device=1)
    impatient.snapshot()
    state.foreign_mode(0, True)
    waits = state.calls("nvmlEventSetWait_v2")
    call = Call(state, None, lambda: impatient.wait_for_event(LONG_S))
    until(lambda: state.calls("nvmlEventSetWait_v2") > waits)
    assert state.calls("nvmlDeviceRegisterEvents") == 4  # GPUs with MIG, but for the one that hangs
    state.foreign_create(0, 19, 0)
    assert call.result() is True


def test_a_call_that_hangs_keeps_the_session_and_closing_waits_a_bounded_time(
    impatient: NvmlBackend, state: State, caplog: pytest.LogCaptureFixture
) -> None:
    """NVML must not be shut down under a call; the session ends by itself when it returns."""
    caplog.set_level(logging.WARNING)
    gpu = impatient.snapshot().gpus[0].uuid
    change = Call(state, "nvmlDeviceGetComputeMode", lambda: impatient.compute_mode(gpu))
    begin = time.monotonic()
    impatient.close()
    assert time.monotonic() - begin < 2
    assert "the session ends when it returns" in caplog.text
    assert state.opened()
    change.release()
    change.result()
    until(lambda: not state.opened())


def test_an_init_that_hangs_neither_blocks_detach_nor_stays_open(impatient: NvmlBackend, state: State) -> None:
    opening = Call(state, "nvmlInitWithFlags", impatient.open)
    begin = time.monotonic()
    assert not impatient.detach("upgrade", timeout_s=0.1)
    assert time.monotonic() - begin < 2
    opening.release()
    opening.result()
    until(lambda: not state.opened())
    assert impatient.detach("upgrade")


def test_a_detach_that_is_called_off_while_a_gpu_hangs_leaves_the_other_gpus_usable(
    impatient: NvmlBackend, state: State
) -> None:
    """The session could not end, so it goes on: one GPU that hangs must not take the node along."""
    before = impatient.snapshot()
    gpu = before.gpus[1].uuid
    change = Call(state, "nvmlDeviceGetComputeMode", lambda: impatient.compute_mode(gpu))
    assert not impatient.detach("upgrade", timeout_s=0.05)
    impatient.reattach()
    assert impatient.snapshot() == before
    assert impatient.compute_mode(before.gpus[0].uuid) is ComputeMode.DEFAULT
    assert state.calls("nvmlInitWithFlags") == 1
    change.release()
    assert change.result() is ComputeMode.DEFAULT
    assert impatient.snapshot() == before


def test_a_wait_for_events_that_hangs_does_not_end_a_session_that_is_to_be_renewed(
    impatient: NvmlBackend, state: State, tmp_path: Path, node: NodeSpec
) -> None:
    before = impatient.snapshot()
    waiting = Call(state, "nvmlEventSetWait_v2", lambda: impatient.wait_for_event(0.1))
    address = node.gpus[2].gpu.pci_bus_id
    assert address is not None
    unbind_in_sysfs(tmp_path / "sys", address)
    for _ in range(2):
        assert {gpu.uuid for gpu in impatient.snapshot().gpus} == {gpu.uuid for gpu in before.gpus}
    waiting.release()
    waiting.result()
    impatient.snapshot()
    assert state.calls("nvmlInitWithFlags") == 2
