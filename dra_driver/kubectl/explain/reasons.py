"""Turn the allocator's events into reasons, grouped and counted.

A device that is in use and does not match the selectors counts under its selector: freeing it would not help.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import Struct, field

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError, SelectorBudgetError
from dra_driver.core.model.drain import DRAINED_TAINT
from dra_driver.core.model.terms import DETACHED_TAINT
from dra_driver.core.quantity import Quantity, quantity_in
from dra_driver.core.text import cut, listed
from dra_driver.kube.devices import is_health_taint
from dra_driver.kubectl.explain.evaluation import Holders
from dra_driver.kubectl.explain.report import Reason
from dra_driver.kubectl.explain.subject import RequestSpec, Wire
from dra_driver.scheduler import allocation
from dra_driver.scheduler.allocation import CapacityShort, ConstraintBroken, CounterShort, InUse, PoolDevice, Tainted
from dra_driver.scheduler.cel import AttributeRefs, DeviceView, compile_selector, find_attribute_refs, split_conjuncts

_MAX_SHOWN: Final = 160
_MAX_VALUES: Final = 4


def is_selected_by(expression: str, driver: str, device: Wire) -> bool | None:
    """Return whether the expression selects the device; None when it cannot be evaluated, or not in time."""
    try:
        return compile_selector(expression).evaluate(DeviceView(driver, device, lists=True))
    except (CelSyntaxError, CelEvaluationError, SelectorBudgetError, ValueError):
        return None


def _signature(expressions: Sequence[str], driver: str, device: Wire) -> Hashable | None:
    """Return a key that is equal for devices the expressions cannot distinguish; None when that is unknown."""
    found: list[Hashable] = [driver, device.get("allowMultipleAllocations")]
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    for expression in expressions:
        refs = _refs(expression)
        if refs is None or refs.everything:
            return None
        found += [_value(attributes, driver, name) for name in sorted(refs.attributes)]
        found += [_value(capacity, driver, name) for name in sorted(refs.capacity)]
    return tuple(found)


@lru_cache(maxsize=1024)
def _parts(expression: str) -> tuple[str, ...]:
    try:
        return split_conjuncts(expression)
    except CelSyntaxError:
        return (expression,)


def _refs(expression: str) -> AttributeRefs | None:
    try:
        return find_attribute_refs(expression)
    except CelSyntaxError:
        return None


def _values_read(part: str, driver: str, device: Wire) -> str:
    refs = _refs(part) or AttributeRefs()
    values = [_value(device.get("attributes"), driver, name) for name in sorted(refs.attributes)]
    values += [_value(device.get("capacity"), driver, name) for name in sorted(refs.capacity)]
    if "device.driver" in part:
        values.append(f"driver = {driver}")
    return ", ".join(values[:_MAX_VALUES])


def _value(values: Wire | None, driver: str, name: tuple[str, str]) -> str:
    """Return ``memory = 80Gi``. An attribute has one value of some type, a capacity has ``value``."""
    domain, identifier = name
    known = values or {}
    found = known.get(f"{domain}/{identifier}") or (known.get(identifier) if domain == driver else None)
    if not isinstance(found, dict) or not found:
        return f"{identifier} is missing"
    value = found["value"] if "value" in found else next(iter(found.values()))
    return f"{identifier} = {str(value).lower() if isinstance(value, bool) else value}"


_RESERVED: Final = "gpu.dra-driver.io/reserved"
_DRAINING: Final = "gpu.dra-driver.io/draining"
_OTHER_GPU: Final = "request another GPU"
_BROKEN: Final = "wait until the GPU recovers, or repair it (docs/health.md)"
_MOST_NAMED: Final = 20
_PASSING: Final = {
    DRAINED_TAINT: f"wait: the GPU is drained for maintenance until kubectl dra undrain, or {_OTHER_GPU}",
    DETACHED_TAINT: (
        "wait: the node does not accept new claims; see the Node's events DriverDetached and SecondPublisher, and "
        "/readyz of its node process"
    ),
    "gpu.dra-driver.io/creation-refused": (
        "wait some minutes: the node could not create partitions, because another process uses the GPU; see the "
        "Node's event PartitionsWithheld"
    ),
    "gpu.dra-driver.io/fabric-not-ready": (
        "wait: Fabric Manager has not registered the GPU in the NVLink fabric; see the Node's event FabricNotReady"
    ),
}
"""Fixes for taints that the driver sets for hardware conditions or requests."""


class RejectionReason(Struct, frozen=True):
    """Reason for a rejected device. ``fix`` replaces the fix of the code; ``instead`` is an alternative;
    ``users`` are the claims to end."""

    code: str
    message: str
    seen: str
    fix: str = ""
    instead: str = ""
    users: tuple[str, ...] = ()


def act_on(names: Sequence[str]) -> str:
    """Name the objects to act on; if there are many, add their number and the command that lists them."""
    more = len(names) - _MOST_NAMED
    return listed(names, _MOST_NAMED) + (f" ({len(names)} in all; kubectl dra claims lists them)" if more > 0 else "")


def rejection_of(spec: RequestSpec, device: PoolDevice, cause: allocation.Cause, holders: Holders) -> RejectionReason:
    if isinstance(cause, allocation.NotSelected) or (isinstance(cause, InUse) and cause.holders):
        false_clauses = selector_rejections(spec, device)
        if false_clauses:
            return false_clauses[0]
    match cause:
        case InUse():
            if not cause.holders:
                return RejectionReason("takenByThisPod", "assigned to another request of this pod", "")
            return RejectionReason("inUse", "in use", holder_labels(cause.holders, holders), users=tuple(cause.holders))
        case Tainted():
            return _taint(cause, [holders.label_with_pods(claim) for claim in holders.claims(device.id)])
        case CapacityShort():
            return _capacity(cause, spec, device, holders)
        case CounterShort():
            return _counter(cause, spec, device, holders)
        case ConstraintBroken():
            return _constraint(cause)
        case allocation.NotOnNode():
            return RejectionReason("nodeSelection", "the device's node selector excludes this node", "")
        case allocation.GateOff():
            return RejectionReason("gateOff", f"needs feature gate {cause.gate}, which is off in the scheduler", "")
        case allocation.NotSelected():
            return RejectionReason("requestSelector", cause.expression, "")


def holder_labels(claims: tuple[str, ...] | list[str], holders: Holders) -> str:
    return " and ".join(holders.label_with_pods(claim) for claim in dict.fromkeys(claims))


def _taint(cause: Tainted, users: list[str]) -> RejectionReason:
    value = f"={cause.value}" if cause.value else ""
    message = f"taint {cause.key}{value}:{cause.effect}, not tolerated by the request"
    if is_health_taint(cause.key, cause.effect):
        return RejectionReason("unhealthy", message, "", _BROKEN)
    fix = _PASSING.get(cause.key, "")
    if cause.key == _RESERVED:
        toleration = f"{{key: {cause.key}, operator: Equal, value: {cause.value}, effect: {cause.effect}}}"
        fix = (
            f"GpuPolicy {cause.value} reserves it for claims with tolerations: [{toleration}]; add it, or {_OTHER_GPU}"
        )
    elif cause.key == _DRAINING:
        policy = f"GpuPolicy {cause.value}" if cause.value else "its policy"
        fix = f"wait: {policy} reconfigures the GPU when the current claims have ended"
        fix += f": {act_on(users)}" if users else ""
    return RejectionReason("tainted", message, "", fix)


def _capacity(cause: CapacityShort, spec: RequestSpec, device: PoolDevice, holders: Holders) -> RejectionReason:
    name, is_requested = cause.capacity, cause.capacity in spec.capacity
    own = (device.wire.get("capacity") or {}).get(name) or {}
    if cause.why == "undefined":
        message, fix = f"has no capacity {name} ({cause.wanted} requested)", f"remove capacity.requests.{name}"
        if not device.wire.get("allowMultipleAllocations"):
            message += ": the device is not shared"
            fix += " to get an exclusive device, or ask the administrator to share GPUs with a GpuPolicy"
        return RejectionReason("capacityShort", message, "", fix)
    if cause.why == "policy":
        policy = own.get("requestPolicy") or {}
        span = policy.get("validRange") or {}
        bounds = (("min", "at least"), ("max", "at most"), ("step", "in steps of"))
        allowed = ", ".join(f"{words} {span[key]}" for key, words in bounds if key in span)
        allowed = allowed or f"one of {listed([str(item) for item in policy.get('validValues') or ()])}"
        message = f"its request policy does not allow {cause.wanted} of {name}"
        return RejectionReason("capacityShort", message, allowed, f"request {allowed}")
    by_default = "" if is_requested else " (default of a request without it)"
    message = f"not enough {name}: {cause.wanted} requested{by_default}"
    if not (device.shared or device.consumed):
        seen = f"{device.name} has {own.get('value', cause.free)}"
        return RejectionReason("capacityShort", message, seen, "request less")
    claims = list(dict.fromkeys(holders.claims(device.id)))
    users = {claim: holders.label_with_pods(claim) for claim in claims}
    held = [holders.consumed(device.id, claim, name) or "?" for claim in claims]
    amounts = [f"{user} has {amount}" for user, amount in zip(users.values(), held, strict=True)]
    by, end = "", "end workloads that use other shares of the device"
    if users:
        needed = _nano(cause.wanted, otherwise=1) - _nano(cause.free, otherwise=0)
        one = len(users) > 1 and all(_nano(amount, otherwise=0) >= needed for amount in held)
        by = f": {listed(amounts)}"
        end = f"end {'one of these workloads' if one else 'the workload that uses it'}: {act_on(list(users.values()))}"
    seen = f"{device.name} has {cause.free} of {own.get('value', '?')} free{by}"
    if _nano(cause.free, otherwise=1) <= 0 or spec.is_extended:  # an extended resource has no amounts
        return RejectionReason("capacityShort", message, seen, end, users=tuple(claims))
    less = f"request at most {cause.free} of {name}"
    if not is_requested:
        less = f"request capacity.requests.{name}: {cause.free} or less"
    return RejectionReason("capacityShort", message, seen, less, end)


def _nano(amount: str, *, otherwise: int) -> int:
    found = quantity_in(amount)
    return otherwise if found is None else found.nano


def _counter(cause: CounterShort, spec: RequestSpec, device: PoolDevice, holders: Holders) -> RejectionReason:
    if not cause.own:
        seen = f"{cause.counter_set}/{cause.counter}: {cause.free}"
        return RejectionReason("counterShort", "blocked: the shared counters of its pool are overcommitted", seen)
    message = "shared counters of its GPU are used up"
    allocated = _consumers(device, cause, holders)
    users_of = list(dict.fromkeys(claim for _, claims in allocated for claim in claims))
    claims = list(map(holders.label_with_pods, users_of))
    by = f", used by {_label_users(allocated, holders)}" if allocated else ""
    wanted, free = quantity_in(cause.wanted), quantity_in(cause.free)
    short = cause.wanted if wanted is None or free is None else str(wanted - free)
    seen = f"{cause.counter_set}: {cause.counter} short by {short} ({cause.wanted} needed, {cause.free} left){by}"
    users = "the workload that uses"
    if len(claims) > 1:
        most = max((_consumed(wire, cause) for wire in device.slice.spec.get("devices") or ()), default=0)
        needs_all = _nano(cause.wanted, otherwise=-1) >= max(most, _nano(cause.free, otherwise=0))
        users = "all workloads that use" if needs_all else "workloads that use"
    fix = f"end {users} the GPU: {act_on(claims)}" if claims else "request less in one pod, or another GPU"
    if spec.admin_access:
        message += ", and the scheduler charges them for admin access"
        fix += "; or request class monitor.gpu.nvidia.com, whose devices a GpuPolicy adds (forms: {monitor: true})"
    return RejectionReason("counterShort", message, seen, fix, users=tuple(users_of))


def overlaps(spec: RequestSpec, device: PoolDevice, holders: Holders) -> list[RejectionReason]:
    """Return a reason for each set of claims that use the same memory slices."""
    found: dict[tuple[str, ...], RejectionReason] = {}
    if device.allocated or not holders.allocated_in(*device.slice.key):
        return []
    for entry in device.wire.get("consumesCounters") or ():
        for name in [name for name in entry.get("counters") or () if name.startswith("memory-slice-")]:
            cause = CounterShort(counter_set=entry["counterSet"], counter=name, wanted="1", free="0", own=True)
            if any(other != device.name for other, _ in _consumers(device, cause, holders)):
                reason = _counter(cause, spec, device, holders)
                found.setdefault(reason.users, reason)
    return list(found.values())


def _label_users(allocated: list[tuple[str, list[str]]], holders: Holders) -> str:
    by_claim: dict[str, list[str]] = {}
    for device, claims in allocated:
        by_claim.setdefault(holders.label_with_pods(claims[0]) if claims else "", []).append(device)
    names = [
        f"{devices[0] if len(devices) == 1 else f'{len(devices)} devices'}{f' of {claim}' if claim else ''}"
        for claim, devices in by_claim.items()
    ]
    return listed(names, 2)


def _consumers(device: PoolDevice, cause: CounterShort, holders: Holders) -> list[tuple[str, list[str]]]:
    """Return allocated devices that consume the counter, with their claims. A GPU's devices are in one slice."""
    driver, pool = device.slice.key
    allocated = set(holders.allocated_in(driver, pool))
    return [
        (str(wire["name"]), holders.claims(allocation.DeviceId(driver, pool, wire["name"])))
        for wire in (device.slice.spec.get("devices") or () if allocated else ())
        if wire["name"] in allocated and _consumed(wire, cause) > 0
    ]


