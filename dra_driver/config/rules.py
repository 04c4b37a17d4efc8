"""Define conditions over several fields of one object, each as a Python function and as a CEL expression for the API
server (``x-kubernetes-validations``). A rule is evaluated only on objects with valid fields; null is absent."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.quantity import Quantity

Fields = Mapping[str, Any]

OWN_ATTRIBUTES: Final = (
    "addressingMode", "architecture", "brand", "clique", "confidentialCompute", "cudaComputeCapability",
    "cudaDriverVersion", "driverVersion", "index", "minor", "numaNode", "nvlinkIsland", "nvlinkIslandSize",
    "nvlinkType", "parentIndex", "parentMinor", "parentUUID", "pciBusID", "pcieBusID", "pcieRoot", "placementSize",
    "placementStart", "productName", "profile", "sharingStrategy", "type", "uuid",
)  # fmt: skip
"""Attributes that this driver publishes; a policy must not set them, in any domain."""
OWN_ATTRIBUTE_DOMAIN: Final = "gpu.nvidia.com"
"""The driver's default name, which is the domain of an attribute without one."""
OWN_TAINT_DOMAIN: Final = "gpu.dra-driver.io/"
_RAIL: Final = ["rail", f"{OWN_ATTRIBUTE_DOMAIN}/rail"]
# For search, as in CEL's matches(); RE2 and Python read them alike.
_OWN_NAME: Final = f"(^|/)({'|'.join(OWN_ATTRIBUTES)})$"
_FOREIGN_DOMAIN: Final = r"^([^/]*\.)?(kubernetes|k8s)\.io/"


class SchemaRule(Struct, frozen=True):
    """``broken`` is True when an object breaks the rule; ``cel`` is true when it does not; ``message`` says how to fix
    it."""

    message: str
    cel: str
    broken: Callable[[Fields], bool]


def _has(fields: Fields, name: str) -> bool:
    return fields.get(name) is not None


def _inner(fields: Fields, name: str) -> Fields:
    inner: Fields = fields.get(name) or {}
    return inner


def _memory_backwards(select: Fields) -> bool:
    low, high = select.get("minMemory"), select.get("maxMemory")
    if low is None or high is None:
        return False
    return Quantity.parse(str(high)) < Quantity.parse(str(low))


def _attribute_twice(spec: Fields) -> bool:
    names = {str(attribute["name"]) for attribute in spec.get("attributes") or ()}
    return any(f"{OWN_ATTRIBUTE_DOMAIN}/{name}" in names for name in names)


def _also(health: Fields, section: str, field: str) -> bool:
    """Return whether an ignored value is also in the section."""
    ignored = _inner(health, "ignore").get(field) or ()
    return bool(set(ignored) & set(_inner(health, section).get(field) or ()))


def _cel_not_also(section: str, field: str) -> str:
    """CEL for ``not _also``."""
    return (
        f"!has(self.ignore) || !has(self.ignore.{field}) || !has(self.{section}) || !has(self.{section}.{field})"
        f" || !self.ignore.{field}.exists(ignored, ignored in self.{section}.{field})"
    )


def _needs_sharing(name: str, says: str = "belongs to") -> SchemaRule:
    return SchemaRule(
        f"{name} {says} a shared GPU, and strategy Exclusive shares none: leave it out or choose TimeSlicing or MPS",
        f"self.strategy != 'Exclusive' || !has(self.{name})",
        lambda it: it["strategy"] == "Exclusive" and _has(it, name),
    )


