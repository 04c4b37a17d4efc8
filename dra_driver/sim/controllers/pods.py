"""Pods that workload controllers create from a template: names, owners, counts."""

from collections.abc import Sequence

from msgspec import Struct

from dra_driver.sim.apiserver.jsonvalue import Obj, copy_json, mapping
from dra_driver.sim.apiserver.kinds import PODS
from dra_driver.sim.apiserver.store import DeleteOptions, Store
from dra_driver.sim.objects import is_deleted, is_finished, is_ready, key, owned_by, owner_reference
from dra_driver.sim.recorder import StoreEventRecorder


class Owned(Struct, frozen=True):
    """An owner's pods by state. Pods being deleted are in ``pods`` only."""

    pods: Sequence[Obj]

    @property
    def active(self) -> list[Obj]:
        """Pods that are neither finished nor being deleted."""
        return [pod for pod in self.pods if not is_finished(pod) and not is_deleted(pod)]

    @property
    def ready(self) -> list[Obj]:
        """Active pods that are ready."""
        return [pod for pod in self.active if is_ready(pod)]

    def in_phase(self, phase: str) -> list[Obj]:
        """Pods in that phase."""
        return [pod for pod in self.pods if mapping(pod, "status").get("phase") == phase]


class PodMaker:
    """Lists, creates and deletes pods for controllers, with events on the owner."""

    def __init__(self, store: Store, recorder: StoreEventRecorder) -> None:
        self._store = store
        self._recorder = recorder

    def owned(self, owner: Obj) -> Owned:
        """The pods that belong to ``owner``, oldest first."""
        pods = self._store.list(PODS, key(owner)[0]).items
        owned = [pod for pod in pods if owned_by(pod, owner)]
        return Owned(sorted(owned, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"])))

    def create(self, owner: Obj, template: Obj, labels: Obj | None = None) -> Obj:
        """Create a pod of ``owner`` from the template."""
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
        """Delete a pod of ``owner``."""
        namespace, name = key(pod)
        self._store.delete(PODS, name, namespace, DeleteOptions(uid=pod["metadata"]["uid"]))
        self._recorder.normal(owner, "SuccessfulDelete", f"Deleted pod: {name}")
