"""Pods with an ill GPU by an extended resource, made on a real API server as scheduler and kubelet would leave them."""

from datetime import UTC, datetime

from dra_driver.core.errors import NotFoundError
from dra_driver.kube import paths
from dra_driver.kube.rest import RestClient
from tests.fakes.dra_objects import gpu, resource_slice
from tests.fakes.extended_pods import claim_status, pod_status, special_claim
from tests.rights.accounts import pod_on

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
