"""DeviceClasses for published devices: one per MIG profile, and one per way of sharing.

A profile's class has the extended resource of NVIDIA's device plugin (mig.strategy "mixed"):
``nvidia.com/mig-1g.10gb.me`` for ``1g.10gb+me``. A shared GPU has none: such a request has no amount, and a claim
without an amount gets all. Only classes with the label `MANAGED_BY` are changed or deleted; the chart owns
gpu.nvidia.com and mig.nvidia.com.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from dra_driver.kube.published.names import PROFILE, SHARING_STRATEGY, TYPE, TYPE_MIG

Wire = Mapping[str, Any]

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "dra-driver-classes"
API_VERSION: Final = "resource.k8s.io/v1"
_PROFILE: Final = re.compile(r"[0-9a-z]([0-9a-z.+-]{0,40}[0-9a-z])?")
_STRATEGIES: Final = {"MPS": "mps", "TimeSlicing": "time-slicing"}

ClassState = Literal["missing", "present", "changed", "foreign", "taken", "unused"]


class Offer(Struct, frozen=True, order=True):
    """A profile or a sharing strategy that devices have."""

    attribute: str
    value: str


class ClassPlan(Struct, frozen=True, kw_only=True):
    """Planned change of one class. ``wanted`` and ``present`` are the objects; ``reason`` is for users."""

    device_class: str
    state: ClassState
    device_count: int
    wanted: Wire | None = None
    present: Wire | None = None
    reason: str = ""

    @property
    def extended_resource(self) -> str:
        return str(((self.wanted or self.present or {}).get("spec") or {}).get("extendedResourceName") or "")


def offers(slices: Iterable[Wire], driver: str) -> dict[Offer, int]:
    """Return the forms in the slices of ``driver``, with the number of devices. Malformed parts are skipped."""
    found: dict[Offer, int] = {}
    for item in slices:
        spec = item.get("spec") or {}
        for device in (spec.get("devices") or ()) if spec.get("driver") == driver else ():
            attributes = device.get("attributes") or {}
            for name in (PROFILE, SHARING_STRATEGY):
                value = (attributes.get(name) or {}).get("string")
                if isinstance(value, str) and _is_offer(name, value):
                    found[Offer(name, value)] = found.get(Offer(name, value), 0) + 1
    return found


def class_of(offer: Offer, driver: str) -> dict[str, Any]:
    checked = f'device.driver == "{driver}"'
    domain = f'device.attributes["{driver}"]'
    spec: dict[str, object] = {}
    if offer.attribute == PROFILE:
        resource = f"mig-{offer.value.replace('+', '.')}"
        name = f"{resource}.nvidia.com"
        spec["extendedResourceName"] = f"nvidia.com/{resource}"
        checked += f' && {domain}.{TYPE} == "{TYPE_MIG}" && {domain}.{PROFILE} == "{offer.value}"'
    else:
        name = f"shared-{_STRATEGIES[offer.value]}.nvidia.com"
        checked += f' && "{SHARING_STRATEGY}" in {domain} && {domain}.{SHARING_STRATEGY} == "{offer.value}"'
    spec["selectors"] = [{"cel": {"expression": checked}}]
    return {
        "apiVersion": API_VERSION,
        "kind": "DeviceClass",
        "metadata": {"name": name, "labels": {MANAGED_BY: MANAGER}},
        "spec": spec,
    }


def plan(offered: Mapping[Offer, int], classes: Iterable[Wire], driver: str) -> list[ClassPlan]:
    """Return the change of each wanted class, and of existing classes that match no device now."""
    present = {item["metadata"]["name"]: item for item in classes}
    plans = [_planned(class_of(offer, driver), count, present) for offer, count in sorted(offered.items())]
    known = {found.device_class for found in plans}
    unused = (item for name, item in sorted(present.items()) if name not in known and is_own(item))
    reason = "no published device matches it"
    return plans + [
        ClassPlan(device_class=item["metadata"]["name"], state="unused", device_count=0, present=item, reason=reason)
        for item in unused
    ]


def is_own(item: Wire) -> bool:
    return ((item.get("metadata") or {}).get("labels") or {}).get(MANAGED_BY) == MANAGER


def users(name: str, claims: Iterable[Wire], templates: Iterable[Wire]) -> list[str]:
    """Claims and templates that name the class, as ``claim namespace/name``."""
    specs = [("claim", item, item.get("spec")) for item in claims]
    specs += [("template", item, (item.get("spec") or {}).get("spec")) for item in templates]
    found = []
    for kind, item, spec in specs:
        if name in _named((spec or {}).get("devices") or {}):
            metadata = item.get("metadata") or {}
            found.append(f"{kind} {metadata.get('namespace', 'default')}/{metadata.get('name')}")
    return sorted(found)


def _planned(wanted: Wire, devices: int, present: Mapping[str, Wire]) -> ClassPlan:
    name, resource = wanted["metadata"]["name"], wanted["spec"].get("extendedResourceName")
    there = present.get(name)
    others = [
        other
        for other, item in sorted(present.items())
        if other != name and resource and (item.get("spec") or {}).get("extendedResourceName") == resource
    ]
    state: ClassState = "present"
    reason = ""
    if there is not None and not is_own(there):
        state, reason = "foreign", f"it has no label {MANAGED_BY}={MANAGER}, so it was made by another"
    elif others:
        state, reason = "taken", f"class {others[0]} has the extended resource {resource} already"
    elif there is None:
        state = "missing"
    elif there.get("spec") != wanted["spec"]:
        state, reason = "changed", "its spec is another than it would be made with"
    return ClassPlan(device_class=name, state=state, device_count=devices, wanted=wanted, present=there, reason=reason)


def _is_offer(attribute: str, value: str) -> bool:
    return value in _STRATEGIES if attribute == SHARING_STRATEGY else _PROFILE.fullmatch(value) is not None


def _named(devices: Wire) -> set[str]:
    requests: Sequence[Wire] = devices.get("requests") or ()
    parts = [
        part
        for request in requests
        for part in (request, request.get("exactly"), *(request.get("firstAvailable") or ()))
    ]
    return {str(part.get("deviceClassName")) for part in parts if part}
