"""Lists every published device with the claims that use it, and every claim with its devices.

The rows of `kubectl dra devices` and `kubectl dra claims`. Only the newest generation of a pool counts (resource/v1
``ResourcePool.generation``). Admin access is listed and marked, but it reserves nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, field

from dra_driver.core.quantity import Quantity
from dra_driver.core.time import parse_time
from dra_driver.kube.devices import newest_slices, pool_of, results_of, users_of
from dra_driver.kube.published import names
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.capacity.units import attribute
from dra_driver.scheduler.allocation import amount, guarded, nano

# --- Computes the state of published devices from allocations and from the counters that they consume.
#
# A GPU that is published whole, in partitions and shared is one piece of hardware: a device without an allocation may
# still be blocked, because others have used its counters (KEP-4815). Selectors, taints and nodes are ignored here;
# `kubectl dra explain` and `kubectl dra capacity` take them into account.

Wire = Mapping[str, Any]
DeviceKey = tuple[str, str, str]
Counters = dict[tuple[str, str, str, str], int]
"""(driver, pool, counter set, counter) -> billionths."""

FREE: Final = "free"
IN_USE: Final = "in use"
SHARED: Final = "in shares"
BLOCKED: Final = "blocked"
UNKNOWN: Final = ""


def counters_left(slices: Iterable[Wire], allocated: Collection[DeviceKey]) -> Counters:
    """Returns what allocated devices leave of every counter. ``slices`` must be those of the newest generations."""
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
    """Returns ``free``, ``in use``, ``in shares`` (the rest is available) or ``blocked`` (its counters are used up)."""
    if allocated:
        return SHARED if in_shares else IN_USE
    return BLOCKED if any(left.get(key, 0) < value for key, value in _counters_of(device, *pool)) else FREE


def remaining_capacity(device: Wire, consumed: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Returns what shares leave of each capacity of a device that allows several allocations."""
    shares = list(consumed)
    found = {}
    for name, capacity in (device.get("capacity") or {}).items():
        total = amount(capacity["value"]).quantity
        gone = sum(nano(share[name]) for share in shares if name in share)
        found[name] = str(Quantity(max(0, total.nano - gone), total.format))
    return found


def _counters_of(device: Wire, driver: str, pool: str) -> Iterable[tuple[tuple[str, str, str, str], int]]:
    for entry in device.get("consumesCounters") or ():
        for name, counter in (entry.get("counters") or {}).items():
            yield (driver, pool, entry["counterSet"], name), nano(counter["value"])


ALLOCATED: Final = "allocated"
PENDING: Final = "pending"
DELETING: Final = "deleting"


class Holder(Struct, frozen=True, kw_only=True, rename="camel"):
    """A claim that has a device or a share of it.

    ``pods`` are the pods for which it is reserved (other users as ``resource/name``); ``consumed`` is what a share
    consumes.
    """

    namespace: str
    claim: str
    pods: Sequence[str]
    share: bool = False
    admin_access: bool = False
    consumed: Mapping[str, str]


class DeviceRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """One device. ``node`` is "" when the device is not bound to a node.

    ``published`` is False for an allocated device that no slice contains any more. ``holders`` is None when claims
    could not be read. ``state`` is one of ``states.py``, "" when unknown. Several claims can use a ``shared`` device;
    ``left`` is the rest of its capacities. ``sharing`` is the sharing strategy and ``parent`` the UUID of the GPU that
    contains it, if the driver publishes them.
    """

    node: str
    driver: str
    pool: str
    device: str
    type: str
    product: str
    profile: str
    memory: str
    taints: Sequence[str]
    published: bool
    holders: Sequence[Holder] | None
    state: str = UNKNOWN
    shared: bool = False
    sharing: str = ""
    parent: str = ""
    left: Mapping[str, str] = field(default_factory=dict)


class ClaimDevice(Struct, frozen=True, kw_only=True, rename="camel"):
    """A device of a claim, and the request that it serves. ``consumed`` is what a share consumes."""

    request: str
    driver: str
    pool: str
    device: str
    node: str
    consumed: Mapping[str, str] = field(default_factory=dict)
    admin_access: bool = False


