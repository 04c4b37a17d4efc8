"""Decides whether the instance in a partition's place is the one that this driver created, and destroys it if so.

MIG UUIDs are made from the ids of GPU, GPU instance and compute instance, so they repeat with the ids. Equal UUIDs
prove little, but different ones prove that the driver's instance is gone and that this one is foreign.
"""

import logging

from dra_driver.core.model.mig import MigInstance
from dra_driver.hardware.mig.manager import MigManager
from dra_driver.node.claims.entry import AssignedPartition

log = logging.getLogger(__name__)


def is_same(found: MigInstance, recorded: AssignedPartition) -> bool:
    """Whether ``found`` can be ``recorded``. An incomplete instance has no UUID to compare."""
    ids, device = recorded.live, found.device
    return ids is None or (found.gi_id == ids.gi_id and (device is None or device.uuid == ids.uuid))


def destroy_if_owned(mig: MigManager, partition: AssignedPartition, *, within_s: float) -> None:
    """Destroy the partition; a foreign instance in its place stays, and MIG mode with it.

    The caller holds the GPU's lock. Raises as `MigControl.destroy`.
    """
    found = mig.find(partition.id)
    if found is not None and not is_same(found, partition):
        facts = {"partition": str(partition.id), "gi": found.gi_id}
        log.warning("partition was replaced by a foreign instance; leaving the instance", extra=facts)
        return
    mig.destroy(partition.id, within_s=within_s)
