"""Notes about a GPU that this driver writes before it changes a setting, so that it can restore the setting later.

The keys are names on disk: ``claims.journal`` stores the notes, ``hardware/mig/`` and ``hardware/sharing/`` write and
read them.
"""

from typing import Final, Protocol

from dra_driver.core.model.ids import GpuUuid

MIG_MODE: Final = "mig-mode"
"""This driver switched MIG mode on."""
COMPUTE_MODE: Final = "compute-mode"
"""This driver set another compute mode; the value is the previous one."""
TIME_SLICE: Final = "time-slice"
"""This driver set a time slice; the value is its interval."""


class GpuNotes(Protocol):
    """Durable notes about what this driver changed on a GPU. Raises StorageError."""

    def gpu_note(self, gpu: GpuUuid, key: str) -> str | None:
        """The note's value, None without a note."""
        ...

    def set_gpu_note(self, gpu: GpuUuid, key: str, value: str) -> None:
        """Write it; durable on return."""
        ...

    def clear_gpu_note(self, gpu: GpuUuid, key: str) -> None:
        """Remove it if it exists; durable on return."""
        ...

    def gpus_with_note(self, key: str) -> tuple[GpuUuid, ...]:
        """GPUs that have such a note."""
        ...
