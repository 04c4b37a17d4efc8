"""A claim's CDI document: what each of its devices adds to a container in its present state."""

from dra_driver.core.errors import DeviceLostError
from dra_driver.hardware.cdi import CdiSpec, ContainerEdits, claim_spec, mps_edits
from dra_driver.hardware.sharing.mps_files import MpsDaemon
from dra_driver.kube.published import ALL_PERCENT, MIB
from dra_driver.node.claims.dependencies import ClaimDependencies, require_hardware
from dra_driver.node.claims.entry import AssignedSharing
from dra_driver.node.claims.planning.plan import PlannedDevice, PreparePlan


def document_of(deps: ClaimDependencies, todo: PreparePlan) -> CdiSpec:
    """The document, with its nodes on the host. The base document, partitions and daemons have to exist already.

    A device that the claim has both by itself and with admin access is listed once: both have the same name. Raises
    what `CdiSources`, `DeviceNodes` and `MpsControl.directories` raise.
    """
    own = {device.cdi_device for device in todo.devices if not device.admin_access}
    named = [device for device in todo.devices if not device.admin_access or device.cdi_device not in own]
    of_claim = deps.provider.edits_of_claim(todo.ref.uid)
    document = claim_spec(deps.names, [(device.cdi_device, _edits(deps, device) + of_claim) for device in named])
    deps.device_nodes.ensure(node for device in document.devices for node in device.container_edits.device_nodes)
    return document


def _edits(deps: ClaimDependencies, device: PlannedDevice) -> ContainerEdits:
    edits = _device_edits(deps, device)
    if device.sharing is not None and device.sharing.share is not None:
        edits += deps.provider.edits_of_share()
    if device.sharing is not None and device.sharing.daemon is not None:
        edits += _mps_edits(deps, device.sharing, device.sharing.daemon)
    return edits


def _device_edits(deps: ClaimDependencies, device: PlannedDevice) -> ContainerEdits:
    if device.partition is None:
        return deps.provider.edits_for(device.gpu)
    live = device.partition.live
    if live is None:
        raise DeviceLostError(f"partition {device.device} was not created, so it has no CDI edits; the kubelet retries")
    return deps.provider.edits_for_partition(device.gpu, gi_id=live.gi_id, ci_id=live.ci_id, uuid=live.uuid)


def _mps_edits(deps: ClaimDependencies, sharing: AssignedSharing, daemon: MpsDaemon) -> ContainerEdits:
    """A share has limits of its own; without one the daemon's defaults apply. All of the compute is no limit."""
    folders, share = require_hardware(deps).mps.directories(daemon.id), sharing.share
    memory = share.memory if share else None
    return mps_edits(
        folders.pipe,
        folders.shm,
        memory_limit_mib=None if memory is None else memory // MIB,
        percentage=share.percent if share and 0 < share.percent < ALL_PERCENT else None,
    )
