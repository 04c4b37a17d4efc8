"""Detects that only a defect of this scheduler version keeps the subject pending.

Evaluates a node again without any of the defects in ``allocation.scheduler_quirks``, then without one at a time, and
compares the results. At most `MAX_NODES` nodes are tried.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from dra_driver.core.errors import AllocationError, CelEvaluationError, CelSyntaxError
from dra_driver.kube.devices import allocation_results
from dra_driver.kubectl.explain.causes import Cause, CauseCode
from dra_driver.kubectl.explain.evaluation import NodeResult
from dra_driver.kubectl.explain.objects import Wire
from dra_driver.scheduler.allocation import V1_37, SchedulerQuirks

MAX_NODES: Final = 20

_QUIRKS: Final[Mapping[str, str]] = {
    "counters_stay_charged": "a device rejected by a constraint, taint or capacity stays charged to its GPU's counters "
    "for the rest of the attempt",
    "shares_stay_charged": "a released share stays charged to its GPU's counters for the rest of the attempt",
    "counters_by_pool_name": "counters are identified by pool name only, without the driver",
    "distinct_forgets": "distinctAttribute remembers only one value of a request",
    "counter_slices_everywhere": "slices with counters apply to every node, whichever node they name",
    "whole_units": "capacities are counted in whole units",
    "capacity_by_position": "the capacity of the first devices of a resource slice is checked, not that of the devices "
    "to allocate",
}
"""Fields of `SchedulerQuirks` that can keep a pod away, most frequent first."""
_FIXED_IN: Final[Mapping[str, str]] = {"capacity_by_position": "1.35"}
"""Where it is not 1.37."""

_SHARE_ALL: Final = (
    "ask the administrator to share all GPUs of the node that have no partitions, or none, or to upgrade to "
    "Kubernetes 1.35"
)

Retry = Callable[[SchedulerQuirks, NodeResult], NodeResult]
"""Evaluates one node again with other scheduler quirks."""


def scheduler_fault(
    quirks: SchedulerQuirks, results: Sequence[NodeResult], again: Retry, slices: Sequence[Wire]
) -> Cause | None:
    """Returns the defect without which a node would take the subject; None when there is none.

    ``results`` are nodes that do not fit, ``slices`` those of the cluster. The cause does not block by itself: it
    explains the blocking one.
    """
    if quirks == V1_37:
        return None
    for result in [one for one in results if one.by_devices and one.claims][:MAX_NODES]:
        improved = _retried(again, V1_37, result)
        if improved is None:
            continue
        names = [name for name in _QUIRKS if _retried(again, replace(quirks, **{name: False}), result) is not None]
        why = _QUIRKS[names[0]] if names else "several defects of its allocator together exclude the devices"
        fixed_in = _FIXED_IN.get(names[0], "1.37") if names else "1.37"
        assigned = [item for allocation in improved.allocations for item in allocation_results(allocation)]
        shown = ", ".join(f"{item['request']}={item['device']}" for item in assigned[:8])
        return Cause(
            code=CauseCode.SCHEDULER_FAULT,
            message=f"{result.name} has the devices ({shown}), but a defect of this Kubernetes version, fixed in "
            f"{fixed_in}, excludes them: {why}",
            fix=_SHARE_ALL if names == ["capacity_by_position"] else _fix(_parents(slices, assigned)),
            blocks=False,
        )
    return None


def _retried(again: Retry, quirks: SchedulerQuirks, result: NodeResult) -> NodeResult | None:
    """Returns the node's result with these quirks, if it fits."""
    try:
        found = again(quirks, result)
    except (AllocationError, CelSyntaxError, CelEvaluationError):
        return None
    return found if found.fits else None


def _parents(slices: Sequence[Wire], assigned: Sequence[Wire]) -> set[tuple[str, str]]:
    """Returns driver and parentUUID of the devices ("" for devices without)."""
    wanted = {(item["driver"], item["pool"], item["device"]) for item in assigned}
    found = set()
    for item in slices:
        spec = item["spec"]
        for device in spec.get("devices") or ():
            if (spec["driver"], spec["pool"]["name"], device["name"]) in wanted:
                parent = (device.get("attributes") or {}).get("parentUUID") or {}
                found.add((str(spec["driver"]), str(parent.get("string") or "")))
    return found


def _fix(parents: set[tuple[str, str]]) -> str:
    """Devices excluded by selectors are never charged to counters, so selecting the free GPU avoids the defect."""
    (driver, uuid), *others = sorted(parents) or [("", "")]
    if others or not uuid:
        return "free the GPUs that are partly in use, or upgrade to Kubernetes 1.37"
    selector = f'device.attributes["{driver}"].parentUUID == "{uuid}"'
    return f"add {selector} to the selectors of each request (excluded devices are not charged), or free other GPUs"
