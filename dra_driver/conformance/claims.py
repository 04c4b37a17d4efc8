"""Claims of the checks: their template, and the suite as scheduler, which chooses devices and writes the allocation."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import yaml
from msgspec import Struct

from dra_driver.conformance.cluster import ClusterObjects, JsonObject, Wire
from dra_driver.conformance.plugin import ClaimKey
from dra_driver.conformance.published import PublishedDevice, devices, narrowed
from dra_driver.conformance.values import UnableError
from dra_driver.core.errors import AllocationError, ConfigurationError
from dra_driver.scheduler.allocation import Allocator

MAX_BYTES: Final = 1 << 20
_CLAIM_KINDS: Final = ("ResourceClaimTemplate", "ResourceClaim")


class ClaimTemplate(Struct, frozen=True, kw_only=True):
    """The spec of a claim, and the DeviceClasses of the same file."""

    spec: JsonObject
    classes: tuple[JsonObject, ...] = ()


def default_spec(class_name: str, *, count: int = 1, **fields: object) -> JsonObject:
    """A claim for ``count`` devices; ``fields`` are further fields of the request, such as ``adminAccess``."""
    exactly = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": count, **fields}
    return {"devices": {"requests": [{"name": "device", "exactly": exactly}]}}


def read_template(path: Path) -> ClaimTemplate:
    """A file with one ResourceClaimTemplate or ResourceClaim, and any DeviceClasses. Raises ConfigurationError."""
    documents = [one for one in _documents(path) if one is not None]
    claims = [one for one in documents if isinstance(one, dict) and one.get("kind") in _CLAIM_KINDS]
    classes = [one for one in documents if isinstance(one, dict) and one.get("kind") == "DeviceClass"]
    if len(claims) != 1 or len(claims) + len(classes) != len(documents):
        raise ConfigurationError(
            f"--claim-template {path}: expected one ResourceClaimTemplate or ResourceClaim, and DeviceClasses that it "
            f"needs; it has {len(documents)} documents, {len(claims)} of them claims or templates"
        )
    spec = claims[0].get("spec")
    if isinstance(spec, dict) and claims[0]["kind"] == "ResourceClaimTemplate":
        spec = spec.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("devices"), dict):
        raise ConfigurationError(f"--claim-template {path}: the {claims[0]['kind']} has no spec with devices")
    return ClaimTemplate(spec=spec, classes=tuple(classes))


def _documents(path: Path) -> list[object]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ConfigurationError(f"--claim-template {path} is larger than {MAX_BYTES >> 20} MiB")
        return list(yaml.safe_load_all(text))
    except (OSError, yaml.YAMLError, RecursionError) as error:
        raise ConfigurationError(f"--claim-template {path} cannot be read: {error}") from error


DeviceKey = tuple[str, str]


class CheckClaim(Struct, frozen=True, kw_only=True):
    """A claim in the API server. ``results`` are its allocated devices, of all drivers."""

    key: ClaimKey
    wire: Wire
    results: tuple[Wire, ...] = ()

    def devices(self) -> set[DeviceKey]:
        return {(result["pool"], result["device"]) for result in self.results}


class Scheduler:
    """Creates claims and allocates them. Raises UnableError when no free device fits, and API errors."""

    def __init__(self, cluster: ClusterObjects, slices: Callable[[], list[JsonObject]], template: ClaimTemplate | None):
        self._cluster = cluster
        self._slices = slices
        self._template = template

    def devices(self) -> list[PublishedDevice]:
        return devices(self._slices())

    def usable(self) -> list[PublishedDevice]:
        """The devices without a taint that keeps ordinary claims away."""
        return [device for device in self.devices() if not device.is_blocked]

    def create(self, spec: Wire | None = None) -> CheckClaim:
        return _check_claim(self._cluster.create_claim(spec or self._spec(None, 1, {})))

    def allocate(
        self,
        *,
        keys: Collection[DeviceKey] | None = None,
        count: int = 1,
        spec: Wire | None = None,
        busy: bool = False,
        name: str = "",
        change: Callable[[JsonObject], None] | None = None,
        **fields: object,
    ) -> CheckClaim:
        """A claim with an allocation.

        ``keys`` restricts the devices; with ``busy`` devices of other claims count as free. ``spec`` is the claim's
        spec, by default the template, or a request for ``count`` devices with ``fields``. ``change`` edits the
        allocation before it is written. ``name`` is by default a new one.
        """
        chosen = spec or self._spec(keys, count, fields)
        created = self._cluster.create_claim(chosen, name)
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

    def _choose(self, claim: Wire, keys: Collection[DeviceKey] | None, *, busy: bool) -> JsonObject:
        slices: list[Wire] = list(self._slices())
        if keys is not None:
            slices = narrowed(slices, set(keys))
        try:
            outcome = Allocator(
                slices=slices, classes=self._cluster.classes(), allocated=[] if busy else self._cluster.claims()
            ).allocate(self._cluster.node_object(), [claim])
        except (AllocationError, ConfigurationError) as error:
            raise UnableError(f"no devices can be chosen for the claim: {error}") from error
        if outcome.allocations is None:
            raise UnableError(f"no devices can be chosen for the claim: {outcome.reason}")
        return dict(outcome.allocations[0])


def _check_claim(wire: Wire, allocation: Wire | None = None) -> CheckClaim:
    metadata = wire["metadata"]
    key = ClaimKey(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])
    results = ((allocation or {}).get("devices") or {}).get("results") or ()
    return CheckClaim(key=key, wire=wire, results=tuple(results))
