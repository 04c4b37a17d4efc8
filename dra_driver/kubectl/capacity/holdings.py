"""List every published device with the claims that use it, and every claim with its devices.

Only the newest generation of a pool counts (resource/v1 ``ResourcePool.generation``). Admin access is listed and
marked, but does not reserve devices.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.document import JsonDocument, camel
from dra_driver.core.quantity import NANO, quantity_in
from dra_driver.core.text import gib
from dra_driver.core.time import parse_time
from dra_driver.kube.devices import (
    HeldClaim,
    HeldResult,
    Wire,
    attribute_shown,
    held_claim,
    newest_slices,
    pool_of,
    unhealthy_by,
)
from dra_driver.kube.published import names
from dra_driver.kube.shapes import problem_of
from dra_driver.kube.state import ClusterState
from dra_driver.scheduler.allocation import amount, guarded, nano

# --- States of devices by allocations and counters.
#
# A GPU that is published whole, in partitions and shared is one piece of hardware: a device without an allocation is
# blocked while others use its counters (KEP-4815). Selectors, taints and nodes are ignored.

DeviceKey = tuple[str, str, str]
Counters = dict[tuple[str, str, str, str], int]
"""(driver, pool, counter set, counter) -> billionths."""

FREE: Final = "free"
IN_USE: Final = "in use"
SHARED: Final = "in shares"
BLOCKED: Final = "blocked"
UNKNOWN: Final = ""
MEMORY_KEY: Final = "memoryBytes"
Amounts = Mapping[str, int | float]
"""Amounts of capacities by name; that of memory is `MEMORY_KEY`, in bytes."""


def counters_left(slices: Iterable[Wire], allocated: Collection[DeviceKey]) -> Counters:
    """Return the rest of every counter. ``slices`` must be of the newest generations."""
    every = [item["spec"] for item in slices]
    left: Counters = {}
    for spec in every:
        for entry in spec.get("sharedCounters") or ():
            for name, counter in (entry.get("counters") or {}).items():
                left[spec["driver"], spec["pool"]["name"], entry["name"], name] = nano(counter["value"])
    for spec in every:
        pool = spec["driver"], spec["pool"]["name"]
        for device in spec.get("devices") or ():
            if (*pool, device["name"]) in allocated:
                for key, value in _counters_of(device, *pool):
                    left[key] = left.get(key, 0) - value
    return left


def state_of(device: Wire, pool: tuple[str, str], left: Counters, *, allocated: bool, in_shares: bool) -> str:
    """Return ``free``, ``in use``, ``in shares`` (the rest is available) or ``blocked`` (its counters are used up)."""
    if allocated:
        return SHARED if in_shares else IN_USE
    return BLOCKED if any(left.get(key, 0) < value for key, value in _counters_of(device, *pool)) else FREE


def remaining_capacity(device: Wire, consumed: Iterable[Amounts]) -> Amounts:
    """Return the rest of each capacity of a device that allows several allocations."""
    shares = list(consumed)
    found = {}
    for name, capacity in (device.get("capacity") or {}).items():
        key, total = amount_key(name), amount(capacity["value"]).quantity.nano
        found[key] = _number(max(0, total - sum(round(share[key] * NANO) for share in shares if key in share)))
    return found


def amounts_of(capacity: Mapping[str, object]) -> Amounts:
    """Return the amounts of Kubernetes' quantities, without invalid ones."""
    every = ((name, quantity_in(value)) for name, value in capacity.items())
    return {amount_key(name): _number(found.nano) for name, found in every if found is not None}


def amount_key(name: str) -> str:
    """Return the key of a capacity's amount, with the unit: ``memoryBytes`` for ``memory``."""
    return MEMORY_KEY if name == names.MEMORY else name


def _number(value_nano: int) -> int | float:
    return value_nano / NANO if value_nano % NANO else value_nano // NANO


def _counters_of(device: Wire, driver: str, pool: str) -> Iterable[tuple[tuple[str, str, str, str], int]]:
    for entry in device.get("consumesCounters") or ():
        for name, counter in (entry.get("counters") or {}).items():
            yield (driver, pool, entry["counterSet"], name), nano(counter["value"])


ALLOCATED: Final = "allocated"
PENDING: Final = "pending"
DELETING: Final = "deleting"


