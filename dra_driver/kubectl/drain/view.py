"""Reads what a drain looks at: the GPUs that a node publishes, who has them, and events of the Node.

A drain looks for minutes, so a single answer that fails does not end it.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from msgspec import Struct

from dra_driver.core.errors import ApiUnreachableError, ConfigurationError, GoneError, ServerBusyError
from dra_driver.core.model.drain import DRAINED_TAINT
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import DETACHED_TAINT
from dra_driver.kube import paths
from dra_driver.kube.devices import attribute_text, newest_slices, pool_of, results_of, users_of
from dra_driver.kube.evictions import NO_EVICTION
from dra_driver.kube.published import names

Wire = Mapping[str, Any]
_PARTITION: Final = "-mig-"
"""Between the GPU's name and the rest of a partition's name (``model.mig.partition_name``)."""


class PublishedGpu(Struct, frozen=True, kw_only=True):
    """One GPU in all of its forms. ``name`` is that of the whole GPU, ``devices`` are the names of all forms.

    ``drained``: all devices have the taint of a drain, ``marked``: some have; ``detached``: some have that of a detach.
    """

    uuid: GpuUuid
    name: str
    product: str
    devices: frozenset[str]
    drained: bool
    marked: bool
    detached: bool


def gpus_of(slices: Iterable[Wire], node: str, driver: str) -> tuple[PublishedGpu, ...]:
    """The GPUs that ``driver`` publishes on ``node``, by name. Only the newest generation of a pool counts."""
    found: dict[str, list[Wire]] = {}
    for device in _devices(slices, node, driver):
        attributes = device.get("attributes")
        parent = attribute_text(attributes, driver, names.PARENT_UUID)
        uuid = parent or attribute_text(attributes, driver, names.UUID)
        if uuid.startswith("GPU-"):
            found.setdefault(uuid, []).append(device)
    gpus = [_gpu(GpuUuid(uuid), devices, driver) for uuid, devices in found.items()]
    return tuple(sorted(gpus, key=lambda gpu: (len(gpu.name), gpu.name)))


def is_settled(slices: Iterable[Wire], node: str, driver: str) -> bool:
    """Whether each pool has all resource slices of its newest generation: a change in several steps is over."""
    pools: dict[tuple[str, str], list[int]] = {}
    for item in newest_slices(_own(slices, node, driver)):
        pools.setdefault(pool_of(item), []).append(int((item["spec"].get("pool") or {}).get("resourceSliceCount") or 0))
    return all(len(counts) >= max(counts) for counts in pools.values())


def selected(gpus: Sequence[PublishedGpu], wanted: Sequence[str]) -> tuple[GpuUuid, ...]:
    """The UUIDs that ``wanted`` (UUIDs or names such as ``gpu-3``) means. Raises ConfigurationError.

    A UUID that is not published is taken as it is: a GPU that fell off the bus is published no more.
    """
    by_name = {gpu.name: gpu.uuid for gpu in gpus}
    unknown = [text for text in wanted if text not in by_name and not text.startswith("GPU-")]
    if unknown:
        known = ", ".join(f"{gpu.name} ({gpu.uuid})" for gpu in gpus) or "none"
        raise ConfigurationError(
            f"--gpu {', '.join(unknown)}: not a GPU of this node; expected a UUID or a name. Published are: {known}"
        )
    return tuple(dict.fromkeys(by_name.get(text, GpuUuid(text)) for text in wanted))


def parent_of(device: str) -> str:
    """The name of the GPU that a device is a form of: ``gpu-0`` for ``gpu-0-mig-1g10gb-19-0``."""
    return device.partition(_PARTITION)[0]


def _devices(slices: Iterable[Wire], node: str, driver: str) -> list[Wire]:
    return [
        device for item in newest_slices(_own(slices, node, driver)) for device in item["spec"].get("devices") or ()
    ]


def _own(slices: Iterable[Wire], node: str, driver: str) -> list[Wire]:
    specs = ((item, item.get("spec") or {}) for item in slices)
    return [item for item, spec in specs if (spec.get("driver"), spec.get("nodeName")) == (driver, node)]


def _gpu(uuid: GpuUuid, devices: Sequence[Wire], driver: str) -> PublishedGpu:
    taints = [{taint.get("key") for taint in device.get("taints") or ()} for device in devices]
    return PublishedGpu(
        uuid=uuid,
        name=parent_of(str(devices[0].get("name"))),
        product=attribute_text(devices[0].get("attributes"), driver, names.PRODUCT_NAME),
        devices=frozenset(str(device.get("name")) for device in devices),
        drained=all(DRAINED_TAINT in keys for keys in taints),
        marked=any(DRAINED_TAINT in keys for keys in taints),
        detached=any(DETACHED_TAINT in keys for keys in taints),
    )


# --- Who has the GPUs: claims with their devices and pods, whatever the form. From claims and pods; pure.
#
# A pod that came by an extended resource (``nvidia.com/gpu: 1``) has a claim, too, which the scheduler made for it.

HeldForm = Literal["whole", "partition", "share", "admin"]
EXTENDED_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of the claims that the scheduler makes (KEP-5004)."""
_MIRROR: Final = "kubernetes.io/config.mirror"
_OVER: Final = ("Succeeded", "Failed")


