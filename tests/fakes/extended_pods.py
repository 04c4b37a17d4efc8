"""Pods that request an extended resource, as scheduler and kubelet leave them, and taints of their devices."""

from datetime import UTC, datetime, timedelta
from typing import Any

from dra_driver.core.time import rfc3339
from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kinds import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.objects import owner_reference, uid
from tests.fakes.dra_objects import DRIVER, gpu, resource_slice

POOL = f"a/{DRIVER}"
REQUEST = "container-0-request-0"


def make_slice(store: Store, gpus: int) -> None:
    devices = [gpu(f"gpu-{number}", uuid=f"GPU-{number}") for number in range(gpus)]
    store.create(RESOURCE_SLICES, resource_slice("a", *devices, name="slice-a"))


def taint_device(store: Store, number: int, *, ago_s: float = 0.0, effect: str = "NoExecute") -> None:
    added = rfc3339(datetime.now(UTC) - timedelta(seconds=ago_s))
    item = store.get(RESOURCE_SLICES, "slice-a")
    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": effect, "timeAdded": added}
    item["spec"]["devices"][number]["taints"] = [taint]
    store.update(RESOURCE_SLICES, item)


def run_pod(store: Store, name: str, number: int, **metadata: Any) -> Obj:
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    body = {"metadata": {"name": name, **metadata}, "spec": {"nodeName": "a", "containers": [container]}}
    pod = store.create(PODS, body, namespace="default")
    claim = store.create(RESOURCE_CLAIMS, special_claim(pod), namespace="default")
    claim["status"] = claim_status(pod, POOL, f"gpu-{number}")
    store.update_status(RESOURCE_CLAIMS, claim)
    pod["status"] = pod_status(claim)
    return store.update_status(PODS, pod)


def is_leaving(store: Store, name: str) -> bool:
    pod = store.find(PODS, name, "default")
    return pod is None or dig(pod, "metadata", "deletionTimestamp") is not None


def special_claim(pod: Obj) -> Obj:
    metadata = {
        "generateName": f"{pod['metadata']['name']}-extended-resources-",
        "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
        "ownerReferences": [owner_reference(pod)],
    }
    requests = [{"name": REQUEST, "exactly": {"deviceClassName": DRIVER}}]
    body: Obj = {"metadata": metadata, "spec": {"devices": {"requests": requests}}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **body}


def claim_status(pod: Obj, pool: str, device: str) -> Obj:
    result = {"request": REQUEST, "driver": DRIVER, "pool": pool, "device": device}
    user = {"resource": "pods", "name": pod["metadata"]["name"], "uid": uid(pod)}
    return {"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}


def pod_status(claim: Obj) -> Obj:
    mapping = {"containerName": "c", "resourceName": "nvidia.com/gpu", "requestName": REQUEST}
    extended = {"resourceClaimName": claim["metadata"]["name"], "requestMappings": [mapping]}
    ready = [{"type": "Ready", "status": "True"}]
    return {"phase": "Running", "conditions": ready, "extendedResourceClaimStatus": extended}
