"""Read the GPUs that a node publishes, their claims and pods, and events of the Node, for minutes.

A single failed answer does not end a drain.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, Protocol, TypeVar

from msgspec import Struct, field

from dra_driver.core.document import camel
from dra_driver.core.errors import ApiUnreachableError, ConfigurationError, GoneError, ServerBusyError
from dra_driver.core.model.drain import DRAINED_TAINT
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import parent_name
from dra_driver.core.model.terms import DETACHED_TAINT
from dra_driver.core.wire import from_wire
from dra_driver.kube import paths
from dra_driver.kube.devices import Consumer, HeldClaim, HeldMeta, HeldResult, attribute_text, held_claim
from dra_driver.kube.evictions import NO_EVICTION, Creator
from dra_driver.kube.node_annotation import NodeApi
from dra_driver.kube.published import names

_S = TypeVar("_S", bound=Struct)


class _Taint(Struct, frozen=True, kw_only=True):
    key: str = ""


class _Device(Struct, frozen=True, kw_only=True):
    name: str = ""
    attributes: dict[str, object] = {}
    taints: tuple[_Taint, ...] = ()


class _Pool(Struct, frozen=True, kw_only=True, rename="camel"):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(Struct, frozen=True, kw_only=True, rename="camel"):
    driver: str = ""
    node_name: str = ""
    pool: _Pool = _Pool()
    devices: tuple[_Device, ...] = ()


class _Slice(Struct, frozen=True, kw_only=True):
    spec: SliceSpec = SliceSpec()


class _Owner(Struct, frozen=True, kw_only=True):
    kind: object = ""
    name: object = ""
    controller: object = False


class _PodMeta(HeldMeta, frozen=True, kw_only=True, rename="camel"):
    owner_references: tuple[_Owner, ...] = ()


class _PodStatus(Struct, frozen=True, kw_only=True):
    phase: object = ""


class _Pod(Struct, frozen=True, kw_only=True):
    metadata: _PodMeta = _PodMeta()
    status: _PodStatus = _PodStatus()


class _Event(Struct, frozen=True, kw_only=True):
    message: str = ""


def _read(kind: type[_S], items: Iterable[object]) -> list[_S]:
    """Skip invalid objects: they must not end a drain."""
    return [from_wire(kind, item) for item in items if isinstance(item, Mapping)]


class PublishedGpu(Struct, frozen=True, kw_only=True):
    """One GPU in all of its forms: the name of the whole GPU, and ``devices``, the names of all forms.

    ``drained``: all devices have the drain taint, ``marked``: some; ``detached``: some have the detach taint.
    """

    uuid: GpuUuid
    name: str
    devices: frozenset[str]
    drained: bool
    marked: bool
    detached: bool


def newest_specs(slices: Iterable[object], node: str, driver: str) -> list[SliceSpec]:
    """Return the newest generation of each pool that ``driver`` publishes on ``node``."""
    own = [each.spec for each in _read(_Slice, slices) if (each.spec.driver, each.spec.node_name) == (driver, node)]
    newest: dict[str, int] = {}
    for spec in own:
        newest[spec.pool.name] = max(newest.get(spec.pool.name, 0), spec.pool.generation)
    return [spec for spec in own if spec.pool.generation == newest[spec.pool.name]]


def gpus_of(specs: Iterable[SliceSpec]) -> tuple[PublishedGpu, ...]:
    found: dict[str, list[_Device]] = {}
    for spec in specs:
        for device in spec.devices:
            parent = attribute_text(device.attributes, spec.driver, names.PARENT_UUID)
            uuid = parent or attribute_text(device.attributes, spec.driver, names.UUID)
            if uuid.startswith("GPU-"):
                found.setdefault(uuid, []).append(device)
    gpus = [_gpu(GpuUuid(uuid), devices) for uuid, devices in found.items()]
    return tuple(sorted(gpus, key=lambda gpu: (len(gpu.name), gpu.name)))


def is_settled(specs: Iterable[SliceSpec]) -> bool:
    """Return whether each pool has all resource slices of its newest generation."""
    pools: dict[str, list[int]] = {}
    for spec in specs:
        pools.setdefault(spec.pool.name, []).append(spec.pool.resource_slice_count)
    return all(len(counts) >= max(counts) for counts in pools.values())


def selected(gpus: Sequence[PublishedGpu], wanted: Sequence[str]) -> tuple[GpuUuid, ...]:
    """Return the UUIDs of ``wanted`` (UUIDs or names such as ``gpu-3``). Raises ConfigurationError for a wrong name.

    A UUID need not be published: a GPU that fell off the bus is not.
    """
    by_name = {gpu.name: gpu.uuid for gpu in gpus}
    unknown = [text for text in wanted if text not in by_name and not text.startswith("GPU-")]
    if unknown:
        known = ", ".join(f"{gpu.name} ({gpu.uuid})" for gpu in gpus) or "none"
        raise ConfigurationError(f"--gpu {', '.join(unknown)}: not a GPU of this node. Use a UUID or name of: {known}")
    return tuple(dict.fromkeys(by_name.get(text, GpuUuid(text)) for text in wanted))


def _gpu(uuid: GpuUuid, devices: Sequence[_Device]) -> PublishedGpu:
    taints = [{taint.key for taint in device.taints} for device in devices]
    return PublishedGpu(
        uuid=uuid,
        name=parent_name(devices[0].name),
        devices=frozenset(device.name for device in devices),
        drained=all(DRAINED_TAINT in keys for keys in taints),
        marked=any(DRAINED_TAINT in keys for keys in taints),
        detached=any(DETACHED_TAINT in keys for keys in taints),
    )


# --- The holders of the GPUs: claims with their devices and pods, in any form.
#
# For a pod that requests an extended resource (``nvidia.com/gpu: 1``), the scheduler creates a claim.

HeldForm = Literal["whole", "partition", "share", "admin"]
EXTENDED_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of claims that the scheduler creates (KEP-5004)."""
_MIRROR: Final = "kubernetes.io/config.mirror"
_OVER: Final = ("Succeeded", "Failed")


