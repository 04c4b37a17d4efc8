"""Controllers of deployments, replica sets, jobs and PodDisruptionBudgets (kubernetes/kubernetes
pkg/controller/{deployment,replicaset,job,ttlafterfinished,disruption}).

Not implemented: rollback, pause and history limits of deployments (old replica sets are deleted once they are empty),
indexes and pod failure policies of jobs; suspended jobs are skipped.
"""

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from dra_driver.core.time import parse_time, rfc3339
from dra_driver.sim.apiserver.jsonvalue import Clock, Obj, copy_json, dig, entries, mapping, utc_now
from dra_driver.sim.apiserver.kinds import DEPLOYMENTS, JOBS, POD_DISRUPTION_BUDGETS, PODS, REPLICA_SETS
from dra_driver.sim.apiserver.rules.workloads import job_labels
from dra_driver.sim.apiserver.selectors import object_match
from dra_driver.sim.apiserver.store import DeleteOptions, Store
from dra_driver.sim.loop import Controller, StoreEventRecorder
from dra_driver.sim.objects import (
    condition,
    is_deleted,
    is_finished,
    is_ready,
    key,
    owned_by,
    owner_reference,
    set_condition,
    uid,
)


class Owned(Struct, frozen=True):
    """An owner's pods. ``active`` and ``ready`` leave out pods being deleted."""

    pods: Sequence[Obj]

    @property
    def active(self) -> list[Obj]:
        return [pod for pod in self.pods if not is_finished(pod) and not is_deleted(pod)]

    @property
    def ready(self) -> list[Obj]:
        return [pod for pod in self.active if is_ready(pod)]

    def in_phase(self, phase: str) -> int:
        return sum(dig(pod, "status", "phase") == phase for pod in self.pods)


