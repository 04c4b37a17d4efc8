"""A controller that evicts because of use, through a proxy that records its requests. As its node, GpuNode, claim, pod
and kubelet, this file: on a real API server or on the embedded one.
"""

from pathlib import Path
from typing import Any

from dra_driver.core.errors import NotFoundError
from dra_driver.kube import paths
from dra_driver.kube.rest import RestClient
from tests.fakes.dra_objects import DRIVER
from tests.fakes.recording_proxy import RecordingProxy
from tests.rights.accounts import pod_on
from tests.rights.evictions import is_leaving, protect
from tests.rights.lives import Life, controller

Obj = dict[str, Any]


class UsageControllerLife(Life):
    """It lists GpuNodes, warns a pod, evicts it, and releases its Lease.

    With ``protected``, the name of a second pod that a PodDisruptionBudget keeps, it says twice that it is refused.
    """

    def __init__(
        self,
        folder: Path,
        admin: RestClient,
        proxy: RecordingProxy,
        *,
        lease: str,
        tenant: str,
        node: str,
        protected: str = "",
    ) -> None:
        self._admin, self._tenant, self._node, self._protected = admin, tenant, node, protected
        flags = {"max_evictions_per_minute": "600", "evict_over_grant": "true", "policy_status": "false"}
        super().__init__(controller(folder, proxy, lease, **flags), proxy)

    def live(self) -> list[tuple[str, str]]:
        claims = [self._claim_in_use(name) for name in ("goes", self._protected) if name]
        if self._protected:
            protect(self._admin, self._tenant, self._protected)
        self._ask(claims, "2026-07-01T12:00:00Z")
        with self._running():
            self._wait(lambda: self._asked("POST", "/events") >= len(claims))
            self._ask(claims, "2026-07-01T12:01:00Z")
            self._wait(lambda: is_leaving(self._admin, self._tenant, "goes"))
            if self._protected:
                self._wait(lambda: self._asked("POST", f"/pods/{self._protected}/eviction") >= 2)
                self._wait(lambda: self._asked("PATCH", "/events"))
        return list(self._proxy.requests)

    def _claim_in_use(self, pod: str) -> Obj:
        body = pod_on(self._node, "default", self._tenant, pod)
        body["metadata"]["labels"] = {"name": pod}
        made = self._admin.create(paths.pods(self._tenant), body)
        running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self._admin.merge_patch(f"{paths.pod(self._tenant, pod)}/status", {"status": running})
        request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
        body = {"metadata": {"name": pod}, "spec": {"devices": {"requests": [request]}}}
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        claim = self._admin.create(paths.resource_claims(self._tenant), {**kind, **body})
        result = {"request": "gpu", "driver": DRIVER, "pool": f"{self._node}/{DRIVER}", "device": "gpu-0"}
        user = {"resource": "pods", "name": pod, "uid": made["metadata"]["uid"]}
        claim["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
        self._admin.update(f"{paths.resource_claim(self._tenant, pod)}/status", claim)
        return {"claim": claim["metadata"]["uid"], "pod": pod, "podUid": made["metadata"]["uid"]}

    def _ask(self, claims: list[Obj], checked_at: str) -> None:
        entries = [
            {
                "namespace": self._tenant,
                "claim": claim["pod"],
                "claimUid": claim["claim"],
                "gpu": "gpu-0",
                "pods": [{"name": claim["pod"], "uid": claim["podUid"]}],
                "used": "20Gi",
                "granted": "12Gi",
                "processes": 2,
                "since": "2026-07-01T12:00:00Z",
                "action": "Evict",
                "graceSeconds": 0,
            }
            for claim in claims
        ]
        gpu = {"name": "gpu-0", "uuid": "GPU-0", "offeredAs": [], "usedAs": "Shared", "health": "Healthy"}
        status = {
            "observedAt": checked_at,
            "driverName": DRIVER,
            "summary": {"gpus": 1, "problems": 0},
            "gpus": [gpu],
            "policies": [],
            "problems": [],
            "usage": {"checkedAt": checked_at, "overGrant": entries},
        }
        head = {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuNode", "metadata": {"name": self._node}}
        try:
            self._admin.get(paths.gpu_nodes(self._node))
        except NotFoundError:
            self._admin.create(paths.gpu_nodes(), head)
        self._admin.apply(f"{paths.gpu_nodes(self._node)}/status", {**head, "status": status}, "test")