def _consumed(wire: Wire, cause: CounterShort) -> int:
    """Return billionths; 0 for an invalid value."""
    entries = [entry for entry in wire.get("consumesCounters") or () if entry.get("counterSet") == cause.counter_set]
    values = [(entry.get("counters") or {}).get(cause.counter) for entry in entries]
    try:
        return sum(Quantity.parse(value["value"]).nano for value in values if value)
    except (ValueError, KeyError, TypeError):
        return 0


def _constraint(cause: ConstraintBroken) -> RejectionReason:
    what = f"constraint {cause.index + 1}, {cause.kind} {cause.attribute}"
    if cause.seen is None:
        return RejectionReason("constraint", f"{what}: the device does not have the attribute", "")
    others = "the chosen device has" if cause.kind == "matchAttribute" else "already used:"
    seen = f"{cause.seen}, while {others} {', '.join(cause.others[:2])}"
    return RejectionReason("constraint", f"{what}: not satisfied with the previously chosen devices", seen)


class ReasonCode(NamedTuple):
    """A code of rejected devices: distance of the nearest miss, fix, and text in the verdict."""

    distance: int
    fix: str
    short: str = ""


CODES: Final = {
    "classSelector": ReasonCode(20, "request another DeviceClass"),
    "requestSelector": ReasonCode(4, "relax the selector so that it accepts"),
    "nodeSelection": ReasonCode(5, "allow the pod on the nodes that can use the device"),
    "gateOff": ReasonCode(6, "enable the feature gate", "disabled by a feature gate"),
    "inUse": ReasonCode(3, "end the workload that uses it", "in use"),
    "takenByThisPod": ReasonCode(3, "request fewer devices in this pod", "assigned to another request of this pod"),
    "capacityShort": ReasonCode(
        3, "request less, or end workloads that use other shares of the device", "without enough capacity"
    ),
    "counterShort": ReasonCode(
        3, "end the workloads that use other parts of the GPU", "on GPUs whose shared counters are used up"
    ),
    "tainted": ReasonCode(2, "remove the cause of the taint, or tolerate the taint in the request", "tainted"),
    "unhealthy": ReasonCode(12, "", "unhealthy"),
    "constraint": ReasonCode(
        2, "relax the constraint, or free devices that satisfy it together", "excluded by a constraint"
    ),
}
"""In the order of the allocator's checks."""
_ORDER: Final = [*CODES]
_MAX_SEEN: Final = 3
_MAX_DISTINCT: Final = 2000