RULES: Final[Mapping[str, SchemaRule]] = {
    "time-slicing-without-mps": SchemaRule(
        "mpsConfig cannot be combined with strategy TimeSlicing",
        "self.strategy != 'TimeSlicing' || !has(self.mpsConfig)",
        lambda it: it["strategy"] == "TimeSlicing" and _has(it, "mpsConfig"),
    ),
    "mps-without-time-slicing": SchemaRule(
        "timeSlicingConfig cannot be combined with strategy MPS",
        "self.strategy != 'MPS' || !has(self.timeSlicingConfig)",
        lambda it: it["strategy"] == "MPS" and _has(it, "timeSlicingConfig"),
    ),
    "interval-needs-time-slicing": SchemaRule(
        "interval belongs to strategy TimeSlicing: leave it out or choose that strategy",
        "self.strategy == 'TimeSlicing' || !has(self.interval)",
        lambda it: it["strategy"] != "TimeSlicing" and _has(it, "interval"),
    ),
    "max-shares-needs-sharing": _needs_sharing("maxShares", "limits"),
    "default-percent-needs-sharing": _needs_sharing("defaultComputePercent"),
    "reserved-memory-needs-sharing": _needs_sharing("reservedMemory"),
    "mig-devices-need-sharing": SchemaRule(
        "migDevices belongs to a shared GPU, and strategy Exclusive shares none: leave it out or choose TimeSlicing or"
        " MPS",
        "self.strategy != 'Exclusive' || !has(self.migDevices) || !self.migDevices",
        lambda it: it["strategy"] == "Exclusive" and it.get("migDevices") is True,
    ),
    "default-share-needs-sharing": _needs_sharing("defaultShare"),
    "default-share-without-percent": SchemaRule(
        "defaultShare and defaultComputePercent both set the compute of a claim that requests none: remove"
        " defaultComputePercent",
        "!has(self.defaultShare) || !has(self.defaultComputePercent)",
        lambda it: _has(it, "defaultShare") and _has(it, "defaultComputePercent"),
    ),
    "share-by-parts-or-memory": SchemaRule(
        "defaultShare needs either parts or memory",
        "has(self.parts) != has(self.memory)",
        lambda it: _has(it, "parts") == _has(it, "memory"),
    ),
    "parts-without-percent": SchemaRule(
        "parts of defaultShare also divides the compute: remove computePercent, or replace parts with memory",
        "!has(self.parts) || !has(self.computePercent)",
        lambda it: _has(it, "parts") and _has(it, "computePercent"),
    ),
    "sharing-needs-whole": SchemaRule(
        "sharing.strategy TimeSlicing or MPS shares whole GPUs, which forms.whole false forbids: set sharing.migDevices"
        " to true to share MIG devices",
        "!has(self.sharing) || self.sharing.strategy == 'Exclusive' || !has(self.forms) || !has(self.forms.whole)"
        " || self.forms.whole || has(self.sharing.migDevices) && self.sharing.migDevices",
        lambda it: (
            _inner(it, "sharing").get("strategy", "Exclusive") != "Exclusive"
            and _inner(it, "forms").get("whole") is False
            and not _inner(it, "sharing").get("migDevices")
        ),
    ),
    "mig-mode-needs-forms": SchemaRule(
        "mig.mode WhenFree takes the mode from the forms: set forms.whole to false (MIG mode on), or forms.migProfiles"
        " to [] (off)",
        "!has(self.mig) || !has(self.mig.mode) || self.mig.mode != 'WhenFree' || has(self.forms)"
        " && (has(self.forms.whole) && !self.forms.whole"
        " || has(self.forms.migProfiles) && size(self.forms.migProfiles) == 0)",
        lambda it: (
            _inner(it, "mig").get("mode") == "WhenFree"
            and _inner(it, "forms").get("whole") is not False
            and _inner(it, "forms").get("migProfiles") != []
        ),
    ),
    "no-compute-instances": SchemaRule(
        "compute instances such as 1c.3g.20gb are not supported: forms.migProfiles names GPU instances (3g.20gb)",
        "!has(self.forms) || !has(self.forms.migProfiles)"
        " || self.forms.migProfiles.all(profile, !profile.matches('^[0-9]+c[.]'))",
        lambda it: any(re.match("[0-9]+c[.]", str(each)) for each in _inner(it, "forms").get("migProfiles") or ()),
    ),
    "layout-needs-profiles": SchemaRule(
        "mig.layout names the partitions that the GPU offers: remove forms.migProfiles",
        "!has(self.mig) || !has(self.mig.layout) || !has(self.forms) || !has(self.forms.migProfiles)",
        lambda it: _has(_inner(it, "mig"), "layout") and _has(_inner(it, "forms"), "migProfiles"),
    ),
    "something-left": SchemaRule(
        "whole false and migProfiles [] allow no form of the GPU: use availability Hidden to hide it",
        "!has(self.whole) || self.whole || !has(self.migProfiles) || size(self.migProfiles) > 0",
        lambda it: it.get("whole") is False and it.get("migProfiles") == [],
    ),
    "ignored-xid": SchemaRule(
        "an XID of ignore.xids is in taint.xids or evict.xids, too: it cannot do both, remove it from one of them",
        f"({_cel_not_also('taint', 'xids')}) && ({_cel_not_also('evict', 'xids')})",
        lambda it: _also(it, "taint", "xids") or _also(it, "evict", "xids"),
    ),
    "ignored-cause": SchemaRule(
        "a cause of ignore.causes is in evict.causes, too: it cannot do both, remove it from one of them",
        _cel_not_also("evict", "causes"),
        lambda it: _also(it, "evict", "causes"),
    ),
    "memory-range": SchemaRule(
        "minMemory is more than maxMemory, so no GPU matches",
        "!has(self.minMemory) || !has(self.maxMemory)"
        " || quantity(string(self.minMemory)).compareTo(quantity(string(self.maxMemory))) <= 0",
        _memory_backwards,
    ),
    "one-value": SchemaRule(
        "expected exactly one of string, int and bool",
        "[has(self.string), has(self.int), has(self.bool)].filter(given, given).size() == 1",
        lambda it: sum(_has(it, name) for name in ("string", "int", "bool")) != 1,
    ),
    "attribute-not-reserved": SchemaRule(
        "name is reserved by the driver or Kubernetes: choose another, best in a domain of your own such as"
        " example.com/team",
        f"!self.name.matches(r'{_OWN_NAME}') && !self.name.matches(r'{_FOREIGN_DOMAIN}')",
        lambda it: any(re.search(pattern, str(it["name"])) for pattern in (_OWN_NAME, _FOREIGN_DOMAIN)),
    ),
    "attribute-once": SchemaRule(
        "an attribute is repeated: a name without a domain is in the driver's domain, so that team and"
        f" {OWN_ATTRIBUTE_DOMAIN}/team are the same to a selector; remove one of them",
        "!has(self.attributes) || self.attributes.all(a,"
        f" !self.attributes.exists(b, b.name == '{OWN_ATTRIBUTE_DOMAIN}/' + a.name))",
        _attribute_twice,
    ),
    "rail-once": SchemaRule(
        "rails and attributes both set the attribute rail: remove one of them",
        f"!has(self.rails) || !has(self.attributes) || !self.attributes.exists(a, a.name in {_RAIL})",
        lambda it: _has(it, "rails") and any(each["name"] in _RAIL for each in it.get("attributes") or ()),
    ),
    "taint-not-reserved": SchemaRule(
        f"keys in {OWN_TAINT_DOMAIN.rstrip('/')} are reserved for the driver; availability Reserved sets such a taint",
        f"!self.key.startsWith('{OWN_TAINT_DOMAIN}')",
        lambda it: str(it["key"]).startswith(OWN_TAINT_DOMAIN),
    ),
}
