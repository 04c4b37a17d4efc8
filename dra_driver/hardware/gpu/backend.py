"""The interface to GPU hardware, implemented over NVML (``nvml/``) and by a simulation (``simulated/``)."""

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Final, Protocol

from msgspec import Struct

from dra_driver.core.model.fabric import Fabric
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.health import HealthEvent, HealthReading
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import ComputeInstance, MigInstance
from dra_driver.core.model.usage import GpuUsage


class ComputeMode(IntEnum):
    """Permission to open a CUDA context, by NVML's numbers (1 was removed)."""

    DEFAULT = 0
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


class Backend(Protocol):
    """A node's GPUs. All methods may be called from any thread; one instance serialises its own hardware calls."""

    def open(self) -> None:
        """Connect to the driver. Idempotent. Raises DriverUnavailableError (call again later), and ConfigurationError
        for settings that can never work."""

    def snapshot(self) -> Snapshot:
        """Read the whole inventory, sorted by minor; opens the backend if necessary. A GPU that does not answer is in
        ``left_out``; a property that is not reported is None. Raises DriverUnavailableError when no GPU can be read."""

    def close(self) -> None:
        """Disconnect from the driver. Idempotent; ``open`` works again afterwards."""

    def wait_for_event(self, timeout_s: float) -> bool:
        """Return whether the hardware changed, such as a MIG change by any process. Waits ``timeout_s``, give or take a
        second; False without hardware events. Raises DriverUnavailableError."""


DETACH_TIMEOUT_S = 10.0
"""Seconds that a detach waits for running calls. Most take milliseconds, changes of MIG mode or instances seconds."""


class Detachable(Protocol):
    """Detach from the GPUs while the process runs: a driver upgrade and a GPU reset need every client gone. While
    detached, methods raise DetachedError, and ``wait_for_event`` returns False. Then call ``Inventory.refresh``."""

    def detach(self, reason: str, timeout_s: float = DETACH_TIMEOUT_S) -> bool:
        """Close every handle, event set, session and device file, and open none until ``reattach``. Waits up to
        ``timeout_s`` for running calls. False: a call has not returned, or a device file is open; the rest closes when
        the call returns. Idempotent; never raises."""

    def reattach(self) -> None:
        """Let the next call that needs the driver open it again. Idempotent, also when not detached."""

    @property
    def detached(self) -> str | None:
        """The reason given to ``detach``; None while the GPUs may be used."""


class ComputeModes(Protocol):
    """Compute modes of GPUs. Thread-safety and errors as `GpuControl`."""

    def compute_mode(self, gpu: GpuUuid) -> ComputeMode: ...

    def set_compute_mode(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        """Set the compute mode. It does not survive a reboot."""


class MigModes(Struct, frozen=True, kw_only=True):
    """MIG mode of a GPU now, and after its next reset or reboot."""

    current: bool
    pending: bool

    @property
    def is_settled(self) -> bool:
        return self.current == self.pending


class ModeAnswer(Enum):
    """Result of `GpuControl.request_mig_mode`. Except for ``DONE``, the mode stays pending."""

    DONE = "done"
    IN_USE = "a process has the GPU open"
    NEEDS_RESET = "the GPU must be reset"
    NEEDS_REBOOT = "this machine cannot reset the GPU: the node must be rebooted"


class GpuControl(ComputeModes, Protocol):
    """Changes of a GPU. Thread-safe; the caller holds the GPU's lock. Methods raise DriverUnavailableError,
    DeviceLostError (the GPU does not answer) and NotPermittedError. Listings are read from the hardware, not cached."""

    def mig_mode(self, gpu: GpuUuid) -> bool:
        """Return whether MIG mode is on. Raises MigUnsupportedError for a GPU without MIG."""

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> None:
        """Switch MIG mode; it is in effect on return, which may take seconds. GpuBusyError when a client has the GPU
        open, ResetRequiredError when it needs a reset; then no change stays pending."""

    def mig_modes(self, gpu: GpuUuid) -> MigModes:
        """Read MIG mode, also one that waits for a reset. Raises MigUnsupportedError."""

    def request_mig_mode(self, gpu: GpuUuid, enabled: bool) -> ModeAnswer:
        """As ``set_mig_mode``, but leave a mode pending that needs a reset, and revert a pending one when ``enabled``
        is the current mode. GpuBusyError, with nothing pending, when instances exist."""

    def mig_instances(self, gpu: GpuUuid) -> tuple[MigInstance, ...]:
        """Existing GPU instances by ``start``, incomplete ones too; () with MIG mode off. ``owned`` is always False."""

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int) -> int:
        """Create a GPU instance and return its id. NoRoomError when placement or engines are taken, MigUnsupportedError
        for an unknown profile or placement, GpuBusyError when a process keeps the first instance from being created."""

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int) -> ComputeInstance:
        """Create the compute instance that spans the GPU instance. Raises NoRoomError when one exists."""

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> None:
        """Destroy a compute instance; a missing one is success. Raises GpuBusyError while a process uses it."""

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int) -> None:
        """Destroy an empty GPU instance; a missing one is success. Raises GpuBusyError while it is in use."""

    def fabric(self, gpu: GpuUuid) -> Fabric | None:
        """The GPU's state in the NVLink fabric, probed again after the last GPU instance; None without NVSwitches."""


class HealthSource(Protocol):
    """Health of a node's GPUs. Thread-safe. One thread waits for events at a time; readings may run beside it."""

    def wait_for_health_events(self, timeout_s: float) -> tuple[HealthEvent, ...]:
        """The events since the last call, equal ones as one with a count, at most 256; () after ``timeout_s``, and
        earlier when `health_look_wanted`. Events without an event set are lost. Raises DriverUnavailableError."""

    def health_look_wanted(self) -> bool:
        """Return whether an event since the last call requires `health_readings`: a lost GPU, or a change of NVML's
        recovery action. Call after each wait."""

    def health_unmonitored(self) -> Mapping[GpuUuid, str]:
        """Return GPUs that do not deliver events, with the reason. Unreachable and changing GPUs are excluded."""

    def health_readings(self) -> tuple[HealthReading, ...]:
        """Read every GPU of the node, by UUID; one that this process has seen and the driver no longer lists is
        unreachable until ``forget_gpu``. Raises DriverUnavailableError when no GPU can be read."""

    def forget_gpu(self, gpu: GpuUuid) -> None:
        """Exclude a removed GPU from later readings. Idempotent; a GPU that returns is read again."""


class UsageSource(Protocol):
    """Usage of a node's GPUs for the exporter; changes nothing and needs no GPU lock. One thread reads at a time."""

    def usage(self) -> tuple[GpuUsage, ...]:
        """Read every GPU, in order of UUID; one that does not answer is unreadable. Percentages are averages since the
        previous call, rounded up; the first one lacks processes. Raises DriverUnavailableError."""

    def sample(self) -> None:
        """Add to the averages of the next ``usage``, as often as the driver drops samples of processes: every few
        seconds. Raises DriverUnavailableError."""

    def close(self) -> None:
        """Disconnect from the driver, as `Backend.close`."""


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