class ClaimRow(Struct, frozen=True, kw_only=True, rename="camel"):
    """One claim. ``state`` is ``pending``, ``allocated`` or ``deleting``; ``requests`` describe its requests.

    ``age_s`` is None when the creation time is unknown.
    """

    namespace: str
    name: str
    state: str
    nodes: Sequence[str]
    requests: Sequence[str]
    devices: Sequence[ClaimDevice]
    pods: Sequence[str]
    created: str
    age_s: int | None


def devices_of(state: ClusterState, *, node: str = "", driver: str = "", namespace: str = "") -> list[DeviceRow]:
    """Returns devices by node, driver and slice order. ``namespace`` selects those used by its claims.

    Raises AllocationError for objects that no API server returns.
    """
    wires = {"slices": state.slices, "allocated": state.claims}
    rows = guarded(lambda: list(_devices(state)), wires)
    return [
        row
        for row in rows
        if (not node or row.node == node)
        and (not driver or row.driver == driver)
        and (not namespace or any(holder.namespace == namespace for holder in row.holders or ()))
    ]


def claims_of(state: ClusterState, now: datetime, *, node: str = "", namespace: str = "") -> list[ClaimRow]:
    """Returns claims by namespace and name. ``node`` selects those with devices there. Raises like `devices_of`."""
    wires = {"slices": state.slices, "allocated": state.claims}
    rows = guarded(lambda: [_claim(item, places, now) for places in [_places(state)] for item in state.claims], wires)
    found = [row for row in rows if (not namespace or row.namespace == namespace) and (not node or node in row.nodes)]
    return sorted(found, key=lambda row: (row.namespace, row.name))


def _devices(state: ClusterState) -> list[DeviceRow]:
    unknown = not state.claims and any(gap.startswith("resourceclaims:") for gap in state.gaps)
    by_device = _holders(state.claims)
    slices = newest_slices(state.slices)
    slices.sort(key=lambda item: (item["spec"].get("nodeName") or "", item["spec"]["driver"], item["metadata"]["name"]))
    taken = {key for key, holders in by_device.items() if any(not holder.admin_access for holder in holders)}
    left = counters_left(slices, taken)
    rows = [row for item in slices for row in _of_slice(item["spec"], None if unknown else by_device, left)]
    known = {(row.driver, row.pool, row.device) for row in rows}
    nodes = {key: where for item in state.claims for key, where in _selected(item).items()}
    rows += [
        _unpublished_row(key, holders, nodes.get(key, ""))
        for key, holders in sorted(by_device.items())
        if key not in known
    ]
    return rows


def _of_slice(
    spec: Wire, by_device: Mapping[DeviceKey, Sequence[Holder]] | None, left: Counters
) -> Iterator[DeviceRow]:
    driver, pool = spec["driver"], spec["pool"]["name"]
    for device in spec.get("devices") or ():
        memory = ((device.get("capacity") or {}).get(names.MEMORY) or {}).get("value", "")
        holders = None if by_device is None else by_device.get((driver, pool, device["name"]), ())
        mine = [holder for holder in holders or () if not holder.admin_access]
        in_shares, shared = any(holder.share for holder in mine), bool(device.get("allowMultipleAllocations"))
        yield DeviceRow(
            node=device.get("nodeName") or spec.get("nodeName") or "",
            driver=driver,
            pool=pool,
            device=device["name"],
            type=attribute(device, driver, names.TYPE),
            product=attribute(device, driver, names.PRODUCT_NAME),
            profile=attribute(device, driver, names.PROFILE),
            memory=str(memory),
            taints=tuple(f"{taint.get('key')}:{taint.get('effect')}" for taint in device.get("taints") or ()),
            published=True,
            holders=holders,
            state=UNKNOWN
            if holders is None
            else state_of(device, (driver, pool), left, allocated=bool(mine), in_shares=in_shares),
            shared=shared,
            sharing=attribute(device, driver, names.SHARING_STRATEGY),
            parent=attribute(device, driver, names.PARENT_UUID),
            left=remaining_capacity(device, [holder.consumed for holder in mine])
            if shared and holders is not None
            else {},
        )


def _unpublished_row(key: DeviceKey, holders: Sequence[Holder], node: str) -> DeviceRow:
    return DeviceRow(
        node=node, driver=key[0], pool=key[1], device=key[2], type="", product="", profile="", memory="", taints=(),
        published=False, holders=holders, state=IN_USE,
    )  # fmt: skip


