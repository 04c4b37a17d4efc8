"""What this project asks of GPU hardware: the one interface that real and simulated GPUs share.

Owns the contract. Refuses to know NVML (``nvml.py``), model files (``simulated.py``) and how often anybody looks
(``inventory.py``).
"""

from enum import IntEnum
from typing import Protocol

from dra_driver.model.gpu import Snapshot
from dra_driver.model.ids import GpuUuid
from dra_driver.model.mig import ComputeInstance, MigInstance


class ComputeMode(IntEnum):
    """Who may open a CUDA context, by NVML's numbers (1 was removed)."""

    DEFAULT = 0
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


class Backend(Protocol):
    """A node's GPUs. All methods may be called from any thread; one instance serialises its own hardware calls."""

    def open(self) -> None:
        """Make ``snapshot`` possible. Calling it again while open does nothing.

        Raises DriverUnavailableError while the driver or its library cannot be used (call again later), and
        ConfigurationError when what a person wrote can never work.
        """
        ...

    def snapshot(self) -> Snapshot:
        """The whole inventory as it is now, sorted by minor; opens the backend when it is not open.

        A GPU that does not answer is in ``left_out`` with a reason and the others are reported. A property that the
        hardware or driver does not offer is None. Raises DriverUnavailableError when nothing can be said about any GPU;
        the next call starts from a fresh connection.
        """
        ...

    def close(self) -> None:
        """Let go of the driver. Idempotent; ``open`` works again afterwards."""
        ...

    def wait_for_event(self, timeout_s: float) -> bool:
        """Whether something happened on the hardware that a new ``snapshot`` would show (a MIG change by anybody).

        Waits at most ``timeout_s`` (give or take a second). False also where events cannot be had: polling has to do.
        Raises DriverUnavailableError while the driver cannot be used.
        """
        ...


class ComputeModes(Protocol):
    """Compute modes of GPUs. Thread-safety and errors as `GpuControl`."""

    def compute_mode(self, gpu: GpuUuid) -> ComputeMode:
        """The GPU's compute mode."""
        ...

    def set_compute_mode(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        """Set it; not kept over a reboot."""
        ...


class GpuControl(ComputeModes, Protocol):
    """What this project changes on a GPU. Thread-safe; the caller holds the GPU's own lock (one change at a time).

    Every method raises DriverUnavailableError, DeviceLostError (the GPU is gone or does not answer), and
    NotPermittedError when the process lacks the right. Listings are read from the hardware at the call, never cached.
    """

    def mig_mode(self, gpu: GpuUuid) -> bool:
        """Whether MIG mode is on now. Raises MigUnsupportedError for a GPU without MIG."""
        ...

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> None:
        """Switch MIG mode; on return it is in force. Raises GpuBusyError (a client has the GPU open) or
        ResetRequiredError (it would take a reset: nothing stays pending). May take seconds."""
        ...

    def mig_instances(self, gpu: GpuUuid) -> tuple[MigInstance, ...]:
        """What exists, in order of ``start``, with half-made ones; () with MIG mode off. ``owned`` is always False."""
        ...

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int) -> int:
        """Make a GPU instance and return its id. Raises NoRoomError when the placement or what the profile needs is
        taken, or MigUnsupportedError for a profile or placement that the GPU does not have."""
        ...

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int) -> ComputeInstance:
        """Make the compute instance that spans the GPU instance. Raises NoRoomError when there is one already."""
        ...

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> None:
        """Destroy it; gone already is success. Raises GpuBusyError while a process uses it."""
        ...

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int) -> None:
        """Destroy it, which must be empty; gone already is success. Raises GpuBusyError while it is in use."""
        ...


class GpuBackend(Backend, GpuControl, Protocol):
    """Both halves: what the node process is given."""