class Holder(Struct, frozen=True, kw_only=True, rename=camel):
    """A claim that has a device, or a share that consumes ``consumed``.

    ``pods`` are the pods for which it is reserved (other users as ``resource/name``).
    """

    namespace: str
    claim: str
    pods: Sequence[str]
    share: bool = False
    admin_access: bool = False
    consumed: Amounts


class DeviceRow(Struct, frozen=True, kw_only=True, rename=camel):
    """One device, which may be allocated and no longer ``published``. ``node`` is "" if it is not bound to one.

    ``holders`` is None when claims could not be read. Several claims can use a ``shared`` device; ``left`` is the rest
    of its capacities. ``sharing`` is the strategy and ``parent`` the UUID of the GPU, if published.
    """

    node: str
    driver: str
    pool: str
    device: str
    type: str = ""
    product: str = ""
    profile: str = ""
    memory_bytes: int | None = None
    taints: Sequence[str] = ()
    published: bool = False
    holders: Sequence[Holder] | None
    state: str = UNKNOWN
    shared: bool = False
    sharing: str = ""
    parent: str = ""
    left: Amounts = field(default_factory=dict)


class ClaimDevice(Struct, frozen=True, kw_only=True, rename=camel):
    """A device of a claim; ``unhealthy`` are its health taints. ``published`` is None without slices."""

    request: str
    driver: str
    pool: str
    device: str
    node: str
    share_id: str = ""
    consumed: Amounts = field(default_factory=dict)
    admin_access: bool = False
    unhealthy: Sequence[str] = ()
    published: bool | None = None


class RequestedDevices(Struct, frozen=True, kw_only=True, rename=camel):
    """Devices of one class; ``count`` is None for all of them."""

    device_class: str
    count: int | None = 1
    capacity: Amounts = field(default_factory=dict)

    def __str__(self) -> str:
        """``2 x gpu.nvidia.com (memory 10.0 GiB)``."""
        amounts = amounts_text(self.capacity)
        count = "all" if self.count is None else f"{self.count} x"
        return f"{count} {self.device_class}{f' ({amounts})' if amounts else ''}"


class ClaimRequest(Struct, frozen=True, kw_only=True, rename=camel):
    """One request: the first of ``alternatives`` that can be allocated."""

    request: str
    alternatives: Sequence[RequestedDevices]

    def __str__(self) -> str:
        """``gpu: 1 x gpu.nvidia.com or 2 x mig.nvidia.com``."""
        return f"{self.request}: {' or '.join(map(str, self.alternatives)) or '?'}"


class ClaimRow(Struct, frozen=True, kw_only=True, rename=camel):
    """One claim, ``pending``, ``allocated`` or ``deleting``. ``age_s`` is None when the creation time is unknown."""

    namespace: str
    name: str = field(name="claim")
    state: str
    nodes: Sequence[str]
    requests: Sequence[ClaimRequest]
    devices: Sequence[ClaimDevice]
    pods: Sequence[str]
    created: str = field(name="createdAt")
    age_s: int | None


class ClaimList(JsonDocument, frozen=True, kw_only=True):
    gaps: Sequence[str] = ()
    items: Sequence[ClaimRow]


class DeviceList(JsonDocument, frozen=True, kw_only=True):
    gaps: Sequence[str] = ()
    items: Sequence[DeviceRow]


def amounts_text(amounts: Amounts) -> str:
    """Return ``memory 50.0 GiB, computePercent 70``, memory first."""
    names = sorted(amounts, key=lambda name: (name != MEMORY_KEY, name))
    return ", ".join(
        f"memory {gib(amounts[name])}" if name == MEMORY_KEY else f"{name} {amounts[name]}" for name in names
    )


class _Capacity(Struct, frozen=True, kw_only=True):
    requests: dict[str, object] = {}


class _Way(Struct, frozen=True, kw_only=True, rename="camel"):
    device_class_name: object = "?"
    allocation_mode: object = ""
    count: object = 1
    capacity: _Capacity = _Capacity()


class _Request(Struct, frozen=True, kw_only=True, rename="camel"):
    name: object = "?"
    exactly: _Way = _Way()
    first_available: tuple[_Way, ...] = ()


class _Requests(Struct, frozen=True, kw_only=True):
    requests: tuple[_Request, ...] = ()


