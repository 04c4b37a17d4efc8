"""AdmissionReviews as an API server sends them."""

import json
from typing import Any

HOPPER = 'device.attributes["gpu.nvidia.com"].architecture == "Hopper"'
UNKNOWN = 'device.attributes["gpu.nvidia.com"].team == "blue"'
NO_MATCH = 'device.attributes["gpu.nvidia.com"].architecture == "hopper"'


def claim(expression: str = HOPPER, version: str = "v1", **devices: Any) -> dict[str, Any]:
    content = {"deviceClassName": "gpu.nvidia.com", "selectors": [{"cel": {"expression": expression}}]}
    request = {"name": "gpu", **content} if version == "v1beta1" else {"name": "gpu", "exactly": content}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": {"name": "one", "namespace": "team", "managedFields": [{"manager": "kubectl"}]},
        "spec": {"devices": {"requests": [request], **devices}},
        "status": {},
    }


def device_class(expression: str) -> dict[str, Any]:
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "gpu.nvidia.com" && {expression}'}}]}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "own.example.com"}, "spec": spec
    }  # fmt: skip


def request(written: Any, operation: str = "CREATE", old: Any = None) -> dict[str, Any]:
    return {"uid": "a-uid", "operation": operation, "namespace": "team", "object": written, "oldObject": old}


def review(written: Any, operation: str = "CREATE", old: Any = None) -> bytes:
    document = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    return json.dumps(document | {"request": request(written, operation, old)}, ensure_ascii=False).encode()
