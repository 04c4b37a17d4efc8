"""The interface to GPU hardware, implemented over NVML (``nvml/``) and by a simulation (``simulated/``)."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, Protocol

from dra_driver.core.model.fabric import Fabric
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.health import HealthEvent, HealthReading
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import ComputeInstance, MigInstance
from dra_driver.core.model.usage import GpuUsage


class ComputeMode(IntEnum):
    """Who may open a CUDA context, by NVML's numbers (1 was removed)."""

    DEFAULT = 0
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


class Backend(Protocol):
    """A node's GPUs. All methods may be called from any thread; one instance serialises its own hardware calls."""

    def open(self) -> None:
        """Connect to the driver. Idempotent.

        Raises DriverUnavailableError while the driver or its library cannot be used (call again later), and
        ConfigurationError for settings that can never work.
        """
        ...

    def snapshot(self) -> Snapshot:
        """Read the whole inventory now, sorted by minor; opens the backend if necessary.

        A GPU that does not answer is in ``left_out`` with a reason; the others are reported. A property that hardware
        or driver do not report is None. Raises DriverUnavailableError when no GPU can be read; the next call opens a
        new connection.
        """
        ...

    def close(self) -> None:
        """Disconnect from the driver. Idempotent; ``open`` works again afterwards."""
        ...

    def wait_for_event(self, timeout_s: float) -> bool:
        """Whether the hardware changed so that a new ``snapshot`` differs, such as a MIG change by any process.

        Waits at most ``timeout_s``, give or take a second. Also False where the hardware has no events; then only
        polling finds changes.
        Raises DriverUnavailableError while the driver cannot be used.
        """
        ...


DETACH_TIMEOUT_S = 10.0
"""How long a detach waits for running calls: most take milliseconds, a change of MIG mode or instances seconds."""


class Detachable(Protocol):
    """Giving the GPUs up while the process runs, because a driver upgrade and a GPU reset need every client gone.

    While detached, every method that needs the driver raises DetachedError, and ``wait_for_event`` waits and returns
    False. The kubelet side calls these on the backend, and then ``Inventory.refresh``, which sees the difference at its
    next look and keeps the last snapshot meanwhile.
    """

    def detach(self, reason: str, timeout_s: float = DETACH_TIMEOUT_S) -> bool:
        """Close every handle, event set, session and device file, and open none until ``reattach``.

        New calls are refused at once; running ones are waited for up to ``timeout_s``. Whether nothing is open any
        more: False when a call has not returned, or a device file is still open. The rest is closed when that call
        returns; call again to learn whether it did. Idempotent; a later ``reason`` replaces an earlier one. Never
        raises.
        """
        ...

    def reattach(self) -> None:
        """Let the next call that needs the driver open it again. Idempotent, also when not detached."""
        ...

    @property
    def detached(self) -> str | None:
        """The reason given to ``detach``; None while the GPUs may be used."""
        ...


class ComputeModes(Protocol):
    """Compute modes of GPUs. Thread-safety and errors as `GpuControl`."""

    def compute_mode(self, gpu: GpuUuid) -> ComputeMode: ...

    def set_compute_mode(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        """Set the compute mode. It does not survive a reboot."""
        ...


class GpuControl(ComputeModes, Protocol):
    """Changes of a GPU. Thread-safe; the caller holds the GPU's lock, so that one change runs at a time.

    Every method raises DriverUnavailableError, DeviceLostError (the GPU is gone or does not answer), and
    NotPermittedError when the process lacks permission. Listings are read from the hardware at each call, not cached.
    """

    def mig_mode(self, gpu: GpuUuid) -> bool:
        """Whether MIG mode is on. Raises MigUnsupportedError for a GPU without MIG."""
        ...

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> None:
        """Switch MIG mode; it is in effect on return, which may take seconds.

        Raises GpuBusyError when a client has the GPU open, and ResetRequiredError when the GPU would have to be reset;
        then no change stays pending.
        """
        ...

    def mig_instances(self, gpu: GpuUuid) -> tuple[MigInstance, ...]:
        """Existing GPU instances by ``start``, incomplete ones too; () with MIG mode off. ``owned`` is always False."""
        ...

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int) -> int:
        """Create a GPU instance and return its id.

        Raises NoRoomError when the placement or the profile's engines are taken, MigUnsupportedError for a profile or
        placement that the GPU does not have, and GpuBusyError when the GPU has no instance yet and a process uses it.
        """
        ...

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int) -> ComputeInstance:
        """Create the compute instance that spans the GPU instance. Raises NoRoomError when one exists."""
        ...

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> None:
        """Destroy a compute instance; a missing one is success. Raises GpuBusyError while a process uses it."""
        ...

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int) -> None:
        """Destroy an empty GPU instance; a missing one is success. Raises GpuBusyError while it is in use."""
        ...

    def fabric(self, gpu: GpuUuid) -> Fabric | None:
        """The GPU's state in the NVLink fabric now; None on a board without NVSwitches.

        The driver probes the fabric again after the last GPU instance is destroyed.
        """
        ...


