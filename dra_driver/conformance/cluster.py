"""Access the API server for the suite: published devices, and claims that the suite creates and allocates.

All created objects are in `NAMESPACE` or have its name as a prefix. Claims are reserved for an object that is not a
pod, because the claim controller of a cluster deallocates claims of pods that do not exist.
"""

import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dra_driver.conformance.plugin import ClaimKey
from dra_driver.conformance.values import UnableError
from dra_driver.core import errors, yaml_text
from dra_driver.core.quantity import Quantity
from dra_driver.kube import paths
from dra_driver.kube.claims import POD_CLAIM_ANNOTATION
from dra_driver.kube.rest import RestClient
from dra_driver.scheduler.allocation import Allocator

Wire = Mapping[str, Any]
JsonObject = dict[str, Any]
"""An object from the API server that the suite edits and writes."""
NAMESPACE: Final = "dra-conformance"
ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"
NAMESPACES: Final = f"{paths.CORE_API}/namespaces"
CLASSES: Final = f"{paths.RESOURCE_API}/deviceclasses"
RESERVED_FOR: Final = {"apiGroup": "conformance.dra-driver.io", "resource": "checks", "name": "suite"}
ATTEMPTS: Final = 3
DELETION_S: Final = 30.0
"""Seconds to wait for the end of a namespace that an earlier run has deleted."""
PAUSE_S: Final = 0.2


