"""Pods with an ill GPU by an extended resource, made on a real API server as scheduler and kubelet would leave them."""

from datetime import UTC, datetime
from typing import Any

from dra_driver.core.errors import NotFoundError
from dra_driver.kube import paths
from dra_driver.kube.rest import RestClient
from tests.fakes.dra_objects import DRIVER, gpu, resource_slice
from tests.rights.accounts import pod_on

Obj = dict[str, Any]
REQUEST = "container-0-request-0"
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
    budget = {"selector": {"matchLabels": {"name": stays}}, "minAvailable": 1}
    admin.create(
        f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets",
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": budget},
    )
    for name in (goes, stays):
        run_pod(admin, namespace, node, name, pool)
    kept = admin.create(paths.resource_slices(), made)
    return "taints" in kept["spec"]["devices"][1]


def run_pod(admin: RestClient, namespace: str, node: str, name: str, pool: str) -> None:
    body = pod_on(node, "default", namespace, name)
    body["metadata"]["labels"] = {"name": name}
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    pod = admin.create(paths.pods(namespace), body)
    claim = admin.create(paths.resource_claims(namespace), special_claim(pod))
    result = {"request": REQUEST, "driver": DRIVER, "pool": pool, "device": "gpu-1"}
    user = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
    claim["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}
    path = paths.resource_claim(namespace, claim["metadata"]["name"])
    admin.update(f"{path}/status", claim)
    mapping = {"containerName": "c", "resourceName": "nvidia.com/gpu", "requestName": REQUEST}
    extended = {"resourceClaimName": claim["metadata"]["name"], "requestMappings": [mapping]}
    ready = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "conditions": ready, "extendedResourceClaimStatus": extended}
    admin.merge_patch(f"{paths.pod(namespace, name)}/status", {"status": status})


def special_claim(pod: Obj) -> Obj:
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}
    metadata = {
        "generateName": f"{name}-extended-resources-",
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
        "ownerReferences": [owner],
    }
    request = {"name": REQUEST, "exactly": {"deviceClassName": DRIVER}}
    body: Obj = {"metadata": metadata, "spec": {"devices": {"requests": [request]}}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **body}


def is_leaving(admin: RestClient, namespace: str, name: str) -> bool:
    try:
        return "deletionTimestamp" in admin.get(paths.pod(namespace, name))["metadata"]
    except NotFoundError:
        return True
