"""What a claim asks for, decoded: requests, their alternatives, their classes and compiled selectors.

Owns the errors that make a claim impossible to weigh, whatever the node (``validateDeviceRequest`` of
k8s.io/dynamic-resource-allocation structured/internal/incubating/allocator_incubating.go).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.cel import Program, compile_selector
from dra_driver.errors import AllocationError, CelSyntaxError

Wire = Mapping[str, Any]

MAX_DEVICES: Final = 32
"""Most devices that one claim may hold (AllocationResultsMaxSize)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selector:
    """A compiled expression and the words that say where it is written."""

    program: Program
    where: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Alternative:
    """One way to satisfy a request: the request itself, or one of its subrequests.

    ``name`` is ``main`` or ``main/sub``, as results carry it. ``wants_all`` makes ``count`` meaningless.
    """

    name: str
    base: str
    device_class: Wire
    selectors: Sequence[Selector]
    count: int
    wants_all: bool
    admin_access: bool
    tolerations: Sequence[Wire]
    capacity: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """One request of a claim; the first alternative with which everything fits is taken."""

    name: str
    alternatives: Sequence[Alternative]


def claim_label(claim: Wire) -> str:
    """``claim namespace/name``, as messages name it."""
    return f"claim {claim['metadata'].get('namespace', '')}/{claim['metadata']['name']}"


def parse_requests(claim: Wire, classes: Mapping[str, Wire]) -> list[Request]:
    """The claim's requests. Raises AllocationError and CelSyntaxError, both fatal on every node."""
    label = claim_label(claim)
    requests = [_request(item, label, classes) for item in claim["spec"].get("devices", {}).get("requests") or ()]
    least = sum(min(_least(alternative) for alternative in request.alternatives) for request in requests)
    if least > MAX_DEVICES:
        raise AllocationError(f"{label}: number of requested devices {least} exceeds the claim limit of {MAX_DEVICES}")
    return requests


def _least(alternative: Alternative) -> int:
    return 0 if alternative.wants_all else alternative.count


def _request(item: Wire, label: str, classes: Mapping[str, Wire]) -> Request:
    name = item["name"]
    exactly, subrequests = item.get("exactly"), item.get("firstAvailable") or ()
    if exactly is not None:
        found = [_alternative(exactly, name, name, label, classes)]
    else:
        found = [_alternative(sub, f"{name}/{sub['name']}", name, label, classes) for sub in subrequests]
    if not found:
        raise AllocationError(
            f"{label}, request {name}: neither exactly nor firstAvailable (unsupported request type?)"
        )
    return Request(name=name, alternatives=found)


def _alternative(item: Wire, name: str, base: str, label: str, classes: Mapping[str, Wire]) -> Alternative:
    where = f"{label}, request {name}"
    class_name = item.get("deviceClassName", "")
    if not class_name:
        raise AllocationError(f"{where}: missing device class name (unsupported request type?)")
    device_class = classes.get(class_name)
    if device_class is None:
        why = f'deviceclasses.resource.k8s.io "{class_name}" not found'
        raise AllocationError(f"{where}: could not retrieve device class {class_name}: {why}")
    mode = item.get("allocationMode", "ExactCount")
    if mode not in ("ExactCount", "All"):
        raise AllocationError(f"{where}: unsupported count mode {mode}")
    of_class = _selectors(device_class["spec"].get("selectors") or (), f"class {class_name}")
    return Alternative(
        name=name,
        base=base,
        device_class=device_class,
        selectors=[*of_class, *_selectors(item.get("selectors") or (), label)],
        count=int(item.get("count", 1)),
        wants_all=mode == "All",
        admin_access=bool(item.get("adminAccess")),
        tolerations=item.get("tolerations") or (),
        capacity=(item.get("capacity") or {}).get("requests") or {},
    )


def _selectors(selectors: Sequence[Wire], label: str) -> list[Selector]:
    compiled = []
    for index, selector in enumerate(selectors):
        where = f"{label}: selector #{index}"
        if not (selector.get("cel") or {}).get("expression"):
            raise AllocationError(f"{where}: CEL expression empty (unsupported selector type?)")
        try:
            compiled.append(Selector(program=compile_selector(selector["cel"]["expression"]), where=where))
        except CelSyntaxError as error:
            raise CelSyntaxError(f"{where}: CEL compile error: {error}") from error
    return compiled
