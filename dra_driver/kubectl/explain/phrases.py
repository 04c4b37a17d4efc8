"""Sentences about one rejected device, for each of the allocator's causes: why, the values found, and the fix."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.model.drain import DRAINED_TAINT
from dra_driver.core.model.terms import DETACHED_TAINT
from dra_driver.core.quantity import Quantity
from dra_driver.core.text import listed
from dra_driver.kubectl.explain.holders import DeviceHolders
from dra_driver.kubectl.explain.requests import RequestSpec
from dra_driver.scheduler.allocation import (
    CapacityShort,
    Cause,
    ConstraintBroken,
    CounterShort,
    DeviceId,
    GateOff,
    InUse,
    NotOnNode,
    NotSelected,
    PoolDevice,
    Tainted,
)

_RESERVED: Final = "gpu.dra-driver.io/reserved"
_DRAINING: Final = "gpu.dra-driver.io/draining"
_OTHER_GPU: Final = "request another GPU"
_PASSING: Final = {
    DRAINED_TAINT: f"wait: a person drains the GPU for maintenance; kubectl dra undrain ends that, or {_OTHER_GPU}",
    DETACHED_TAINT: (
        "wait: the node does not give its GPUs to new claims now; the Node's events DriverDetached and SecondPublisher "
        "and /readyz of its node process say why"
    ),
    "gpu.dra-driver.io/creation-refused": (
        "wait some minutes: the node could not create partitions of the GPU, because another process has it open; the "
        "Node's event PartitionsWithheld names it"
    ),
    "gpu.dra-driver.io/fabric-not-ready": (
        "wait: Fabric Manager has not registered the GPU in the NVLink fabric; see the Node's event FabricNotReady"
    ),
}
"""What to do about taints that the driver sets for a condition of the hardware or a request."""


class RejectionReason(Struct, frozen=True):
    """Why one device was rejected. Devices are grouped by ``code`` and ``message``; ``seen`` differs within a group.

    ``fix`` is what to do, if more is known than the code says; ``instead`` is an alternative to it.
    """

    code: str
    message: str
    seen: str
    fix: str = ""
    instead: str = ""


def rejection_for_cause(cause: Cause, spec: RequestSpec, device: PoolDevice, holders: DeviceHolders) -> RejectionReason:
    """Returns the reason for a cause other than a selector."""
    match cause:
        case InUse():
            if not cause.holders:
                return RejectionReason("takenByThisPod", "assigned to another request of this pod", "")
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
            return RejectionReason("nodeSelection", "the device's node selector excludes this node", "")
        case GateOff():
            return RejectionReason("gateOff", f"needs feature gate {cause.gate}, which is off in the scheduler", "")
        case NotSelected():
            return RejectionReason("requestSelector", cause.expression, "")


def holder_labels(claims: tuple[str, ...] | list[str], holders: DeviceHolders) -> str:
    """Returns all claims that use the device, with their pods."""
    return " and ".join(holders.label_with_pods(claim) for claim in dict.fromkeys(claims))


# --- taints ---


def _taint(cause: Tainted, users: list[str]) -> RejectionReason:
    value = f"={cause.value}" if cause.value else ""
    message = f"taint {cause.key}{value}:{cause.effect}, not tolerated by the request"
    fix = _PASSING.get(cause.key, "")
    if cause.key == _RESERVED:
        toleration = f"{{key: {cause.key}, operator: Equal, value: {cause.value}, effect: {cause.effect}}}"
        fix = (
            f"GpuPolicy {cause.value} reserves it for claims with tolerations: [{toleration}]; add it, or {_OTHER_GPU}"
        )
    elif cause.key == _DRAINING:
        policy = f"GpuPolicy {cause.value}" if cause.value else "its policy"
        fix = f"wait: {policy} reconfigures the GPU as soon as the claims that use it now have ended"
        fix += f": {listed(users)}" if users else ""
    return RejectionReason("tainted", message, "", fix)


# --- capacity ---


def _capacity(cause: CapacityShort, spec: RequestSpec, device: PoolDevice, holders: DeviceHolders) -> RejectionReason:
    name, is_requested = cause.capacity, cause.capacity in spec.capacity
    own = (device.wire.get("capacity") or {}).get(name) or {}
    shared = bool(device.wire.get("allowMultipleAllocations"))
    if cause.why == "undefined":
        return _undefined(cause, shared=shared)
    if cause.why == "policy":
        return _policy_refusal(cause, own)
    by_default = "" if is_requested else " (the default of a request that does not name it)"
    message = f"not enough {name}: {cause.wanted} requested{by_default}"
    if not (device.shared or device.consumed):
        return RejectionReason(
            "capacityShort", message, f"{device.name} has {own.get('value', cause.free)}", "request less"
        )
    claims = list(dict.fromkeys(holders.claims(device.id)))
    users = [holders.label_with_pods(claim) for claim in claims]
    amounts = [
        f"{holders.label_with_pods(claim)} has {holders.consumed(device.id, claim, name) or '?'}" for claim in claims
    ]
    by = f": {listed(amounts)}" if users else ""
    end = (
        f"end the workload that uses it: {listed(users)}"
        if users
        else "end workloads that use other shares of the device"
    )
    seen = f"{device.name} has {cause.free} of {own.get('value', '?')} free{by}"
    if _is_zero(cause.free):
        return RejectionReason("capacityShort", message, seen, end)
    less = (
        f"request at most {cause.free} of {name}"
        if is_requested
        else f"request capacity.requests.{name}: {cause.free} or less"
    )
    return RejectionReason("capacityShort", message, seen, less, end)


def _undefined(cause: CapacityShort, *, shared: bool) -> RejectionReason:
    message = f"has no capacity {cause.capacity}, but {cause.wanted} are requested"
    if shared:
        return RejectionReason("capacityShort", message, "", f"remove capacity.requests.{cause.capacity}")
    fix = (
        f"remove capacity.requests.{cause.capacity} to get an exclusive device, or ask the administrator to share GPUs "
        "with a GpuPolicy"
    )
    return RejectionReason("capacityShort", f"{message}: the device is not shared", "", fix)


def _policy_refusal(cause: CapacityShort, own: Mapping[str, Any]) -> RejectionReason:
    policy = own.get("requestPolicy") or {}
    span = policy.get("validRange") or {}
    allowed = ", ".join(
        [
            f"{bound_name} {span[key]}"
            for key, bound_name in (("min", "at least"), ("max", "at most"), ("step", "in steps of"))
            if key in span
        ]
    ) or (f"one of {listed([str(item) for item in policy.get('validValues') or ()])}")
    message = f"its request policy does not allow {cause.wanted} of {cause.capacity}"
    return RejectionReason("capacityShort", message, allowed, f"request {allowed}")


def _is_zero(amount: str) -> bool:
    try:
        return Quantity.parse(amount).nano <= 0
    except ValueError:
        return False


# --- counters ---


def _counter(cause: CounterShort, spec: RequestSpec, device: PoolDevice, holders: DeviceHolders) -> RejectionReason:
    if not cause.own:
        seen = f"{cause.counter_set}/{cause.counter}: {cause.free}"
        return RejectionReason("counterShort", "blocked: the shared counters of its pool are overcommitted", seen)
    message = "shared counters of its GPU are used up"
    allocated = consumers(device, cause, holders)
    claims = [
        holders.label_with_pods(claim) for claim in dict.fromkeys(claim for _, claims in allocated for claim in claims)
    ]
    by = f", used by {_label_users(allocated, holders)}" if allocated else ""
    short = short_by(cause.wanted, cause.free)
    seen = f"{cause.counter_set}: {cause.counter} short by {short} ({cause.wanted} needed, {cause.free} left){by}"
    users = "the workload that uses"
    if len(claims) > 1:
        users = "all workloads that use" if _needs_everything(cause, device) else "workloads that use"
    fix = f"end {users} the GPU: {listed(claims)}" if claims else "request less in one pod, or another GPU"
    if spec.admin_access:
        message += ", and the scheduler charges them for admin access, too"
        fix += "; on nodes monitored through claims, disable MIG profiles (GpuPolicy, forms: {migProfiles: []})"
    return RejectionReason("counterShort", message, seen, fix)


def _label_users(allocated: list[tuple[str, list[str]]], holders: DeviceHolders) -> str:
    """Lists the first claims, each with its devices."""
    by_claim: dict[str, list[str]] = {}
    for device, claims in allocated:
        by_claim.setdefault(holders.label_with_pods(claims[0]) if claims else "", []).append(device)
    names = [
        f"{devices[0] if len(devices) == 1 else f'{len(devices)} devices'}{f' of {claim}' if claim else ''}"
        for claim, devices in by_claim.items()
    ]
    return listed(names, 2)


def _needs_everything(cause: CounterShort, device: PoolDevice) -> bool:
    """Whether the device consumes the whole counter, so that every user of it has to end."""
    most = max((_consumed(wire, cause) for wire in device.slice.spec.get("devices") or ()), default=0)
    try:
        return Quantity.parse(cause.wanted).nano >= max(most, Quantity.parse(cause.free).nano)
    except ValueError:
        return False


def consumers(device: PoolDevice, cause: CounterShort, holders: DeviceHolders) -> list[tuple[str, list[str]]]:
    """Returns the allocated devices of the same pool that consume the counter, each with its claims.

    Only the device's own slice is searched: a GPU's devices are published in one slice.
    """
    driver, pool = device.slice.key
    allocated = set(holders.allocated_in(driver, pool))
    return [
        (str(wire["name"]), holders.claims(DeviceId(driver, pool, wire["name"])))
        for wire in (device.slice.spec.get("devices") or () if allocated else ())
        if wire["name"] in allocated and _consumed(wire, cause) > 0
    ]


def _consumed(wire: Mapping[str, Any], cause: CounterShort) -> int:
    """Returns billionths; 0 when the value cannot be parsed (reported elsewhere)."""
    entries = [entry for entry in wire.get("consumesCounters") or () if entry.get("counterSet") == cause.counter_set]
    values = [(entry.get("counters") or {}).get(cause.counter) for entry in entries]
    try:
        return sum(Quantity.parse(value["value"]).nano for value in values if value)
    except (ValueError, KeyError, TypeError):
        return 0


def short_by(wanted: str, free: str) -> str:
    """Returns the missing amount."""
    try:
        return str(Quantity.parse(wanted) - Quantity.parse(free))
    except ValueError:
        return wanted


# --- constraints ---


def _constraint(cause: ConstraintBroken) -> tuple[str, str]:
    if cause.seen is None:
        return (
            f"constraint {cause.index + 1}, {cause.kind} {cause.attribute}: the device does not have the attribute",
            "",
        )
    others = "the chosen device has" if cause.kind == "matchAttribute" else "already used:"
    message = (
        f"constraint {cause.index + 1}, {cause.kind} {cause.attribute}: not satisfied with the devices chosen before"
    )
    return message, f"{cause.seen}, while {others} {', '.join(cause.others[:2])}"
