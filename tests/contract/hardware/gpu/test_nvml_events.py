"""Waiting for events of the driver, beside everything else that happens to a session."""

import time

import pytest

from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.gpu.simulated.spec import parse_groups
from tests.contract.hardware.gpu.conftest import until, waiting
from tests.fakes.nvml import state as codes
from tests.fakes.nvml.state import State


def test_a_mode_switched_by_another_program_ends_the_wait_and_events_go_on_after_the_next_look(
    nvml: NvmlBackend, state: State
) -> None:
    """The GPU is bound again then, and its registration is lost."""
    nvml.snapshot()
    waiter = waiting(nvml, state)
    state.foreign_mode(0, True)
    assert waiter.result() is True
    nvml.snapshot()
    waiter = waiting(nvml, state)
    state.foreign_create(0, 19, 0)
    assert waiter.result() is True


def test_our_own_waiting_does_not_keep_a_gpu_from_switching_its_mode(
    nvml: NvmlBackend, state: State, uuid: GpuUuid
) -> None:
    """An event set is a client of the GPU; it is freed meanwhile and created again."""
    waiter = waiting(nvml, state)
    registered = state.calls("nvmlDeviceRegisterEvents")
    nvml.set_mig_mode(uuid, True)
    gi_id = nvml.create_gpu_instance(uuid, 19, 0)
    until(lambda: waiter.answer is not None or state.calls("nvmlDeviceRegisterEvents") > registered)
    waits = state.calls("nvmlEventSetWait_v2")
    until(lambda: waiter.answer is not None or state.calls("nvmlEventSetWait_v2") > waits)
    nvml.destroy_gpu_instance(uuid, gi_id)
    assert waiter.result() is True


def test_looks_and_changes_do_not_wait_for_the_one_who_waits(nvml: NvmlBackend, state: State, uuid: GpuUuid) -> None:
    """A wait of seconds in NVML must not become one of prepare."""
    waiter = waiting(nvml, state, timeout_s=2.0)
    for _ in range(10):
        nvml.snapshot()
        nvml.compute_mode(uuid)
    assert waiter.answer is None, "it has ended before them"
    assert waiter.result() is False


@pytest.mark.parametrize(
    "function", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes"]
)
def test_without_events_it_sleeps_and_says_that_nothing_happened(
    nvml: NvmlBackend, state: State, function: str
) -> None:
    """Virtual machines and old drivers have none: polling has to do, and nothing may spin."""
    state.inject(function, codes.NOT_SUPPORTED)
    begin = time.monotonic()
    assert nvml.wait_for_event(0.3) is False
    assert 0.25 < time.monotonic() - begin < 2
    assert state.calls(function) <= 7  # once per GPU


def test_a_node_whose_gpus_have_no_mig_is_not_listened_to(nvml: NvmlBackend, state: State) -> None:
    """And it costs nothing."""
    state.set_node(parse_groups("8xl4-24gb", "node-a"))
    assert nvml.wait_for_event(0.05) is False
    assert state.calls("nvmlEventSetWait_v2") == 0


def test_a_gpu_that_is_lost_ends_the_wait_and_does_not_end_the_events_of_the_others(
    nvml: NvmlBackend, state: State
) -> None:
    """Its loss shows in the next look; NVML then fails every wait with it in the set at once."""
    state.foreign_mode(1, True)
    waiter = waiting(nvml, state)
    state.lose(0)
    assert waiter.result() is True
    assert nvml.wait_for_event(0.02) is False
    waiter = waiting(nvml, state)
    state.foreign_create(1, 19, 0)
    assert waiter.result() is True


def test_event_sets_are_freed(nvml: NvmlBackend, state: State) -> None:
    """Each is an open file in the driver, and a new one is made after every change of a mode."""
    for enabled in (True, False) * 10:
        nvml.snapshot()
        nvml.wait_for_event(0.002)
        state.foreign_mode(0, enabled)
    assert state.calls("nvmlEventSetCreate") > 10
    assert state.calls("nvmlEventSetCreate") - state.calls("nvmlEventSetFree") <= 1


def test_closing_ends_the_wait_and_the_session_stays_closed(nvml: NvmlBackend, state: State) -> None:
    """The device files must be closed before a GPU can be reset."""
    waiter = waiting(nvml, state)
    nvml.close()
    assert waiter.result() is False
    opened = state.calls("nvmlInitWithFlags")
    time.sleep(0.01)
    assert state.calls("nvmlInitWithFlags") == opened == 1
