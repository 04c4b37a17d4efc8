"""Decode claims: requests, their alternatives, classes and selectors, once for all nodes. Raises the errors that end
the attempt on all nodes, as ``Allocate`` and ``validateDeviceRequest`` of
structured/internal/incubating/allocator_incubating.go in k8s.io/dynamic-resource-allocation do."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import AllocationError
from dra_driver.scheduler.allocation.events import Wire
from dra_driver.scheduler.allocation.scheduler_quirks import SchedulerFeatures
from dra_driver.scheduler.allocation.selectors import DeviceSelector, SelectorSet, parse_selectors

MAX_DEVICES: Final = 32  # most devices that one claim may have (AllocationResultsMaxSize)


class Alternative(Struct, frozen=True, kw_only=True, eq=False):
    """A request without subrequests, or one subrequest. ``name`` is ``main`` or ``main/sub`` as in results, ``base`` is
    ``main``, ``label`` is for messages. ``place`` is the index of the request in its claim. With ``wants_all`` (mode
    All) ``count`` has no meaning. ``constraints`` are the indexes of the claim's constraints that apply."""

    name: str
    label: str
    base: str
    claim: int
    place: int
    device_class: Wire
    selection: SelectorSet
    count: int
    wants_all: bool
    admin_access: bool
    tolerations: Sequence[Wire]
    capacity: Wire | None
    constraints: Sequence[int]


class DeviceRequest(Struct, frozen=True, kw_only=True, eq=False):
    """One request of a claim. The first alternative with which all claims fit is chosen."""

    name: str
    alternatives: Sequence[Alternative]
    has_choice: bool


class ConstraintSpec(Struct, frozen=True, kw_only=True, eq=False):
    attribute: str
    requests: frozenset[str]
    distinct: bool


class DecodedClaim(Struct, frozen=True, kw_only=True, eq=False):
    label: str
    wire: Wire
    requests: Sequence[DeviceRequest]
    constraints: Sequence[ConstraintSpec]


SelectorSetOf = Callable[[Sequence[DeviceSelector]], SelectorSet]


class ClaimDecoder(Struct, frozen=True, kw_only=True):
    """Decodes claims. ``selector_set`` returns one SelectorSet for equal selectors, which share their results."""

    classes: Mapping[str, Wire]
    features: SchedulerFeatures
    selector_set: SelectorSetOf

    def read(self, claims: Sequence[Wire]) -> list[DecodedClaim]:
        """The decoded claims of a pod, in their order. Raises AllocationError."""
        return [self._claim(index, claim) for index, claim in enumerate(claims)]

    def _claim(self, index: int, claim: Wire) -> DecodedClaim:
        label = claim_label(claim)
        devices = claim["spec"].get("devices") or {}
        constraints = self._constraints(devices.get("constraints") or (), label)
        requests = [
            self._request(item, index, place, label, constraints)
            for place, item in enumerate(devices.get("requests") or ())
        ]
        least = sum(min(0 if one.wants_all else one.count for one in request.alternatives) for request in requests)
        if least > MAX_DEVICES:
            raise too_many(label, least)
        return DecodedClaim(label=label, wire=claim, requests=requests, constraints=constraints)

    def _constraints(self, items: Sequence[Wire], label: str) -> list[ConstraintSpec]:
        found = []
        for place, item in enumerate(items):
            attribute, distinct = item.get("matchAttribute"), False
            if attribute is None and not self.features.stable:
                attribute, distinct = item.get("distinctAttribute"), True
            if attribute is None:
                why = "empty constraint (unsupported constraint type?)"
                raise AllocationError(f"{label}, constraint #{place}: {why}")
            names = frozenset(item.get("requests") or ())
            found.append(ConstraintSpec(attribute=attribute, requests=names, distinct=distinct))
        return found

    def _request(
        self, item: Wire, claim: int, place: int, label: str, constraints: Sequence[ConstraintSpec]
    ) -> DeviceRequest:
        name, subrequests = item["name"], item.get("firstAvailable") or ()
        specs = [(sub, f"{name}/{sub['name']}", sub["name"]) for sub in subrequests]
        if not specs:
            if item.get("exactly") is None:
                raise AllocationError(
                    f"{label}, request {name}: neither exactly nor firstAvailable (unsupported request type?)"
                )
            specs = [(item["exactly"], name, name)]
        if subrequests and not self.features.prioritized_list:
            why = "has subrequests, but the DRAPrioritizedList feature is disabled"
            raise AllocationError(f"{label}, request {name}: {why}")
        if not (self.features.consumable_capacity or self.features.stable):
            for spec, _, shown in specs:
                if spec.get("capacity") is not None:
                    why = "has capacity requests, but the DRAConsumableCapacity feature is disabled"
                    raise AllocationError(f"{label}, request {shown}: {why}")
        alternatives = []
        for spec, full, shown in specs:
            names = {name, full}
            applying = [at for at, one in enumerate(constraints) if not one.requests or one.requests & names]
            where = f"{label}, request {shown}"
            admin = spec.get("adminAccess") if not subrequests else None
            if admin is not None and not self.features.admin_access:
                raise AllocationError(f"{where}: admin access is requested, but the feature is disabled")
            device_class, selectors = self._selectors(spec, where, label)
            alternatives.append(
                Alternative(
                    name=full,
                    label=f"{label}, request {full}",
                    base=name,
                    claim=claim,
                    place=place,
                    device_class=device_class,
                    selection=self.selector_set(selectors),
                    count=spec.get("count") or 0,
                    wants_all=_wants_all(spec, where),
                    admin_access=bool(admin),
                    tolerations=spec.get("tolerations") or (),
                    capacity=(spec.get("capacity") or {}).get("requests"),
                    constraints=applying,
                )
            )
        return DeviceRequest(name=name, alternatives=alternatives, has_choice=bool(subrequests))

    def _selectors(self, spec: Wire, where: str, label: str) -> tuple[Wire, list[DeviceSelector]]:
        own = parse_selectors(spec.get("selectors") or (), label, None)
        class_name = spec.get("deviceClassName") or ""
        if not class_name:
            raise AllocationError(f"{where}: missing device class name (unsupported request type?)")
        device_class = self.classes.get(class_name)
        if device_class is None:
            why = f'deviceclasses.resource.k8s.io "{class_name}" not found'
            raise AllocationError(f"{where}: could not retrieve device class {class_name}: {why}")
        of_class = parse_selectors(device_class["spec"].get("selectors") or (), f"class {class_name}", class_name)
        return device_class, [*of_class, *own]


def claim_label(claim: Wire) -> str:
    return f"claim {claim['metadata'].get('namespace', '')}/{claim['metadata']['name']}"


def too_many(label: str, least: int) -> AllocationError:
    return AllocationError(f"{label}: number of requested devices {least} exceeds the claim limit of {MAX_DEVICES}")


def _wants_all(spec: Wire, where: str) -> bool:
    mode = spec.get("allocationMode") or ""
    if mode not in ("ExactCount", "All"):
        raise AllocationError(f"{where}: unsupported count mode {mode}")
    return bool(mode == "All")