class Group(Struct):
    devices: int = 0
    nodes: set[str] = field(default_factory=set)
    seen: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, node: str, found: "Group", named: Callable[[str], str]) -> None:
        """Add the devices of one node; the ``examples`` of ``found`` are only device names."""
        self.devices += found.devices
        self.nodes.add(node)
        for mark, count in found.seen.items():
            text = named(mark)
            if len(self.seen) < _MAX_DISTINCT or text in self.seen:
                self.seen[text] += count
        room = _MAX_SEEN - len(self.examples)
        self.examples += [f"{device} on {node}" for device in found.examples[:room]]


class NodeRejections(Struct, frozen=True):
    """Rejected devices of a request on a node, by code and message. Equivalent nodes share it."""

    devices: int
    groups: Mapping[tuple[str, str], Group]

    @classmethod
    def of(cls, rejections: Sequence[tuple[str, RejectionReason]]) -> "NodeRejections":
        groups: dict[tuple[str, str], Group] = {}
        for device, rejection in rejections:
            group = groups.setdefault((rejection.code, rejection.message), Group())
            group.devices += 1
            if rejection.seen:
                group.seen[rejection.seen] += 1
            if len(group.examples) < _MAX_SEEN:
                group.examples.append(device)
        return cls(len(rejections), groups)


