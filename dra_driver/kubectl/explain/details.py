"""Inspects the nodes that cannot take the subject device by device, and summarizes the reasons.

Counts the reasons over nodes and chooses the headline of the verdict. At most ``evaluation.MAX_DETAILED`` devices are
inspected one by one; the verdict covers all devices.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Final

from msgspec import Struct, field

from dra_driver.core.text import listed
from dra_driver.kube.devices import allocation_results
from dra_driver.kubectl.explain.causes import Cause, CauseCode
from dra_driver.kubectl.explain.evaluation import MAX_DETAILED, Evaluation, NodeResult, Observed
from dra_driver.kubectl.explain.holders import Holders, NodeHolders
from dra_driver.kubectl.explain.nearest import Candidate, Shortfall, nearest_miss
from dra_driver.kubectl.explain.phrases import RejectionReason
from dra_driver.kubectl.explain.reasons import Funnel, NodeRejections, rejection_of
from dra_driver.kubectl.explain.report import DeviceLine, NearestMiss, NodeDetail, NodeReason, RequestSummary
from dra_driver.kubectl.explain.requests import RequestSpec

RequestsOn = Callable[[NodeResult], list[RequestSpec]]

_SELECTORS: Final = ("classSelector", "requestSelector", "nodeSelection")
_MAX_LINES: Final = 2_000
_MAX_POOLS: Final = 5
_SHORT: Final = {
    "inUse": "in use",
    "takenByThisPod": "assigned to another request of this pod",
    "capacityShort": "without enough capacity",
    "counterShort": "on GPUs whose shared counters are used up",
    "tainted": "tainted",
    "constraint": "excluded by a constraint",
    "gateOff": "disabled by a feature gate",
}


class Details(Struct):
    """Result of the inspection. ``headline`` completes the sentence "cannot fit: …"."""

    requests: Sequence[RequestSummary] = ()
    miss: NearestMiss | None = None
    nodes: Sequence[NodeReason] = ()
    causes: list[Cause] = field(default_factory=list)
    headline: str = ""
    note: str = ""


class _Inspected(Struct, frozen=True):
    """What the inspection of a node has found, to be counted again for nodes like it."""

    message: str
    devices: int
    rejections: Sequence[tuple[Funnel, NodeRejections]]


class _NodeCounts:
    """Counts collected over all nodes."""

    def __init__(self) -> None:
        self.funnels: dict[tuple[int, str], Funnel] = {}
        self.places: list[Shortfall] = []
        self.pools: dict[tuple[str, str], str] = {}
        self.nodes: dict[tuple[str, bool], list[str]] = {}
        self.counted_nodes = 0
        self.inspected = 0
        self.not_inspected = 0
        self.inspected_like: dict[Hashable, _Inspected] = {}

    def count_node(self, message: str, name: str, *, by_devices: bool) -> None:
        self.nodes.setdefault((message, by_devices), []).append(name)


def inspect_nodes(
    evaluation: Evaluation, results: Sequence[NodeResult], requests_on: RequestsOn, holders: Holders
) -> Details:
    """Finds out why each node that does not fit cannot take the subject."""
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
) -> NodeDetail:
    """Lists every device of a node for every request, at most _MAX_LINES lines."""
    lines: list[DeviceLine] = []
    assigned = [item for allocation in result.allocations for item in allocation_results(allocation)]
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
                lines.append(DeviceLine(request=spec.request, device=device.name, code=found.code, message=text))
                if len(lines) >= _MAX_LINES:
                    break
    return NodeDetail(
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
    _note_pools(observed, counts)
    if not devices:
        message = "no devices are published for this node"
    elif short:
        message = f"too few devices for request {listed(short)}"
    else:
        message = "enough devices for each request, but not for all requests together"
    counts.count_node(message, result.name, by_devices=True)
    if result.like is not None and not observed.left_out:  # pools that are left out differ between nodes
        counts.inspected_like[result.like, on_node.like] = _Inspected(message, len(devices), found)


def _count_like(evaluation: Evaluation, result: NodeResult, holders: Holders, counts: _NodeCounts) -> bool:
    """Counts the node like one that was inspected; returns False when there is none."""
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


def _note_pools(observed: Observed, counts: _NodeCounts) -> None:
    for event in observed.left_out.values():
        counts.pools[event.driver, event.pool] = f"{event.why}: {event.detail}"


def _details(counts: _NodeCounts, almost_fitting: NodeResult | None, holders: Holders) -> Details:
    funnels = list(counts.funnels.values())
    short = [funnel for funnel in funnels if funnel.nodes_short] or funnels
    found = Details(
        requests=tuple(_summary(funnel) for funnel in short),
        nodes=tuple(
            NodeReason(message=message, nodes=len(names), by_devices=by_devices, examples=tuple(names[:3]))
            for (message, by_devices), names in sorted(counts.nodes.items(), key=lambda item: (-len(item[1]), item[0]))
        ),
        causes=_pool_causes(counts.pools),
    )
    wanted = {(funnel.spec.claim, funnel.spec.request) for funnel in short}
    places = [place for place in counts.places if (place.spec.claim, place.spec.request) in wanted]
    found.miss = _node_miss(almost_fitting) if almost_fitting is not None else nearest_miss(places, holders)
    if counts.not_inspected:
        found.note = (
            f"devices are counted on {counts.counted_nodes} nodes; {counts.not_inspected} more nodes do not fit either"
        )
    found.headline = _headline(found, counts)
    return found


def _node_miss(result: NodeResult) -> NearestMiss:
    return NearestMiss(
        device="",
        node=result.name,
        request="",
        faults=(result.message,),
        fix="allow the pod on this node (tolerations, node selector, requests), or free resources on it",
    )


def _pool_causes(pools: dict[tuple[str, str], str]) -> list[Cause]:
    causes = [
        Cause(
            code=CauseCode.POOL_UNUSABLE,
            message=f"the scheduler ignores the devices of pool {pool} of {driver}: the pool is {why}",
            fix="the driver has to publish the pool again; see the log of its pod on that node",
            object=f"pool/{pool}",
            blocks=False,
        )
        for (driver, pool), why in sorted(pools.items())
    ]
    return causes[:_MAX_POOLS]


def _summary(funnel: Funnel) -> RequestSummary:
    return RequestSummary(
        claim=funnel.spec.claim_label,
        request=funnel.spec.request,
        class_name=funnel.spec.class_name,
        count=funnel.spec.count_text,
        devices=funnel.devices,
        fitting=funnel.fitting,
        nodes_short=funnel.nodes_short,
        reasons=tuple(funnel.reasons()),
    )


def _headline(found: Details, counts: _NodeCounts) -> str:
    if not counts.counted_nodes:
        most = found.nodes[0] if found.nodes else None
        if most is None:
            return "no node was inspected"
        return most.message if most.by_devices else f"not caused by devices: {most.nodes} {most.message}"
    request = next((one for one in found.requests if one.nodes_short == counts.counted_nodes), None)
    if request is None:
        return "no node has devices for all requests together"
    return _headline_of(request)


def _headline_of(request: RequestSummary) -> str:
    if not request.devices:
        return f"no devices are published for request {request.request}"
    lost = sum(reason.devices for reason in request.reasons if reason.code in _SELECTORS)
    matching = request.devices - lost
    if not matching:
        return f"none of {_count(request.devices, 'device')} matches request {request.request}"
    rejected = {
        code: sum(reason.devices for reason in request.reasons if reason.code == code)
        for code in _SHORT
        if any(reason.code == code for reason in request.reasons)
    }
    shortages = ", ".join(
        f"{count} {_SHORT[code]}{_short_capacities(request, code)}" for code, count in rejected.items()
    )
    left = f", {request.fitting} left, {request.count} needed on one node" if request.fitting or not shortages else ""
    matches = f"{_count(matching, 'device')} match{'es' if matching == 1 else ''} request {request.request}"
    return f"{matches}: {shortages}{left}".replace(": ,", ":")


def _short_capacities(request: RequestSummary, code: str) -> str:
    """Returns `` (memory)``: the capacities that are short, if capacity is the reason."""
    start = "not enough "
    short = [
        one.message for one in request.reasons if one.code == code == "capacityShort" and one.message.startswith(start)
    ]
    names = dict.fromkeys(message.removeprefix(start).partition(":")[0] for message in short)
    return f" ({', '.join(names)})" if names else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
