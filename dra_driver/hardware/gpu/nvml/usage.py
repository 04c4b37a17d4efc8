"""What is in use on real GPUs: a ``backend.UsageSource`` of its own, for a process that does nothing else with them.

A GPU whose call does not return does not hold up the others (``reads.py``). The session holds device files open, and
one that has listed MIG devices keeps them from being destroyed; ``detach`` ends it while GPUs are cut.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import pynvml
from msgspec import Struct, field

from dra_driver.core.errors import DeviceLostError, DriverUnavailableError
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.usage import GpuUsage
from dra_driver.hardware.gpu.backend import DETACH_TIMEOUT_S
from dra_driver.hardware.gpu.nvml import usage_probes as probes
from dra_driver.hardware.gpu.nvml.errors import driver_call, optional, required
from dra_driver.hardware.gpu.nvml.gpm import GpmMeter
from dra_driver.hardware.gpu.nvml.reads import NoAnswerError, Reads
from dra_driver.hardware.gpu.nvml.session import Session

LOOK_S: Final = 5.0


class _Meters(Struct):
    """What a GPU's looks compare with the look before, by NVML index; of one session."""

    uuid: GpuUuid | None = None
    utilisation: probes.Utilisation = field(default_factory=probes.Utilisation)
    gpm: GpmMeter = field(default_factory=GpmMeter)


class NvmlUsage:
    """Looks through ``libnvidia-ml.so.1``. Open at most one in a process, and no `NvmlBackend` beside it."""

    def __init__(
        self,
        library_path: str | None = None,
        sysfs_root: str = "/sys",
        *,
        driver_root: str | Callable[[], str] | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        """Arguments are as those of `NvmlBackend`; ``look_s`` is how long a GPU may take to answer, in seconds."""
        self._session = Session(library_path, driver_root, sysfs_root)
        self._session.before_end(self._forget)
        self._reads: Reads[GpuUsage] = Reads()
        self._look_s = look_s
        self._meters: dict[int, _Meters] = {}
        self._generation = 0

    def close(self) -> None:
        """End the session. Idempotent; ``usage`` begins another one."""
        self._session.close()

    def detach(self, reason: str, timeout_s: float = DETACH_TIMEOUT_S) -> bool:
        """See ``backend.Detachable.detach``."""
        return self._session.detach(reason, timeout_s)

    def reattach(self) -> None:
        """See ``backend.Detachable.reattach``."""
        self._session.reattach()

    @property
    def detached(self) -> str | None:
        """See ``backend.Detachable.detached``."""
        return self._session.detached

    def usage(self) -> tuple[GpuUsage, ...]:
        """See ``backend.UsageSource``. A GPU that never answered is left out: its UUID is not known."""
        with self._session.use() as generation:
            if generation != self._generation:
                self._meters, self._generation = {}, generation
            count = driver_call("nvmlDeviceGetCount_v2", pynvml.nvmlDeviceGetCount)
            for index in range(count):
                self._meters.setdefault(index, _Meters())
            jobs = [(index, partial(self._look, generation, index), self._look_s) for index in range(count)]
            answers = self._reads.run(jobs)
        found = (self._found(index, answer) for index, answer in answers.items())
        return tuple(sorted((each for each in found if each is not None), key=lambda each: each.gpu_uuid))

    def _forget(self) -> None:
        """Right before the session ends: no other call runs, and samples end with it."""
        for meters in self._meters.values():
            meters.gpm.keep(())

    def _found(self, index: int, answer: GpuUsage | Exception) -> GpuUsage | None:
        if isinstance(answer, GpuUsage):
            return answer
        if isinstance(answer, DriverUnavailableError) or not isinstance(answer, DeviceLostError | NoAnswerError):
            raise answer  # the driver as a whole, or a defect here
        uuid = self._meters[index].uuid
        reason = "a call of the NVIDIA driver has not returned" if isinstance(answer, NoAnswerError) else str(answer)
        return None if uuid is None else GpuUsage(gpu_uuid=uuid, unreadable=reason)

    def _look(self, generation: int, index: int) -> GpuUsage:
        """Runs in a thread of its own. Raises DeviceLostError and DriverUnavailableError."""
        meters = self._meters[index]
        with self._session.use(generation, joins=True):
            handle = required("nvmlDeviceGetHandleByIndex_v2", lambda: pynvml.nvmlDeviceGetHandleByIndex(index))
            uuid = GpuUuid(required("nvmlDeviceGetUUID", lambda: pynvml.nvmlDeviceGetUUID(handle)))
            if meters.uuid not in (None, uuid):
                meters.utilisation, meters.gpm = probes.Utilisation(), GpmMeter()
            meters.uuid = uuid
            return _read(handle, uuid, meters)


def _read(handle: probes.Handle, uuid: GpuUuid, meters: _Meters) -> GpuUsage:
    is_cut = _is_in_mig_mode(handle)
    memory = probes.read_memory(handle)
    gpu_percent, memory_percent = (None, None) if is_cut else probes.read_utilisation(handle)
    processes = probes.read_processes(handle, None if is_cut else meters.utilisation.read(handle))
    devices = list(probes.mig_devices(handle)) if is_cut else []
    instances = []
    for gi_id, device in devices:
        name = optional("nvmlDeviceGetUUID", partial(pynvml.nvmlDeviceGetUUID, device)) or ""
        instances.append(probes.read_instance(gi_id, device, meters.gpm.read(handle, gi_id, name)))
    meters.gpm.keep([(each.gi_id, each.uuid or "") for each in instances])
    return GpuUsage(
        gpu_uuid=uuid,
        memory_total=memory.total if memory is not None else None,
        memory_reserved=memory.reserved if memory is not None else None,
        memory_used=memory.used if memory is not None else None,
        gpu_percent=gpu_percent,
        memory_percent=memory_percent,
        energy_mj=probes.read_number(handle, "nvmlDeviceGetTotalEnergyConsumption"),
        power_mw=probes.read_number(handle, "nvmlDeviceGetPowerUsage"),
        temperature_c=probes.read_temperature(handle),
        sm_clock_mhz=probes.read_number(handle, "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=probes.read_number(handle, "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
        mig_enabled=is_cut,
        instances=tuple(sorted(instances, key=lambda each: each.gi_id)),
        processes=processes,
        problem=None if processes is not None else "NVML does not list processes of this GPU to this process",
    )


def _is_in_mig_mode(handle: probes.Handle) -> bool:
    modes = optional("nvmlDeviceGetMigMode", partial(pynvml.nvmlDeviceGetMigMode, handle))
    return modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE
