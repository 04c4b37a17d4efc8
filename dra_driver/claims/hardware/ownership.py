"""Whether an instance that is at a partition's place is the one that was made, and its removal if it is.

Owns that comparison. MIG UUIDs are made from the ids of GPU, GPU instance and compute instance, so they come again with
the ids: equal ones prove little, but other ones prove that ours is gone and this one is somebody else's.
"""

import logging

from dra_driver.claims.dependencies import ClaimDependencies
from dra_driver.claims.entry import AssignedPartition
from dra_driver.model.mig import MigInstance

log = logging.getLogger(__name__)


def is_same(found: MigInstance, noted: AssignedPartition) -> bool:
    """Whether nothing speaks against ``found`` being ``noted``; half made ones have no UUID to compare."""
    was, device = noted.live, found.device
    return was is None or (found.gi_id == was.gi_id and (device is None or device.uuid == was.uuid))


def destroy_if_owned(deps: ClaimDependencies, partition: AssignedPartition, *, within_s: float) -> None:
    """Remove the partition; one that took its place since stays. The caller holds the GPU's lock.

    Raises as `MigWork.destroy`.
    """
    mig = deps.require_hardware().mig
    found = mig.find(partition.id)
    if found is not None and not is_same(found, partition):
        facts = {"partition": str(partition.id), "gi": found.gi_id}
        log.warning("another instance is in the place of a partition that was made here, and stays", extra=facts)
        return  # and MIG mode with it
    mig.destroy(partition.id, within_s=within_s)
