"""The objects that a run needs in the API server: a namespace, a DeviceClass, claims with allocations, slices.

Everything that the suite creates has its own namespace or the prefix of `NAMESPACE` in its name, and is deleted at the
end. Claims are reserved for an object that is no pod: the claim controller of a cluster would take a claim back from a
pod that does not exist.
"""

import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, Final

from dra_driver.core.errors import AlreadyExistsError, ConflictError, KubernetesApiError, NotFoundError
from dra_driver.kube import paths
from dra_driver.kube.rest import RestClient

Wire = Mapping[str, Any]
JsonObject = dict[str, Any]
"""An object that the suite edits and writes, as the API server has it."""
NAMESPACE: Final = "dra-conformance"
ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"
NAMESPACES: Final = f"{paths.CORE_API}/namespaces"
CLASSES: Final = f"{paths.RESOURCE_API}/deviceclasses"
RESERVED_FOR: Final = {"apiGroup": "conformance.dra-driver.io", "resource": "checks", "name": "suite"}
ATTEMPTS: Final = 3
DELETION_S: Final = 30.0
"""Seconds to wait for the end of a namespace that an earlier run has deleted."""
PAUSE_S: Final = 0.2


class ClusterObjects:
    """The API server as the suite uses it. Every method raises KubernetesApiError."""

    def __init__(self, rest: RestClient, *, node: str, driver: str) -> None:
        self._rest = rest
        self.node = node
        self.driver = driver
        self.class_name = f"{NAMESPACE}-{driver}".lower()[:253]
        self._made: list[str] = []

    def prepare(self, extra_classes: Sequence[Wire] = ()) -> None:
        """Create the namespace, with the label that admin access needs, and the DeviceClasses."""
        metadata = {"name": NAMESPACE, "labels": {ADMIN_LABEL: "true"}}
        self._ensure(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        selector = {"cel": {"expression": f'device.driver == "{self.driver}"'}}
        for item in (device_class(self.class_name, {"selectors": [selector]}), *extra_classes):
            self._ensure(CLASSES, item)

    def clean(self) -> None:
        """Delete what `prepare` created. Continues after errors."""
        for path in reversed(self._made):
            with suppress(KubernetesApiError):
                self._rest.delete(path)
        self._made.clear()

    def slices(self, *, driver: str | None = None) -> list[JsonObject]:
        """The ResourceSlices of the driver that name this node, or none at all."""
        found = self._rest.list(paths.resource_slices(), {"fieldSelector": f"spec.driver={driver or self.driver}"})
        return [item for item in found["items"] if item["spec"].get("nodeName") in {self.node, None}]

    def node_object(self) -> JsonObject:
        """The Node; one without labels if it does not exist."""
        try:
            return self._rest.get(paths.node(self.node))
        except NotFoundError:
            return {"metadata": {"name": self.node, "labels": {}}}

    def classes(self) -> list[JsonObject]:
        return list(self._rest.list(CLASSES)["items"])

    def claims(self) -> list[JsonObject]:
        """All claims of the cluster, whose devices are in use."""
        return list(self._rest.list(paths.resource_claims())["items"])

    def create_claim(self, spec: Wire, name: str = "") -> JsonObject:
        metadata = {"name": name or f"check-{uuid.uuid4().hex[:12]}"}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata}
        return self._rest.create(paths.resource_claims(NAMESPACE), {**body, "spec": deepcopy(dict(spec))})

    def allocate(self, claim: Wire, allocation: Wire) -> None:
        """Write the allocation as the scheduler does."""
        reserved = [{**RESERVED_FOR, "uid": str(uuid.uuid4())}]
        status = {"allocation": deepcopy(dict(allocation)), "reservedFor": reserved}
        self._rest.update(self._claim(claim) + "/status", {**claim, "status": status})

    def delete_claim(self, claim: Wire) -> None:
        """Deallocate the claim and delete it; nothing happens if it is gone."""
        path = self._claim(claim)
        with suppress(NotFoundError):
            for _ in range(ATTEMPTS):
                current = self._rest.get(path)
                current["metadata"].pop("finalizers", None)
                with suppress(ConflictError):
                    self._rest.update(path + "/status", {**current, "status": {}})
                    break
            self._rest.delete(path)

    def create_slice(self, body: Wire) -> JsonObject:
        return self._rest.create(paths.resource_slices(), body)

    def update_slice(self, item: Wire) -> None:
        self._rest.update(paths.resource_slices(item["metadata"]["name"]), item)

    def delete_slice(self, item: Wire) -> None:
        """Delete the slice; nothing happens if it is gone."""
        with suppress(NotFoundError):
            self._rest.delete(paths.resource_slices(item["metadata"]["name"]))

    def _ensure(self, collection: str, body: Wire) -> None:
        """Create the object unless it exists. One that an earlier run has deleted is waited for."""
        path = f"{collection}/{body['metadata']['name']}"
        until = time.monotonic() + DELETION_S
        while True:
            try:
                self._rest.create(collection, body)
            except AlreadyExistsError:
                with suppress(NotFoundError):
                    if "deletionTimestamp" not in self._rest.get(path)["metadata"] or time.monotonic() > until:
                        return
                time.sleep(PAUSE_S)
            else:
                self._made.append(path)
                return

    @staticmethod
    def _claim(claim: Wire) -> str:
        return paths.resource_claim(claim["metadata"]["namespace"], claim["metadata"]["name"])


def device_class(name: str, spec: Wire) -> JsonObject:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": dict(spec)}
