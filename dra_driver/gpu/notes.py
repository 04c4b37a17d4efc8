"""What this driver writes down about a GPU before it changes it, so that it can be put back.

Owns the words of the notes, which are on disk. Refuses to know where they are kept (``claims.journal``) and what
follows from one (``mig/``, ``sharing/``).
"""

from typing import Final, Protocol

from dra_driver.model.ids import GpuUuid

MIG_MODE: Final = "mig-mode"
"""This driver switched MIG mode on."""
COMPUTE_MODE: Final = "compute-mode"
"""It set another compute mode; the value is the one of before."""
TIME_SLICE: Final = "time-slice"
"""It set a time slice; the value is which."""


class GpuNotes(Protocol):
    """Durable notes about what this driver changed on a GPU. Raises StorageError."""

    def gpu_note(self, gpu: GpuUuid, key: str) -> str | None:
        """The note's value, None without one."""
        ...

    def set_gpu_note(self, gpu: GpuUuid, key: str, value: str) -> None:
        """Write it; durable on return."""
        ...

    def clear_gpu_note(self, gpu: GpuUuid, key: str) -> None:
        """Remove it, if it is there; durable on return."""
        ...

    def gpus_with_note(self, key: str) -> tuple[GpuUuid, ...]:
        """GPUs that have such a note."""
        ...
