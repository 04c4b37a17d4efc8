"""The disruption controller: keeps the status of PodDisruptionBudgets (pkg/controller/disruption of kubernetes)."""

import math
from collections.abc import Sequence
from datetime import timedelta

from dra_driver.core.time import parse_time
from dra_driver.sim.apiserver.jsonvalue import Obj, copy_json, dig, entries, mapping, utc_now
from dra_driver.sim.apiserver.kinds import JOBS, POD_DISRUPTION_BUDGETS, PODS, REPLICA_SETS
from dra_driver.sim.apiserver.selectors import object_match
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.loop import Controller
from dra_driver.sim.objects import is_deleted, is_finished, is_ready, owned_by, set_condition

# How long a pod whose eviction was counted is not counted as healthy, in case its deletion never comes.
_EVICTION_COUNTS = timedelta(minutes=2)


class DisruptionController(Controller):
    def __init__(self, store: Store) -> None:
        super().__init__("disruption-controller", store, (POD_DISRUPTION_BUDGETS, PODS))

    def step(self) -> float | None:
        """Reconcile all budgets once; returns 10 s while an eviction is counted whose pod is still there."""
        waiting = [self._reconcile(budget) for budget in self._store.list(POD_DISRUPTION_BUDGETS).items]
        return 10.0 if any(waiting) else None

    def _reconcile(self, budget: Obj) -> bool:
        namespace = budget["metadata"]["namespace"]
        wanted = object_match(dig(budget, "spec", "selector"))
        pods = [pod for pod in self._store.list(PODS, namespace).items if wanted(pod) and not is_finished(pod)]
        before = copy_json(mapping(budget, "status"))
        disrupted = _still_disrupted(budget, pods)
        healthy = [
            pod for pod in pods if is_ready(pod) and not is_deleted(pod) and pod["metadata"]["name"] not in disrupted
        ]
        expected, desired = _wanted(mapping(budget, "spec"), pods, self._scale(namespace, pods))
        allowed = max(0, len(healthy) - desired) if expected else 0
        budget["status"] = {
            "observedGeneration": budget["metadata"].get("generation", 1),
            "currentHealthy": len(healthy),
            "desiredHealthy": desired,
            "expectedPods": expected,
            "disruptionsAllowed": allowed,
            **({"disruptedPods": disrupted} if disrupted else {}),
            "conditions": entries(before, "conditions"),
        }
        reason = "SufficientPods" if allowed else "InsufficientPods"
        set_condition(budget, "DisruptionAllowed", "True" if allowed else "False", utc_now(), reason=reason)
        if budget["status"] != before:
            self._store.update_status(POD_DISRUPTION_BUDGETS, budget)
        return bool(disrupted)

    def _scale(self, namespace: str, pods: Sequence[Obj]) -> int:
        """How many pods the owners of ``pods`` want together."""
        wanted = 0
        for kind, field in ((REPLICA_SETS, "replicas"), (JOBS, "parallelism")):
            for owner in self._store.list(kind, namespace).items:
                if any(owned_by(pod, owner) for pod in pods):
                    wanted += dig(owner, "spec", field, default=1)
        return wanted


def _still_disrupted(budget: Obj, pods: Sequence[Obj]) -> dict[str, str]:
    """Evictions that were counted and whose deletion has not begun."""
    begin = utc_now() - _EVICTION_COUNTS
    alive = {pod["metadata"]["name"] for pod in pods if not is_deleted(pod)}
    counted = mapping(budget, "status", "disruptedPods")
    return {name: at for name, at in counted.items() if name in alive and (parse_time(at) or begin) > begin}


def _wanted(spec: Obj, pods: Sequence[Obj], scale: int) -> tuple[int, int]:
    """How many pods there should be, and how many of them have to be healthy."""
    if "maxUnavailable" in spec:
        return scale, max(0, scale - _scaled(spec["maxUnavailable"], scale))
    least = spec.get("minAvailable", 1)
    return (scale, _scaled(least, scale)) if isinstance(least, str) else (len(pods), least)


def _scaled(value: int | str, of: int) -> int:
    if isinstance(value, int):
        return value
    percent = value.removesuffix("%")
    return math.ceil(int(percent) * of / 100) if percent.isdigit() else 0