class PodMaker:
    def __init__(self, store: Store, recorder: StoreEventRecorder) -> None:
        self._store = store
        self._recorder = recorder

    def owned(self, owner: Obj) -> Owned:
        pods = self._store.list(PODS, key(owner)[0]).items
        owned = [pod for pod in pods if owned_by(pod, owner)]
        return Owned(sorted(owned, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"])))

    def create(self, owner: Obj, template: Obj, labels: Obj | None = None) -> Obj:
        namespace, name = key(owner)
        metadata = copy_json(mapping(template, "metadata"))
        metadata = {part: metadata[part] for part in ("labels", "annotations") if part in metadata}
        metadata["labels"] = {**metadata.get("labels", {}), **(labels or {})}
        metadata |= {"generateName": f"{name}-", "ownerReferences": [owner_reference(owner)]}
        pod = {"metadata": metadata, "spec": copy_json(mapping(template, "spec"))}
        created = self._store.create(PODS, pod, namespace=namespace)
        self._recorder.normal(owner, "SuccessfulCreate", f"Created pod: {created['metadata']['name']}")
        return created

    def delete(self, owner: Obj, pod: Obj) -> None:
        namespace, name = key(pod)
        self._store.delete(PODS, name, namespace, DeleteOptions(uid=pod["metadata"]["uid"]))
        self._recorder.normal(owner, "SuccessfulDelete", f"Deleted pod: {name}")


HASH_LABEL = "pod-template-hash"
# As in Kubernetes (k8s.io/apimachinery pkg/util/rand): without vowels, so that hashes spell no words.
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


class DeploymentController(Controller):
    def __init__(self, store: Store) -> None:
        super().__init__("deployment-controller", store, (DEPLOYMENTS, REPLICA_SETS))

    def step(self) -> float | None:
        for deployment in self._store.list(DEPLOYMENTS).items:
            if not is_deleted(deployment):
                self._reconcile(deployment)
        return None

    def _reconcile(self, deployment: Obj) -> None:
        sets = [item for item in self._store.list(REPLICA_SETS, key(deployment)[0]).items if owned_by(item, deployment)]
        wanted = template_hash(mapping(deployment, "spec", "template"))
        newest = next((item for item in sets if item["metadata"]["labels"].get(HASH_LABEL) == wanted), None)
        if newest is None:
            newest = self._create(deployment, wanted)
            sets.append(newest)
        old = [item for item in sets if item["metadata"]["uid"] != newest["metadata"]["uid"]]
        self._resize(deployment, newest, old)
        for item in old:
            if not item["spec"].get("replicas") and not _counted(item, "replicas"):
                self._store.delete(REPLICA_SETS, key(item)[1], key(item)[0])
        self._report(deployment, newest, sets)

    def _create(self, deployment: Obj, digest: str) -> Obj:
        namespace, name = key(deployment)
        template = copy_json(mapping(deployment, "spec", "template"))
        labels = {**mapping(template, "metadata", "labels"), HASH_LABEL: digest}
        template.setdefault("metadata", {})["labels"] = labels
        selector = copy_json(mapping(deployment, "spec", "selector"))
        selector["matchLabels"] = {**mapping(selector, "matchLabels"), HASH_LABEL: digest}
        metadata = {"name": f"{name}-{digest}", "labels": labels, "ownerReferences": [owner_reference(deployment)]}
        spec = {"replicas": 0, "selector": selector, "template": template}
        return self._store.create(REPLICA_SETS, {"metadata": metadata, "spec": spec}, namespace=namespace)

    def _resize(self, deployment: Obj, newest: Obj, old: list[Obj]) -> None:
        replicas = _replicas(deployment)
        surge, unavailable = _rollout_limits(deployment, replicas)
        of_old = sum(_replicas(item) for item in old)
        self._scale(deployment, newest, min(replicas, max(replicas + surge - of_old, 0)))
        available = sum(_counted(item, "availableReplicas") for item in (newest, *old))
        may_go = max(available - (replicas - unavailable), 0)
        for item in old:
            # Removing replicas that never became available does not reduce availability: remove them first.
            idle = max(_replicas(item) - _counted(item, "availableReplicas"), 0)
            removed = min(_replicas(item) - idle, may_go)
            may_go -= removed
            self._scale(deployment, item, _replicas(item) - idle - removed)

    def _scale(self, deployment: Obj, item: Obj, replicas: int) -> None:
        before = _replicas(item)
        if before == replicas:
            return
        item["spec"]["replicas"] = replicas
        self._store.update(REPLICA_SETS, item)
        direction = "up" if replicas > before else "down"
        text = f"Scaled {direction} replica set {item['metadata']['name']} from {before} to {replicas}"
        self._recorder.normal(deployment, "ScalingReplicaSet", text)

    def _report(self, deployment: Obj, newest: Obj, sets: list[Obj]) -> None:
        before, now = copy_json(mapping(deployment, "status")), utc_now()
        status = deployment.setdefault("status", {})
        counted = ("replicas", "readyReplicas", "availableReplicas")
        total = {field: sum(_counted(item, field) for item in sets) for field in counted}
        total["updatedReplicas"] = _counted(newest, "replicas")
        total["unavailableReplicas"] = max(_replicas(deployment) - total["availableReplicas"], 0)
        _set_counts(status, total)
        status["observedGeneration"] = deployment["metadata"].get("generation", 1)
        _conditions(deployment, total["availableReplicas"], newest, now)
        if before != status:
            self._store.update_status(DEPLOYMENTS, deployment)


def _counted(item: Obj, field: str) -> int:
    return int(dig(item, "status", field, default=0))


def _set_counts(status: Obj, counts: dict[str, int]) -> None:
    """Set the counts that are not 0, and remove zero counts, as Go's omitempty does."""
    for name, count in counts.items():
        status[name] = count
        if not count:
            del status[name]


def _conditions(deployment: Obj, available: int, newest: Obj, now: datetime) -> None:
    wanted = _replicas(deployment)
    enough = available >= wanted - _rollout_limits(deployment, wanted)[1]
    outcome = "has minimum availability" if enough else "does not have minimum availability"
    reason = "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable"
    set_condition(
        deployment, "Available", "True" if enough else "False", now, reason=reason, message=f"Deployment {outcome}."
    )
    complete = available >= wanted and _counted(newest, "availableReplicas") >= wanted
    reason = "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated"
    outcome = "has successfully progressed" if complete else "is progressing"
    message = f'ReplicaSet "{newest["metadata"]["name"]}" {outcome}.'
    set_condition(deployment, "Progressing", "True", now, reason=reason, message=message)


def template_hash(template: Obj) -> str:
    number = int.from_bytes(hashlib.sha256(json.dumps(template, sort_keys=True).encode()).digest()[:6], "big")
    letters = ""
    while len(letters) < 10:
        number, digit = divmod(number, len(_ALPHABET))
        letters += _ALPHABET[digit]
    return letters


def _replicas(obj: Obj) -> int:
    return int(dig(obj, "spec", "replicas", default=1 if obj["kind"] == "Deployment" else 0))


def _rollout_limits(deployment: Obj, replicas: int) -> tuple[int, int]:
    strategy = mapping(deployment, "spec", "strategy")
    if strategy.get("type") == "Recreate":
        return 0, replicas
    rolling = mapping(strategy, "rollingUpdate")
    surge = _share(rolling.get("maxSurge", "25%"), replicas, round_up=True)
    unavailable = _share(rolling.get("maxUnavailable", "25%"), replicas, round_up=False)
    return surge, max(unavailable, 0 if surge else 1)


def _share(value: object, replicas: int, *, round_up: bool) -> int:
    if isinstance(value, int):
        return value
    text = str(value).removesuffix("%")
    percent = int(text) if text.isdigit() else 0
    return -(-replicas * percent // 100) if round_up else replicas * percent // 100


# A thousand replicas are probably a typing mistake; in steps, the user can still correct it.
MAX_STEP = 50


class ReplicaSetController(Controller):
    def __init__(self, store: Store) -> None:
        super().__init__("replicaset-controller", store, (REPLICA_SETS, PODS))
        self._pods = PodMaker(store, self._recorder)

    def step(self) -> float | None:
        for item in self._store.list(REPLICA_SETS).items:
            if not is_deleted(item):
                self._reconcile(item)
        return None

    def _reconcile(self, item: Obj) -> None:
        owned = self._pods.owned(item)
        wanted = int(dig(item, "spec", "replicas", default=1))
        active = owned.active
        for _ in range(min(wanted - len(active), MAX_STEP)):
            self._pods.create(item, mapping(item, "spec", "template"))
        # Delete pods that are not ready first, then the youngest.
        youngest_first = active[::-1]
        surplus = sorted(youngest_first, key=is_ready)[: max(len(active) - wanted, 0)]
        for pod in surplus[:MAX_STEP]:
            self._pods.delete(item, pod)
        self._report(item, len(active), len(owned.ready))

    def _report(self, item: Obj, replicas: int, ready: int) -> None:
        before = copy_json(mapping(item, "status"))
        status = {"replicas": replicas, "observedGeneration": item["metadata"].get("generation", 1)}
        if replicas:
            status["fullyLabeledReplicas"] = replicas
        if ready:
            status |= {"readyReplicas": ready, "availableReplicas": ready}
        if before != status:
            item["status"] = status
            self._store.update_status(REPLICA_SETS, item)


_FAILURES = {
    "BackoffLimitExceeded": "Job has reached the specified backoff limit",
    "DeadlineExceeded": "Job was active longer than specified deadline",
}


class JobController(Controller):
    def __init__(self, store: Store, clock: Clock = utc_now) -> None:
        super().__init__("job-controller", store, (JOBS, PODS))
        self._clock = clock
        self._pods = PodMaker(store, self._recorder)

    def step(self) -> float | None:
        due: list[float] = []
        for job in self._store.list(JOBS).items:
            over = "True" in (condition(job, "Complete"), condition(job, "Failed"))
            if not is_deleted(job) and over:
                due += self._expire(job)
            elif not is_deleted(job) and not dig(job, "spec", "suspend", default=False):
                self._reconcile(job)
                due += self._left(job, "activeDeadlineSeconds", dig(job, "status", "startTime"))
        return min(due, default=None)

    def _expire(self, job: Obj) -> list[float]:
        ended = (item for item in entries(job, "status", "conditions") if item.get("type") in ("Complete", "Failed"))
        left = self._left(job, "ttlSecondsAfterFinished", next(ended)["lastTransitionTime"])
        if left == [0.0]:
            namespace, name = key(job)
            self._store.delete(JOBS, name, namespace, DeleteOptions(uid=uid(job), propagation="Background"))
            return []
        return left

    def _left(self, job: Obj, field: str, since: object) -> list[float]:
        """The seconds until ``field`` of the spec has passed, 0.0 when it has; none without the field."""
        limit, begin = dig(job, "spec", field), parse_time(since)
        if limit is None or begin is None:
            return []
        return [max(0.0, float(limit) - (self._clock() - begin).total_seconds())]

    def _reconcile(self, job: Obj) -> None:
        owned = self._pods.owned(job)
        succeeded, failed = owned.in_phase("Succeeded"), owned.in_phase("Failed")
        parallelism = int(dig(job, "spec", "parallelism", default=1))
        completions = int(dig(job, "spec", "completions", default=parallelism))
        ended, reason = "", "BackoffLimitExceeded"
        if succeeded >= completions:
            ended = "Complete"
        elif self._left(job, "activeDeadlineSeconds", dig(job, "status", "startTime")) == [0.0]:
            ended, reason = "Failed", "DeadlineExceeded"
        elif failed > int(dig(job, "spec", "backoffLimit", default=6)):
            ended = "Failed"
        if ended == "Failed":
            for pod in owned.active:
                self._pods.delete(job, pod)
        elif not ended:
            missing = min(parallelism, completions - succeeded) - len(owned.active)
            for _ in range(min(missing, MAX_STEP)):
                self._pods.create(job, mapping(job, "spec", "template"), job_labels(job))
        self._report(job, self._pods.owned(job), ended, reason)

    def _report(self, job: Obj, owned: Owned, ended: str, reason: str) -> None:
        before, now = copy_json(mapping(job, "status")), self._clock()
        status = job.setdefault("status", {})
        status.setdefault("startTime", rfc3339(now))
        counts = {
            "active": len(owned.active),
            "succeeded": owned.in_phase("Succeeded"),
            "failed": owned.in_phase("Failed"),
        }
        _set_counts(status, counts)
        status["ready"] = len(owned.ready)
        if ended:
            self._end(job, ended, reason)
        if before != status:
            self._store.update_status(JOBS, job)

    def _end(self, job: Obj, ended: str, reason: str) -> None:
        now = self._clock()
        if ended == "Complete":
            reason, message = "CompletionsReached", "Reached expected number of succeeded pods"
            set_condition(job, "SuccessCriteriaMet", "True", now, reason=reason, message=message)
            job["status"]["completionTime"] = rfc3339(now)
            self._recorder.normal(job, "Completed", "Job completed")
        else:
            message = _FAILURES[reason]
            self._recorder.warning(job, reason, message)
        set_condition(job, ended, "True", now, reason=reason, message=message)


# Seconds for which a pod with a counted eviction is not healthy, even if its deletion fails.
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
    if "maxUnavailable" in spec:
        return scale, max(0, scale - _share(spec["maxUnavailable"], scale, round_up=True))
    least = spec.get("minAvailable", 1)
    return (scale, _share(least, scale, round_up=True)) if isinstance(least, str) else (len(pods), least)
