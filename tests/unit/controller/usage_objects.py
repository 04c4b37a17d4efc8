"""GpuNodes, claims and pods of tests of evictions because of use."""

from typing import Any

from tests.unit.controller.objects import DRIVER

OVER: dict[str, Any] = {
    "namespace": "team",
    "claim": "llm",
    "claimUid": "uid-llm",
    "gpu": "gpu-0",
    "pods": [{"name": "llm-0", "uid": "uid-llm-0"}],
    "used": "20Gi",
    "granted": "12Gi",
    "processes": 2,
    "since": "2026-07-01T12:00:00Z",
    "action": "Evict",
    "graceSeconds": 60,
}
IDLE: dict[str, Any] = {
    "namespace": "team",
    "claim": "llm",
    "claimUid": "uid-llm",
    "since": "2026-07-01T12:00:00Z",
    "action": "Reclaim",
    "afterMinutes": 5,
}
FOREIGN: dict[str, Any] = {
    "gpu": "gpu-0",
    "processes": 3,
    "memory": "9Gi",
    "since": "2026-07-01T12:00:00Z",
    "commands": ["python3"],
}


def over(name: str = "llm", **changed: Any) -> dict[str, Any]:
    pods = [{"name": f"{name}-0", "uid": f"uid-{name}-0"}]
    return OVER | {"claim": name, "claimUid": f"uid-{name}", "pods": pods} | changed


def gpu_node(name: str = "gpu-a", *, gpus: int = 8, checked: Any = "t0", **usage: Any) -> dict[str, Any]:
    listed = [
        {"name": f"gpu-{number}", "uuid": f"GPU-{name}-{number}", "offeredAs": [], "usedAs": "Shared"}
        for number in range(gpus)
    ]
    told = usage | ({"checkedAt": checked} if checked is not None else {})
    return {
        "metadata": {"name": name},
        "status": {"observedAt": "x", "driverName": DRIVER, "gpus": listed, "usage": told},
    }


def claim_object(name: str = "llm", *, node: str = "gpu-a", device: str = "gpu-0", pods: tuple[str, ...] = ()) -> Any:
    result = {"request": "gpu", "driver": DRIVER, "pool": f"{node}/{DRIVER}", "device": device}
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods or (f"{name}-0",)],
        },
    }


def pod(name: str = "llm-0", *, node: str = "gpu-a", **metadata: Any) -> dict[str, Any]:
    owner = [{"kind": "ReplicaSet", "name": "llm", "uid": "uid-set", "controller": True}]
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", "ownerReferences": owner} | metadata,
        "spec": {"nodeName": node},
        "status": {"phase": "Running"},
    }