class HolderPod(Struct, frozen=True, kw_only=True):
    """A pod for which a claim is reserved. ``controller`` is ``ReplicaSet/web``, "" for a pod without one.

    ``kept`` says in a phrase why it is not evicted, "" for no reason. ``found`` is False for a pod that is not listed.
    """

    namespace: str
    name: str
    uid: str
    controller: str = ""
    ending: bool = False
    kept: str = ""
    found: bool = True

    @property
    def label(self) -> str:
        return f"{self.namespace}/{self.name}"


class DeviceHolder(Struct, frozen=True, kw_only=True):
    """One device of one claim. ``gpu`` is the GPU's name; ``users`` are others than pods, as ``resource/name``."""

    namespace: str
    claim: str
    gpu: str
    device: str
    form: HeldForm
    extended: bool
    pods: tuple[HolderPod, ...]
    users: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether the GPU is in use by it. Admin access holds nothing, and a drain does not wait for it."""
        return self.form != "admin"


class DrainScope(Struct, frozen=True, kw_only=True):
    """The GPUs that are drained: ``gpus`` of a driver and pool, None for all of them."""

    driver: str
    pool: str
    gpus: Collection[GpuUuid] | None
    published: Sequence[PublishedGpu]

    def has(self, device: str) -> bool:
        """Whether the device is one of these GPUs. One that is not published, of an unknown GPU, counts as one."""
        if self.gpus is None:
            return True
        owner = next((gpu for gpu in self.published if device in gpu.devices or gpu.name == parent_of(device)), None)
        return owner is None or owner.uuid in self.gpus


def holders_of(
    claims: Iterable[Wire], pods: Iterable[Wire], scope: DrainScope, *, force: bool
) -> tuple[DeviceHolder, ...]:
    """The holders of the scope's GPUs, by GPU, namespace and claim. ``force``: bare pods may be evicted."""
    by_uid = {str(_meta(pod).get("uid")): pod for pod in pods}
    found = [holder for claim in claims for holder in _of_claim(claim, by_uid, scope, force=force)]
    return tuple(sorted(found, key=lambda one: (one.gpu, one.device, one.namespace, one.claim)))


def _of_claim(claim: Wire, pods: Mapping[str, Wire], scope: DrainScope, *, force: bool) -> Iterable[DeviceHolder]:
    metadata = _meta(claim)
    namespace = str(metadata.get("namespace"))
    users = users_of(claim)
    extended = (metadata.get("annotations") or {}).get(EXTENDED_CLAIM) == "true"
    for result in results_of(claim):
        device = str(result.get("device"))
        if (result.get("driver"), result.get("pool")) == (scope.driver, scope.pool) and scope.has(device):
            yield DeviceHolder(
                namespace=namespace,
                claim=str(metadata.get("name")),
                gpu=parent_of(device),
                device=device,
                form=_form(result),
                extended=extended,
                pods=tuple(_pod(user, namespace, pods, force=force) for user in users if _is_pod(user)),
                users=tuple(f"{user.get('resource')}/{user.get('name')}" for user in users if not _is_pod(user)),
            )


def _form(result: Wire) -> HeldForm:
    if result.get("adminAccess"):
        return "admin"
    if result.get("shareID"):
        return "share"
    device = str(result.get("device"))
    return "whole" if parent_of(device) == device else "partition"


def _is_pod(user: Wire) -> bool:
    return user.get("resource") == "pods" and not user.get("apiGroup")


