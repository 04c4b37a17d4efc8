"""API objects for tests of the controller."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from dra_driver.controller.eviction_api import Pace
from dra_driver.controller.pending_evictions import EXTENDED_CLAIM_ANNOTATION
from dra_driver.core.errors import DraError, ServerBusyError
from dra_driver.kube.objects.core import ObjectReference

DRIVER = "gpu.nvidia.com"
Obj = dict[str, Any]
POOL = f"gpu-a/{DRIVER}"
NOON = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
XID = "gpu.nvidia.com/xid"


class Stage:
    """The clock, the leadership, the pace, the recorder and the eviction API of one controller."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.pods: dict[str, Obj] = {}
        self.evicted: list[tuple[float, str]] = []
        self.asked = 0
        self.refusal: DraError | None = None
        self.leading_since: float | None = -1000.0
        self.problem: str | None = None
        self.events: list[tuple[str, str, str]] = []

    @property
    def left(self) -> list[str]:
        """The pods that were evicted, in order."""
        return [name for _, name in self.evicted]

    @property
    def reasons(self) -> list[tuple[str, str]]:
        return [(name, reason) for name, reason, _ in self.events]

    def pace(self, per_minute: int) -> Pace:
        return Pace(per_minute, self.led_for_s, lambda: self.seconds)

    def leads(self) -> bool:
        return self.leading_since is not None

    def led_for_s(self) -> float | None:
        return None if self.leading_since is None else self.seconds - self.leading_since

    def record(self, about: ObjectReference, kind: str, reason: str, message: str) -> None:
        self.events.append((about.name, reason, message))

    def create(self, path: str, body: Mapping[str, Any]) -> Obj:
        self.asked += 1
        if self.refusal is not None:
            raise self.refusal
        assert self.leads()
        name = body["metadata"]["name"]
        assert path == f"/api/v1/namespaces/team/pods/{name}/eviction"
        assert body["deleteOptions"]["preconditions"] == {"uid": self.pods.pop(name)["metadata"]["uid"]}
        self.evicted.append((self.seconds, name))
        return {}

    def delete(self, path: str, uid: str | None = None) -> None:
        assert self.leads()
        name = path.rpartition("/")[2]
        assert uid == self.pods.pop(name)["metadata"]["uid"]
        self.evicted.append((self.seconds, name))


def budget_says_no() -> ServerBusyError:
    error = ServerBusyError("Cannot evict pod", status=429, reason="TooManyRequests")
    error.details = {"causes": [{"reason": "DisruptionBudget", "message": "needs 1 healthy pods and has 1"}]}
    return error


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
