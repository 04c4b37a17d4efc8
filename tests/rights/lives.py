"""Processes that do all that they do in their lives, through a proxy that records their requests."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dra_driver.core.errors import NotFoundError
from dra_driver.kube import paths
from dra_driver.kube.rest import RestClient
from tests.fakes.dra_objects import DRIVER, gpu, resource_slice
from tests.fakes.extended_pods import claim_status, pod_status, special_claim
from tests.fakes.kubelet import DraClient, dial, register
from tests.fakes.node_process import DriverProcess, NodeProcess
from tests.fakes.recording_proxy import RecordingProxy
from tests.harness.claims_api import ClaimMaker, ensure_namespace
from tests.rights.accounts import pod_on

Obj = dict[str, Any]
WAIT_S = 60.0
SLICES = paths.resource_slices()
POLICY: Obj = {
    "apiVersion": "gpu.dra-driver.io/v1alpha1",
    "kind": "GpuPolicy",
    "metadata": {"name": "rights-object"},
    # Not for other nodes: they would see its definition deleted, and a node then keeps its last policies.
    "spec": {"select": {"nodeNames": ["rights-*"]}},
}
WRONG = "kind: Nonsense\n"
RIGHT = """
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {name: rights-are-right}
spec: {priority: 1}
"""


class Life:
    """A process behind a proxy that records its requests."""

    def __init__(self, process: DriverProcess, proxy: RecordingProxy) -> None:
        self._process, self._proxy = process, proxy

    @contextmanager
    def _running(self) -> Iterator[None]:
        try:
            self._process.start()
            yield
            assert self._process.end()[0] == 0
        finally:
            self._process.kill()

    def _wait(self, condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
        self._process.wait_for(condition, timeout_s)

    def _asked(self, method: str, part: str) -> int:
        """The number of requests with this in their path."""
        return sum(verb == method and part in path for verb, path in self._proxy.requests)


def controller(folder: Path, proxy: RecordingProxy, namespace: str, **flags: str) -> DriverProcess:
    own = {"namespace": namespace, "pod_name": "rights", "lease_duration": "3", **flags}
    return DriverProcess("controller", folder, {"kubeconfig": str(proxy.kubeconfig(folder / "proxied.conf")), **own})


def prepared_claim(process: NodeProcess, admin: RestClient, node: str) -> dict[str, str]:
    """A claim for the first GPU, allocated as a scheduler does and prepared as a kubelet does."""
    process.wait_for(process.registration.exists, WAIT_S)
    register(process.registration)
    process.wait_for(lambda: "gpu-1" in json.dumps(slices_of(admin, node)), WAIT_S)
    ensure_namespace(admin)
    claim = ClaimMaker(admin, node=node, driver=DRIVER).make(0)
    with dial(process.dra) as channel:
        answer = DraClient(channel).prepare(claim["uid"], namespace=claim["namespace"], name=claim["name"])
    assert answer.claims[claim["uid"]].error == ""
    return claim


def slices_of(admin: RestClient, node: str) -> list[Obj]:
    listed = admin.list(SLICES, {"fieldSelector": f"spec.nodeName={node},spec.driver={DRIVER}"})
    found: list[Obj] = listed["items"]
    return found


class NodeLife(Life):
    """A node process: it replaces an earlier run's slices, prepares a claim, loses its journal, and warns twice."""

    _process: NodeProcess

    def __init__(self, folder: Path, admin: RestClient, proxy: RecordingProxy, node: str) -> None:
        self._admin, self._node = admin, node
        self._policies = folder / "policies"
        self._policies.mkdir()
        config = str(proxy.kubeconfig(folder / "proxied.conf"))
        policies = str(self._policies)
        process = NodeProcess(folder, node_name=node, kubeconfig=config, policy_dir=policies, poll_interval="1")
        super().__init__(process, proxy)

    def live(self) -> list[tuple[str, str]]:
        self._admin.create(paths.gpu_policies(), POLICY)
        for number in range(3):
            leftover = resource_slice(self._node, gpu("gpu-0"), name=f"rights-{self._node}-{number}")
            self._admin.create(SLICES, leftover)
        try:
            with self._running():
                claim = prepared_claim(self._process, self._admin, self._node)
                self._edit_a_slice()
                self._lose_the_journal(claim)
                self._warn_twice()
                self._wait(lambda: self._asked("PATCH", "/gpunodes/"))
        finally:
            self._admin.delete(paths.gpu_policies(POLICY["metadata"]["name"]))
        return list(self._proxy.requests)

    def _edit_a_slice(self) -> None:
        edited = next(item for item in slices_of(self._admin, self._node) if item["spec"].get("devices"))
        edited["spec"]["devices"].pop()
        self._admin.update(f"{SLICES}/{edited['metadata']['name']}", edited)
        self._wait(lambda: any(method == "PUT" and "slices" in path for method, path in self._proxy.requests))

    def _lose_the_journal(self, claim: dict[str, str]) -> None:
        self._process.kill()
        for path in self._process.dra.parent.glob("state.db*"):
            path.unlink()
        before = self._reads(claim)
        self._process.start()
        self._wait(lambda: self._reads(claim) > before)

    def _reads(self, claim: dict[str, str]) -> int:
        return self._proxy.requests.count(("GET", paths.resource_claim(claim["namespace"], claim["name"])))

    def _warn_twice(self) -> None:
        """A repeat is counted on the first event when the process ends, or ten seconds after the first."""
        wrong, right = self._policies / "wrong.yaml", self._policies / "right.yaml"
        wrong.write_text(WRONG)
        self._wait(lambda: self._asked("POST", "/events"))
        wrong.unlink()
        right.write_text(RIGHT)
        self._wait(lambda: "rights-are-right" in self._process.text)
        told = self._process.text.count("policy problem")
        wrong.write_text(WRONG)
        self._wait(lambda: self._process.text.count("policy problem") > told)
        self._wait(lambda: self._asked("PATCH", "/events"))


