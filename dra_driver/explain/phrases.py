"""The words for one device that fell away: why, what was seen, and what would change it.

Owns sentences and fixes for each of the allocator's causes. Refuses to know how devices are grouped and counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.allocation.devices import PoolDevice
from dra_driver.allocation.events import (
    CapacityShort,
    Cause,
    ConstraintBroken,
    CounterShort,
    DeviceId,
    GateOff,
    InUse,
    NotOnNode,
    NotSelected,
    Tainted,
)
from dra_driver.explain.holders import Holders
from dra_driver.explain.objects import listed
from dra_driver.explain.requests import RequestSpec
from dra_driver.quantity import Quantity

_RESERVED: Final = "gpu.dra-driver.io/reserved"
_DRAINING: Final = "gpu.dra-driver.io/draining"
_OTHER_GPU: Final = "ask for another GPU"


@dataclass(frozen=True, slots=True)
class RejectionReason:
    """Why one device fell away: ``code`` and ``message`` make the group, ``seen`` is what differs within it, ``fix``
    what would help where that is known better than by the code alone, ``instead`` what would help in its place."""

    code: str
    message: str
    seen: str
    fix: str = ""
    instead: str = ""


def rejection_for_cause(cause: Cause, spec: RequestSpec, device: PoolDevice, holders: Holders) -> RejectionReason:
    """The finding for a cause that is not a selector's."""
    match cause:
        case InUse():
            if not cause.holders:
                return RejectionReason("takenByThisPod", "taken by another request of this pod", "")
            label_with_pods = holder_labels(cause.holders, holders)
            return RejectionReason("inUse", "in use", label_with_pods)
        case Tainted():
            return _taint(cause, [holders.label_with_pods(claim) for claim in holders.claims(device.id)])
        case CapacityShort():
            return _capacity(cause, spec, device, holders)
        case CounterShort():
            return _counter(cause, spec, device, holders)
        case ConstraintBroken():
            return RejectionReason("constraint", *_constraint(cause))
        case NotOnNode():
            return RejectionReason("nodeSelection", "the device's own node selection leaves the node out", "")
        case GateOff():
            return RejectionReason("gateOff", f"needs the feature gate {cause.gate}, which is off in the scheduler", "")
        case NotSelected():
            return RejectionReason("requestSelector", cause.expression, "")


def holder_labels(claims: tuple[str, ...] | list[str], holders: Holders) -> str:
    """All of them; who holds a device is never too much to know."""
    return " and ".join(holders.label_with_pods(claim) for claim in dict.fromkeys(claims))


# --- taints ---


def _taint(cause: Tainted, users: list[str]) -> RejectionReason:
    value = f"={cause.value}" if cause.value else ""
    message = f"taint {cause.key}{value}:{cause.effect} that the request does not tolerate"
    fix = ""
    if cause.key == _RESERVED:
        toleration = f"{{key: {cause.key}, operator: Equal, value: {cause.value}, effect: {cause.effect}}}"
        fix = f"GpuPolicy {cause.value} keeps it for claims with tolerations: [{toleration}]; add that, or {_OTHER_GPU}"
    elif cause.key == _DRAINING:
        policy = f"GpuPolicy {cause.value}" if cause.value else "its policy"
        fix = f"wait: {policy} makes something else of the GPU, as soon as the claims that have it now have ended"
        fix += f": {listed(users)}" if users else ""
    return RejectionReason("tainted", message, "", fix)


# --- capacity ---


def _capacity(cause: CapacityShort, spec: RequestSpec, device: PoolDevice, holders: Holders) -> RejectionReason:
    name, asked = cause.capacity, cause.capacity in spec.capacity
    own = (device.wire.get("capacity") or {}).get(name) or {}
    shared = bool(device.wire.get("allowMultipleAllocations"))
    if cause.why == "undefined":
        return _undefined(cause, shared=shared)
    if cause.why == "policy":
        return _policy_refusal(cause, own)
    by_default = "" if asked else ", which is what a request takes that does not name it"
    message = f"not enough {name}: {cause.wanted} wanted{by_default}"
    if not (device.shared or device.consumed):
        return RejectionReason(
            "capacityShort", message, f"{device.name} has {own.get('value', cause.free)}", "ask for less"
        )
    claims = list(dict.fromkeys(holders.claims(device.id)))
    users = [holders.label_with_pods(claim) for claim in claims]
    amounts = [
        f"{holders.label_with_pods(claim)} has {holders.consumed(device.id, claim, name) or '?'}" for claim in claims
    ]
    by = f": {listed(amounts)}" if users else ""
    end = f"end what uses it: {listed(users)}" if users else "end other shares of the device"
    seen = f"{device.name} has {cause.free} of {own.get('value', '?')} free{by}"
    if _is_zero(cause.free):
        return RejectionReason("capacityShort", message, seen, end)
    less = (
        f"ask for {cause.free} of {name} or less"
        if asked
        else f"ask for capacity.requests.{name}: {cause.free} or less"
    )
    return RejectionReason("capacityShort", message, seen, less, end)