class _ClaimSpec(Struct, frozen=True, kw_only=True):
    devices: _Requests = _Requests()


class _ListedClaim(HeldClaim, frozen=True, kw_only=True):
    spec: _ClaimSpec = _ClaimSpec()


def with_claim_gaps(state: ClusterState) -> ClusterState:
    """Return the state with a gap for each claim of which a part is not shown. Raises like `devices_of`."""
    gaps = guarded(lambda: [*filter(None, map(_gap, state.claims))], {"claims": state.claims})
    return replace(state, gaps=(*state.gaps, *gaps)) if gaps else state


def _gap(item: Wire) -> str:
    claim, known = held_claim(_ListedClaim, item)
    problem = problem_of(_ListedClaim, item) or ("" if known else "a device of its allocation has no name")
    # The resource prefix marks other devices as possibly in use.
    return problem and f"{'claim' if known else 'resourceclaims:'} {_namespace(claim)}/{claim.metadata.name}: {problem}"


def devices_of(state: ClusterState, *, node: str = "", driver: str = "", namespace: str = "") -> list[DeviceRow]:
    """Return devices by node, driver and slice order. ``namespace`` selects those used by its claims.

    Raises AllocationError for objects that no API server returns.
    """
    rows = guarded(lambda: _devices(state), {"slices": state.slices, "claims": state.claims})
    return [
        row
        for row in rows
        if node in ("", row.node)
        and driver in ("", row.driver)
        and (not namespace or any(holder.namespace == namespace for holder in row.holders or ()))
    ]


def claims_of(state: ClusterState, now: datetime, *, node: str = "", namespace: str = "") -> list[ClaimRow]:
    """Return claims by namespace and name. ``node`` selects those with devices there. Raises like `devices_of`."""
    rows = guarded(lambda: _claims(state, now), {"slices": state.slices, "claims": state.claims})
    found = [row for row in rows if namespace in ("", row.namespace) and (not node or node in row.nodes)]
    return sorted(found, key=lambda row: (row.namespace, row.name))


def _devices(state: ClusterState) -> list[DeviceRow]:
    unknown = not state.claims and any(gap.startswith("resourceclaims:") for gap in state.gaps)
    by_device: dict[DeviceKey, list[Holder]] = {}
    nodes: dict[DeviceKey, str] = {}
    unheld: Sequence[Holder] | None = ()  # None: a claim may have any device
    for item in state.claims:
        claim, known = held_claim(HeldClaim, item)
        unheld, node = unheld if known else None, _node_of(claim)
        for result, holder in _holders(claim):
            nodes[result.key] = node
            holders = by_device.setdefault(result.key, [])
            if holder not in holders or holder.share:
                holders.append(holder)
    slices = newest_slices(state.slices)
    slices.sort(key=lambda item: (item["spec"].get("nodeName") or "", item["spec"]["driver"], item["metadata"]["name"]))
    taken = {key for key, holders in by_device.items() if any(not holder.admin_access for holder in holders)}
    left = counters_left(slices, taken)
    unheld = None if unknown else unheld
    rows = [row for item in slices for row in _of_slice(item["spec"], by_device, left, unheld)]
    published = {(row.driver, row.pool, row.device) for row in rows}
    rows += [
        DeviceRow(node=nodes[key], driver=key[0], pool=key[1], device=key[2], holders=holders, state=IN_USE)
        for key, holders in sorted(by_device.items())
        if key not in published
    ]
    return rows


