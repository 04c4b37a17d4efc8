"""A compute mode is given back to who had it, once."""

import pytest

from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.backend import COMPUTE_MODE, ComputeMode
from dra_driver.hardware.sharing.compute_mode import restore, set_with_undo
from tests.fakes.gpu_notes import FakeGpuNotes
from tests.fakes.sharing import FakeControl

GPU = GpuUuid("GPU-1")
EXCLUSIVE, DEFAULT, PROHIBITED = ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT, ComputeMode.PROHIBITED


@pytest.mark.parametrize("before", [DEFAULT, PROHIBITED])
def test_the_mode_of_before_comes_back(before: ComputeMode) -> None:
    control, notes = FakeControl(), FakeGpuNotes()
    control.modes[GPU] = before
    set_with_undo(control, notes, GPU, EXCLUSIVE)
    set_with_undo(control, notes, GPU, EXCLUSIVE)
    assert control.modes[GPU] is EXCLUSIVE
    restore(control, notes, GPU, EXCLUSIVE)
    restore(control, notes, GPU, EXCLUSIVE)
    assert (control.modes[GPU], notes.values) == (before, {})


def test_a_mode_that_fits_already_is_not_ours_to_give_back() -> None:
    """Some administrators run all their GPUs in exclusive mode."""
    control, notes = FakeControl(), FakeGpuNotes()
    control.modes[GPU] = EXCLUSIVE
    set_with_undo(control, notes, GPU, EXCLUSIVE)
    restore(control, notes, GPU, EXCLUSIVE)
    assert (control.modes[GPU], control.calls, notes.log) == (EXCLUSIVE, [], [])


def test_an_older_note_is_never_overwritten() -> None:
    """After a death between note and change, or after a reboot, what was noted first is what an administrator set."""
    control, notes = FakeControl(), FakeGpuNotes()
    notes.set_gpu_note(GPU, COMPUTE_MODE, "PROHIBITED")
    set_with_undo(control, notes, GPU, EXCLUSIVE)
    restore(control, notes, GPU, EXCLUSIVE)
    assert control.modes[GPU] is PROHIBITED


def test_a_mode_set_by_an_administrator_stays() -> None:
    control, notes = FakeControl(), FakeGpuNotes()
    set_with_undo(control, notes, GPU, EXCLUSIVE)
    control.modes[GPU] = PROHIBITED
    restore(control, notes, GPU, EXCLUSIVE)
    assert (control.modes[GPU], notes.values) == (PROHIBITED, {})


def test_an_unknown_value_in_a_note_means_the_default() -> None:
    control, notes = FakeControl(), FakeGpuNotes()
    control.modes[GPU] = EXCLUSIVE
    notes.set_gpu_note(GPU, COMPUTE_MODE, "SOMETHING_NEW")
    restore(control, notes, GPU, EXCLUSIVE)
    assert control.modes[GPU] is DEFAULT
