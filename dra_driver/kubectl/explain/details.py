"""Inspect nodes that cannot take the subject, count the reasons of their devices, and find the nearest miss.

At most `MAX_DETAILED` devices are inspected one by one; the verdict covers all devices.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.errors import AllocationError
from dra_driver.core.text import counted, listed
from dra_driver.kube.devices import allocation_results
from dra_driver.kubectl.explain import report
from dra_driver.kubectl.explain.evaluation import Evaluation, Holders, NodeHolders, NodeResult
from dra_driver.kubectl.explain.reasons import (
    CODES,
    Funnel,
    NodeRejections,
    RejectionReason,
    act_on,
    holder_labels,
    overlaps,
    rejection_of,
    selector_rejections,
)
from dra_driver.kubectl.explain.subject import RequestSpec
from dra_driver.scheduler import allocation
from dra_driver.scheduler.allocation import PoolDevice

# --- The nearest miss.
#
# A node's distance is the sum over as many of its nearest devices as the request lacks. Each reason that rejects a
# device adds to the device's distance.

MAX_DETAILED: Final = 150_000  # devices inspected one by one, over all nodes and requests
MAX_CANDIDATES: Final = 5_000


_SELECTOR_CODES: Final = ("classSelector", "requestSelector")
_NOT_CHECKED_HERE: Final = (
    *(allocation.CounterShort, allocation.ConstraintBroken),
    *(allocation.GateOff, allocation.NotOnNode),
)


class Candidate(NamedTuple):
    device: PoolDevice
    cause: allocation.Cause


class Shortfall(NamedTuple):
    """A node with only ``fitting`` devices for a request, and its rejected devices."""

    spec: RequestSpec
    node: str
    fitting: int
    candidates: list[Candidate]


class _RankedCandidate(NamedTuple):
    device: str
    reasons: list[RejectionReason]

    @property
    def users(self) -> set[str]:
        return {user for reason in self.reasons for user in reason.users}

    @property
    def distance(self) -> tuple[int, int]:
        """Distance of the reasons, then number of claims to end."""
        return sum(CODES[reason.code].distance for reason in self.reasons), len(self.users)

    @property
    def reason_key(self) -> list[tuple[str, str]]:
        return [(reason.code, reason.message) for reason in self.reasons]


def nearest_miss(places: Iterable[Shortfall], holders: Holders) -> report.NearestMiss | None:
    """Return the closest of the first MAX_CANDIDATES devices, the first of equally close ones; None without any."""
    best: tuple[tuple[int, int], Shortfall, list[_RankedCandidate], str] | None = None
    inspected = 0
    for place in places:
        if inspected >= MAX_CANDIDATES:
            break
        inspected += len(place.candidates)
        chosen, more = _chosen(place, holders)
        users = {user for near in chosen for user in near.users}
        distance = sum(near.distance[0] for near in chosen), len(users)
        if chosen and (best is None or distance < best[0]):
            best = (distance, place, chosen, more)
    return _miss(*best[1:]) if best is not None else None


def _chosen(place: Shortfall, holders: Holders) -> tuple[list[_RankedCandidate], str]:
    """Return the nearest devices up to the missing number, none if there are fewer, and equally near ones."""
    near = [
        _RankedCandidate(candidate.device.name, _all_rejections(place.spec, candidate, holders))
        for candidate in place.candidates[:MAX_CANDIDATES]
    ]
    if place.spec.count is None:
        # "All" means every matching device; each must become available.
        matching = [one for one in near if not any(reason.code in _SELECTOR_CODES for reason in one.reasons)]
        return matching or sorted(near, key=lambda one: one.distance)[:1], ""
    missing = max(place.spec.count - place.fitting, 1)
    if len(near) < missing:
        return [], ""
    near.sort(key=lambda one: one.distance)
    admitted = place.fitting + sum(one.reasons[0].code != "classSelector" for one in near)
    if (
        0 < admitted < place.spec.count
    ):  # other devices cannot replace devices that the only class of the request rejects
        few = f"request at most {counted(admitted, 'device')}: the class selects no more on this node"
        near = [
            _RankedCandidate(one.device, [replace(one.reasons[0], fix=few), *one.reasons[1:]])
            if one.reasons[0].code == "classSelector"
            else one
            for one in near
        ]
    freed = {reason.seen for one in near[:missing] for reason in one.reasons}
    ties = [
        f"{one.device} ({', '.join(reason.seen for reason in one.reasons)})"
        for one in near[missing:]
        if one.reason_key == near[missing - 1].reason_key
        and one.distance == near[missing - 1].distance
        and freed.isdisjoint(reason.seen for reason in one.reasons)
    ]
    return near[:missing], act_on(ties) if all(reason.code == "inUse" for reason in near[missing - 1].reasons) else ""


def _all_rejections(spec: RequestSpec, candidate: Candidate, holders: Holders) -> list[RejectionReason]:
    """Return all reasons that reject the device, not only the first one of the allocator."""
    device, cause = candidate
    found = list(selector_rejections(spec, device))
    if device.allocated and not spec.admin_access:
        users = holders.claims(device.id)
        found.append(RejectionReason("inUse", "in use", holder_labels(users, holders), users=tuple(users)))
    rejections = [
        rejection_of(spec, device, taint, holders)
        for each in device.wire.get("taints") or ()
        if (taint := allocation.untolerated([each], spec.tolerations)) is not None
    ]
    found += {reason.code: reason for reason in rejections}.values()  # one reason of each kind
    found += [rejection_of(spec, device, short, holders) for short in _capacity(spec.capacity, device)]
    if isinstance(cause, _NOT_CHECKED_HERE) or not found:
        found.append(rejection_of(spec, device, cause, holders))
    else:
        found += overlaps(spec, device, holders)
    return found


def _capacity(requests: Mapping[str, object], device: PoolDevice) -> list[allocation.Cause]:
    found: list[allocation.Cause] = []
    capacities = device.wire.get("capacity") or {}
    for name in dict.fromkeys([*requests, *capacities]):
        asked = {name: requests[name]} if name in requests else None
        own = {name: capacities[name]} if name in capacities else {}
        try:
            short = allocation.shortage(asked, own, device.consumed, None)
        except (AllocationError, ValueError):
            continue
        if short is not None:
            found.append(short)
    return found


def _miss(place: Shortfall, chosen: list[_RankedCandidate], ties: str) -> report.NearestMiss:
    sentences: dict[str, list[str]] = {}
    for near in chosen:
        for reason in near.reasons:
            sentence = f"{reason.message} ({reason.seen})" if reason.seen else reason.message
            sentences.setdefault(sentence, []).append(near.device)
    several = len(chosen) > 1
    return report.NearestMiss(
        device=listed([near.device for near in chosen], 8),
        node=place.node,
        request=place.spec.request,
        faults=tuple(
            f"{listed(devices)}: {text}" if several and len(devices) < len(chosen) else text
            for text, devices in sentences.items()
        ),
        fix=_fixes([reason for near in chosen for reason in near.reasons], ties),
    )


def _fixes(reasons: Sequence[RejectionReason], ties: str) -> str:
    text = "; and ".join(dict.fromkeys(_fix(reason) for reason in reasons))
    instead = " and ".join(dict.fromkeys(reason.instead for reason in reasons if reason.instead))
    text += f"; or {instead}" if instead else ""
    return f"{text}; equally near: {ties}" if ties and all(reason.code == "inUse" for reason in reasons) else text


def _fix(reason: RejectionReason) -> str:
    if reason.fix:
        return reason.fix
    fix = CODES[reason.code].fix
    if reason.code == "inUse":
        return f"{'delete the claim if it is no longer needed' if '(no pod)' in reason.seen else fix}: {reason.seen}"
    return f"{fix} {reason.seen or 'the device'}" if reason.code == "requestSelector" else fix


RequestsOn = Callable[[NodeResult], list[RequestSpec]]

_SELECTORS: Final = ("classSelector", "requestSelector", "nodeSelection")
_SHOWN: Final = (
    *("inUse", "takenByThisPod", "capacityShort", "counterShort"),
    *("tainted", "unhealthy", "constraint", "gateOff"),
)
_MAX_LINES: Final = 2_000
_MAX_POOLS: Final = 5


class Details(Struct):
    """Result of the inspection. ``headline`` completes "cannot fit: …"."""

    requests: Sequence[report.RequestSummary] = ()
    miss: report.NearestMiss | None = None
    nodes: Sequence[report.NodeReason] = ()
    causes: list[report.Cause] = field(default_factory=list)
    headline: str = ""
    note: str = ""


class _Inspected(Struct, frozen=True):
    message: str
    devices: int
    rejections: Sequence[tuple[Funnel, NodeRejections]]


class _NodeCounts(Struct):
    funnels: dict[tuple[int, str], Funnel] = field(default_factory=dict)
    places: list[Shortfall] = field(default_factory=list)
    pools: dict[tuple[str, str], str] = field(default_factory=dict)
    nodes: dict[tuple[str, bool], list[str]] = field(default_factory=dict)
    counted_nodes: int = 0
    inspected: int = 0
    not_inspected: int = 0
    inspected_like: dict[Hashable, _Inspected] = field(default_factory=dict)

    def count_node(self, message: str, name: str, *, by_devices: bool) -> None:
        self.nodes.setdefault((message, by_devices), []).append(name)


def inspect_nodes(
    evaluation: Evaluation, results: Sequence[NodeResult], requests_on: RequestsOn, holders: Holders
) -> Details:
    counts = _NodeCounts()
    almost_fitting: NodeResult | None = None
    for result in results:
        if result.fits:
            continue
        if result.like is not None and _count_like(evaluation, result, holders, counts):
            continue
        if counts.inspected >= MAX_DETAILED:
            counts.not_inspected += 1
            counts.count_node(result.message, result.name, by_devices=result.by_devices)
        elif not result.by_devices:
            counts.inspected += 1
            devices_fit_here = evaluation.devices_fit(result)
            almost_fitting = almost_fitting or (result if devices_fit_here else None)
            message = f"{result.message}, although its devices fit" if devices_fit_here else result.message
            counts.count_node(message, result.name, by_devices=False)
        elif result.message == "cannot allocate all claims":
            _inspect_devices(evaluation, result, requests_on(result), holders, counts)
        else:
            counts.count_node(result.message, result.name, by_devices=True)
    return _details(counts, almost_fitting, holders)


def node_detail(
    evaluation: Evaluation, result: NodeResult, specs: Sequence[RequestSpec], holders: Holders
) -> report.NodeDetail:
    """List every device of a node for every request, at most _MAX_LINES lines."""
    lines: list[report.DeviceLine] = []
    assigned = [item for each in result.allocations for item in allocation_results(each)]
    taken = {(item["request"], item["pool"], item["device"]) for item in assigned}
    if result.claims:
        observed = evaluation.observed(result)
        for spec in specs:
            causes = observed.causes.get((spec.claim, spec.request), {})
            for device in evaluation.devices(result):
                cause = causes.get(device.id)
                if (spec.request, *device.id[1:]) in taken:
                    found = RejectionReason("given", "would be allocated", "")
                elif cause is not None:
                    found = rejection_of(spec, device, cause, holders)
                else:
                    found = RejectionReason("free", "not needed" if result.fits else "not rejected", "")
                text = f"{found.message} ({found.seen})" if found.seen else found.message
                lines.append(report.DeviceLine(request=spec.request, device=device.name, code=found.code, message=text))
                if len(lines) >= _MAX_LINES:
                    break
    return report.NodeDetail(
        name=result.name,
        fits=result.fits,
        message=result.message or "fits",
        devices=tuple(lines),
        allocation=tuple(f"{item['request']}={item['device']}" for item in assigned),
    )


def _inspect_devices(
    evaluation: Evaluation, result: NodeResult, specs: Sequence[RequestSpec], holders: Holders, counts: _NodeCounts
) -> None:
    observed = evaluation.observed(result)
    on_node = NodeHolders(holders, evaluation.own_pools(result))
    devices = {device.id: device for device in evaluation.devices(result)}
    counts.counted_nodes += 1
    counts.inspected += len(devices) * len(specs)
    short = []
    found: list[tuple[Funnel, NodeRejections]] = []
    for spec in specs:
        causes = observed.causes.get((spec.claim, spec.request))
        if causes is None and len(devices) >= (spec.count or 1):
            continue  # no device was rejected, or the search ended before this request
        reasons, candidates = [], []
        for identity, cause in (causes or {}).items():
            device = devices.get(identity)
            if device is not None:
                reasons.append((identity.device, rejection_of(spec, device, cause, on_node)))
                candidates.append(Candidate(device, cause))
        funnel = counts.funnels.setdefault((spec.claim, spec.request), Funnel(spec))
        before = funnel.nodes_short
        rejections = NodeRejections.of(reasons)
        funnel.add(result.name, len(devices), rejections, on_node.named)
        found.append((funnel, rejections))
        if funnel.nodes_short > before:
            short.append(spec.request)
        counts.places.append(Shortfall(spec, result.name, len(devices) - len(reasons), candidates))
    for event in observed.left_out.values():
        counts.pools[event.driver, event.pool] = f"{event.why}: {event.detail}"
    if not devices:
        message = "no devices are published for this node"
    elif short:
        message = f"too few devices for request {listed(short)}"
    else:
        message = "enough devices for each request, but not for all requests together"
    counts.count_node(message, result.name, by_devices=True)
    if result.like is not None and not observed.left_out:  # omitted pools differ between nodes
        counts.inspected_like[result.like, on_node.like] = _Inspected(message, len(devices), found)


def _count_like(evaluation: Evaluation, result: NodeResult, holders: Holders, counts: _NodeCounts) -> bool:
    """Count the node like one that was inspected; return False without one."""
    if not counts.inspected_like:
        return False
    on_node = NodeHolders(holders, evaluation.own_pools(result))
    known = counts.inspected_like.get((result.like, on_node.like))
    if known is None:
        return False
    counts.counted_nodes += 1
    for funnel, rejections in known.rejections:
        funnel.add(result.name, known.devices, rejections, on_node.named)
    counts.count_node(known.message, result.name, by_devices=True)
    return True


def _details(counts: _NodeCounts, almost_fitting: NodeResult | None, holders: Holders) -> Details:
    funnels = list(counts.funnels.values())
    short = [funnel for funnel in funnels if funnel.nodes_short] or funnels
    found = Details(
        requests=tuple(_summary(funnel) for funnel in short),
        nodes=tuple(
            report.NodeReason(message=message, nodes=len(names), by_devices=by_devices, examples=tuple(names[:3]))
            for (message, by_devices), names in sorted(counts.nodes.items(), key=lambda item: (-len(item[1]), item[0]))
        ),
        causes=_pool_causes(counts.pools),
    )
    wanted = {(funnel.spec.claim, funnel.spec.request) for funnel in short}
    places = [place for place in counts.places if (place.spec.claim, place.spec.request) in wanted]
    if almost_fitting is None:
        found.miss = nearest_miss(places, holders)
    else:
        found.miss = report.NearestMiss(
            device="",
            node=almost_fitting.name,
            request="",
            faults=(almost_fitting.message,),
            fix="allow the pod on this node (tolerations, node selector, requests), or free resources on it",
        )
    if counts.not_inspected:
        found.note = (
            f"devices were counted on {counts.counted_nodes} nodes; {counts.not_inspected} more nodes do not fit"
        )
    found.headline = _headline(found, counts)
    return found


def _pool_causes(pools: Mapping[tuple[str, str], str]) -> list[report.Cause]:
    return [
        report.Cause(
            code=report.CauseCode.POOL_UNUSABLE,
            message=f"the scheduler ignores the devices of pool {pool} of {driver}: the pool is {why}",
            fix="the driver must publish the pool again; see the log of its pod on that node",
            object=f"pool/{pool}",
            blocks=False,
        )
        for (driver, pool), why in sorted(pools.items())[:_MAX_POOLS]
    ]


def _summary(funnel: Funnel) -> report.RequestSummary:
    return report.RequestSummary(
        claim=funnel.spec.claim_label,
        request=funnel.spec.request,
        class_name=funnel.spec.class_name,
        count=funnel.spec.count,
        devices=funnel.devices,
        fitting=funnel.fitting,
        nodes_short=funnel.nodes_short,
        reasons=tuple(funnel.reasons()),
    )


def _headline(found: Details, counts: _NodeCounts) -> str:
    if not counts.counted_nodes:
        if not found.nodes:
            return "no node was inspected"
        most = found.nodes[0]
        return most.message if most.by_devices else f"not caused by devices: {most.nodes} {most.message}"
    request = next((one for one in found.requests if one.nodes_short == counts.counted_nodes), None)
    return _headline_of(request) if request is not None else "no node has devices for all requests together"


def _headline_of(request: report.RequestSummary) -> str:
    if not request.devices:
        return f"no devices are published for request {request.request}"
    matching = matching_devices(request)
    if not matching:
        return f"none of {counted(request.devices, 'device')} matches request {request.request}"
    rejected = Counter[str]()
    for reason in request.reasons:
        rejected[reason.code] += reason.devices
    shortages = ", ".join(
        f"{rejected[code]} {CODES[code].short}{_short_capacities(request) if code == 'capacityShort' else ''}"
        for code in _SHOWN
        if code in rejected
    )
    left = (
        f", {request.fitting} left, {request.count_text} needed on one node" if request.fitting or not shortages else ""
    )
    matches = f"{counted(matching, 'device')} match{'es' if matching == 1 else ''} request {request.request}"
    return f"{matches}: {shortages}{left}".replace(": ,", ":")


def matching_devices(request: report.RequestSummary) -> int:
    """Return the number of devices that the selectors and the node admit."""
    return request.devices - sum(reason.devices for reason in request.reasons if reason.code in _SELECTORS)


def _short_capacities(request: report.RequestSummary) -> str:
    start = "not enough "
    messages = [reason.message for reason in request.reasons if reason.code == "capacityShort"]
    names = [message.removeprefix(start).partition(":")[0] for message in messages if message.startswith(start)]
    return f" ({', '.join(dict.fromkeys(names))})" if names else ""
