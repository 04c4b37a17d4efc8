"""The nodes that said no, looked at device by device, and what they have in common.

Owns the counting over nodes and the choice of the headline. Bounded: at most ``weighing.MAX_DETAILED`` devices are
looked at this closely; the verdict is about all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dra_driver.explain.causes import Cause, Code
from dra_driver.explain.evaluation import MAX_DETAILED, NodeResult, Observed, Weighing
from dra_driver.explain.holders import Holders
from dra_driver.explain.nearest import Candidate, Place, nearest_miss
from dra_driver.explain.objects import listed
from dra_driver.explain.phrases import Finding
from dra_driver.explain.reasons import Funnel, finding_of
from dra_driver.explain.report import Ask, DeviceLine, Miss, NodeDetail, NodeReason
from dra_driver.explain.requests import AskSpec

AsksOn = Callable[[NodeResult], list[AskSpec]]

_SELECTORS: Final = ("classSelector", "requestSelector", "nodeSelection")
_MOST_LINES: Final = 2_000
_MOST_POOLS: Final = 5
_SHORT: Final = {
    "inUse": "in use",
    "takenByThisPod": "taken by this pod",
    "capacityShort": "without enough capacity",
    "counterShort": "on GPUs that others use",
    "tainted": "tainted",
    "constraint": "against a constraint",
    "gateOff": "behind a feature gate that is off",
}


@dataclass(slots=True)
class Details:
    """What was found. ``headline`` is the end of "cannot fit: …"."""

    asks: Sequence[Ask] = ()
    miss: Miss | None = None
    nodes: Sequence[NodeReason] = ()
    causes: list[Cause] = field(default_factory=list)
    headline: str = ""
    note: str = ""


class _Tally:
    """Counts over nodes."""

    def __init__(self) -> None:
        self.funnels: dict[tuple[int, str], Funnel] = {}
        self.places: list[Place] = []
        self.pools: dict[tuple[str, str], str] = {}
        self.nodes: dict[tuple[str, bool], list[str]] = {}
        self.closely = 0
        self.looked = 0
        self.unseen = 0

    def count_node(self, message: str, name: str, *, by_devices: bool) -> None:
        self.nodes.setdefault((message, by_devices), []).append(name)


def look_closely(weighing: Weighing, results: Sequence[NodeResult], asks_on: AsksOn, holders: Holders) -> Details:
    """Why each node that does not fit does not."""
    tally = _Tally()
    nearly: NodeResult | None = None
    for result in results:
        if result.fits:
            continue
        if tally.looked >= MAX_DETAILED:
            tally.unseen += 1
            tally.count_node(result.message, result.name, by_devices=result.by_devices)
        elif not result.by_devices:
            tally.looked += 1
            would = weighing.devices_would_do(result)
            nearly = nearly or (result if would else None)
            message = f"{result.message}, while its devices would do" if would else result.message
            tally.count_node(message, result.name, by_devices=False)
        elif result.message == "cannot allocate all claims":
            _count_devices(weighing, result, asks_on(result), holders, tally)
        else:
            tally.count_node(result.message, result.name, by_devices=True)
    return _details(tally, nearly, holders)


def node_detail(weighing: Weighing, result: NodeResult, asks: Sequence[AskSpec], holders: Holders) -> NodeDetail:
    """Every device of a node for every request, bounded."""
    lines: list[DeviceLine] = []
    given = [
        item for allocation in result.allocations for item in (allocation.get("devices") or {}).get("results") or ()
    ]
    taken = {(item["request"], item["pool"], item["device"]) for item in given}
    if result.claims:
        observed = weighing.observed(result)
        for ask in asks:
            causes = observed.causes.get((ask.claim, ask.request), {})
            for device in weighing.devices(result):
                cause = causes.get(device.id)
                if (ask.request, *device.id[1:]) in taken:
                    found = Finding("given", "would be given", "")
                elif cause is not None:
                    found = finding_of(ask, device, cause, holders)
                else:
                    found = Finding("free", "not needed" if result.fits else "not turned down", "")
                text = f"{found.message} ({found.seen})" if found.seen else found.message
                lines.append(DeviceLine(request=ask.request, device=device.name, code=found.code, message=text))
                if len(lines) >= _MOST_LINES:
                    break
    return NodeDetail(
        name=result.name,
        fits=result.fits,
        message=result.message or "fits",
        devices=tuple(lines),
        allocation=tuple(f"{item['request']}={item['device']}" for item in given),
    )


def _count_devices(
    weighing: Weighing, result: NodeResult, asks: Sequence[AskSpec], holders: Holders, tally: _Tally
) -> None:
    observed = weighing.observed(result)
    devices = {device.id: device for device in weighing.devices(result)}
    tally.closely += 1
    tally.looked += len(devices) * len(asks)
    short = []
    for ask in asks:
        causes = observed.causes.get((ask.claim, ask.request))
        if causes is None and len(devices) >= (ask.count or 1):
            continue  # nothing was turned down, or the search did not get so far
        findings, candidates = [], []
        for identity, cause in (causes or {}).items():
            device = devices.get(identity)
            if device is not None:
                findings.append((identity.device, finding_of(ask, device, cause, holders)))
                candidates.append(Candidate(device, cause))
        funnel = tally.funnels.setdefault((ask.claim, ask.request), Funnel(ask))
        before = funnel.nodes_short
        funnel.add(result.name, len(devices), findings)
        if funnel.nodes_short > before:
            short.append(ask.request)
        tally.places.append(Place(ask, result.name, len(devices) - len(findings), candidates))
    _note_pools(observed, tally)
    if not devices:
        message = "no devices are published for the node"
    elif short:
        message = f"too few devices for request {listed(short)}"
    else:
        message = "enough devices for each request, but not for all of them together"
    tally.count_node(message, result.name, by_devices=True)


def _note_pools(observed: Observed, tally: _Tally) -> None:
    for event in observed.left_out.values():
        tally.pools[event.driver, event.pool] = f"{event.why}: {event.detail}"


def _details(tally: _Tally, nearly: NodeResult | None, holders: Holders) -> Details:
    funnels = list(tally.funnels.values())
    culprits = [funnel for funnel in funnels if funnel.nodes_short] or funnels
    found = Details(
        asks=tuple(_ask(funnel) for funnel in culprits),
        nodes=tuple(
            NodeReason(message=message, nodes=len(names), by_devices=by_devices, examples=tuple(names[:3]))
            for (message, by_devices), names in sorted(tally.nodes.items(), key=lambda item: (-len(item[1]), item[0]))
        ),
        causes=_pool_causes(tally.pools),
    )
    wanted = {(funnel.ask.claim, funnel.ask.request) for funnel in culprits}
    places = [place for place in tally.places if (place.ask.claim, place.ask.request) in wanted]
    found.miss = _node_miss(nearly) if nearly is not None else nearest_miss(places, holders)
    if tally.unseen:
        found.note = f"devices are counted on {tally.closely} nodes; {tally.unseen} more do not fit either"
    found.headline = _headline(found, tally)
    return found


def _node_miss(result: NodeResult) -> Miss:
    return Miss(
        device="",
        node=result.name,
        request="",
        faults=(result.message,),
        fix="its devices would do: let the pod go there (tolerations, node selector, requests), or make room",
    )


def _pool_causes(pools: dict[tuple[str, str], str]) -> list[Cause]:
    causes = [
        Cause(
            code=Code.POOL_UNUSABLE,
            message=f"the devices of pool {pool} of {driver} do not count: it is {why}",
            fix="the driver repairs this by publishing again; see its log on that node",
            object=f"pool/{pool}",
            blocks=False,
        )
        for (driver, pool), why in sorted(pools.items())
    ]
    return causes[:_MOST_POOLS]


def _ask(funnel: Funnel) -> Ask:
    return Ask(
        claim=funnel.ask.claim_label,
        request=funnel.ask.request,
        class_name=funnel.ask.class_name,
        count=funnel.ask.wanted,
        devices=funnel.devices,
        fitting=funnel.fitting,
        nodes_short=funnel.nodes_short,
        reasons=tuple(funnel.reasons()),
    )


def _headline(found: Details, tally: _Tally) -> str:
    if not tally.closely:
        most = found.nodes[0] if found.nodes else None
        if most is None:
            return "no node was looked at"
        return most.message if most.by_devices else f"not a device matter: {most.nodes} {most.message}"
    ask = next((one for one in found.asks if one.nodes_short == tally.closely), None)
    if ask is None:
        return "no node has the devices for all requests together"
    return _headline_of(ask)


def _headline_of(ask: Ask) -> str:
    if not ask.devices:
        return f"no devices are published that request {ask.request} could get"
    lost = sum(reason.devices for reason in ask.reasons if reason.code in _SELECTORS)
    matching = ask.devices - lost
    if not matching:
        return f"none of {_count(ask.devices, 'device')} is what request {ask.request} asks for"
    away = ", ".join(
        f"{sum(reason.devices for reason in ask.reasons if reason.code == code)} {words}{_which(ask, code)}"
        for code, words in _SHORT.items()
        if any(reason.code == code for reason in ask.reasons)
    )
    left = f", {ask.fitting} left where {ask.count} are wanted on one node" if ask.fitting or not away else ""
    return f"{_count(matching, 'device')} would suit request {ask.request}: {away}{left}".replace(": ,", ":")


def _which(ask: Ask, code: str) -> str:
    """`` (memory)``: the capacities that are short, where that is why."""
    start = "not enough "
    short = [
        one.message for one in ask.reasons if one.code == code == "capacityShort" and one.message.startswith(start)
    ]
    names = dict.fromkeys(message.removeprefix(start).partition(":")[0] for message in short)
    return f" ({', '.join(names)})" if names else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
