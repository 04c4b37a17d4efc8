"""Changes GPUs as a claim needs them.

The caller holds the locks of the claim's GPUs from `inspect_partitions` until the claim is recorded as prepared:

    1. `inspect_partitions`: an instance that exists already is foreign; the claim uses it
    2. the caller records the intent, durably
    3. `apply_plan`: restore whole GPUs, whose NVLink fabric must be ready then; create partitions; record their ids;
       apply settings (time slices, MPS daemons)

After a failure the caller's `teardown` removes what was done so far.
"""

from msgspec.structs import replace

from dra_driver.core.errors import RetryableError
from dra_driver.core.model.terms import Form
from dra_driver.node.claims.dependencies import ClaimDependencies
from dra_driver.node.claims.entry import AttemptToken, gpus_of
from dra_driver.node.claims.hardware.fabric import require_fabric
from dra_driver.node.claims.hardware.orphans import restore_gpu_for_claim
from dra_driver.node.claims.hardware.partitions import create_partitions
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
