"""Requests of the subject's claims, by the name that the allocator uses (``main`` or ``main/sub``)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from dra_driver.kubectl.explain.objects import Wire, name_of, spec_of

_GUARD: Final = re.compile(r"""device\.driver\s*==\s*["']([a-z0-9.-]{1,253})["']""")


class RequestSpec(Struct, frozen=True, kw_only=True):
    """One request or subrequest. ``count`` is None for all devices. ``device_class`` is None when it does not exist.

    ``selector_cache`` is for those who look at many devices with it.
    """

    claim: int
    claim_label: str
    request: str
    class_name: str
    device_class: Wire | None
    count: int | None
    selectors: Sequence[str]
    class_selectors: Sequence[str]
    tolerations: Sequence[Wire]
    capacity: Mapping[str, Any]
    admin_access: bool
    selector_cache: dict[Any, Any] = field(default_factory=dict)

    @property
    def count_text(self) -> str:
        return "all" if self.count is None else str(self.count)

    @property
    def drivers(self) -> frozenset[str]:
        """Drivers that the selectors compare ``device.driver`` with; empty when any driver may match."""
        return frozenset(name for text in (*self.class_selectors, *self.selectors) for name in _GUARD.findall(text))


def requests_of(claims: Sequence[Wire], labels: Sequence[str], classes: Mapping[str, Wire]) -> list[RequestSpec]:
    """Returns all requests and subrequests of the claims, in order."""
    found = []
    for index, claim in enumerate(claims):
        for request in (spec_of(claim).get("devices") or {}).get("requests") or ():
            name = str(request.get("name"))
            if request.get("exactly"):
                found.append(_spec(index, labels[index], name, request["exactly"], classes))
            for sub in request.get("firstAvailable") or ():
                found.append(_spec(index, labels[index], f"{name}/{sub.get('name')}", sub, classes))
    return found


def _spec(claim: int, label: str, name: str, wire: Wire, classes: Mapping[str, Wire]) -> RequestSpec:
    class_name = str(wire.get("deviceClassName") or "")
    found = classes.get(class_name)
    return RequestSpec(
        claim=claim,
        claim_label=label,
        request=name,
        class_name=class_name,
        device_class=found,
        count=None if wire.get("allocationMode") == "All" else int(wire.get("count") or 1),
        selectors=_expressions(wire),
        class_selectors=_expressions(spec_of(found)) if found is not None else (),
        tolerations=wire.get("tolerations") or (),
        capacity=(wire.get("capacity") or {}).get("requests") or {},
        admin_access=bool(wire.get("adminAccess")),
    )


def _expressions(owner: Wire) -> tuple[str, ...]:
    return tuple(
        str((item.get("cel") or {}).get("expression") or "") for item in owner.get("selectors") or () if item.get("cel")
    )


def by_name(classes: Sequence[Wire]) -> dict[str, Wire]:
    return {name_of(item): item for item in classes}
