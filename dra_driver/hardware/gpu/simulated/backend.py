"""Simulated GPUs behind the interface of real ones, for the embedded cluster and tests.

Parses the spec (``spec.py``), applies the rules of MIG (``mig.py``) and keeps state, locks and faults (``hardware.py``,
``state.py``). Contract tests compare it with the NVML backend over a fake NVML library that is made from the same spec.
"""

import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from dra_driver.core.model.fabric import Fabric
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import ComputeInstance, MigInstance
from dra_driver.hardware.gpu.backend import DETACH_TIMEOUT_S, ComputeMode
from dra_driver.hardware.gpu.simulated import mig as rules
from dra_driver.hardware.gpu.simulated.health import SimulatedHealth
from dra_driver.hardware.gpu.simulated.mig import GpuState
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, parse_groups
from dra_driver.hardware.gpu.simulated.troubles import Trouble


class SimulatedBackend(SimulatedHealth):
    """A ``backend.GpuBackend`` over a described node.

    Thread-safe. The driver does not call the methods from ``foreign_create`` on and those of the base class: tests and
    the command line use them to act as an administrator, as another program, or as failing hardware.
    """

    @classmethod
    def from_spec(
        cls,
        spec: str,
        node_name: str,
        state_file: Path | None = None,
        on_change: Callable[[Snapshot], None] | None = None,
    ) -> "SimulatedBackend":
        """``8xh100-sxm5-80gb``, ``4xa100-sxm4-40gb+mig,2xl4-24gb``, or the path of a .yaml file (see ``spec.py``).

        UUIDs are stable per node name and minor and differ between nodes. ``state_file`` and ``on_change``: see
        ``SimulatedHardware``. Raises ConfigurationError.
        """
        path = Path(spec) if _is_path(spec) else None
        node = NodeSpec() if path is not None else parse_groups(spec, node_name)
        backend = cls(node, file=path, node_name=node_name, state_file=state_file, on_change=on_change)
        backend.reload()
        return backend

    def open(self) -> None:
        """See ``Backend.open``."""
        self._call("open", None, lambda: None)

    def snapshot(self) -> Snapshot:
        """See ``Backend.snapshot``. An unreadable or wrong spec file counts as a missing driver."""
        return self._call("snapshot", None, self._snapshot)

    def close(self) -> None:
        """See ``Backend.close``."""
        self._attachment.close()

    def wait_for_event(self, timeout_s: float) -> bool:
        """See ``Backend.wait_for_event``. Each change is reported once, to the first thread that asks."""
        deadline = time.monotonic() + timeout_s
        if not self._attachment.wait_attached(timeout_s):
            return False
        self._call("wait_for_event", None, lambda: None)
        return self.await_change(deadline - time.monotonic())

    def detach(self, reason: str, timeout_s: float = DETACH_TIMEOUT_S) -> bool:
        """See ``Detachable.detach``. Other processes go on with the same GPUs."""
        ended = self._attachment.detach(reason, timeout_s)
        self._wake()
        return ended

    def reattach(self) -> None:
        """See ``Detachable.reattach``."""
        self._attachment.reattach()

    @property
    def detached(self) -> str | None:
        """See ``Detachable.detached``."""
        return self._attachment.detached

    def mig_mode(self, gpu: GpuUuid) -> bool:
        """See ``GpuControl``."""
        return self._read("mig_mode", gpu, rules.mig_mode)

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> None:
        """See ``GpuControl``."""
        self._change("set_mig_mode", gpu, lambda found, state: (rules.set_mode(found, state, enabled), None))

    def mig_instances(self, gpu: GpuUuid) -> tuple[MigInstance, ...]:
        """See ``GpuControl``."""
        return self._read("mig_instances", gpu, lambda _, state: state.instances)

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int) -> int:
        """See ``GpuControl``."""
        return self._change(
            "create_gpu_instance", gpu, lambda found, state: rules.add_instance(found, state, profile_id, start)
        )

    def create_compute_instance(self, gpu: GpuUuid, gi_id: int) -> ComputeInstance:
        """See ``GpuControl``. DeviceLostError also when the GPU instance does not exist."""
        return self._change("create_compute_instance", gpu, lambda found, state: rules.add_compute(found, state, gi_id))

    def destroy_compute_instance(self, gpu: GpuUuid, gi_id: int, ci_id: int) -> None:
        """See ``GpuControl``."""
        self._change(
            "destroy_compute_instance",
            gpu,
            lambda found, state: (rules.drop_compute(found, state, gi_id, ci_id), None),
        )

    def destroy_gpu_instance(self, gpu: GpuUuid, gi_id: int) -> None:
        """See ``GpuControl``. GpuBusyError also while it has a compute instance."""
        self._change("destroy_gpu_instance", gpu, lambda found, state: (rules.drop_instance(found, state, gi_id), None))

    def fabric(self, gpu: GpuUuid) -> Fabric | None:
        """See ``GpuControl``."""
        return self._read("fabric", gpu, lambda _, state: state.fabric)

    def compute_mode(self, gpu: GpuUuid) -> ComputeMode:
        """See ``GpuControl``."""
        return self._read("compute_mode", gpu, lambda _, state: state.compute_mode)

    def set_compute_mode(self, gpu: GpuUuid, mode: ComputeMode) -> None:
        """See ``GpuControl``. MigUnsupportedError while MIG mode is on."""
        self._change("set_compute_mode", gpu, lambda found, state: (rules.set_compute_mode(found, state, mode), None))

    def foreign_create(self, gpu: GpuUuid, profile_id: int, start: int, compute: str = "full") -> MigInstance:
        """Create an instance as another program; ``compute``: full, partial or none. The rules of MIG apply."""

        def step(found: Gpu, state: GpuState) -> tuple[GpuState, MigInstance]:
            state, gi_id = rules.add_instance(found, state, profile_id, start)
            if compute != "none":
                state, _ = rules.add_compute(found, state, gi_id, spans=compute == "full")
            return state, next(instance for instance in state.instances if instance.gi_id == gi_id)

        return self._change(None, gpu, step)

    def foreign_destroy(self, gpu: GpuUuid, gi_id: int) -> None:
        """Destroy an instance and its content as another program, in use or not."""
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

    def set_troubles(self, gpu: GpuUuid, *names: Trouble) -> None:
        """Let the GPU have these troubles and no others but those of its spec."""
        self._change(None, gpu, lambda _, state: (replace(state, troubles=frozenset(names)), None))

    def set_in_use(self, gpu: GpuUuid, gi_id: int, in_use: bool = True) -> None:
        """Let a process run in the GPU instance, so that it cannot be destroyed; or end that."""
        ids = frozenset({gi_id})
        self._change(
            None,
            gpu,
            lambda _, state: (replace(state, in_use=state.in_use | ids if in_use else state.in_use - ids), None),
        )


def _is_path(spec: str) -> bool:
    return "/" in spec or spec.endswith((".yaml", ".yml"))
