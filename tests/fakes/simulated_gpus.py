"""Simulated GPUs on which a test acts as an administrator, as another program or as failing hardware."""

from collections.abc import Mapping

from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError, DraError, HardwareError
from dra_driver.core.model.fabric import Fabric
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigInstance
from dra_driver.hardware.gpu.backend import Backend, ComputeModes, GpuControl, HealthSource
from dra_driver.hardware.gpu.simulated import backend
from dra_driver.hardware.gpu.simulated import mig as rules
from dra_driver.hardware.gpu.simulated.faults import FailureMode, GpuFault, HardwareFault
from dra_driver.hardware.gpu.simulated.mig import GpuState
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, SimulatedGpu
from dra_driver.hardware.gpu.simulated.state import Changes, Fault

METHODS = frozenset(
    name
    for part in (Backend, GpuControl, ComputeModes, HealthSource)
    for name in vars(part)
    if not name.startswith("_")
)


class SimulatedBackend(backend.SimulatedBackend):
    _lost: Mapping[int, str] = {}  # reasons, by minor

    def mark_lost(self, minor: int, reason: str) -> None:
        """Let the GPU ``minor`` stop answering to this object. A repeated call replaces the reason."""
        with self._lock:
            self._lost = {**self._lost, minor: reason}
            self._announce()

    def restore(self, minor: int) -> None:
        """Undo ``mark_lost``; ``lost`` in the spec file stays. Idempotent."""
        with self._lock:
            self._lost = {number: why for number, why in self._lost.items() if number != minor}
            self._announce()

    def replace_node(self, node: NodeSpec) -> None:
        """Give the node other hardware, as after a hot-plug. Raises ConfigurationError when a file describes it."""
        with self._lock:
            if self._file is not None:
                raise ConfigurationError(f"the node's GPUs are described by {self._file}: change that file")
            self._node = node
            self._announce()

    def _lost_reason(self, item: SimulatedGpu, changes: Changes) -> str | None:
        return self._lost.get(item.gpu.minor) or super()._lost_reason(item, changes)

    def fail_next(
        self,
        method: str,
        error: DraError | None = None,
        *,
        gpu: GpuUuid | None = None,
        skip: int = 0,
        times: int = 1,
        delay_s: float = 0.0,
        after: bool = False,
    ) -> None:
        """Let the next ``times`` calls of ``method`` (0: all) of any process fail, after ``skip`` good ones: wait
        ``delay_s`` and raise ``error``, before the work or ``after`` it. ``gpu`` limits the fault."""
        if method not in METHODS or (error is not None and not isinstance(error, HardwareError)):
            raise ValueError(
                f"cannot let {method} fail with {error!r}: expected a HardwareError and one of the methods"
                f" {', '.join(sorted(METHODS))}"
            )
        fault = Fault(
            method=method,
            gpu=gpu,
            error=None if error is None else type(error).__name__,
            message=str(error or ""),
            skip=skip,
            times=times,
            delay_s=delay_s,
            after=after,
        )
        with self._store.locked():
            changes = self._store.read()
            self._store.write(replace(changes, faults=(*changes.faults, fault)))

    def clear_faults(self) -> None:
        with self._store.locked():
            self._store.write(replace(self._store.read(), faults=()))

    def inject(self, gpu: GpuUuid, *found: str, gi_id: int | None = None) -> None:
        """Add faults to the GPU, or to one of its GPU instances: ``xid=79`` and so on. Raises ValueError."""
        added = tuple(GpuFault(gpu=gpu, fault=HardwareFault.parse(text), gi_id=gi_id) for text in found)
        self._edit(lambda injected: (*injected, *added))

    def recover(self, gpu: GpuUuid) -> None:
        self._edit(lambda injected: tuple(one for one in injected if one.gpu != gpu))

    def foreign_create(self, gpu: GpuUuid, profile_id: int, start: int, compute: str = "full") -> MigInstance:
        """Create an instance as another program; ``compute``: full, partial or none. The rules of MIG apply."""

        def step(found: Gpu, state: GpuState) -> tuple[GpuState, MigInstance]:
            state, gi_id = rules.add_instance(found, state, profile_id, start)
            if compute != "none":
                state, _ = rules.add_compute(found, state, gi_id, spans=compute == "full")
            return state, next(one for one in rules.instances(found, state) if one.gi_id == gi_id)

        return self._change(None, gpu, step)

    def foreign_destroy(self, gpu: GpuUuid, gi_id: int) -> None:
        self._change(None, gpu, lambda found, state: (rules.drop_instance(found, state, gi_id, forced=True), None))

    def foreign_mig_mode(self, gpu: GpuUuid, enabled: bool) -> None:
        """Switch MIG mode as an administrator, with a GPU reset where needed. Raises GpuBusyError."""
        self._change(None, gpu, lambda found, state: (rules.set_mode(found, state, enabled, by_reset=True), None))

    def set_busy(self, gpu: GpuUuid, who: str | None) -> None:
        """Let ``who`` have the GPU open, so that its MIG mode cannot be switched; None ends that."""
        self._change(None, gpu, lambda _, state: (replace(state, busy=who), None))

    def set_busy_on_create(self, gpu: GpuUuid, who: str | None) -> None:
        """Let ``who`` keep the GPU's first instance from being created; None ends that."""
        self._change(None, gpu, lambda _, state: (replace(state, busy_on_create=who), None))

    def set_fabric(self, gpu: GpuUuid, fabric: Fabric | None, *, after_mig: Fabric | None = None) -> None:
        """Set the state of the NVLink fabric, and what it becomes when the last GPU instance is destroyed."""
        self._change(None, gpu, lambda _, state: (replace(state, fabric=fabric, fabric_after_mig=after_mig), None))

    def set_troubles(self, gpu: GpuUuid, *names: FailureMode) -> None:
        self._change(None, gpu, lambda _, state: (replace(state, troubles=frozenset(names)), None))

    def set_in_use(self, gpu: GpuUuid, gi_id: int, in_use: bool = True) -> None:
        def step(_: Gpu, state: GpuState) -> tuple[GpuState, None]:
            instance = state.instance(gi_id)
            return state if instance is None else state.with_instance(replace(instance, in_use=in_use)), None

        self._change(None, gpu, step)
