"""The deployment controller: one replica set per pod template; scales the newest one up and the others down.

Follows pkg/controller/deployment of kubernetes/kubernetes: hash label, maxSurge and maxUnavailable (default 25 %),
conditions Available and Progressing. Not implemented: rollback, pause and history limits; old replica sets are deleted
once they are empty.
"""

import hashlib
import json
from datetime import datetime

from dra_driver.sim.apiserver.jsonvalue import Obj, copy_json, dig, mapping, utc_now
from dra_driver.sim.apiserver.kinds import DEPLOYMENTS, REPLICA_SETS
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.loop import ControllerLoop
from dra_driver.sim.objects import is_deleted, key, owned_by, owner_reference, set_condition
from dra_driver.sim.recorder import StoreEventRecorder

HASH_LABEL = "pod-template-hash"
# As in Kubernetes (k8s.io/apimachinery pkg/util/rand): without vowels, so that hashes spell no words.
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


class DeploymentController:
    """The controller's thread. Start it once, stop it once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recorder = StoreEventRecorder(store, "deployment-controller")
        self._loop = ControllerLoop("deployment-controller", store, (DEPLOYMENTS, REPLICA_SETS), self.step)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()

    def step(self) -> float | None:
        """Reconcile all deployments once."""
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
            if not item["spec"].get("replicas") and not dig(item, "status", "replicas", default=0):
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
        available = sum(int(dig(item, "status", "availableReplicas", default=0)) for item in (newest, *old))
        may_go = max(available - (replicas - unavailable), 0)
        for item in old:
            # Removing replicas that never became available does not reduce availability: remove them first.
            idle = max(_replicas(item) - int(dig(item, "status", "availableReplicas", default=0)), 0)
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
        total = {field: sum(int(dig(item, "status", field, default=0)) for item in sets) for field in _COUNTED}
        wanted = _replicas(deployment)
        status.update(total)
        status["updatedReplicas"] = int(dig(newest, "status", "replicas", default=0))
        status["unavailableReplicas"] = max(wanted - total["availableReplicas"], 0)
        status["observedGeneration"] = deployment["metadata"].get("generation", 1)
        for field in [name for name in (*_COUNTED, "updatedReplicas", "unavailableReplicas") if not status[name]]:
            status.pop(field)
        _conditions(deployment, total["availableReplicas"], newest, now)
        if before != status:
            self._store.update_status(DEPLOYMENTS, deployment)


_COUNTED = ("replicas", "readyReplicas", "availableReplicas")


def _conditions(deployment: Obj, available: int, newest: Obj, now: datetime) -> None:
    wanted = _replicas(deployment)
    enough = available >= wanted - _rollout_limits(deployment, wanted)[1]
    outcome = "has minimum availability" if enough else "does not have minimum availability"
    reason = "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable"
    set_condition(
        deployment, "Available", "True" if enough else "False", now, reason=reason, message=f"Deployment {outcome}."
    )
    complete = available >= wanted and int(dig(newest, "status", "availableReplicas", default=0)) >= wanted
    name = newest["metadata"]["name"]
    message = (
        f'ReplicaSet "{name}" has successfully progressed.' if complete else f'ReplicaSet "{name}" is progressing.'
    )
    reason = "NewReplicaSetAvailable" if complete else "ReplicaSetUpdated"
    set_condition(deployment, "Progressing", "True", now, reason=reason, message=message)


def template_hash(template: Obj) -> str:
    """A short hash of a pod template."""
    number = int.from_bytes(hashlib.sha256(json.dumps(template, sort_keys=True).encode()).digest()[:6], "big")
    letters = ""
    while len(letters) < 10:
        number, digit = divmod(number, len(_ALPHABET))
        letters += _ALPHABET[digit]
    return letters


def _replicas(obj: Obj) -> int:
    return int(dig(obj, "spec", "replicas", default=1 if obj["kind"] == "Deployment" else 0))


def _rollout_limits(deployment: Obj, replicas: int) -> tuple[int, int]:
    """maxSurge and maxUnavailable in pods: how many more and how many fewer than ``replicas`` may exist."""
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
    percent = int(str(value).rstrip("%"))
    return -(-replicas * percent // 100) if round_up else replicas * percent // 100
