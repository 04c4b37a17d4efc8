"""Changes a GPU's compute mode and restores the previous one.

A note with the previous mode is durable before the mode changes. An existing note is never overwritten: it is older
and therefore holds the original mode. Compute modes are NVML's (nvmlDeviceSetComputeMode) and do not survive a reboot.
"""

from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.backend import COMPUTE_MODE, ComputeMode, ComputeModes, GpuNotes


def set_with_undo(control: ComputeModes, notes: GpuNotes, gpu: GpuUuid, wanted: ComputeMode) -> None:
    """Set the GPU's mode, with a note to `restore` it unless the GPU has it already. Idempotent, also after a death
    half-way. The caller holds the GPU's lock. Raises what `ComputeModes` raises, and StorageError."""
    found = control.compute_mode(gpu)
    if found is wanted:
        return
    if notes.gpu_note(gpu, COMPUTE_MODE) is None:
        notes.set_gpu_note(gpu, COMPUTE_MODE, found.name)
    control.set_compute_mode(gpu, wanted)


def restore(control: ComputeModes, notes: GpuNotes, gpu: GpuUuid, expected: ComputeMode) -> None:
    """Set the noted mode again and clear the note. A mode other than ``expected``, the one that this driver set, was
    changed by an administrator or a reboot, and stays."""
    noted = notes.gpu_note(gpu, COMPUTE_MODE)
    if noted is None:
        return
    if control.compute_mode(gpu) is expected:
        control.set_compute_mode(gpu, ComputeMode.__members__.get(noted, ComputeMode.DEFAULT))
    notes.clear_gpu_note(gpu, COMPUTE_MODE)
