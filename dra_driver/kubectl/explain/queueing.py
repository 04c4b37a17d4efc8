"""The reason for which Kueue holds a workload back, from the conditions of its Workload. Sources: kubernetes-sigs/kueue
0.19, pkg/workload, pkg/dra, pkg/scheduler/flavorassigner."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from dra_driver.core.text import one_line
from dra_driver.kubectl.explain.report import Cause, CauseCode
from dra_driver.kubectl.explain.subject import label_of, name_of, spec_of, status_of

Wire = Mapping[str, Any]
GATE: Final = "kueue.x-k8s.io/admission"
"""The scheduling gate of a pod that Kueue has not admitted."""
FIX_MAPPINGS: Final = "merge the mappings of `kubectl dra kueue config` into Kueue's Configuration, and restart Kueue"
_FIXES: Final = (
    ("does not support use of resource claims", "name a ResourceClaimTemplate: Kueue cannot queue a shared claim"),
    ("feature gate is not enabled", "enable the gate in featureGates of Kueue's Configuration, and restart Kueue"),
    ("is not mapped in DRA configuration", f"use a class of `kubectl dra kueue queues`, or {FIX_MAPPINGS}"),
    ("FirstAvailable device selection", "request one kind of device with exactly"),
    ("AllocationMode 'All'", "request a count"),
    ("failed to get claim spec", "create the ResourceClaimTemplate"),
    ("insufficient matching devices", "not a quota: too few published devices match; kubectl dra explain -f FILE"),
    ("no consumesCounters entry", f"the GPUs have no MIG placements: {FIX_MAPPINGS}"),
    ("no capacity dimension", f"the GPUs are not shared: {FIX_MAPPINGS}"),
    ("cannot be satisfied by any matched device", "request less: no published GPU offers this amount"),
    ("sources configured", "name a ResourceClaimTemplate: an extended resource cannot use a mapping with sources"),
    ("maximum capacity", "Kueue can never admit it: request less, or raise nominalQuota of the ClusterQueue"),
    ("insufficient unused quota", "wait until others finish: kubectl get workloads -A; or raise the quota"),
    ("unavailable in ClusterQueue", "add the resource to coveredResources of the ClusterQueue"),
    ("node affinity", "change the ResourceFlavor or the pod's node affinity"),
    ("untolerated taint", "tolerate the taint of the ResourceFlavor"),
)
"""Parts of Kueue's messages, and the next steps."""
_LASTING: Final = frozenset(fix for part, fix in _FIXES if part != "insufficient unused quota")


def workload_of(workloads: Iterable[Wire], kind: str, name: str) -> Wire | None:
    """Return the newest Workload of an owner; ``kind`` in lower case."""
    found = [
        item
        for item in workloads
        for owner in item["metadata"].get("ownerReferences") or ()
        if (str(owner.get("kind")).lower(), owner.get("name")) == (kind, name)
    ]
    return max(found, key=lambda item: str(item["metadata"].get("creationTimestamp")), default=None)


def misconfigured(workloads: Iterable[Wire]) -> list[tuple[Cause, int]]:
    """Return the reasons of Workloads that wait for more than free quota: an example, and the number of others."""
    causes: dict[str, list[Cause]] = {}
    for workload in workloads:
        if (cause := held_back(workload)) and cause.fix in _LASTING:
            causes.setdefault(cause.fix, []).append(replace(cause, object=f"workload/{label_of(workload)}"))
    return [(found[0], len(found) - 1) for found in causes.values()]


def held_back(workload: Wire) -> Cause | None:
    """Return the reason of a Workload that waits; None if Kueue has admitted it, or if it has finished."""
    conditions = {str(each.get("type")): each for each in status_of(workload).get("conditions") or ()}
    if any(conditions.get(each, {}).get("status") == "True" for each in ("Admitted", "Finished")):
        return None
    said = conditions.get("QuotaReserved") or {}
    preempted = conditions.get("Preempted") or {}
    message = one_line(str(said.get("message") or "Kueue has not evaluated it"))
    if preempted.get("status") == "True":
        message = f"preempted: {one_line(str(preempted.get('message')))}; {message}"
    fix = next((fix for part, fix in _FIXES if part in message), "")
    queue = spec_of(workload).get("queueName") or "unknown"
    charged = _charged(status_of(workload).get("resourceRequests") or (), "resources")
    return Cause(
        code=CauseCode.QUEUED,
        message=f"Kueue has not admitted it (queue {queue}{charged}): {message}",
        fix=fix or f"kubectl describe workload {name_of(workload)}",
        object=f"workload/{name_of(workload)}",
    )


def admitted(workloads: Sequence[Wire], pod: Wire) -> str:
    """Return a note for a pod that has no node although Kueue has admitted its workload, else ""."""
    owners = (
        (str(each.get("kind")).lower(), each.get("name")) for each in pod["metadata"].get("ownerReferences") or ()
    )
    for kind, name in (("pod", name_of(pod)), *owners):
        found = workload_of(workloads, kind, str(name))
        admission = status_of(found or {}).get("admission")
        if found and admission and not held_back(found):
            charged = _charged(admission.get("podSetAssignments") or (), "resourceUsage")
            queue = spec_of(found).get("queueName")
            return f"Kueue has admitted it (queue {queue}{charged}): it waits for the scheduler, not for quota"
    return ""


def _charged(pod_sets: Sequence[Wire], field: str) -> str:
    amounts = [f"{name}={amount}" for each in pod_sets for name, amount in sorted((each.get(field) or {}).items())]
    return f", charge {', '.join(amounts)}" if amounts else ""