class ClusterObjects:
    """Objects in the API server. Every method raises KubernetesApiError."""

    def __init__(self, rest: RestClient, *, node: str, driver: str) -> None:
        self._rest = rest
        self.node = node
        self.driver = driver
        self.class_name = f"{NAMESPACE}-{driver}".lower()[:253]
        self._made: list[str] = []

    def prepare(self, extra_classes: Sequence[Wire] = ()) -> None:
        """Create the namespace, with the label that admin access needs, and the DeviceClasses."""
        metadata = {"name": NAMESPACE, "labels": {ADMIN_LABEL: "true"}}
        self._ensure(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        selector = {"cel": {"expression": f'device.driver == "{self.driver}"'}}
        ours = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": self.class_name}}
        for item in ({**ours, "spec": {"selectors": [selector]}}, *extra_classes):
            self._ensure(CLASSES, item)

    def clean(self) -> None:
        """Delete the objects of `prepare`. Continues after errors."""
        for path in reversed(self._made):
            with suppress(errors.KubernetesApiError):
                self._rest.delete(path)
        self._made.clear()

    def slices(self, *, driver: str | None = None) -> list[JsonObject]:
        """The ResourceSlices of the driver that name this node, or no node."""
        found = self._rest.list(paths.resource_slices(), {"fieldSelector": f"spec.driver={driver or self.driver}"})
        return [item for item in found["items"] if item["spec"].get("nodeName") in {self.node, None}]

    def node_object(self) -> JsonObject:
        """The Node; one without labels if it does not exist."""
        try:
            return self._rest.get(paths.node(self.node))
        except errors.NotFoundError:
            return {"metadata": {"name": self.node, "labels": {}}}

    def classes(self) -> list[JsonObject]:
        return list(self._rest.list(CLASSES)["items"])

    def claims(self) -> list[JsonObject]:
        return list(self._rest.list(paths.resource_claims())["items"])

    def create_claim(self, spec: Wire, name: str = "", pod_claim: str = "") -> JsonObject:
        metadata: JsonObject = {"name": name or f"check-{uuid.uuid4().hex[:12]}"}
        if pod_claim:
            metadata["annotations"] = {POD_CLAIM_ANNOTATION: pod_claim}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
        return self._rest.create(paths.resource_claims(NAMESPACE), {**body, "spec": deepcopy(dict(spec))})

    def allocate(self, claim: Wire, allocation: Wire) -> None:
        reserved = [{**RESERVED_FOR, "uid": str(uuid.uuid4())}]
        status = {"allocation": deepcopy(dict(allocation)), "reservedFor": reserved}
        self._rest.update(self._claim(claim) + "/status", {**claim, "status": status})

    def delete_claim(self, claim: Wire) -> None:
        """Deallocate and delete the claim, if it exists."""
        path = self._claim(claim)
        with suppress(errors.NotFoundError):
            for _ in range(ATTEMPTS):
                current = self._rest.get(path)
                current["metadata"].pop("finalizers", None)
                with suppress(errors.ConflictError):
                    self._rest.update(path + "/status", {**current, "status": {}})
                    break
            self._rest.delete(path)

    def create_slice(self, body: Wire) -> JsonObject:
        return self._rest.create(paths.resource_slices(), body)

    def update_slice(self, item: Wire) -> None:
        self._rest.update(paths.resource_slices(item["metadata"]["name"]), item)

    def delete_slice(self, item: Wire) -> None:
        with suppress(errors.NotFoundError):
            self._rest.delete(paths.resource_slices(item["metadata"]["name"]))

    def _ensure(self, collection: str, body: Wire) -> None:
        """Create the object unless it exists. Waits while one from an earlier run is being deleted, and raises
        ConfigurationError if that takes too long."""
        path = f"{collection}/{body['metadata']['name']}"
        until = time.monotonic() + DELETION_S
        while True:
            try:
                self._rest.create(collection, body)
            except errors.AlreadyExistsError:
                with suppress(errors.NotFoundError):
                    if "deletionTimestamp" not in self._rest.get(path)["metadata"]:
                        return
                if time.monotonic() > until:
                    raise errors.ConfigurationError(
                        f"{path} of an earlier run is still being deleted after {DELETION_S:g} s: wait, start "
                        "kube-controller-manager, which ends the deletion, or use a new API server",
                        reason="StillDeleted",
                        path=path,
                    ) from None
                time.sleep(PAUSE_S)
            else:
                self._made.append(path)
                return

    @staticmethod
    def _claim(claim: Wire) -> str:
        return paths.resource_claim(claim["metadata"]["namespace"], claim["metadata"]["name"])


MANY: Final = 32
"""The largest number of devices of a claim (types.go:1749)."""
BLOCKING: Final = ("NoSchedule", "NoExecute")


class PublishedDevice(Struct, frozen=True, kw_only=True):
    """A device and its pool. ``wire`` is the device as published."""

    pool: str
    wire: Wire

    @property
    def name(self) -> str:
        return str(self.wire["name"])

    @property
    def key(self) -> tuple[str, str]:
        return self.pool, self.name

    @property
    def is_shared(self) -> bool:
        return bool(self.wire.get("allowMultipleAllocations"))

    @property
    def is_partition(self) -> bool:
        return bool(self.wire.get("consumesCounters"))

    @property
    def is_blocked(self) -> bool:
        return any(taint.get("effect") in BLOCKING for taint in self.wire.get("taints") or ())

    @property
    def charges(self) -> dict[tuple[str, str, str], Quantity]:
        """The counters that it consumes, by pool, counter set and counter."""
        return {
            (self.pool, use["counterSet"], name): Quantity.parse(counter["value"])
            for use in self.wire.get("consumesCounters") or ()
            for name, counter in use["counters"].items()
        }


def newest(slices: Sequence[Wire]) -> dict[str, list[Wire]]:
    """Return the slices of each pool with its highest generation (resource/v1 types.go)."""
    pools: dict[str, list[Wire]] = {}
    for item in slices:
        pools.setdefault(item["spec"]["pool"]["name"], []).append(item)
    return {
        name: [item for item in found if item["spec"]["pool"]["generation"] == _highest(found)]
        for name, found in pools.items()
    }


def incomplete(slices: Sequence[Wire]) -> str:
    """Return the missing slices of the pools; "" if all have as many slices as they declare (resource/v1 types.go)."""
    pools = newest(slices)
    if not pools:
        return "the driver has published no ResourceSlice for this node"
    for name, found in pools.items():
        counts = {item["spec"]["pool"]["resourceSliceCount"] for item in found}
        if counts != {len(found)}:
            return (
                f"pool {name} has {len(found)} slices of its newest generation {_highest(found)}, "
                f"but they declare {' or '.join(map(str, sorted(counts)))}"
            )
    return ""


def devices(slices: Sequence[Wire]) -> list[PublishedDevice]:
    return [
        PublishedDevice(pool=name, wire=device)
        for name, found in newest(slices).items()
        for item in sorted(found, key=lambda one: str(one["metadata"]["name"]))
        for device in item["spec"].get("devices") or ()
    ]


def counters(slices: Sequence[Wire]) -> dict[tuple[str, str, str], Quantity]:
    return {
        (name, one["name"], counter): Quantity.parse(value["value"])
        for name, found in newest(slices).items()
        for item in found
        for one in item["spec"].get("sharedCounters") or ()
        for counter, value in one["counters"].items()
    }


def together(
    slices: Sequence[Wire], candidates: Sequence[PublishedDevice], most: int, *, largest: bool = False
) -> list[PublishedDevice]:
    """Up to ``most`` of the candidates that do not exclude each other, small ones first, or ``largest`` ones. Ignores
    shares."""
    left = counters(slices)
    chosen: list[PublishedDevice] = []
    for device in sorted((one for one in candidates if not one.is_shared), key=size, reverse=largest):
        charges = device.charges
        if len(chosen) == most:
            break
        if all(key in left and not left[key] < amount for key, amount in charges.items()):
            chosen.append(device)
            for key, amount in charges.items():
                left[key] = left[key] - amount
    return chosen


def narrowed(slices: Sequence[Wire], keep: set[tuple[str, str]]) -> list[Wire]:
    """The slices with these devices only, and with all of their counters."""
    found = []
    for item in slices:
        spec = item["spec"]
        kept = [device for device in spec.get("devices") or () if (spec["pool"]["name"], device["name"]) in keep]
        found.append({**item, "spec": {**spec, "devices": kept}} if "devices" in spec else item)
    return found


def _highest(slices: Sequence[Wire]) -> int:
    return max(int(item["spec"]["pool"]["generation"]) for item in slices)


def size(device: PublishedDevice) -> tuple[int, str]:
    """Sort key: the amount that the device consumes of its counters, then its name."""
    return sum(amount.as_int() for amount in device.charges.values()), device.name


def taints(slices: Sequence[Wire]) -> Iterator[tuple[PublishedDevice, Wire]]:
    for device in devices(slices):
        for taint in device.wire.get("taints") or ():
            yield device, taint


MAX_BYTES: Final = 1 << 20
_CLAIM_KINDS: Final = ("ResourceClaimTemplate", "ResourceClaim")


class ClaimTemplate(Struct, frozen=True, kw_only=True):
    """The spec of a claim, and the DeviceClasses of the same file."""

    spec: JsonObject
    classes: tuple[JsonObject, ...] = ()


def default_spec(class_name: str, *, count: int = 1, **fields: object) -> JsonObject:
    exactly = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": count, **fields}
    return {"devices": {"requests": [{"name": "device", "exactly": exactly}]}}


def read_template(path: Path) -> ClaimTemplate:
    """A file with one ResourceClaimTemplate or ResourceClaim, and any DeviceClasses. Raises ConfigurationError."""
    documents = [one for one in _documents(path) if one is not None]
    claims = [one for one in documents if isinstance(one, dict) and one.get("kind") in _CLAIM_KINDS]
    classes = [one for one in documents if isinstance(one, dict) and one.get("kind") == "DeviceClass"]
    if len(claims) != 1 or len(claims) + len(classes) != len(documents):
        raise errors.ConfigurationError(
            f"--claim-template {path}: expected one ResourceClaimTemplate or ResourceClaim, and DeviceClasses that it "
            f"needs; it has {len(documents)} documents, {len(claims)} of them claims or templates"
        )
    spec = claims[0].get("spec")
    if isinstance(spec, dict) and claims[0]["kind"] == "ResourceClaimTemplate":
        spec = spec.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("devices"), dict):
        raise errors.ConfigurationError(f"--claim-template {path}: the {claims[0]['kind']} has no spec with devices")
    return ClaimTemplate(spec=spec, classes=tuple(classes))