def selector_rejections(spec: RequestSpec, device: PoolDevice) -> Sequence[RejectionReason]:
    """Return the clauses of class and request that are false for the device, in order; cached in ``spec``."""
    key = _signature((*spec.class_selectors, *spec.selectors), device.slice.key[0], device.wire)
    if key is None:
        return tuple(_selector_rejections(spec, device))
    known: Sequence[RejectionReason] | None = spec.selector_cache.get(key)
    if known is None:
        known = spec.selector_cache[key] = tuple(_selector_rejections(spec, device))
    return known


def _selector_rejections(spec: RequestSpec, device: PoolDevice) -> Iterator[RejectionReason]:
    driver, wire = device.slice.key[0], device.wire
    for code, where, expressions in (
        ("classSelector", f"class {spec.class_name}", spec.class_selectors),
        ("requestSelector", "selector", spec.selectors),
    ):
        for number, expression in enumerate(expressions, 1):
            if is_selected_by(expression, driver, wire) is not False:
                continue
            which = f"{where} {number}" if len(expressions) > 1 else where
            parts = _parts(expression)
            places = [f", clause {place} of {len(parts)}" if parts[1:] else "" for place in range(1, len(parts) + 1)]
            clauses = zip(parts, places, strict=True)
            wrong = [(part, place) for part, place in clauses if is_selected_by(part, driver, wire) is False]
            for part, place in wrong or [(expression, "")]:
                shown = cut(" ".join(part.split()), _MAX_SHOWN)
                yield RejectionReason(code, f"{which}{place}: {shown}", _values_read(part, driver, wire))


