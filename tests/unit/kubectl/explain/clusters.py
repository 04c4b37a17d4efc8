"""Small clusters and pods for the tests of explain."""

from typing import Any

from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain import Explanation, explain
from dra_driver.kubectl.explain.subject import subject_of
from tests.fakes.dra_objects import DRIVER, device_class, exactly, gpu, node, resource_slice

Obj = dict[str, Any]
NUMBERS = f"[{','.join(map(str, range(60)))}]"
COSTLY = f'device.driver != "" && {NUMBERS}.all(x, {NUMBERS}.all(y, x + y >= 0))'
"""A selector that the API server accepts and that takes some 20 ms."""
A = f'device.attributes["{DRIVER}"]'
MEMORY = f'device.capacity["{DRIVER}"].memory'


def a100(index: int, **fields: Any) -> Obj:
    return {**gpu(f"gpu-{index}", memory="40Gi", productName="A100"), **fields}


def h100_gpu(index: int, **fields: Any) -> Obj:
    return {**gpu(f"gpu-{index}", memory="80Gi", productName="H100"), **fields}


def cluster(**parts: Any) -> ClusterState:
    return ClusterState(
        **{
            "nodes": [node("a"), node("b")],
            "classes": [device_class()],
            "slices": [
                resource_slice("a", *[a100(index) for index in range(4)]),
                resource_slice("b", h100_gpu(0), h100_gpu(1)),
            ],
            **parts,
        }
    )


def template(name: str, *requests: Obj, **devices: Any) -> Obj:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": list(requests or (exactly(),)), **devices}}},
    }


def pod(name: str = "train", *, template: str = "", claim: str = "", status: Obj | None = None, **spec: Any) -> Obj:
    source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": claim}
    claims = {"resourceClaims": [{"name": "gpu", **source}]} if template or claim else {}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-of-{name}"},
        "spec": {"containers": [{"name": "main"}], **claims, **spec},
        "status": status or {"phase": "Pending"},
    }


def allocated_claim(name: str, *devices: str, on: str, users: tuple[str, ...] = (), **fields: Any) -> Obj:
    results = [{"request": "gpu", "driver": DRIVER, "pool": f"{on}/{DRIVER}", "device": each} for each in devices]
    only = {"key": "metadata.name", "operator": "In", "values": [on]}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-of-{name}", **fields},
        "spec": {"devices": {"requests": [exactly()]}},
        "status": {
            "allocation": {
                "devices": {"results": results},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [only]}]},
            },
            "reservedFor": [{"resource": "pods", "name": user, "uid": f"uid-of-{user}"} for user in users],
        },
    }


def explained(state: ClusterState, wanted: Obj | None = None, **options: Any) -> Explanation:
    return explain(state, subject_of(state, wanted or pod(template="t")), **options)


def asked(*requests: Obj, node: str = "", **parts: Any) -> Explanation:
    return explained(cluster(templates=[template("t", *requests)], **parts), node=node)


def codes(report: Explanation) -> list[str]:
    found = [str(cause.code) for cause in report.causes if cause.blocks]
    return found + [reason.code for request in report.requests for reason in request.reasons]
