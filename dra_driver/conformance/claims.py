"""The suite as scheduler: chooses devices that the driver publishes and writes the allocation of a claim."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import Struct

from dra_driver.conformance.cluster import ClusterObjects
from dra_driver.conformance.plugin import ClaimKey
from dra_driver.conformance.published import PublishedDevice, devices, narrowed
from dra_driver.conformance.template import ClaimTemplate, default_spec
from dra_driver.conformance.values import UnableError
from dra_driver.core.errors import AllocationError, ConfigurationError
from dra_driver.scheduler.allocation import Allocator

Wire = Mapping[str, Any]
DeviceKey = tuple[str, str]


class CheckClaim(Struct, frozen=True, kw_only=True):
    """A claim in the API server. ``results`` are its allocated devices, of all drivers."""

    key: ClaimKey
    wire: Wire
    results: tuple[Wire, ...] = ()

    def devices(self) -> set[DeviceKey]:
        """Pool and name of its devices."""
        return {(result["pool"], result["device"]) for result in self.results}


class Scheduler:
    """Creates claims and allocates them. Raises UnableError when no free device fits, and API errors."""

    def __init__(
        self, cluster: ClusterObjects, slices: Callable[[], list[dict[str, Any]]], template: ClaimTemplate | None
    ):
        self._cluster = cluster
        self._slices = slices
        self._template = template

    def devices(self) -> list[PublishedDevice]:
        """All devices that the driver publishes for this node."""
        return devices(self._slices())

    def create(self, spec: Wire | None = None) -> CheckClaim:
        """A claim without an allocation."""
        return _claim(self._cluster.create_claim(spec or self._spec(None, 1, {})))

    def allocate(
        self,
        *,
        keys: Collection[DeviceKey] | None = None,
        count: int = 1,
        spec: Wire | None = None,
        busy: bool = False,
        name: str = "",
        change: Callable[[dict[str, Any]], None] | None = None,
        **fields: Any,
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
        return _claim(created, allocation)

    def _spec(self, keys: object, count: int, fields: Wire) -> Wire:
        if self._template is not None and keys is None and count == 1 and not fields:
            return self._template.spec
        return default_spec(self._cluster.class_name, count=count, **fields)

    def _choose(self, claim: Wire, keys: Collection[DeviceKey] | None, *, busy: bool) -> dict[str, Any]:
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


def _claim(wire: Wire, allocation: Wire | None = None) -> CheckClaim:
    metadata = wire["metadata"]
    key = ClaimKey(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])
    results = ((allocation or {}).get("devices") or {}).get("results") or ()
    return CheckClaim(key=key, wire=wire, results=tuple(results))