def _pod(user: Wire, namespace: str, pods: Mapping[str, Wire], *, force: bool) -> HolderPod:
    name, uid = str(user.get("name")), str(user.get("uid"))
    pod = pods.get(uid)
    if pod is None:
        return HolderPod(namespace=namespace, name=name, uid=uid, found=False)
    metadata = _meta(pod)
    owner = next((own for own in metadata.get("ownerReferences") or () if own.get("controller")), None)
    controller = f"{owner.get('kind')}/{owner.get('name')}" if owner else ""
    return HolderPod(
        namespace=namespace,
        name=name,
        uid=uid,
        controller=controller,
        ending=bool(metadata.get("deletionTimestamp")) or (pod.get("status") or {}).get("phase") in _OVER,
        kept=_kept(metadata.get("annotations") or {}, controller, force=force),
    )


def _kept(annotations: Wire, controller: str, *, force: bool) -> str:
    if _MIRROR in annotations:
        return "it is a static pod, which only its file on the node ends"
    if annotations.get(NO_EVICTION) == "true":
        return f"its annotation {NO_EVICTION} asks for that"
    if not controller and not force:
        return "it has no controller that would create it again; --force evicts it"
    return ""


def _meta(item: Wire) -> Wire:
    found = item.get("metadata")
    return found if isinstance(found, Mapping) else {}


LOOK_S: Final = 1.0
"""Between two looks, and at least five times as long as one takes: a list of all claims of a cluster may be large."""
TRIES: Final = 5
"""Failed looks in a row before a drain gives up."""


class DrainApi(Protocol):
    """The part of ``kube.rest.RestClient`` that a drain needs."""

    def get(self, path: str) -> dict[str, Any]: ...
    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]: ...
    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...
    def merge_patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


class NodeView:
    """One node and driver, as the API server shows them."""

    def __init__(self, api: DrainApi, node: str, driver: str) -> None:
        self._api, self._node, self._driver = api, node, driver

    def gpus(self) -> tuple[PublishedGpu, ...]:
        return gpus_of(self._slices(), self._node, self._driver)

    def settled_gpus(self) -> tuple[PublishedGpu, ...] | None:
        """The same; None while the node is in the middle of publishing them."""
        slices = self._slices()
        return gpus_of(slices, self._node, self._driver) if is_settled(slices, self._node, self._driver) else None

    def holders(
        self, gpus: Collection[GpuUuid] | None, published: Sequence[PublishedGpu], *, force: bool
    ) -> tuple[DeviceHolder, ...]:
        """Who has these GPUs (None: any of the node)."""
        pool = f"{self._node}/{self._driver}"
        scope = DrainScope(driver=self._driver, pool=pool, gpus=gpus, published=published)
        claims = self._items(paths.resource_claims())
        return holders_of(claims, self._items(paths.pods(), f"spec.nodeName={self._node}"), scope, force=force)

    def said(self, reason: str, text: str) -> bool:
        selector = f"involvedObject.kind=Node,involvedObject.name={self._node},reason={reason}"
        events = self._items(paths.events("default"), selector)
        return any(text in str(event.get("message")) for event in events)

    def _slices(self) -> list[Mapping[str, Any]]:
        return self._items(paths.resource_slices(), f"spec.driver={self._driver},spec.nodeName={self._node}")

    def _items(self, path: str, selector: str = "") -> list[Mapping[str, Any]]:
        query = {"fieldSelector": selector} if selector else None
        try:
            found = self._api.list(path, query)["items"]
        except GoneError:  # paging took longer than the server keeps old versions
            found = self._api.list(path, query)["items"]
        return [item for item in found if isinstance(item, Mapping)]


class DrainWait:
    """Looks again and again until something is so, or the time is over."""

    def __init__(self, timeout_s: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._until, self._clock, self._sleep = clock() + timeout_s, clock, sleep
        self._failed = 0

    @property
    def now(self) -> float:
        return self._clock()

    def wait_for(self, look: Callable[[], bool], *, least_s: float = 0.0, most_s: float | None = None) -> bool:
        """Whether ``look`` became true in time: before the end of all, but within ``most_s``, and with ``least_s``.

        Raises KubernetesApiError when looks fail `TRIES` times in a row, or are refused.
        """
        until = max(self._until, self._clock() + least_s)
        if most_s is not None:
            until = min(until, self._clock() + most_s)
        while True:
            began = self._clock()
            if self._tried(look):
                return True
            now = self._clock()
            if now >= until:
                return False
            self._sleep(min(max(LOOK_S, 5 * (now - began)), max(until - now, 0.1)))

    def _tried(self, look: Callable[[], bool]) -> bool:
        try:
            found = look()
        except (ApiUnreachableError, ServerBusyError):
            self._failed += 1
            if self._failed >= TRIES:
                raise
            return False
        self._failed = 0
        return found


def wait_at_most(timeout_s: float) -> DrainWait:
    return DrainWait(timeout_s, time.monotonic, time.sleep)