class Funnel:
    """Counts of the devices of one request, over any number of nodes."""

    def __init__(self, spec: RequestSpec) -> None:
        self.spec = spec
        self.devices = 0
        self.fitting = 0
        self.nodes_short = 0
        self._groups: dict[tuple[str, str], Group] = {}

    def add(self, node: str, total: int, rejected: "NodeRejections", named: Callable[[str], str]) -> None:
        """Add a node that reaches ``total`` devices. ``named`` inserts names of claims."""
        fitting = total - rejected.devices
        self.devices += total
        self.fitting += fitting
        self.nodes_short += fitting < (self.spec.count if self.spec.count is not None else max(total, 1))
        for key, on_node in rejected.groups.items():
            self._groups.setdefault(key, Group()).add(node, on_node, named)

    def reasons(self) -> list[Reason]:
        """Return the groups in the order of the allocator's checks, larger groups first within one check."""
        ranked = sorted(self._groups.items(), key=lambda item: (_ORDER.index(item[0][0]), -item[1].devices, item[0][1]))
        return [
            Reason(
                code=code,
                message=message,
                devices=group.devices,
                nodes=len(group.nodes),
                seen=_seen(group.seen),
                examples=tuple(group.examples),
            )
            for (code, message), group in ranked
        ]


def _seen(values: Counter[str]) -> tuple[str, ...]:
    most = [f"{value} ({count} devices)" if count > 1 else value for value, count in values.most_common(_MAX_SEEN)]
    return (*most, f"and {len(values) - _MAX_SEEN} more") if len(values) > _MAX_SEEN else tuple(most)
