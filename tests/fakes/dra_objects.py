"""Small API objects for tests of allocation and scheduling, as an API server returns them."""

from typing import Any

from msgspec.json import decode, encode

DRIVER = "gpu.nvidia.com"
Obj = dict[str, Any]


def wire(value: object) -> Any:
    return decode(encode(value))


def node(name: str, **labels: str) -> Obj:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def gpu(name: str, *, memory: str = "80Gi", **attributes: str) -> Obj:
    values = {"type": "gpu", **attributes}
    return {
        "name": name,
        "attributes": {key: {"string": value} for key, value in values.items()},
        "capacity": {"memory": {"value": memory}},
    }


def resource_slice(node_name: str, *devices: Obj, count: int = 1, generation: int = 1, name: str = "") -> Obj:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"{node_name}-slice"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node_name,
            "pool": {"name": f"{node_name}/{DRIVER}", "generation": generation, "resourceSliceCount": count},
            "devices": list(devices),
        },
    }


def device_class(name: str = DRIVER, *, config: list[Obj] | None = None, expression: str = "") -> Obj:
    guard = expression or f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"'
    spec: Obj = {"selectors": [{"cel": {"expression": guard}}]}
    if config:
        spec["config"] = config
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def exactly(name: str = "gpu", *expressions: str, **fields: Any) -> Obj:
    request: Obj = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", **fields}
    if request["allocationMode"] == "ExactCount":
        request.setdefault("count", 1)
    if expressions:
        request["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]
    return {"name": name, "exactly": request}


def claim(name: str, *requests: Obj, namespace: str = "default", **devices: Any) -> Obj:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": list(requests or (exactly(),)), **devices}},
    }


def allocated(wire: Obj, *devices: str, node_name: str, admin: bool = False) -> Obj:
    pool = f"{node_name}/{DRIVER}"
    results = [{"request": "gpu", "driver": DRIVER, "pool": pool, "device": device} for device in devices]
    for result in results:
        if admin:
            result["adminAccess"] = True  # type: ignore[assignment]
    return {**wire, "status": {"allocation": {"devices": {"results": results}}}}
