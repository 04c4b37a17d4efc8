"""Whether only a fault of the scheduler's version keeps the subject away: the same question under other rules.

Owns the names of the faults for people. What a fault does is ``allocation.scheduler_quirks``'s business; here they
are left out, all and then one at a time, and the answers compared. Bounded: `MAX_NODES` nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from dra_driver.allocation import V1_37, SchedulerQuirks
from dra_driver.errors import AllocationError, CelEvaluationError, CelSyntaxError
from dra_driver.explain.causes import Cause, CauseCode
from dra_driver.explain.evaluation import NodeResult
from dra_driver.explain.objects import Wire

MAX_NODES: Final = 20

_QUIRKS: Final[Mapping[str, str]] = {
    "counters_stay_charged": "a device that a constraint, taint or capacity turns down stays charged to its GPU's "
    "counters for the rest of the attempt",
    "shares_stay_charged": "a share that is given back stays charged to its GPU's counters for the rest of the attempt",
    "counters_by_pool_name": "counters are kept by the name of the pool alone, whatever its driver",
    "distinct_forgets": "distinctAttribute remembers one value of a request only",
    "counter_slices_everywhere": "slices with counters concern every node, whatever node they name",
    "whole_units": "capacities are counted in whole units",
}
"""Fields of `SchedulerQuirks` that can keep a pod away, most frequent first."""

RequestSummary = Callable[[SchedulerQuirks, NodeResult], NodeResult]
"""Weighs one node again under other rules."""


def scheduler_fault(
    quirks: SchedulerQuirks, results: Sequence[NodeResult], again: RequestSummary, slices: Sequence[Wire]
) -> Cause | None:
    """The fault without which a node would take the subject; None when there is none, or nothing to say.

    ``results`` are nodes that do not fit, ``slices`` those of the cluster. The cause does not block by itself: it says
    why what blocks does.
    """
    if quirks == V1_37:
        return None
    for result in [one for one in results if one.by_devices and one.claims][:MAX_NODES]:
        better = _retried(again, V1_37, result)
        if better is None:
            continue
        names = [name for name in _QUIRKS if _retried(again, replace(quirks, **{name: False}), result) is not None]
        why = _QUIRKS[names[0]] if names else "several faults of its allocator together keep the devices away"
        given = [
            item for allocation in better.allocations for item in (allocation.get("devices") or {}).get("results") or ()
        ]
        shown = ", ".join(f"{item['request']}={item['device']}" for item in given[:8])
        return Cause(
            code=CauseCode.SCHEDULER_FAULT,
            message=f"{result.name} has the devices ({shown}), and a fault of this Kubernetes version keeps them away, "
            f"which 1.37 does not have: {why}",
            fix=_fix(_parents(slices, given)),
            blocks=False,
        )
    return None


def _retried(again: RequestSummary, quirks: SchedulerQuirks, result: NodeResult) -> NodeResult | None:
    """The node under these rules, if it fits."""
    try:
        found = again(quirks, result)
    except (AllocationError, CelSyntaxError, CelEvaluationError):
        return None
    return found if found.fits else None


def _parents(slices: Sequence[Wire], given: Sequence[Wire]) -> set[tuple[str, str]]:
    """Driver and parentUUID of the devices, "" for those without."""
    wanted = {(item["driver"], item["pool"], item["device"]) for item in given}
    found = set()
    for item in slices:
        spec = item["spec"]
        for device in spec.get("devices") or ():
            if (spec["driver"], spec["pool"]["name"], device["name"]) in wanted:
                parent = (device.get("attributes") or {}).get("parentUUID") or {}
                found.add((str(spec["driver"]), str(parent.get("string") or "")))
    return found


def _fix(parents: set[tuple[str, str]]) -> str:
    """Devices that selectors leave out are never charged, so naming the free GPU is a way around."""
    (driver, uuid), *others = sorted(parents) or [("", "")]
    if others or not uuid:
        return "free what is partly used, or wait for Kubernetes 1.37"
    selector = f'device.attributes["{driver}"].parentUUID == "{uuid}"'
    return f"add {selector} to the selectors of each request, as what they leave out is not charged; or free other GPUs"
