"""PodDisruptionBudgets in evictions: a pod may be evicted if its budget allows it, else the answer is 429.

Follows kubernetes/kubernetes pkg/registry/core/pod/storage/eviction.go: which pods need no budget, what an unready pod
may do, the count in the budget's status, the pod's condition DisruptionTarget, and the messages.
"""

from collections.abc import Sequence

from dra_driver.core.errors import ConflictError
from dra_driver.sim.apiserver.api_errors import status_error
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries, mapping, rfc3339, utc_now
from dra_driver.sim.apiserver.kinds import POD_DISRUPTION_BUDGETS, PODS
from dra_driver.sim.apiserver.paths import Target
from dra_driver.sim.apiserver.selectors import object_match
from dra_driver.sim.apiserver.store import Store

_REFUSED = "Cannot evict pod as it would violate the pod's disruption budget."
_SEVERAL = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
_ATTEMPTS = 20


def before_eviction(store: Store, target: Target, options: Obj) -> None:
    """What happens before the pod is deleted: ask its budget, and set the condition that tells its owner why it ends.

    ``options`` are the DeleteOptions of the eviction. Raises NotFoundError, and errors 429 and 500 as the real server.
    """
    pod = store.get(PODS, target.name, target.namespace)
    wanted, dry_run = dig(options, "preconditions", "uid", default=""), "All" in entries(options, "dryRun")
    if wanted and pod["metadata"]["uid"] != wanted:
        return  # the deletion answers with the conflict
    if not _needs_no_budget(pod):
        _take_from_budget(store, pod, dry_run=dry_run)
    if not dry_run:
        _mark(store, target, pod["metadata"]["uid"])


def _needs_no_budget(pod: Obj) -> bool:
    over = dig(pod, "status", "phase", default="") in {"Succeeded", "Failed", "Pending"}
    return over or dig(pod, "metadata", "deletionTimestamp") is not None


def _budgets(store: Store, pod: Obj) -> Sequence[Obj]:
    namespace = pod["metadata"]["namespace"]
    budgets = store.list(POD_DISRUPTION_BUDGETS, namespace).items
    return [item for item in budgets if object_match(dig(item, "spec", "selector"))(pod)]


def _take_from_budget(store: Store, pod: Obj, *, dry_run: bool) -> None:
    """Count the disruption in the pod's budget, if it has one and needs it."""
    for _ in range(_ATTEMPTS):
        budgets = _budgets(store, pod)
        if len(budgets) > 1:
            raise status_error(500, "InternalError", _SEVERAL)
        if not budgets or _unready_pod_may_go(pod, budgets[0]):
            return
        budget = budgets[0]
        _check_allowed(budget)
        status = budget["status"]
        status["disruptionsAllowed"] -= 1
        status.setdefault("disruptedPods", {})[pod["metadata"]["name"]] = rfc3339(utc_now())
        try:
            store.update_status(POD_DISRUPTION_BUDGETS, budget, dry_run=dry_run)
        except ConflictError:
            continue
        return
    raise _too_many(f"The disruption budget {budget['metadata']['name']} is still being processed by the server.", 10)


def _unready_pod_may_go(pod: Obj, budget: Obj) -> bool:
    ready = any(
        item.get("type") == "Ready" and item.get("status") == "True" for item in entries(pod, "status", "conditions")
    )
    if ready:
        return False
    if dig(budget, "spec", "unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    desired = dig(budget, "status", "desiredHealthy", default=0)
    return bool(dig(budget, "status", "currentHealthy", default=0) >= desired > 0)


def _check_allowed(budget: Obj) -> None:
    name, status = budget["metadata"]["name"], mapping(budget, "status")
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 1):
        raise _too_many(f"The disruption budget {name} is still being processed by the server.", 10)
    if status.get("disruptionsAllowed", 0) > 0:
        return
    healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    if healthy <= desired:
        raise _too_many(f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently", 0)
    raise _too_many(f"The disruption budget {name} does not allow evicting pods currently", 0)


def _too_many(why: str, seconds: int) -> Exception:
    cause = {"reason": "DisruptionBudget", "message": why}
    details = {"causes": [cause]} | ({"retryAfterSeconds": seconds} if seconds else {})
    return status_error(429, "TooManyRequests", _REFUSED, details)


def _mark(store: Store, target: Target, uid: str) -> None:
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": rfc3339(utc_now()),
    }
    for _ in range(_ATTEMPTS):
        pod = store.find(PODS, target.name, target.namespace)
        if pod is None or pod["metadata"]["uid"] != uid:
            return
        conditions = pod.setdefault("status", {}).setdefault("conditions", [])
        conditions[:] = [*(item for item in conditions if item.get("type") != "DisruptionTarget"), condition]
        try:
            store.update_status(PODS, pod)
        except ConflictError:
            continue
        return
