"""Changes GPUs as a claim needs them.

The caller holds the locks of the claim's GPUs from `inspect_partitions` until the claim is recorded as prepared:

    1. `inspect_partitions`: an instance that exists already is foreign; the claim uses it
    2. the caller records the intent, durably
    3. `apply_plan`: restore whole GPUs, whose NVLink fabric must be ready then; create partitions; record their ids;
       apply settings (time slices, MPS daemons)

After a failure the caller's `teardown` removes what was done so far.
"""

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from dra_driver.core.errors import FabricNotReadyError, HardwareError, RetryableError
from dra_driver.core.model.fabric import Fabric, FabricState
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Form
from dra_driver.node.claims.dependencies import ClaimDependencies
from dra_driver.node.claims.entry import AttemptToken, gpus_of
from dra_driver.node.claims.hardware.partitions import create_partitions
from dra_driver.node.claims.hardware.release import restore_gpu_for_claim
from dra_driver.node.claims.hardware.settings import settings_of
from dra_driver.node.claims.planning.plan import PreparePlan
from dra_driver.node.claims.planning.sharing_plan import partition_daemons
from dra_driver.node.claims.waiting import CallBudget, Deadline

TEARDOWN_RESERVE_S = 5.0
"""Seconds of a call's time that are kept for the teardown after a failure."""


def apply_plan(deps: ClaimDependencies, todo: PreparePlan, attempt: AttemptToken, budget: CallBudget) -> PreparePlan:
    """Carry out the plan, which `inspect_partitions` has seen and which is recorded under ``attempt``.

    Returns it with the ids of all partitions. Raises `HardwareError`, `StorageError`, and `RetryableError` when another
    run took the entry over meanwhile.
    """
    settings, locked = settings_of(deps), gpus_of(todo.assigned)
    deadline = Deadline(deps.clock, budget.deadline - TEARDOWN_RESERVE_S)
    restored = deps.journal.noted_gpus().keys()
    for device in todo.devices:
        if device.form is not Form.PARTITION and not device.admin_access:
            restore_gpu_for_claim(deps, todo.ref.uid, device.gpu.uuid, locked, deadline)
    require_fabric(deps, todo, restored)
    todo = create_partitions(deps, todo, attempt, deadline)
    if todo.partition_groups:
        todo = with_partition_daemons(todo)
        if not deps.journal.amend(todo.ref.uid, attempt, todo.assigned):
            raise taken_over(todo)
    for setting in settings:
        setting.apply(todo, deadline)
    return todo


def with_partition_daemons(todo: PreparePlan) -> PreparePlan:
    """The plan with the daemons of its partitions, which all exist. Raises `InvalidParametersError`."""
    for group in todo.partition_groups:
        parts = [todo.devices[position].partition for position in group.positions]
        uuids = [part.live.uuid for part in parts if part is not None and part.live is not None]
        for position, daemon in partition_daemons(todo.ref.uid, group, uuids):
            sharing = todo.devices[position].sharing
            if sharing is not None:
                todo = todo.with_device(position, sharing=replace(sharing, daemon=daemon))
    return todo


def taken_over(todo: PreparePlan) -> RetryableError:
    """Another run of the driver began to unprepare the claim."""
    return RetryableError(
        f"claim {todo.ref} was unprepared by another run of the driver while it was being prepared; "
        "the kubelet tries again if the pod still needs it"
    )


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
