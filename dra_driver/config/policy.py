"""Decode ``GpuPolicy`` of gpu.dra-driver.io/v1alpha1. The schema is generated from ``config/schemas/gpu_policy.py``,
which documents the fields."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct, field

from dra_driver.config.schema import FieldProblem, problems, schemas, shown, size_problem
from dra_driver.core.model.health import HealthCause
from dra_driver.core.model.health_rules import DEFAULT_GRACE_S, DEFAULT_RULES, HealthRules
from dra_driver.core.model.terms import AttributeValue, DefaultShareTerms, Interval, SharingTerms, Strategy, Taint
from dra_driver.core.model.usage_rules import DEFAULT_USAGE, IdleAction, OverGrantAction, PodProtection, UsageRules
from dra_driver.core.quantity import Quantity

API_VERSION: Final = "gpu.dra-driver.io/v1alpha1"
KIND: Final = "GpuPolicy"
MAX_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 16

Fields = Mapping[str, Any]


class Availability(StrEnum):
    OPEN = "Open"
    RESERVED = "Reserved"
    HIDDEN = "Hidden"


class GpuSelection(Struct, frozen=True, kw_only=True):
    """The GPUs of a policy: every set field must match. None matches all, an empty list nothing.

    Names and architectures are shell patterns; UUIDs and PCI addresses are lower-case, the latter as in sysfs.
    """

    node_names: tuple[str, ...] | None = None
    uuids: frozenset[str] | None = None
    minors: frozenset[int] | None = None
    pci_bus_ids: frozenset[str] | None = None
    product_names: tuple[str, ...] | None = None
    architectures: tuple[str, ...] | None = None
    min_memory_bytes: int | None = None
    max_memory_bytes: int | None = None
    mig_capable: bool | None = None


class GpuPolicy(Struct, frozen=True, kw_only=True):
    """One policy. ``mig_profiles`` are shell patterns of profile names, None for all; ``sharing`` None is exclusive.
    ``mig_layout`` are numbers of partitions by profile name; ``mig_when_free``: MIG mode follows the allowed forms.
    ``rails`` are numbers by PCI address or PCIe root."""

    name: str
    select: GpuSelection = GpuSelection()
    priority: int = 0
    availability: Availability = Availability.OPEN
    whole: bool = True
    monitor: bool = False
    mig_profiles: tuple[str, ...] | None = None
    mig_layout: Mapping[str, int] | None = None
    mig_when_free: bool = False
    sharing: SharingTerms | None = None
    host_memory_bytes: int | None = None
    taints: tuple[Taint, ...] = ()
    attributes: Mapping[str, AttributeValue] = field(default_factory=lambda: MappingProxyType({}))
    rails: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    health: HealthRules = DEFAULT_RULES
    usage: UsageRules = DEFAULT_USAGE


def policy_problems(written: object) -> list[FieldProblem]:
    """All problems of a policy object of any shape; empty when `policy_of` accepts it."""
    if not isinstance(written, Mapping):
        return [FieldProblem((), f"expected a {KIND} object, got {shown(written)}")]
    for name, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if written.get(name) != expected:
            return [FieldProblem((name,), f"expected {expected!r}, got {shown(written.get(name))}")]
    if too_large := size_problem(written, max_bytes=MAX_BYTES, max_depth=MAX_DEPTH):
        return [FieldProblem((), f"the object is {too_large}")]
    return problems(written, schemas()[KIND])


def policy_of(written: Fields) -> GpuPolicy:
    """Decode an object without problems."""
    spec: Fields = written["spec"]
    forms = _section(spec, "forms")
    mig = _section(spec, "mig")
    layout = mig.get("layout")
    whole = forms.get("whole")
    return GpuPolicy(
        name=written["metadata"]["name"],
        select=_selection(_section(spec, "select")),
        priority=spec.get("priority") or 0,
        availability=Availability(spec.get("availability") or Availability.OPEN),
        whole=True if whole is None else whole,
        monitor=bool(forms.get("monitor")),
        mig_profiles=_texts(forms, "migProfiles"),
        mig_layout=None if layout is None else MappingProxyType({item["profile"]: item["count"] for item in layout}),
        mig_when_free=mig.get("mode") == "WhenFree",
        sharing=_sharing(_section(spec, "sharing")),
        host_memory_bytes=_bytes(spec.get("hostMemoryPerPod")),
        taints=tuple(
            Taint(key=taint["key"], value=taint.get("value") or "", effect="NoSchedule")
            for taint in spec.get("taints") or ()
        ),
        attributes=MappingProxyType({item["name"]: _attribute(item) for item in spec.get("attributes") or ()}),
        rails=MappingProxyType({item["pci"]: item["rail"] for item in spec.get("rails") or ()}),
        health=_health(_section(spec, "health")),
        usage=_usage(_section(spec, "usage")),
    )


def _section(fields: Fields, name: str) -> Fields:
    section: Fields = fields.get(name) or {}
    return section


def _selection(select: Fields) -> GpuSelection:
    uuids, pci, minors = select.get("uuids"), select.get("pciBusIDs"), select.get("minors")
    return GpuSelection(
        node_names=_texts(select, "nodeNames"),
        uuids=None if uuids is None else frozenset(uuid.lower() for uuid in uuids),
        minors=None if minors is None else frozenset(minors),
        # NVML prints eight digits of domain where sysfs has four.
        pci_bus_ids=None if pci is None else frozenset(address.lower()[-12:] for address in pci),
        product_names=_texts(select, "productNames"),
        architectures=_texts(select, "architectures"),
        min_memory_bytes=_bytes(select.get("minMemory")),
        max_memory_bytes=_bytes(select.get("maxMemory")),
        mig_capable=select.get("migCapable"),
    )


def _sharing(sharing: Fields) -> SharingTerms | None:
    if sharing.get("strategy", "Exclusive") == "Exclusive":
        return None
    return SharingTerms(
        strategy=Strategy(sharing["strategy"]),
        interval=Interval(sharing.get("interval") or Interval.DEFAULT),
        max_shares=sharing.get("maxShares"),
        default_percent=100 if (percent := sharing.get("defaultComputePercent")) is None else percent,
        reserved_bytes=_bytes(sharing.get("reservedMemory")),
        default_share=_default_share(_section(sharing, "defaultShare")),
        mig_devices=bool(sharing.get("migDevices")),
    )


def _default_share(share: Fields) -> DefaultShareTerms | None:
    if not share:
        return None
    memory = _bytes(share.get("memory")) or 0
    return DefaultShareTerms(parts=share.get("parts"), memory_bytes=memory, percent=share.get("computePercent"))


def _health(health: Fields) -> HealthRules:
    ignore, evict = _section(health, "ignore"), _section(health, "evict")
    calm, grace = health.get("calmSeconds"), health.get("evictionGraceSeconds")
    return HealthRules(
        taint_xids=_numbers(_section(health, "taint")),
        ignored_xids=_numbers(ignore),
        ignored_causes=frozenset(HealthCause(cause) for cause in ignore.get("causes") or ()),
        evicting_xids=_numbers(evict),
        evicting_causes=frozenset(HealthCause(cause) for cause in evict.get("causes") or ()),
        calm_s=None if calm is None else float(calm),
        grace_s=DEFAULT_GRACE_S if grace is None else float(grace),
        resets_when_free=health.get("reset") == "WhenFree",
    )


def _usage(usage: Fields) -> UsageRules:
    over, idle = _section(usage, "overGrant"), _section(usage, "idle")
    grace, overhead = over.get("graceSeconds"), _bytes(over.get("overheadPerProcess"))
    return UsageRules(
        over_grant=OverGrantAction(over.get("action") or DEFAULT_USAGE.over_grant),
        grace_s=DEFAULT_USAGE.grace_s if grace is None else grace,
        overhead_bytes=DEFAULT_USAGE.overhead_bytes if overhead is None else overhead,
        idle_after_min=idle.get("afterMinutes"),
        idle=IdleAction(idle.get("action") or DEFAULT_USAGE.idle),
        protection=PodProtection(over.get("podProtection") or DEFAULT_USAGE.protection),
    )


def _numbers(section: Fields) -> frozenset[int]:
    return frozenset(section.get("xids") or ())


def _attribute(item: Fields) -> AttributeValue:
    value: AttributeValue = next(item[name] for name in ("string", "int", "bool") if item.get(name) is not None)
    return value


def _texts(fields: Fields, name: str) -> tuple[str, ...] | None:
    texts = fields.get(name)
    return None if texts is None else tuple(texts)


def _bytes(amount: object) -> int | None:
    return None if amount is None else Quantity.parse(str(amount)).as_int()
