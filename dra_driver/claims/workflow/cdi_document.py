"""A claim's CDI document: what its devices add to a container, each as it is now.

Owns which edits belong to which kind of device. Refuses to know what is in them (``cdi``) and when they are written.
"""

from dra_driver.cdi.edits import claim_spec, mps_edits
from dra_driver.cdi.spec import CdiSpec, ContainerEdits
from dra_driver.claims.dependencies import ClaimDependencies
from dra_driver.claims.entry import AssignedSharing
from dra_driver.claims.planning.conflicts import TOTAL_PERCENT
from dra_driver.claims.planning.plan import PlannedDevice, PreparePlan
from dra_driver.claims.planning.shares import MIB
from dra_driver.errors import DeviceLostError
from dra_driver.sharing.daemon import MpsDaemon


def document_of(deps: ClaimDependencies, todo: PreparePlan) -> CdiSpec:
    """The document. The base document, partitions and daemons have to be there already.

    Admin access to a device that the claim has by itself, too, is that device as the claim has it: there is one name
    for both. Raises what `CdiProvider` and `MpsWork.directories` raise.
    """
    own = {device.cdi_device for device in todo.devices if not device.admin_access}
    named = [device for device in todo.devices if not device.admin_access or device.cdi_device not in own]
    return claim_spec(deps.names, [(device.cdi_device, _edits(deps, device)) for device in named])


def _edits(deps: ClaimDependencies, device: PlannedDevice) -> ContainerEdits:
    edits = _own_edits(deps, device)
    if device.sharing is not None and device.sharing.daemon is not None:
        edits += _mps_edits(deps, device.sharing, device.sharing.daemon)
    return edits


def _own_edits(deps: ClaimDependencies, device: PlannedDevice) -> ContainerEdits:
    if device.partition is None:
        return deps.provider.edits_for(device.gpu)
    live = device.partition.live
    if live is None:
        raise DeviceLostError(f"{device.device} was not made, so there is nothing to hand out; the kubelet tries again")
    return deps.provider.edits_for_partition(device.gpu, gi_id=live.gi_id, ci_id=live.ci_id, uuid=live.uuid)


def _mps_edits(deps: ClaimDependencies, sharing: AssignedSharing, daemon: MpsDaemon) -> ContainerEdits:
    """A share brings its limits along; elsewhere the daemon's defaults hold. All of the compute is no limit."""
    folders, share = deps.require_hardware().mps.directories(daemon.id), sharing.share
    memory = share.memory if share else None
    return mps_edits(
        folders.pipe,
        folders.shm,
        memory_limit_mib=None if memory is None else memory // MIB,
        percentage=share.percent if share and 0 < share.percent < TOTAL_PERCENT else None,
    )