def _undefined(cause: CapacityShort, *, shared: bool) -> RejectionReason:
    message = f"has no capacity {cause.capacity}, of which the request wants {cause.wanted}"
    if shared:
        return RejectionReason("capacityShort", message, "", f"leave capacity.requests.{cause.capacity} out")
    fix = (
        f"leave capacity.requests.{cause.capacity} out to have a device alone, or ask whoever runs the node to share "
        "its GPUs by a GpuPolicy"
    )
    return RejectionReason("capacityShort", f"{message}: it is not shared", "", fix)


def _policy_refusal(cause: CapacityShort, own: Mapping[str, Any]) -> RejectionReason:
    policy = own.get("requestPolicy") or {}
    span = policy.get("validRange") or {}
    allowed = ", ".join(
        [
            f"{word} {span[key]}"
            for key, word in (("min", "at least"), ("max", "at most"), ("step", "in steps of"))
            if key in span
        ]
    ) or (f"one of {listed([str(item) for item in policy.get('validValues') or ()])}")
    message = f"its request policy does not give out {cause.wanted} of {cause.capacity}"
    return RejectionReason("capacityShort", message, allowed, f"ask for {allowed}")


def _is_zero(amount: str) -> bool:
    try:
        return Quantity.parse(amount).nano <= 0
    except ValueError:
        return False


# --- counters ---


def _counter(cause: CounterShort, spec: RequestSpec, device: PoolDevice, holders: Holders) -> RejectionReason:
    if not cause.own:
        seen = f"{cause.counter_set}/{cause.counter}: {cause.free}"
        return RejectionReason("counterShort", "blocked: shared counters of its pool are overdrawn", seen)
    message = "shared counters of its GPU are used up"
    held = consumers(device, cause, holders)
    claims = [
        holders.label_with_pods(claim) for claim in dict.fromkeys(claim for _, claims in held for claim in claims)
    ]
    by = f", used by {_parts(held, holders)}" if held else ""
    short = short_by(cause.wanted, cause.free)
    seen = f"{cause.counter_set}: {cause.counter} short by {short} ({cause.wanted} needed, {cause.free} left){by}"
    every = "all of " if len(claims) > 1 and _needs_everything(cause, device) else ""
    fix = f"end {every}what uses the GPU: {listed(claims)}" if claims else "ask for less in one pod, or for another GPU"
    if spec.admin_access:
        message += ", and the scheduler counts them for admin access as well"
        fix += "; on nodes that are watched through claims allow no MIG profiles (GpuPolicy, forms: {migProfiles: []})"
    return RejectionReason("counterShort", message, seen, fix)


def _parts(held: list[tuple[str, list[str]]], holders: Holders) -> str:
    """Each claim with its devices, a few of them."""
    by_claim: dict[str, list[str]] = {}
    for device, claims in held:
        by_claim.setdefault(holders.label_with_pods(claims[0]) if claims else "", []).append(device)
    names = [
        f"{devices[0] if len(devices) == 1 else f'{len(devices)} devices'}{f' of {claim}' if claim else ''}"
        for claim, devices in by_claim.items()
    ]
    return listed(names, 2)


def _needs_everything(cause: CounterShort, device: PoolDevice) -> bool:
    """Whether the device consumes all that there is of the counter: then everybody has to end."""
    most = max((_consumed(wire, cause) for wire in device.slice.spec.get("devices") or ()), default=0)
    try:
        return Quantity.parse(cause.wanted).nano >= max(most, Quantity.parse(cause.free).nano)
    except ValueError:
        return False


def consumers(device: PoolDevice, cause: CounterShort, holders: Holders) -> list[tuple[str, list[str]]]:
    """Held devices of the same pool that consume the counter, each with the claims that hold it.

    Only the device's own slice is searched: a GPU's devices are published together.
    """
    driver, pool = device.slice.key
    held = set(holders.allocated_in(driver, pool))
    return [
        (str(wire["name"]), holders.claims(DeviceId(driver, pool, wire["name"])))
        for wire in (device.slice.spec.get("devices") or () if held else ())
        if wire["name"] in held and _consumed(wire, cause) > 0
    ]


def _consumed(wire: Mapping[str, Any], cause: CounterShort) -> int:
    """Billionths; 0 where it cannot be told, which is said of the device elsewhere."""
    entries = [entry for entry in wire.get("consumesCounters") or () if entry.get("counterSet") == cause.counter_set]
    values = [(entry.get("counters") or {}).get(cause.counter) for entry in entries]
    try:
        return sum(Quantity.parse(value["value"]).nano for value in values if value)
    except (ValueError, KeyError, TypeError):
        return 0


def short_by(wanted: str, free: str) -> str:
    """What is missing."""
    try:
        return str(Quantity.parse(wanted) - Quantity.parse(free))
    except ValueError:
        return wanted


# --- constraints ---


def _constraint(cause: ConstraintBroken) -> tuple[str, str]:
    if cause.seen is None:
        return f"constraint {cause.index + 1}, {cause.kind} {cause.attribute}: the device lacks the attribute", ""
    words = "the chosen device has" if cause.kind == "matchAttribute" else "already taken:"
    message = (
        f"constraint {cause.index + 1}, {cause.kind} {cause.attribute}: does not go with the devices chosen before"
    )
    return message, f"{cause.seen}, while {words} {', '.join(cause.others[:2])}"