def _documents(path: Path) -> list[object]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise errors.ConfigurationError(f"--claim-template {path} is larger than {MAX_BYTES >> 20} MiB")
        return list(yaml_text.load_all(text))
    except (OSError, ValueError) as error:
        raise errors.ConfigurationError(f"cannot read --claim-template {path}: {error}") from error


class CheckClaim(Struct, frozen=True, kw_only=True):
    """A claim in the API server. ``results`` are its allocated devices, of all drivers."""

    key: ClaimKey
    wire: Wire
    results: tuple[Wire, ...] = ()

    def devices(self) -> set[tuple[str, str]]:
        return {(result["pool"], result["device"]) for result in self.results}


class Scheduler:
    """Create claims and allocate them. Raises UnableError if no free device fits, and API errors."""

    def __init__(self, cluster: ClusterObjects, slices: Callable[[], list[JsonObject]], template: ClaimTemplate | None):
        self._cluster = cluster
        self._slices = slices
        self._template = template

    def devices(self) -> list[PublishedDevice]:
        return devices(self._slices())

    def usable(self) -> list[PublishedDevice]:
        return [device for device in self.devices() if not device.is_blocked]

    def create(self, spec: Wire | None = None) -> CheckClaim:
        return _check_claim(self._cluster.create_claim(spec or self._spec(None, 1, {})))

    def allocate(
        self,
        *,
        keys: Collection[tuple[str, str]] | None = None,
        count: int = 1,
        spec: Wire | None = None,
        busy: bool = False,
        name: str = "",
        pod_claim: str = "",
        change: Callable[[JsonObject], None] | None = None,
        **fields: object,
    ) -> CheckClaim:
        """Return a claim with an allocation.

        ``keys`` restricts the devices; with ``busy``, devices of other claims count as free. ``spec`` is by default the
        template, or a request for ``count`` devices with ``fields``. ``change`` edits the allocation before the write.
        ``pod_claim`` is the claim's name in a pod, as for a claim of a template.
        """
        chosen = spec or self._spec(keys, count, fields)
        created = self._cluster.create_claim(chosen, name, pod_claim)
        try:
            allocation = self._choose(created, keys, busy=busy)
            if change is not None:
                change(allocation)
            self._cluster.allocate(created, allocation)
        except BaseException:
            self._cluster.delete_claim(created)
            raise
        return _check_claim(created, allocation)

    def _spec(self, keys: object, count: int, fields: Wire) -> Wire:
        if self._template is not None and keys is None and count == 1 and not fields:
            return self._template.spec
        return default_spec(self._cluster.class_name, count=count, **fields)

    def _choose(self, claim: Wire, keys: Collection[tuple[str, str]] | None, *, busy: bool) -> JsonObject:
        slices: list[Wire] = list(self._slices())
        if keys is not None:
            slices = narrowed(slices, set(keys))
        try:
            outcome = Allocator(
                slices=slices, classes=self._cluster.classes(), allocated=[] if busy else self._cluster.claims()
            ).allocate(self._cluster.node_object(), [claim])
        except (errors.AllocationError, errors.ConfigurationError) as error:
            raise UnableError(f"cannot choose devices for the claim: {error}") from error
        if outcome.allocations is None:
            raise UnableError(f"cannot choose devices for the claim: {outcome.reason}")
        return dict(outcome.allocations[0])


def _check_claim(wire: Wire, allocation: Wire | None = None) -> CheckClaim:
    metadata = wire["metadata"]
    key = ClaimKey(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])
    results = ((allocation or {}).get("devices") or {}).get("results") or ()
    return CheckClaim(key=key, wire=wire, results=tuple(results))
