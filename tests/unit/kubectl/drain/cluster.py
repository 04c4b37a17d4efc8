"""A cluster of one node for drains: API server responses, and a node process that taints immediately."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dra_driver.core.errors import ConflictError, KubernetesApiError, NotFoundError, ServerBusyError
from dra_driver.core.model.drain import DETACH_ANNOTATION, DRAIN_ANNOTATION, DRAINED_TAINT, DrainRequest, clean
from dra_driver.core.model.gpu_operation import OPERATION_ANNOTATION, requests_of
from dra_driver.core.model.ids import GpuUuid
from dra_driver.kube import paths
from tests.fakes import dra_objects

NODE: Final = "gpu-a"
DRIVER: Final = "gpu.nvidia.com"
POOL: Final = f"{NODE}/{DRIVER}"
Wire = dict[str, Any]


def device(name: str, gpu: str, *, taint: bool = False, detached: bool = False) -> Wire:
    own = {"uuid": {"string": gpu}} if "-mig-" not in name else {"parentUUID": {"string": gpu}}
    keys = [*([DRAINED_TAINT] if taint else []), *(["gpu.dra-driver.io/detached"] if detached else [])]
    return {"name": name, "attributes": own, "taints": [{"key": key, "effect": "NoSchedule"} for key in keys]}


def resource_slice(*devices: Wire, driver: str = DRIVER, node: str = NODE, generation: int = 1, of: int = 1) -> Wire:
    found = dra_objects.resource_slice(node, *devices, generation=generation, count=of)
    found["spec"] |= {"driver": driver, "pool": {**found["spec"]["pool"], "name": f"{node}/{driver}"}}
    return found


def claim(name: str, device_name: str, *pods: str, **result: Any) -> Wire:
    given = {"driver": DRIVER, "pool": POOL, "device": device_name, "request": "r", **result}
    users = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
    status = {"allocation": {"devices": {"results": [given]}}, "reservedFor": users}
    return {"metadata": {"name": name, "namespace": "team"}, "status": status}


def pod(name: str, controller: str = "ReplicaSet", **annotations: str) -> Wire:
    owners = [{"kind": controller, "name": "web", "controller": True}] if controller else []
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "ownerReferences": owners}
    return {"metadata": {**metadata, "annotations": annotations}, "status": {"phase": "Running"}}


@dataclass
class FakeApi:
    """A ``drain.view.DrainApi``. An eviction ends pod and claim, unless `budgets` says why not."""

    annotations: dict[str, str] = field(default_factory=dict)
    version: int = 1
    conflicts: int = 0
    denied: set[tuple[str, str]] = field(default_factory=set)  # verb and resource
    node_process: bool = True
    is_silent: bool = False  # the node process writes no events
    claims: list[Wire] = field(default_factory=list)
    pods: list[Wire] = field(default_factory=list)
    events: list[Wire] = field(default_factory=list)
    budgets: dict[str, KubernetesApiError] = field(default_factory=dict)
    failures: list[KubernetesApiError] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    operation: str | None = None  # the node's answer to a requested operation: done, or the reason of its failure

    def get(self, path: str) -> Wire:
        if path != paths.node(NODE):
            raise NotFoundError(f"GET {path}", status=404)
        return {"metadata": {"resourceVersion": str(self.version), "annotations": dict(self.annotations)}}

    def list(self, path: str, query: Mapping[str, str] | None = None) -> Wire:
        if self.failures:
            raise self.failures.pop()
        if path == paths.resource_slices():
            return {"items": [resource_slice(*self._devices())]}
        if path == paths.resource_claims():
            return {"items": self.claims}
        if path == paths.pods():
            assert query == {"fieldSelector": f"spec.nodeName={NODE}"}
            return {"items": self.pods}
        assert path == paths.events("default")
        if query is not None and "GpuOperation" in query["fieldSelector"]:
            return {"items": self._answers(query["fieldSelector"])}
        reason = self.annotations.get(DETACH_ANNOTATION)
        said = f"detached from the NVIDIA driver (annotation of node {NODE}: {clean(reason or '')})"
        ours = [{"message": said}] if reason is not None and not self.is_silent else []
        return {"items": [*self.events, *ours]}

    def _answers(self, selector: str) -> Sequence[Wire]:
        if self.operation is None or selector.endswith("Done") is not (self.operation == "done"):
            return []
        asked = requests_of(self.annotations.get(OPERATION_ANNOTATION))[0]
        return [{"message": f"{one.operation} (request {one.number}): {self.operation}"} for one in asked]

    def create(self, path: str, body: Mapping[str, Any]) -> Wire:
        if path.endswith("/selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            return {"status": {"allowed": (asked["verb"], asked["resource"]) not in self.denied}}
        name = body["metadata"]["name"]
        self.requests.append(f"evict {name}")
        if name in self.budgets:
            raise self.budgets[name]
        uid = body["deleteOptions"]["preconditions"]["uid"]
        self.pods = [one for one in self.pods if one["metadata"]["uid"] != uid]
        self.claims = [one for one in self.claims if uid not in str(one["status"])]
        return {}

    def merge_patch(self, path: str, body: Mapping[str, Any]) -> Wire:
        assert path == paths.node(NODE)
        if self.conflicts:
            self.conflicts -= 1
            self.version += 1
            raise ConflictError(f"PATCH {path}", status=409)
        if "spec" in body:
            self.requests.append(f"{body['spec']}")
            return {}
        assert body["metadata"]["resourceVersion"] == str(self.version)
        for key, value in body["metadata"]["annotations"].items():
            self.annotations.pop(key, None)
            if value is not None:
                self.annotations[key] = value
            self.requests.append(f"{key}={value}")
        self.version += 1
        return {}

    def _devices(self) -> tuple[Wire, ...]:
        asked = DrainRequest.of(self.annotations.get(DRAIN_ANNOTATION) if self.node_process else None)
        detached = DETACH_ANNOTATION in self.annotations
        return tuple(
            device(name, gpu, taint=asked.covers(GpuUuid(gpu)), detached=detached)
            for name, gpu in (("gpu-0", "GPU-0"), ("gpu-0-mig-1g10gb-19-0", "GPU-0"), ("gpu-1", "GPU-1"))
        )


def budget(text: str) -> ServerBusyError:
    error = ServerBusyError("POST eviction failed", status=429, reason="TooManyRequests")
    error.details = {"causes": [{"reason": "DisruptionBudget", "message": text}]}
    return error
