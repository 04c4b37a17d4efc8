"""The reason for which Kueue holds a workload back, from the conditions of its Workload. Sources: kubernetes-sigs/kueue
0.19, pkg/workload, pkg/dra, pkg/scheduler/flavorassigner."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dra_driver.core.text import one_line
from dra_driver.kubectl.explain.report import Cause, CauseCode
from dra_driver.kubectl.explain.subject import name_of, spec_of, status_of

Wire = Mapping[str, Any]
GATE: Final = "kueue.x-k8s.io/admission"
"""The scheduling gate of a pod that Kueue has not admitted."""
_CONFIG: Final = "merge the mappings of `kubectl dra kueue config` into Kueue's Configuration, and restart Kueue"
_FIXES: Final = (
    ("does not support use of resource claims", "name a ResourceClaimTemplate: Kueue cannot queue a shared claim"),
    ("is not mapped in DRA configuration", f"use a class of `kubectl dra kueue queues`, or {_CONFIG}"),
    ("FirstAvailable device selection", "request one kind of device with exactly"),
    ("AllocationMode 'All'", "request a count"),
    ("failed to get claim spec", "create the ResourceClaimTemplate"),
    ("insufficient matching devices", "not a quota: too few published devices match; kubectl dra explain -f FILE"),
    ("no consumesCounters entry", f"the GPUs have no MIG placements: {_CONFIG}"),
    ("no capacity dimension", f"the GPUs are not shared: {_CONFIG}"),
    ("cannot be satisfied by any matched device", "request less: no published GPU offers this amount"),
    ("sources configured", "name a ResourceClaimTemplate: an extended resource cannot use a mapping with sources"),
    ("maximum capacity", "Kueue can never admit it: request less, or raise nominalQuota of the ClusterQueue"),
    ("insufficient unused quota", "wait until others finish: kubectl get workloads -A; or raise the quota"),
    ("unavailable in ClusterQueue", "add the resource to coveredResources of the ClusterQueue"),
    ("node affinity", "change the ResourceFlavor or the pod's node affinity"),
    ("untolerated taint", "tolerate the taint of the ResourceFlavor"),
)
"""Parts of Kueue's messages, and the next steps."""


def workload_of(workloads: Iterable[Wire], kind: str, name: str) -> Wire | None:
    """Return the newest Workload of an owner; ``kind`` in lower case."""
    found = [
        item
        for item in workloads
        for owner in item["metadata"].get("ownerReferences") or ()
        if (str(owner.get("kind")).lower(), owner.get("name")) == (kind, name)
    ]
    return max(found, key=lambda item: str(item["metadata"].get("creationTimestamp")), default=None)


def held_back(workload: Wire) -> Cause | None:
    """Return the reason of a Workload that waits; None if Kueue has admitted it."""
    conditions = {str(each.get("type")): each for each in status_of(workload).get("conditions") or ()}
    if conditions.get("Admitted", {}).get("status") == "True":
        return None
    said = conditions.get("QuotaReserved") or {}
    preempted = conditions.get("Preempted") or {}
    message = one_line(str(said.get("message") or "Kueue has not evaluated it"))
    if preempted.get("status") == "True":
        message = f"preempted: {one_line(str(preempted.get('message')))}; {message}"
    fix = next((fix for part, fix in _FIXES if part in message), "")
    queue = spec_of(workload).get("queueName") or "unknown"
    charged = _charged(status_of(workload).get("resourceRequests") or ())
    return Cause(
        code=CauseCode.QUEUED,
        message=f"Kueue has not admitted it (queue {queue}{f', charge {charged}' if charged else ''}): {message}",
        fix=fix or f"kubectl describe workload {name_of(workload)}",
        object=f"workload/{name_of(workload)}",
    )


def _charged(pod_sets: Sequence[Wire]) -> str:
    return ", ".join(
        f"{name}={amount}" for each in pod_sets for name, amount in sorted((each.get("resources") or {}).items())
    )