class ControllerLife(Life):
    """A controller: it takes its Lease, evicts a pod, is refused another one, repeats that, and releases the Lease.

    In between it writes the status of a policy.
    """

    def __init__(self, folder: Path, admin: RestClient, proxy: RecordingProxy, namespace: str) -> None:
        self._admin = admin
        flags = {"grace": "0", "max_evictions_per_minute": "600", "evict_extended_resource_pods": "true"}
        super().__init__(controller(folder, proxy, namespace, **flags), proxy)

    def live(self, done: Callable[[], bool]) -> list[tuple[str, str]]:
        self._admin.create(paths.gpu_policies(), POLICY)
        try:
            with self._running():
                self._wait(done)
                self._wait(lambda: self._asked("PATCH", "/events"))
                self._wait(lambda: self._asked("PUT", "gpupolicies"))
        finally:
            self._admin.delete(paths.gpu_policies(POLICY["metadata"]["name"]))
        return list(self._proxy.requests)


GPUS = 20  # one ill GPU of these is below the brake's share


def evictable_pods(admin: RestClient, namespace: str, node: str, goes: str, stays: str) -> bool:
    """Two pods share an ill GPU of ``node``; a PodDisruptionBudget protects ``stays``.

    False where the API server keeps no taints of devices: nothing can be evicted then.
    """
    devices = [gpu(f"gpu-{number}", uuid=f"GPU-{number}") for number in range(GPUS)]
    added = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    devices[1]["taints"] = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoExecute", "timeAdded": added}]
    made = resource_slice(node, *devices, name=f"rights-ill-{node}")
    made["spec"]["pool"]["name"] = pool = f"{node}/ill"
    protect(admin, namespace, stays)
    for name in (goes, stays):
        run_pod(admin, namespace, node, name, pool)
    kept = admin.create(paths.resource_slices(), made)
    return "taints" in kept["spec"]["devices"][1]


def protect(admin: RestClient, namespace: str, pod: str) -> None:
    budget = {"selector": {"matchLabels": {"name": pod}}, "minAvailable": 1}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "kept"}, "spec": budget}
    admin.create(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", body)


def run_pod(admin: RestClient, namespace: str, node: str, name: str, pool: str) -> None:
    body = pod_on(node, "default", namespace, name)
    body["metadata"]["labels"] = {"name": name}
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    pod = admin.create(paths.pods(namespace), body)
    claim = admin.create(paths.resource_claims(namespace), special_claim(pod))
    claim["status"] = claim_status(pod, pool, "gpu-1")
    admin.update(f"{paths.resource_claim(namespace, claim['metadata']['name'])}/status", claim)
    admin.merge_patch(f"{paths.pod(namespace, name)}/status", {"status": pod_status(claim)})


def is_leaving(admin: RestClient, namespace: str, name: str) -> bool:
    try:
        return "deletionTimestamp" in admin.get(paths.pod(namespace, name))["metadata"]
    except NotFoundError:
        return True


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
