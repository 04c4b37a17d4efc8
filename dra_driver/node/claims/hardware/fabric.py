"""Refuses whole GPUs whose NVLink fabric is being probed, because CUDA fails on them with error 802.

The call waits for the probe (`waiting.RetryPolicy`), which begins again after the last partition of a GPU is destroyed.
Partitions do not use the fabric. A probe that ended with an error is no reason to refuse: CUDA starts on the GPU by
itself, and new claims are kept away by a taint.
"""

from collections.abc import Collection, Iterator

from dra_driver.core.errors import FabricNotReadyError, HardwareError
from dra_driver.core.model.fabric import Fabric, FabricState
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Form
from dra_driver.node.claims.dependencies import ClaimDependencies
from dra_driver.node.claims.planning.plan import PreparePlan

READY = Fabric(state=FabricState.COMPLETED)


def needs_fabric_check(todo: PreparePlan) -> bool:
    """Whether `require_fabric` may refuse the plan. Reads nothing: its snapshot is enough for most plans."""
    return any(not _is_certain(gpu, gpu.fabric) for gpu in _whole_gpus(todo) if gpu.fabric is not None)


def require_fabric(deps: ClaimDependencies, todo: PreparePlan, restored: Collection[GpuUuid] | None = None) -> None:
    """Raise `FabricNotReadyError` for a GPU of the plan on which CUDA cannot start yet.

    Costs nothing on boards without NVSwitches, and no call of the hardware for a GPU that the plan's snapshot shows
    ready and undivided. None for ``restored``: before hardware is changed; a GPU whose MIG mode is still to be switched
    off is left to the second call, which names the GPUs that were restored.
    """
    for gpu in _whole_gpus(todo):
        last = gpu.fabric
        if last is None:
            continue
        if restored is not None:
            fabric = _now(deps, gpu.uuid, last) if gpu.uuid in restored or not last.is_probed else last
        elif _is_divided(gpu) and gpu.uuid in deps.journal.noted_gpus():
            continue
        else:
            fabric = last if _is_certain(gpu, last) else _now(deps, gpu.uuid, last)
        if not fabric.is_probed:
            raise _not_ready(f"{gpu.device_name} of claim {todo.ref}", gpu.uuid, fabric)


def _whole_gpus(todo: PreparePlan) -> Iterator[Gpu]:
    """The GPUs of which the claim uses all or a share."""
    for device in todo.devices:
        if device.form is not Form.PARTITION and not device.admin_access:
            yield device.gpu


def _is_divided(gpu: Gpu) -> bool:
    """Whether the snapshot shows it in MIG mode: what it says about the fabric is from before or meanwhile."""
    return gpu.mig_enabled or bool(gpu.mig_instances)


def _is_certain(gpu: Gpu, fabric: Fabric) -> bool:
    """Whether CUDA can start on the GPU for all that the snapshot says."""
    return fabric.is_probed and not _is_divided(gpu)


def _now(deps: ClaimDependencies, gpu: GpuUuid, last: Fabric) -> Fabric:
    """The state now; the last known one where it cannot be read, which says nothing about the fabric."""
    if deps.hardware is None:
        return last
    try:
        found = deps.hardware.fabric(gpu) or READY  # None: there is nothing to wait for any more
    except HardwareError:
        return last
    if found != last:
        deps.hardware.changed()  # its taint may go
    return found


def _not_ready(device: str, gpu: GpuUuid, fabric: Fabric) -> FabricNotReadyError:
    return FabricNotReadyError(
        f"{device} cannot be used yet: the NVLink fabric of {gpu} is not ready (probe {fabric}), and CUDA would fail "
        "with error 802 (system not yet initialized); Fabric Manager has to run on the node in the driver's version: "
        "see systemctl status nvidia-fabricmanager and /var/log/fabricmanager.log there; the kubelet tries again"
    )
