"""Small objects for tests of the embedded API server."""

from typing import Any

Obj = dict[str, Any]


def config_map(name: str, **metadata: Any) -> Obj:
    return {"metadata": {"name": name, "namespace": "default", **metadata}}


def node(name: str = "n1") -> Obj:
    return {"metadata": {"name": name}}


def pod(name: str = "p", **spec: Any) -> Obj:
    containers = [{"name": "main", "image": "ubuntu:24.04"}]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": containers, **spec}}


def claim(name: str = "c", **exactly: Any) -> Obj:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com", **exactly}}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": {"requests": [request]}}}


def resource_slice(name: str = "s", devices: list[Obj] | None = None, **spec: Any) -> Obj:
    pool = {"name": "n1/gpu.example.com", "resourceSliceCount": 1, "generation": 1}
    body = {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": devices or [{"name": "gpu-0"}]}
    return {"metadata": {"name": name}, "spec": body | spec}


def owned_by(owner: Obj, **extra: Any) -> Obj:
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        **extra,
    }
