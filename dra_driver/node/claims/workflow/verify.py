"""Answers for a claim that is prepared already: from the journal, after checking that GPUs and partitions still exist.

Used when the kubelet prepares a claim again, and when a CDI file is missing.
"""

from dra_driver.core.model.gpu import Snapshot
from dra_driver.hardware.cdi import CdiSpec
from dra_driver.node.claims.dependencies import ClaimDependencies, require_hardware
from dra_driver.node.claims.entry import Entry, InstanceIds, gpus_of
from dra_driver.node.claims.hardware.settings import settings_of
from dra_driver.node.claims.planning.devices import check_alive
from dra_driver.node.claims.planning.plan import PreparePlan, restore_plan
from dra_driver.node.claims.waiting import Deadline, GpuLockedError
from dra_driver.node.claims.workflow.cdi_document import document_of
from dra_driver.node.claims.workflow.fresh_instances import fresh_snapshot, places_of_devices


def verify_prepared(
    deps: ClaimDependencies, entry: Entry, snapshot: Snapshot, *, within_s: float
) -> tuple[PreparePlan, CdiSpec]:
    """What was prepared, and its CDI document. Starts MPS daemons that do not run.

    Waits for GPUs, and for daemons that have to start, for ``within_s`` each. Raises `DeviceLostError` when a device is
    gone: its claim stays as it is until the pod is deleted. Also `MpsUnavailableError`, `GpuLockedError` and what
    `cdi_document.document_of` raises.
    """
    snapshot = fresh_snapshot(deps, entry.ref, places_of_devices(entry.devices), snapshot, within_s=within_s)
    prepared = restore_plan(entry, snapshot, deps.names)
    if not prepared.changes_hardware:
        return prepared, document_of(deps, prepared)
    gpus = gpus_of(entry.devices)
    with deps.gpu_locks.acquire(gpus, within_s) as acquired:
        if not acquired:
            raise GpuLockedError(
                f"claim {entry.ref} cannot be verified: another call has locked {', '.join(gpus)} for more than "
                f"{within_s:.0f} s; the driver tries again"
            )
        _verify_hardware(deps, prepared, within_s)
        return prepared, document_of(deps, prepared)


def _verify_hardware(deps: ClaimDependencies, prepared: PreparePlan, within_s: float) -> None:
    """The same partitions exist, and the settings are in force. The caller holds the locks of the GPUs."""
    mig = require_hardware(deps).mig
    for device in prepared.devices:
        if device.partition is not None and not device.admin_access:
            found = mig.find(device.partition.id)
            check_alive(prepared.ref, device.assigned, InstanceIds.of(found) if found else None)
    deadline = Deadline(deps.clock, deps.clock.now() + within_s)
    for setting in settings_of(deps):
        setting.verify(prepared, deadline)