def _of_slice(
    spec: Wire, by_device: Mapping[DeviceKey, Sequence[Holder]], left: Counters, unheld: Sequence[Holder] | None
) -> Iterator[DeviceRow]:
    driver, pool = spec["driver"], spec["pool"]["name"]
    for device in spec.get("devices") or ():
        memory = ((device.get("capacity") or {}).get(names.MEMORY) or {}).get("value")
        holders = by_device.get((driver, pool, device["name"]), unheld)
        mine = [holder for holder in holders or () if not holder.admin_access]
        in_shares, shared = any(holder.share for holder in mine), bool(device.get("allowMultipleAllocations"))
        text = partial(attribute_shown, device.get("attributes"), driver)
        rest: Amounts = {}
        state = UNKNOWN
        if holders is not None:
            state = state_of(device, (driver, pool), left, allocated=bool(mine), in_shares=in_shares)
            rest = remaining_capacity(device, [holder.consumed for holder in mine]) if shared else {}
        yield DeviceRow(
            node=device.get("nodeName") or spec.get("nodeName") or "",
            driver=driver,
            pool=pool,
            device=device["name"],
            type=text(names.TYPE),
            product=text(names.PRODUCT_NAME),
            profile=text(names.PROFILE),
            memory_bytes=None if memory is None else amount(memory).quantity.as_int(),
            taints=tuple(f"{taint.get('key')}:{taint.get('effect')}" for taint in device.get("taints") or ()),
            published=True,
            holders=holders,
            state=state,
            shared=shared,
            sharing=text(names.SHARING_STRATEGY),
            parent=text(names.PARENT_UUID),
            left=rest,
        )


_NOWHERE: Final[tuple[str, Sequence[str]]] = ("", ())


def _claims(state: ClusterState, now: datetime) -> list[ClaimRow]:
    claims = [held_claim(_ListedClaim, item)[0] for item in state.claims]
    held = {result.key for claim in claims for result in claim.devices}
    places = {
        key: (device.get("nodeName") or item["spec"].get("nodeName") or "", unhealthy_by(device))
        for item in newest_slices(state.slices)
        for device in item["spec"].get("devices") or ()
        if (key := (*pool_of(item), device["name"])) in held
    }
    return [_claim(claim, places, now, known=bool(state.slices)) for claim in claims]


def _claim(
    claim: _ListedClaim, places: Mapping[DeviceKey, tuple[str, Sequence[str]]], now: datetime, *, known: bool
) -> ClaimRow:
    metadata, elsewhere = claim.metadata, _node_of(claim)
    devices = [
        ClaimDevice(
            request=str(result.request or ""),
            driver=result.driver,
            pool=result.pool,
            device=result.device,
            node=places.get(result.key, _NOWHERE)[0] or elsewhere,
            share_id=str(result.share_id or ""),
            consumed=holder.consumed,
            admin_access=holder.admin_access,
            unhealthy=places.get(result.key, _NOWHERE)[1],
            published=result.key in places if known else None,
        )
        for result, holder in _holders(claim)
    ]
    allocated = claim.status.allocation is not None
    nodes = {device.node for device in devices} | ({elsewhere} if allocated and not devices else set())
    created = str(metadata.creation_timestamp or "")
    moment = parse_time(created)
    return ClaimRow(
        namespace=_namespace(claim),
        name=str(metadata.name),
        state=DELETING if metadata.deletion_timestamp else ALLOCATED if allocated else PENDING,
        nodes=tuple(sorted(nodes - {""})),
        requests=tuple(_asked(request) for request in claim.spec.devices.requests),
        devices=tuple(devices),
        pods=claim.users,
        created=created,
        age_s=None if moment is None else max(0, int((now - moment).total_seconds())),
    )


def _holders(claim: HeldClaim) -> list[tuple[HeldResult, Holder]]:
    users = claim.users
    return [
        (
            result,
            Holder(
                namespace=_namespace(claim),
                claim=str(claim.metadata.name),
                pods=users,
                share=bool(result.share_id),
                admin_access=bool(result.admin_access),
                consumed=amounts_of(result.consumed_capacity),
            ),
        )
        for result in claim.devices
    ]


def _node_of(claim: HeldClaim) -> str:
    """Return the node of the claim's allocation; "" if several nodes can use it."""
    allocation = claim.status.allocation
    for term in allocation.node_selector.node_selector_terms if allocation else ():
        for item in term.match_fields:
            if item.key == "metadata.name" and len(item.values) == 1:
                return item.values[0]
    return ""


def _asked(request: _Request) -> ClaimRequest:
    ways = request.first_available or ([request.exactly] if request.exactly != _Way() else ())
    return ClaimRequest(
        request=str(request.name),
        alternatives=tuple(
            RequestedDevices(
                device_class=str(way.device_class_name),
                count=None if way.allocation_mode == "All" else way.count if isinstance(way.count, int) else 1,
                capacity=amounts_of(way.capacity.requests),
            )
            for way in ways
        ),
    )


def _namespace(claim: HeldClaim) -> str:
    return str(claim.metadata.namespace or "default")
