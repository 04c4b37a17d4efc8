"""What will be done for a claim, as data.

Pure: an allocation and a snapshot in, a plan or an error out. Owns the checks that an allocation fits this node and
this version of the driver, and the CDI names under which its devices are handed out. Refuses to know other claims
(whether a device is free is the journal's business), the API server and files.

This version hands out whole GPUs as they are. A config that asks for a sharing mode is refused rather than ignored:
a pod that believes it runs under MPS limits would otherwise be given the GPU without them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dra_driver.cdi.names import CdiNames
from dra_driver.claims.configs import DecodedConfig, config_for_gpu, decode_all
from dra_driver.claims.entry import Entry, HeldDevice
from dra_driver.errors import ClaimError, DeviceLostError, InvalidParametersError, UnknownDeviceError
from dra_driver.model.claim import AllocatedClaim, AllocatedDevice, ClaimRef, PreparedDevice
from dra_driver.model.gpu import Gpu, Snapshot
from dra_driver.model.ids import DeviceName, PoolName

MAX_DEVICES = 32
"""Results of one claim (resource/v1 ``AllocationResultsMaxSize``)."""

_WHOLE_GPU = re.compile(r"gpu-[0-9]+")
_MAX_SHOWN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevice:
    """One result of the allocation: the GPU behind it and the names it is handed out under.

    ``request`` is the base request. ``cdi_device`` is the device's name in the claim's CDI document; two results of one
    claim share it when both mean the same device (admin access beside a normal request).
    """

    request: str
    pool: PoolName
    device: DeviceName
    share_id: str | None
    admin_access: bool
    gpu: Gpu
    cdi_device: str
    cdi_ids: tuple[str, ...]

    @property
    def prepared(self) -> PreparedDevice:
        """What the kubelet is answered."""
        return PreparedDevice(
            request_names=(self.request,),
            pool=self.pool,
            device=self.device,
            cdi_device_ids=self.cdi_ids,
            share_id=self.share_id,
        )

    @property
    def held(self) -> HeldDevice:
        """What the journal keeps."""
        return HeldDevice(
            request=self.request,
            pool=self.pool,
            device=self.device,
            share_id=self.share_id,
            admin_access=self.admin_access,
            gpu_uuid=self.gpu.uuid,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPlan:
    """Everything that will be handed out for one claim, in the order of the allocation."""

    ref: ClaimRef
    devices: tuple[PlannedDevice, ...]

    @property
    def prepared(self) -> tuple[PreparedDevice, ...]:
        """The answer to the kubelet: one entry per result, because the kubelet keys health and pod resources on it."""
        return tuple(device.prepared for device in self.devices)

    @property
    def held(self) -> tuple[HeldDevice, ...]:
        """What the journal keeps of the claim."""
        return tuple(device.held for device in self.devices)


def plan(claim: AllocatedClaim, snapshot: Snapshot, names: CdiNames, pool: PoolName) -> ClaimPlan:
    """What to do for ``claim`` on the node whose pool is ``pool``.

    Raises `UnknownDeviceError` (another pool, or a device that is not here), `ClaimError` (no or too many results, a
    device twice, a kind of device or a mode of GPU that this version does not hand out) or `InvalidParametersError`
    (a config that is wrong, does not fit, or asks for what this version does not do).
    """
    _check_results(claim, pool)
    configs = decode_all(claim.ref, claim.configs)
    return ClaimPlan(
        ref=claim.ref,
        devices=tuple(_planned(claim.ref, result, snapshot, names, configs) for result in claim.results),
    )


def restore(entry: Entry, snapshot: Snapshot, names: CdiNames) -> ClaimPlan:
    """The plan that was carried out for a claim in the journal, checked against the hardware of now.

    Equal to what `plan` made of the claim when nothing changed. Raises `DeviceLostError` when a GPU is gone or another
    one has its name: what the running containers were given is the old one.
    """
    devices = (_device(entry.ref, held, _same_gpu(entry.ref, held, snapshot), names) for held in entry.devices)
    return ClaimPlan(ref=entry.ref, devices=tuple(devices))


def _check_results(claim: AllocatedClaim, pool: PoolName) -> None:
    if not 0 < len(claim.results) <= MAX_DEVICES:
        raise ClaimError(
            f"claim {claim.ref} has {len(claim.results)} devices of this driver, expected 1 to {MAX_DEVICES}"
        )
    seen: set[tuple[str, str | None]] = set()
    for result in claim.results:
        if result.pool != pool:
            raise UnknownDeviceError(
                f"device {result.device} of claim {claim.ref} is allocated from pool {result.pool}, but this node's "
                f"pool is {pool}: the claim belongs to another node, or the driver was renamed since; delete the pod"
            )
        key = (result.device, result.share_id)
        if not result.admin_access and key in seen:
            raise ClaimError(
                f"claim {claim.ref} lists device {result.device} twice without admin access; "
                "a device can be allocated once only, so the allocation is broken: delete the claim"
            )
        if not result.admin_access:
            seen.add(key)


def _planned(
    ref: ClaimRef, result: AllocatedDevice, snapshot: Snapshot, names: CdiNames, configs: Sequence[DecodedConfig]
) -> PlannedDevice:
    gpu = _gpu(ref, result, snapshot)
    config = config_for_gpu(result, configs)
    if config is not None and (wish := config.parameters.asks_for) is not None:
        raise InvalidParametersError(
            f"{config.place} asks for {wish} on {result.device}, which this version of the driver does not apply; "
            "remove the sharing section to use the GPU as it is"
        )
    held = HeldDevice(
        request=result.base_request,
        pool=result.pool,
        device=result.device,
        share_id=result.share_id,
        admin_access=result.admin_access,
        gpu_uuid=gpu.uuid,
    )
    return _device(ref, held, gpu, names)


def _device(ref: ClaimRef, held: HeldDevice, gpu: Gpu, names: CdiNames) -> PlannedDevice:
    cdi_device = names.claim_device(ref.uid, held.device, held.share_id)
    return PlannedDevice(
        request=held.request,
        pool=held.pool,
        device=held.device,
        share_id=held.share_id,
        admin_access=held.admin_access,
        gpu=gpu,
        cdi_device=cdi_device,
        cdi_ids=(names.common_id, names.claim_id(ref.uid, held.device, held.share_id)),
    )


def _gpu(ref: ClaimRef, result: AllocatedDevice, snapshot: Snapshot) -> Gpu:
    gpu = snapshot.gpu(result.device)
    if gpu is None:
        if not _WHOLE_GPU.fullmatch(result.device):
            raise ClaimError(
                f"device {result.device} of claim {ref} is of a kind that this version of the driver does not prepare; "
                f"it prepares whole GPUs: {_existing(snapshot)}"
            )
        raise UnknownDeviceError(
            f"device {result.device} of claim {ref} is not on this node, which has {_existing(snapshot)}; "
            "delete the pod so that it is scheduled again"
        )
    if gpu.mig_enabled and not result.admin_access:
        raise ClaimError(
            f"{result.device} of claim {ref} is in MIG mode, in which a whole GPU runs nothing; "
            f"turn MIG mode off (nvidia-smi -i {gpu.pci_bus_id or gpu.minor} -mig 0) or delete the pod"
        )
    return gpu


def _same_gpu(ref: ClaimRef, held: HeldDevice, snapshot: Snapshot) -> Gpu:
    gpu = snapshot.gpu(held.device)
    if gpu is not None and gpu.uuid == held.gpu_uuid:
        return gpu
    now = f"{held.device} is {gpu.uuid} now" if gpu else f"this node has {_existing(snapshot)}"
    raise DeviceLostError(
        f"claim {ref} was prepared with {held.device}, GPU {held.gpu_uuid}, which is not there any more: {now}; "
        "delete the pod so that it gets another GPU"
    )


def _existing(snapshot: Snapshot) -> str:
    """The devices of this node and why others are missing, short enough for an event."""
    names = [gpu.device_name for gpu in snapshot.gpus]
    shown = ", ".join(names[:_MAX_SHOWN]) + (f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else "")
    return (shown or "no usable GPU") + "".join(_left_out(snapshot))


def _left_out(snapshot: Snapshot) -> Iterator[str]:
    for gpu in snapshot.left_out[:4]:
        yield f"; {gpu.label} is left out: {gpu.reason}"
