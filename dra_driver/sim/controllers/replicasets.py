"""The replica set controller: keeps the wanted number of pods (pkg/controller/replicaset of kubernetes/kubernetes)."""

from dra_driver.sim.apiserver.jsonvalue import Obj, copy_json, dig, mapping
from dra_driver.sim.apiserver.kinds import PODS, REPLICA_SETS
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.controllers.pods import PodMaker
from dra_driver.sim.loop import ControllerLoop
from dra_driver.sim.objects import is_deleted, is_ready
from dra_driver.sim.recorder import StoreEventRecorder

# A thousand replicas are probably a typing mistake; in steps, the user can still correct it.
MAX_STEP = 50


class ReplicaSetController:
    """The controller's thread. Start it once, stop it once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pods = PodMaker(store, StoreEventRecorder(store, "replicaset-controller"))
        self._loop = ControllerLoop("replicaset-controller", store, (REPLICA_SETS, PODS), self.step)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()

    def step(self) -> float | None:
        """Reconcile all replica sets once."""
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
