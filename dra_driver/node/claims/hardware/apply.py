"""Change GPUs as a claim needs them.

The caller holds the locks of the claim's GPUs from `inspect_partitions` until the claim is recorded as prepared:

    1. `inspect_partitions`: the claim uses an instance that exists already; it is unmanaged
    2. the caller records the intent, durably
    3. `apply_plan`: restore whole GPUs, whose NVLink fabric must be ready then; create partitions; record their ids;
       apply settings (time slices, MPS daemons)

After a failure the caller's `teardown` removes the changes made so far.
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
    """Carry out the plan, which `inspect_partitions` has checked and which is recorded under ``attempt``.

    Returns it with the ids of all partitions. Raises `HardwareError`, `StorageError`, and `RetryableError` when another
    run has taken the entry over.
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
    """Return the plan with the daemons of its partitions, which exist. Raises `InvalidParametersError`."""
    for group in todo.partition_groups:
        parts = [todo.devices[position].partition for position in group.positions]
        uuids = [part.live.uuid for part in parts if part is not None and part.live is not None]
        for position, daemon in partition_daemons(todo.ref.uid, group, uuids):
            sharing = todo.devices[position].sharing
            if sharing is not None:
                todo = todo.with_device(position, sharing=replace(sharing, daemon=daemon))
    return todo


def taken_over(todo: PreparePlan) -> RetryableError:
    return RetryableError(
        f"claim {todo.ref} was unprepared by another run of the driver while it was being prepared; "
        "the kubelet tries again if the pod still needs it",
        reason="ClaimTakenOver",
    )


def needs_fabric_check(todo: PreparePlan) -> bool:
    """Return whether `require_fabric` may refuse the plan. Reads only the plan's snapshot."""
    return any(not _is_certain(gpu, gpu.fabric) for gpu in _whole_gpus(todo) if gpu.fabric is not None)


def require_fabric(deps: ClaimDependencies, todo: PreparePlan, restored: Collection[GpuUuid] | None = None) -> None:
    """Raise `FabricNotReadyError` for a GPU of the plan on which CUDA would fail with error 802: its fabric is being
    probed.

    A probe that ended with an error does not refuse: CUDA starts on the GPU, and a taint keeps new claims away. Reads
    the hardware only for GPUs whose snapshot shows no certain state. ``restored`` None: before hardware is changed; a
    GPU whose MIG mode must still be disabled is left to the second call, which names the restored GPUs.
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
            raise FabricNotReadyError(
                f"{gpu.device_name} of claim {todo.ref} cannot be used yet: the NVLink fabric of {gpu.uuid} is not "
                f"ready (probe {fabric}), and CUDA would fail with error 802 (system not yet initialized); Fabric "
                "Manager must run on the node in the driver's version: check systemctl status nvidia-fabricmanager and "
                "/var/log/fabricmanager.log there; the kubelet tries again"
            )


def _whole_gpus(todo: PreparePlan) -> Iterator[Gpu]:
    """The GPUs of which the claim uses all or a share. The NVLink fabric does not concern partitions."""
    for device in todo.devices:
        if device.form is not Form.PARTITION and not device.admin_access:
            yield device.gpu


def _is_divided(gpu: Gpu) -> bool:
    """Return whether the snapshot shows MIG mode, in which the fabric's state is outdated."""
    return gpu.mig_enabled or bool(gpu.mig_instances)


def _is_certain(gpu: Gpu, fabric: Fabric) -> bool:
    return fabric.is_probed and not _is_divided(gpu)


def _now(deps: ClaimDependencies, gpu: GpuUuid, last: Fabric) -> Fabric:
    """The state now; the last known state when it cannot be read."""
    if deps.hardware is None:
        return last
    try:
        found = deps.hardware.fabric(gpu) or Fabric(state=FabricState.COMPLETED)  # None: nothing to wait for
    except HardwareError:
        return last
    if found != last:
        deps.hardware.changed()  # its taint may go
    return found