def _holders(claims: Iterable[Wire]) -> dict[DeviceKey, list[Holder]]:
    by_device: dict[DeviceKey, list[Holder]] = {}
    for claim in claims:
        namespace, name = _names(claim)
        for result in results_of(claim):
            holder = Holder(
                namespace=namespace,
                claim=name,
                pods=_users(claim),
                share=result.get("shareID") is not None,
                admin_access=bool(result.get("adminAccess")),
                consumed=_consumed(result),
            )
            holders = by_device.setdefault(_key(result), [])
            if holder not in holders or holder.share:
                holders.append(holder)
    return by_device


def _places(state: ClusterState) -> dict[DeviceKey, str]:
    found = {}
    for item in newest_slices(state.slices):
        spec = item["spec"]
        for device in spec.get("devices") or ():
            node = device.get("nodeName") or spec.get("nodeName")
            if node:
                found[(*pool_of(item), device["name"])] = node
    return found


def _claim(claim: Wire, places: Mapping[DeviceKey, str], now: datetime) -> ClaimRow:
    namespace, name = _names(claim)
    metadata = claim.get("metadata") or {}
    elsewhere = _selected(claim)
    devices = []
    for result in results_of(claim):
        key = _key(result)
        node = places.get(key) or elsewhere.get(key, "")
        devices.append(
            ClaimDevice(
                request=str(result.get("request") or ""),
                driver=key[0],
                pool=key[1],
                device=key[2],
                node=node,
                consumed=_consumed(result),
                admin_access=bool(result.get("adminAccess")),
            )
        )
    allocated = (claim.get("status") or {}).get("allocation") is not None
    state = DELETING if metadata.get("deletionTimestamp") else ALLOCATED if allocated else PENDING
    created = str(metadata.get("creationTimestamp") or "")
    nodes = {device.node for device in devices} | ({_node_of(claim)} if allocated and not devices else set())
    return ClaimRow(
        namespace=namespace,
        name=name,
        state=state,
        nodes=tuple(sorted(nodes - {""})),
        requests=tuple(_asked(item) for item in _requests(claim)),
        devices=tuple(devices),
        pods=_users(claim),
        created=created,
        age_s=_age(created, now),
    )


def _selected(claim: Wire) -> dict[DeviceKey, str]:
    """Returns the node of the claim's allocation for each of its devices; empty if several nodes can use them."""
    node = _node_of(claim)
    return {_key(result): node for result in results_of(claim)} if node else {}


def _node_of(claim: Wire) -> str:
    selector = ((claim.get("status") or {}).get("allocation") or {}).get("nodeSelector") or {}
    for term in selector.get("nodeSelectorTerms") or ():
        for item in term.get("matchFields") or ():
            if item.get("key") == "metadata.name" and len(item.get("values") or ()) == 1:
                return str(item["values"][0])
    return ""


def _asked(request: Wire) -> str:
    """Returns ``gpu: 2 x gpu.nvidia.com (memory 10Gi)``; alternatives are joined with "or"."""
    ways = request.get("firstAvailable") or ([request["exactly"]] if request.get("exactly") else ())
    texts = []
    for way in ways:
        count = "all" if way.get("allocationMode") == "All" else f"{way.get('count') or 1} x"
        wanted = (way.get("capacity") or {}).get("requests") or {}
        amounts = ", ".join(f"{name} {value}" for name, value in wanted.items())
        shown = f" ({amounts})" if amounts else ""
        texts.append(f"{count} {way.get('deviceClassName') or '?'}{shown}")
    return f"{request.get('name')}: {' or '.join(texts) or '?'}"


def _requests(claim: Wire) -> Sequence[Wire]:
    found: Sequence[Wire] = ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ()
    return found


def _consumed(result: Wire) -> dict[str, str]:
    return {key: str(value) for key, value in (result.get("consumedCapacity") or {}).items()}


def _key(result: Wire) -> DeviceKey:
    return result["driver"], result["pool"], result["device"]


def _users(claim: Wire) -> tuple[str, ...]:
    users = users_of(claim)
    return tuple(
        str(user.get("name")) if user.get("resource") == "pods" else f"{user.get('resource')}/{user.get('name')}"
        for user in users
    )


def _names(claim: Wire) -> tuple[str, str]:
    metadata = claim.get("metadata") or {}
    return str(metadata.get("namespace") or "default"), str(metadata.get("name") or "")


def _age(created: str, now: datetime) -> int | None:
    moment = parse_time(created)
    return None if moment is None else max(0, int((now - moment).total_seconds()))
