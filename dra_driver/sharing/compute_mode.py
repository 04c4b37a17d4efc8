"""Changing a GPU's compute mode and giving it back.

Owns the order of note and change. Refuses to know why the mode is changed. The note holds the mode of before and is
written durably first; a note that is there is never overwritten, because what it says is older and so is right.
Compute modes are NVML's (nvmlDeviceSetComputeMode); they do not outlive a reboot.
"""

from dra_driver.gpu.backend import ComputeMode, ComputeModes
from dra_driver.gpu.notes import COMPUTE_MODE, GpuNotes
from dra_driver.model.ids import GpuUuid


def set_with_undo(control: ComputeModes, notes: GpuNotes, gpu: GpuUuid, wanted: ComputeMode) -> None:
    """Make ``wanted`` the GPU's mode; a GPU that has it already and no note is left alone, and so is not given back.

    Idempotent. The caller holds the GPU's lock. Raises what `ComputeModes` raises, and StorageError. A process that
    dies half-way leaves a note, with which `restore` puts things right.
    """
    found = control.compute_mode(gpu)
    if found is wanted:
        return
    if notes.gpu_note(gpu, COMPUTE_MODE) is None:
        notes.set_gpu_note(gpu, COMPUTE_MODE, found.name)
    control.set_compute_mode(gpu, wanted)


def restore(control: ComputeModes, notes: GpuNotes, gpu: GpuUuid, ours: ComputeMode) -> None:
    """Set the noted mode again and clear the note; without a note nothing happens.

    A mode that is not ``ours`` any more was set by somebody else since, or by a reboot, and is left alone.
    """
    noted = notes.gpu_note(gpu, COMPUTE_MODE)
    if noted is None:
        return
    if control.compute_mode(gpu) is ours:
        control.set_compute_mode(gpu, ComputeMode.__members__.get(noted, ComputeMode.DEFAULT))
    notes.clear_gpu_note(gpu, COMPUTE_MODE)