class HealthSource(Protocol):
    """Health of a node's GPUs. Thread-safe. One thread waits for events at a time; readings may run beside it."""

    def wait_for_health_events(self, timeout_s: float) -> tuple[HealthEvent, ...]:
        """The events since the last call, equal ones as one with a count; () when none came in ``timeout_s``, and
        earlier when `health_look_wanted`.

        Uses an event set of its own. Events of the time without a set (closed, detached, a GPU that is cut) are lost.
        However many come, a call returns after ``timeout_s`` plus a second with at most 256 different ones. Raises
        DriverUnavailableError while the driver cannot be used.
        """
        ...

    def health_look_wanted(self) -> bool:
        """Whether, since the last call, something ended a wait that only ``health_readings`` tells: a GPU was lost, or
        NVML's recovery action changed. To be asked after each wait."""
        ...

    def health_unmonitored(self) -> Mapping[GpuUuid, str]:
        """GPUs whose events cannot be waited for, with the reason, as of the last wait.

        Without those that do not answer, and those being changed: the readings tell.
        """
        ...

    def health_readings(self) -> tuple[HealthReading, ...]:
        """One look at every GPU of the node, also at those that do not answer, by UUID; a GPU that was seen by this
        process and is gone from the driver is in it as unreachable until ``forget_gpu``.

        Raises DriverUnavailableError when no GPU can be read (also while detached: DetachedError).
        """
        ...

    def forget_gpu(self, gpu: GpuUuid) -> None:
        """Leave a GPU that is gone out of later readings. Idempotent; one that comes back is read again."""
        ...


class UsageSource(Protocol):
    """What is in use on a node's GPUs, as the usage exporter reads it: it changes nothing, and needs no GPU lock.

    One thread looks at a time; the other methods of the same object may run beside it.
    """

    def usage(self) -> tuple[GpuUsage, ...]:
        """One look at every GPU, in order of UUID. A GPU that does not answer is in it as unreadable.

        Percentages are averages since the previous look of this object; the first look has none of processes. Raises
        DriverUnavailableError while the driver as a whole cannot be used (also while detached: DetachedError).
        """
        ...


class GpuBackend(Backend, GpuControl, Detachable, HealthSource, Protocol):
    """Reading and changing GPUs, and their health, as the node process uses it."""


MIG_MODE: Final = "mig-mode"
"""This driver switched MIG mode on."""
COMPUTE_MODE: Final = "compute-mode"
"""This driver set another compute mode; the value is the previous one."""
TIME_SLICE: Final = "time-slice"
"""This driver set a time slice; the value is its interval."""


class GpuNotes(Protocol):
    """Durable notes about what this driver changed on a GPU. Raises StorageError."""

    def gpu_note(self, gpu: GpuUuid, key: str) -> str | None: ...

    def set_gpu_note(self, gpu: GpuUuid, key: str, value: str) -> None: ...

    def clear_gpu_note(self, gpu: GpuUuid, key: str) -> None: ...

    def gpus_with_note(self, key: str) -> tuple[GpuUuid, ...]: ...
