"""Answers for a claim that is prepared already: from the journal, after looking whether it is still true.

Owns what is looked at and put right: GPUs, partitions, MPS daemons, the CDI file. Refuses to know when it is asked: by
the kubelet again, or because a file is missing.
"""

from dra_driver.cdi.spec import CdiSpec
from dra_driver.claims.dependencies import ClaimDependencies
from dra_driver.claims.entry import Entry, InstanceIds, gpus_of
from dra_driver.claims.planning.devices import check_alive
from dra_driver.claims.planning.plan import PreparePlan, restore
from dra_driver.claims.waiting import GpuLockedError
from dra_driver.claims.workflow.cdi_document import document_of
from dra_driver.model.gpu import Snapshot


def verify_prepared(
    deps: ClaimDependencies, entry: Entry, snapshot: Snapshot, *, within_s: float
) -> tuple[PreparePlan, CdiSpec]:
    """What was prepared, and its CDI document. Waits for GPUs, and for daemons that have to start, for ``within_s``.

    Raises `DeviceLostError` when a device is gone: its claim stays as it is until the pod is deleted. Also
    `MpsUnavailableError`, `GpuLockedError` and what `documents.document_of` raises.
    """
    again = restore(entry, snapshot, deps.names)
    if not again.changes_hardware:
        return again, document_of(deps, again)
    gpus = gpus_of(entry.devices)
    with deps.gpu_locks.acquire(gpus, within_s) as acquired:
        if not acquired:
            raise GpuLockedError(
                f"claim {entry.ref} cannot be looked at: {', '.join(gpus)} is being changed by another call, waited "
                f"for {within_s:.0f} s; it is tried again"
            )
        _verify_hardware(deps, again, within_s)
        return again, document_of(deps, again)


def _verify_hardware(deps: ClaimDependencies, again: PreparePlan, within_s: float) -> None:
    """The partitions are there, the same ones, and the daemons run. The caller holds the locks of the GPUs."""
    hardware = deps.require_hardware()
    for device in again.devices:
        if device.partition is not None and not device.admin_access:
            found = hardware.mig.find(device.partition.id)
            check_alive(again.ref, device.assigned, InstanceIds.of(found) if found else None)
    daemons = [d.sharing.daemon for d in again.devices if d.sharing is not None and d.sharing.daemon is not None]
    deadline = deps.clock.now() + within_s  # of all together; one that is ready takes no time
    for daemon in {daemon.id: daemon for daemon in daemons}.values():
        hardware.mps.ensure(daemon, within_s=max(0.0, deadline - deps.clock.now()))
