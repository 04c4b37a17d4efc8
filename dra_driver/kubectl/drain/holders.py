"""Who has the GPUs: claims with their devices and pods, whatever the form. From claims and pods; pure.

A pod that came by an extended resource (``nvidia.com/gpu: 1``) has a claim, too, which the scheduler made for it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from dra_driver.core.model.ids import GpuUuid
from dra_driver.kube.devices import results_of, users_of
from dra_driver.kube.evictions import NO_EVICTION
from dra_driver.kubectl.drain.gpus import PublishedGpu, parent_of

Wire = Mapping[str, Any]
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
