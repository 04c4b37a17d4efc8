"""Device metadata of a claim (KEP-5304): one JSON file for each base request, which its containers see.

The file has the attributes of the ResourceSlice, and facts that exist only after the prepare. Containers get it by a
mount in the claim's CDI document, so the answer to the kubelet is the same with and without metadata. The file is the
only record of it: a claim that was prepared without a file stays without one. Several pods can share a claim, so
nothing in a file belongs to one pod. Form: kubernetes/dynamic-resource-allocation kubeletplugin/metadata.go; one object
for each version, newest first.
"""

import json
import logging
from collections.abc import Mapping
from itertools import islice

import msgspec
from msgspec import Struct

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.terms import Form, terms_of
from dra_driver.hardware.cdi import ContainerEdits, metadata_edits
from dra_driver.kube.objects.resource import DeviceAttribute
from dra_driver.kube.published import attributes, islands_of, limits, names
from dra_driver.kube.published.attributes import Attributes
from dra_driver.kube.shapes import is_label
from dra_driver.node.claims.dependencies import ClaimDependencies
from dra_driver.node.claims.planning.plan import PlannedDevice, PreparePlan

log = logging.getLogger(__name__)

VERSIONS = ("v1beta1", "v1alpha1")

DEVICE_MINOR = "deviceMinor"
GPU_INSTANCE = "migGpuInstance"
COMPUTE_INSTANCE = "migComputeInstance"
SHARE_MEMORY = "shareMemoryBytes"
SHARE_PERCENT = "shareComputePercent"


class _Device(Struct, frozen=True, kw_only=True, omit_defaults=True):
    driver: str
    pool: str
    name: str
    attributes: Mapping[str, DeviceAttribute] = {}


class _Request(Struct, frozen=True, kw_only=True):
    name: str
    devices: tuple[_Device, ...]


class _ObjectMeta(Struct, frozen=True, kw_only=True):
    name: str
    namespace: str
    uid: str
    generation: int


class _DeviceMetadata(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    kind: str
    api_version: str
    metadata: _ObjectMeta
    pod_claim_name: str | None = None
    requests: tuple[_Request, ...]


def metadata_of(deps: ClaimDependencies, todo: PreparePlan) -> dict[str, bytes]:
    """The content of the claim's new files, by base request; none when they are off, or for a plan of the journal.
    Partitions must exist already."""
    claim = todo.claim
    if claim is None or not deps.metadata:
        return {}
    snapshot = deps.snapshot()
    full_names: dict[str, str] = {}
    devices: dict[str, list[_Device]] = {}
    for device, result in zip(todo.devices, claim.results, strict=True):
        full_names.setdefault(device.request, result.request)
        devices.setdefault(device.request, []).append(_described(deps, device, snapshot))
    meta = _ObjectMeta(name=claim.ref.name, namespace=claim.ref.namespace, uid=claim.ref.uid, generation=1)
    return {
        request: _stream(meta, claim.pod_claim, _Request(name=name, devices=tuple(devices[request])))
        for request, name in full_names.items()
    }


def metadata_mounts(deps: ClaimDependencies, todo: PreparePlan) -> dict[str, ContainerEdits]:
    """The mounts of the claim's files, by the CDI name of the first device of each base request.

    For a plan of the journal, only of files that exist. A device that two requests have in common brings both files.
    """
    found: dict[str, ContainerEdits] = {}
    for request, device in {device.request: device for device in reversed(todo.devices)}.items():
        if todo.claim is None:
            pod_claim = _recorded_pod_claim(deps, todo, request)
        else:
            pod_claim = (todo.claim.pod_claim or "") if deps.metadata else None
        if pod_claim is not None:
            inside = deps.names.container_metadata_path(todo.ref.name, pod_claim, request)
            edits = metadata_edits(deps.writer.metadata_path(todo.ref.uid, request), inside)
            found[device.cdi_device] = found.get(device.cdi_device, ContainerEdits()) + edits
    return found


def _recorded_pod_claim(deps: ClaimDependencies, todo: PreparePlan, request: str) -> str | None:
    """The claim's name in its pod according to the file, "" for none; None without a complete file."""
    content = deps.writer.metadata(todo.ref.uid, request)
    if content is None:
        return None
    try:
        first, _ = json.JSONDecoder().raw_decode(content.decode())
        pod_claim = first.get("podClaimName", "")
        if is_label(pod_claim) or not pod_claim:
            return str(pod_claim)
    except (ValueError, AttributeError, TypeError):
        pass
    log.warning("metadata file is damaged; not mounted", extra={"claim": str(todo.ref), "request": request})
    return None


def _described(deps: ClaimDependencies, device: PlannedDevice, snapshot: Snapshot) -> _Device:
    """Keeps the most important attributes: facts of the prepare, then the driver's, then attributes of a policy."""
    terms = terms_of(deps.terms(), device.gpu.uuid)
    board = attributes.board(device.gpu, snapshot)
    if device.partition is None:
        strategy = terms.sharing.strategy.value if terms.sharing and device.form is Form.WHOLE else None
        own = attributes.of_whole(device.gpu, board, strategy, islands_of(snapshot.gpus).get(device.gpu.uuid))
        if device.device != device.gpu.device_name:
            own = attributes.of_monitor(device.gpu, own)
    else:
        part = device.partition
        own = attributes.of_profile(device.gpu, part.profile_name, part.size, board)
        own = attributes.of_partition(part.id.start, own)
    policy, _ = attributes.added(terms.attributes)
    found = {**(facts := _facts(device)), **own, **policy, **facts}
    kept = dict(islice(found.items(), limits.MAX_ATTRIBUTES_AND_CAPACITIES))
    return _Device(
        driver=deps.names.driver_name, pool=device.pool, name=device.device, attributes=dict(sorted(kept.items()))
    )


def _facts(device: PlannedDevice) -> Attributes:
    found = {DEVICE_MINOR: DeviceAttribute(int_=device.gpu.minor)}
    if device.partition is not None and (live := device.partition.live) is not None:
        if limits.fits(live.uuid):
            found[names.UUID] = DeviceAttribute(string=live.uuid)
        found[GPU_INSTANCE] = DeviceAttribute(int_=live.gi_id)
        found[COMPUTE_INSTANCE] = DeviceAttribute(int_=live.ci_id)
    if device.sharing is not None:
        found[names.SHARING_STRATEGY] = DeviceAttribute(string=device.sharing.strategy.value)
        share = device.sharing.share
        if share is not None and share.memory is not None:
            found[SHARE_MEMORY] = DeviceAttribute(int_=share.memory)
        if share is not None and share.percent:
            found[SHARE_PERCENT] = DeviceAttribute(int_=share.percent)
    return found


def _stream(meta: _ObjectMeta, pod_claim: str | None, request: _Request) -> bytes:
    objects = (
        _DeviceMetadata(
            kind="DeviceMetadata",
            api_version=f"metadata.resource.k8s.io/{version}",
            metadata=meta,
            pod_claim_name=pod_claim,
            requests=(request,),
        )
        for version in VERSIONS
    )
    return b"".join(msgspec.json.format(msgspec.json.encode(each), indent=2) + b"\n" for each in objects)
