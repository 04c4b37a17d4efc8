"""Creates and deletes the claim that the scheduler makes for a pod's extended resources.

Order of writes (KEP-5004; kubernetes/kubernetes
pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go): the claim, its allocation and its user,
then ``status.extendedResourceClaimStatus`` of the pod. Both precede the binding, so a pod on a node always says which
of its containers gets which devices. `allocation.extended` decides what the claim requests.

An attempt that fails after the claim was created deletes it. If that fails too, the next attempt deletes it.
"""

from contextlib import suppress

from dra_driver.core.errors import DraError, NotFoundError
from dra_driver.scheduler.allocation import EXTENDED_CLAIM_ANNOTATION, ExtendedClaim
from dra_driver.sim.apiserver.jsonvalue import Obj, copy_json, entries, mapping
from dra_driver.sim.apiserver.kinds import PODS, RESOURCE_CLAIMS
from dra_driver.sim.apiserver.store import DeleteOptions, Store
from dra_driver.sim.objects import FINALIZER, key, owned_by, uid


class ExtendedClaims:
    """Claims for extended resources in ``store``. Errors are those of the API."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, pod: Obj, planned: ExtendedClaim, allocation: Obj) -> Obj:
        """Create the claim, allocated and reserved for ``pod``, and name it in the pod's status.

        Deletes the claim again if a later step fails.
        """
        namespace, name = key(pod)
        body = copy_json(dict(planned.claim))
        del body["metadata"]["name"]  # the API server generates one from generateName
        # With the finalizer from the start: an allocated claim must always have it.
        body["metadata"]["finalizers"] = [FINALIZER]
        claim = self._store.create(RESOURCE_CLAIMS, body, namespace=namespace)
        try:
            user = {"resource": "pods", "name": name, "uid": uid(pod)}
            claim["status"] = {"allocation": allocation, "reservedFor": [user]}
            claim = self._store.update_status(RESOURCE_CLAIMS, claim)
            pod.setdefault("status", {})["extendedResourceClaimStatus"] = {
                "resourceClaimName": claim["metadata"]["name"],
                "requestMappings": [dict(item) for item in planned.mappings],
            }
            self._store.update_status(PODS, pod)
        except DraError:
            with suppress(DraError):
                self._discard(claim)
            raise
        return claim

    def discard_for(self, pod: Obj) -> None:
        """Delete the claims that earlier attempts left for this pod. It is on no node, so no container uses them."""
        for record in self._store.read_all(RESOURCE_CLAIMS)[0]:
            annotations = mapping(record.obj, "metadata", "annotations")
            if EXTENDED_CLAIM_ANNOTATION in annotations and owned_by(record.obj, pod):
                self._discard(copy_json(record.obj))

    def _discard(self, claim: Obj) -> None:
        namespace, name = key(claim)
        with suppress(NotFoundError):
            current = self._store.get(RESOURCE_CLAIMS, name, namespace)
            if current.get("status"):
                current["status"] = {}
                current = self._store.update_status(RESOURCE_CLAIMS, current)
            if FINALIZER in entries(current, "metadata", "finalizers"):
                current["metadata"]["finalizers"].remove(FINALIZER)
                self._store.update(RESOURCE_CLAIMS, current)
            self._store.delete(RESOURCE_CLAIMS, name, namespace, DeleteOptions(uid=uid(claim)))
