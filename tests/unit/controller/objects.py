"""API objects for tests of the controller."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from dra_driver.controller.pending_evictions import EXTENDED_CLAIM_ANNOTATION

DRIVER = "gpu.nvidia.com"
POOL = f"gpu-a/{DRIVER}"
NOON = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
XID = "gpu.nvidia.com/xid"


def at(seconds: float) -> datetime:
    """Seconds after `NOON`."""
    return NOON + timedelta(seconds=seconds)


def stamp(seconds: float) -> str:
    return at(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def taint(seconds: float = 0.0, *, key: str = XID, value: str = "79", effect: str = "NoExecute") -> dict[str, Any]:
    return {"key": key, "value": value, "effect": effect, "timeAdded": stamp(seconds)}


def device(number: int, *taints: dict[str, Any], part: str = "") -> dict[str, Any]:
    """GPU ``number``, or with ``part`` a partition of it."""
    attribute = {"parentUUID" if part else "uuid": {"string": f"GPU-{number}"}}
    found: dict[str, Any] = {"name": f"gpu-{number}{part}", "attributes": attribute}
    return {**found, "taints": list(taints)} if taints else found


def resource_slice(
    *devices: dict[str, Any], pool: str = POOL, generation: int = 1, name: str = "slice-a"
) -> dict[str, Any]:
    spec = {"driver": DRIVER, "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1}}
    return {"metadata": {"name": name}, "spec": {**spec, "devices": list(devices)}}


def special_claim_object(
    *numbers: int, name: str = "claim-a", pod: str = "pod-a", tolerations: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """A claim that the scheduler made for ``pod``, with the GPUs of these numbers."""
    results = [
        {"driver": DRIVER, "pool": POOL, "device": f"gpu-{number}", "request": "container-0-request-0"}
        | ({"tolerations": list(tolerations)} if tolerations else {})
        for number in numbers
    ]
    return {
        "metadata": {"name": name, "namespace": "team", "annotations": {EXTENDED_CLAIM_ANNOTATION: "true"}},
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"}],
        },
    }


def pod_object(name: str = "pod-a", *, claim: str = "claim-a", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", **metadata},
        "spec": {"nodeName": "gpu-a"},
        "status": {"phase": "Running", "extendedResourceClaimStatus": {"resourceClaimName": claim}},
    }