class HolderPod(Struct, frozen=True, kw_only=True, rename=camel):
    """A pod for which a claim is reserved. ``ending``: it is being deleted. ``controller`` is ``ReplicaSet/web``, ""
    without one. ``kept`` is the reason not to evict it, "" without one."""

    namespace: str
    name: str = field(name="pod")
    uid: str
    controller: str = ""
    ending: bool = False
    kept: str = field(name="keptReason", default="")
    found: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"{self.namespace}/{self.name}"


class UnlistedPod(HolderPod, frozen=True, kw_only=True):
    """A pod that the API server does not list."""

    found: ClassVar[bool] = False


class DeviceHolder(Struct, frozen=True, kw_only=True, rename=camel):
    """One device of one claim. ``gpu`` is the GPU's name; ``users`` are other users, as ``resource/name``."""

    namespace: str
    claim: str
    gpu: str
    device: str
    form: HeldForm
    extended_resource: bool
    pods: tuple[HolderPod, ...]
    users: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Return whether a drain waits for it. Admin access does not reserve devices."""
        return self.form != "admin"


class DrainScope(Struct, frozen=True, kw_only=True):
    """The drained GPUs: ``gpus`` of a driver and pool, None for all of them."""

    driver: str
    pool: str
    gpus: Collection[GpuUuid] | None
    published: Sequence[PublishedGpu]

    def has(self, result: HeldResult) -> bool:
        """Return whether the device is of one of these GPUs, or of an unknown GPU."""
        if (result.driver or self.driver, result.pool or self.pool) != (self.driver, self.pool):
            return False
        if self.gpus is None:
            return True
        name, parent = result.device, parent_name(result.device)
        owner = next((gpu for gpu in self.published if name in gpu.devices or gpu.name == parent), None)
        return owner is None or owner.uuid in self.gpus


def holders_of(
    claims: Iterable[object], pods: Iterable[object], scope: DrainScope, *, force: bool
) -> tuple[DeviceHolder, ...]:
    """Return the holders of the scope's GPUs, sorted by GPU. ``force``: bare pods may be evicted.

    A claim that names the pool in an unreadable way is a holder of device ``?``.
    """
    by_uid = {str(pod.metadata.uid): pod for pod in _read(_Pod, pods)}
    found = []
    for item in claims:
        if not isinstance(item, Mapping):
            continue
        claim, known = held_claim(HeldClaim, item)
        results = [result for result in claim.devices if scope.has(result)]
        if not results and not known and scope.pool in str(item.get("status")):
            results = [HeldResult()]
        metadata, namespace = claim.metadata, str(claim.metadata.namespace)
        users = [user for user in claim.status.reserved_for if not _is_pod(user)]
        holder_pods = tuple(
            _pod(user, namespace, by_uid, force=force) for user in claim.status.reserved_for if _is_pod(user)
        )
        found += [
            DeviceHolder(
                namespace=namespace,
                claim=str(metadata.name),
                gpu=parent_name(result.device) or "?",
                device=result.device or "?",
                form=_form(result),
                extended_resource=metadata.annotations.get(EXTENDED_CLAIM) == "true",
                pods=holder_pods,
                users=tuple(f"{user.resource}/{user.name}" for user in users),
            )
            for result in results
        ]
    return tuple(sorted(found, key=lambda one: (one.gpu, one.device, one.namespace, one.claim)))


def _form(result: HeldResult) -> HeldForm:
    if result.admin_access:
        return "admin"
    if result.share_id:
        return "share"
    return "whole" if parent_name(result.device) == result.device else "partition"


def _is_pod(user: Consumer) -> bool:
    return user.resource == "pods" and not user.api_group


def _pod(user: Consumer, namespace: str, pods: Mapping[str, _Pod], *, force: bool) -> HolderPod:
    name, uid = str(user.name), str(user.uid)
    pod = pods.get(uid) if uid else None
    if pod is None:
        return UnlistedPod(namespace=namespace, name=name, uid=uid)
    owner = next((own for own in pod.metadata.owner_references if own.controller), None)
    return HolderPod(
        namespace=namespace,
        name=name,
        uid=uid,
        controller=f"{owner.kind}/{owner.name}" if owner else "",
        ending=bool(pod.metadata.deletion_timestamp) or pod.status.phase in _OVER,
        kept=_kept(pod.metadata, has_controller=owner is not None, force=force),
    )


def _kept(metadata: HeldMeta, *, has_controller: bool, force: bool) -> str:
    if _MIRROR in metadata.annotations:
        return "it is a static pod: remove its file on the node"
    if metadata.annotations.get(NO_EVICTION) == "true":
        return f"annotation {NO_EVICTION}"
    if not has_controller and not force:
        return "it has no controller to recreate it; use --force"
    return ""


LOOK_S: Final = 1.0
"""Interval between polls; at least five times the duration of a poll, as listing claims can be slow."""
TRIES: Final = 5
"""Consecutive failed polls that end a drain."""


class DrainApi(NodeApi, Creator, Protocol):
    def list(self, path: str, query: Mapping[str, str] | None = None) -> Mapping[str, Any]: ...


class NodeView:
    """One node and driver, as the API server returns them. Raises KubernetesApiError."""

    def __init__(self, api: DrainApi, node: str, driver: str) -> None:
        self._api, self._node, self._driver = api, node, driver

    def gpus(self) -> tuple[PublishedGpu, ...]:
        return gpus_of(self._specs())

    def settled_gpus(self) -> tuple[PublishedGpu, ...] | None:
        """As `gpus`; None while the node is publishing them."""
        specs = self._specs()
        return gpus_of(specs) if is_settled(specs) else None

    def holders(
        self, gpus: Collection[GpuUuid] | None, published: Sequence[PublishedGpu], *, force: bool
    ) -> tuple[DeviceHolder, ...]:
        pool = f"{self._node}/{self._driver}"
        scope = DrainScope(driver=self._driver, pool=pool, gpus=gpus, published=published)
        claims = self._items(paths.resource_claims())
        return holders_of(claims, self._items(paths.pods(), f"spec.nodeName={self._node}"), scope, force=force)

    def message(self, reason: str, text: str) -> str | None:
        """The message of an event of the Node with this reason and text; None without one."""
        selector = f"involvedObject.kind=Node,involvedObject.name={self._node},reason={reason}"
        found = _read(_Event, self._items(paths.events("default"), selector))
        return next((event.message for event in found if text in event.message), None)

    def _specs(self) -> list[SliceSpec]:
        selector = f"spec.driver={self._driver},spec.nodeName={self._node}"
        return newest_specs(self._items(paths.resource_slices(), selector), self._node, self._driver)

    def _items(self, path: str, selector: str = "") -> Sequence[object]:
        query = {"fieldSelector": selector} if selector else None
        try:
            found: Sequence[object] = self._api.list(path, query)["items"]
        except GoneError:  # paging took longer than the server keeps old versions
            found = self._api.list(path, query)["items"]
        return found


class DrainWait:
    def __init__(self, timeout_s: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._until, self._clock, self._sleep = clock() + timeout_s, clock, sleep
        self._failed = 0

    @property
    def now(self) -> float:
        return self._clock()

    def wait_for(self, look: Callable[[], bool], *, least_s: float = 0.0, most_s: float | None = None) -> bool:
        """Return whether ``look`` became true before the end of the timeout, at least ``least_s``, at most ``most_s``.

        Raises KubernetesApiError after `TRIES` consecutive failures, and for a refusal.
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
