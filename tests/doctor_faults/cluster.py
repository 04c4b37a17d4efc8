"""A healthy cluster of two GPU nodes as API objects, an API server that answers with them, and edits that break it.

An edit is a path into `Cluster` and a value to put there. ``>`` separates the parts of a path, ``*`` stands for each
item of a list, ``-`` appends to it, and the value `GONE` removes what is there.
"""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from dra_driver.config.status import node_status
from dra_driver.core.errors import ForbiddenError, InvalidObjectError, KubernetesApiError, NotFoundError
from dra_driver.core.finding import Finding, Layer, Status
from dra_driver.core.model.gpu_node import GpuNodeStatus, HealthWord, NodeGpu, NodePolicy, NodeProblem, PublishedForm
from dra_driver.core.request_rights import right_of
from dra_driver.diagnose.doctor.cluster import DoctorScope, diagnose
from dra_driver.diagnose.doctor.reading import read_facts
from dra_driver.diagnose.doctor.report import DoctorReport
from tests.fakes.dra_objects import DRIVER, Obj, exactly, gpu, resource_slice

BASE = Path(__file__).resolve().parents[2] / "deploy" / "base"
GPU_NODES = ("gpu-a", "gpu-b")
NAMESPACE = "dra-driver"
GATES = (
    "DynamicResourceAllocation",
    "DRAPartitionableDevices",
    "DRAConsumableCapacity",
    "DRADeviceTaints",
    "DRAExtendedResource",
)
CLUSTER = DoctorScope()
GONE = object()
SERVER = {"address": "https://10.0.0.1:6443", "source": "kubeconfig test"}


class Cluster:
    """Objects by collection, which rows change, and an API over them (`doctor.reading.Api`).

    ``refused`` are rights as texts (``list pods in all namespaces``), ``failing`` errors by path.
    """

    def __init__(self) -> None:
        self.version: Obj | KubernetesApiError = {"gitVersion": "v1.36.2", "major": "1", "minor": "36"}
        self.gates = dict.fromkeys(GATES, True)
        self.resource_api: list[str] = ["v1", "v1beta2", "v1beta1"]
        self.gpu_api: list[str] = ["gpunodes", "gpupolicies"]
        self.refused: set[str] = set()
        self.refuses_all_but: set[str] | None = None
        self.failing: dict[str, KubernetesApiError] = {}
        self.denied_to_driver: set[str] = set()
        self.nodes = [gpu_node(name) for name in GPU_NODES] + [plain_node("cpu-a")]
        self.daemonsets = [daemonset()]
        self.pods: list[Obj] = [driver_pod(name) for name in GPU_NODES]
        self.slices = [resource_slice(name, *devices(name)) for name in GPU_NODES]
        self.classes: list[Obj] = copy.deepcopy(base("deviceclasses.yaml"))
        self.gpu_nodes = [told(name) for name in GPU_NODES]
        self.gpu_policies: list[Obj] = []
        self.claims: list[Obj] = []
        self.templates: list[Obj] = []
        self.events: list[Obj] = []
        self.logs: dict[str, str] = {}
        self.asked: list[str] = []

    def get(self, path: str, query: Mapping[str, str] | None = None, *, within_s: float | None = None) -> Obj:
        self._checked(path)
        if path == "/version":
            if isinstance(self.version, KubernetesApiError):
                raise self.version
            return self.version
        if path == "/apis/resource.k8s.io" and self.resource_api:
            return {"versions": [{"version": version} for version in self.resource_api]}
        if path == "/apis/gpu.dra-driver.io/v1alpha1" and self.gpu_api:
            return {"resources": [{"name": name} for name in self.gpu_api]}
        raise NotFoundError(f"GET {path} failed: 404", status=404)

    def list(self, path: str, query: Mapping[str, str] | None = None, *, within_s: float | None = None) -> Obj:
        self._checked(path)
        *_, resource = path.split("/")
        namespace = path.partition("/namespaces/")[2].partition("/")[0] if "/namespaces/" in path else ""
        items = self._collections().get(resource)
        if items is None or not self._is_served(path, resource):
            raise NotFoundError(f"GET {path} failed: 404", status=404)
        found = [item for item in items if not namespace or item["metadata"].get("namespace") == namespace]
        return {"items": found, "metadata": {}}

    def get_text(self, path: str, query: Mapping[str, str] | None = None, *, within_s: float | None = None) -> str:
        self._checked(path)
        if path == "/metrics":
            lines = [
                f'kubernetes_feature_enabled{{name="{name}",stage="BETA"}} {int(on)}' for name, on in self.gates.items()
            ]
            return "# HELP x\n" + "\n".join(lines) + "\n"
        name = path.removesuffix("/log").rpartition("/")[2]
        has_ended = any(
            status.get("restartCount")
            for pod in self.pods
            if pod["metadata"]["name"] == name
            for status in pod["status"].get("containerStatuses", ())
        )
        if (query or {}).get("previous") and not has_ended:
            raise InvalidObjectError(f"GET {path} failed: 400: previous terminated container not found", status=400)
        return self.logs.get(name, "")

    def create(self, path: str, body: Mapping[str, Any]) -> Obj:
        self._checked(path, "POST")
        attributes = body["spec"]["resourceAttributes"]
        return {"status": {"allowed": f"{attributes['verb']} {attributes['resource']}" not in self.denied_to_driver}}

    def _checked(self, path: str, method: str = "GET") -> None:
        self.asked.append(path)
        if path in self.failing:
            raise self.failing[path]
        right = str(right_of(f"{method} {path}"))
        is_open = path == "/version" or (path.count("/") <= 3 and path.startswith("/apis/"))
        is_closed = self.refuses_all_but is not None and right not in self.refuses_all_but and not is_open
        if right in self.refused or is_closed:
            said = f'User "u" cannot {right}'
            raise ForbiddenError(f"{method} {path} failed: 403 Forbidden: {said}", status=403, reason="Forbidden")

    def _is_served(self, path: str, resource: str) -> bool:
        if path.startswith("/apis/resource.k8s.io/"):
            return path.split("/")[3] in self.resource_api
        return not path.startswith("/apis/gpu.dra-driver.io/") or resource in self.gpu_api

    def _collections(self) -> dict[str, Sequence[Obj]]:
        return {
            "nodes": self.nodes,
            "pods": self.pods,
            "namespaces": [named(name) for name in ("default", "team-a", NAMESPACE)],
            "resourceclaims": self.claims,
            "resourceclaimtemplates": self.templates,
            "deviceclasses": self.classes,
            "resourceslices": self.slices,
            "events": self.events,
            "persistentvolumeclaims": [],
            "storageclasses": [],
            "daemonsets": self.daemonsets,
            "gpunodes": self.gpu_nodes,
            "gpupolicies": self.gpu_policies,
        }


@lru_cache
def base(name: str) -> list[Obj]:
    return [item for item in yaml.safe_load_all((BASE / name).read_text()) if item]


def named(name: str, namespace: str = "", **fields: Any) -> Obj:
    place = {"namespace": namespace} if namespace else {}
    return {"metadata": {"name": name, **place}, **fields}


def plain_node(name: str) -> Obj:
    return {
        "metadata": {"name": name, "uid": f"uid-of-{name}", "labels": {"kubernetes.io/os": "linux"}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.36.2", "containerRuntimeVersion": "containerd://2.1.9"},
        },
    }


def gpu_node(name: str) -> Obj:
    """A ready Node with the label of GPUs and their usual taint."""
    node = plain_node(name)
    node["metadata"]["labels"]["nvidia.com/gpu.present"] = "true"
    node["spec"]["taints"] = [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]
    return node


def daemonset(namespace: str = NAMESPACE, desired: int = 2) -> Obj:
    found = copy.deepcopy(base("daemonset.yaml")[0])
    found["metadata"]["namespace"] = namespace
    found["status"] = {"desiredNumberScheduled": desired, "currentNumberScheduled": desired, "numberReady": desired}
    return found


def driver_pod(node: str) -> Obj:
    image = base("daemonset.yaml")[0]["spec"]["template"]["spec"]["containers"][0]["image"]
    return {
        "metadata": {
            "name": f"dra-driver-node-{node}",
            "namespace": NAMESPACE,
            "uid": f"uid-of-driver-on-{node}",
            "labels": {"app.kubernetes.io/component": "node"},
            "ownerReferences": [{"kind": "DaemonSet", "name": "dra-driver-node", "uid": "x"}],
        },
        "spec": {"nodeName": node, "containers": [{"name": "node", "image": image}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {"name": "node", "ready": True, "restartCount": 0, "image": image, "state": {"running": {}}}
            ],
        },
    }


def unready(pod: Obj, **container: Any) -> Obj:
    """The pod not ready, with these fields of its container's status."""
    pod["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "Ready", "status": "False", "message": "containers with unready status: [node]"},
    ]
    pod["status"]["containerStatuses"][0].update(ready=False, **container)
    return pod


def devices(node: str) -> list[Obj]:
    """Two whole GPUs and a partition of each."""
    found = []
    for index in range(2):
        found.append(gpu(f"gpu-{index}", uuid=f"GPU-{node}-{index}", productName="NVIDIA H100 80GB HBM3"))
        partition = gpu(f"gpu-{index}-mig-1g10gb-19-0", memory="9856Mi", profile="1g.10gb")
        partition["attributes"]["type"] = {"string": "mig"}
        partition["attributes"]["parentUUID"] = {"string": f"GPU-{node}-{index}"}
        found.append(partition)
    return found


def told(
    node: str, *, problems: tuple[NodeProblem, ...] = (), policies: tuple[NodePolicy, ...] = (), **first: Any
) -> Obj:
    """A GpuNode with two GPUs; ``first`` are fields of the first."""
    gpus = [
        NodeGpu(
            name=f"gpu-{index}",
            uuid=f"GPU-{node}-{index}",
            product_name="NVIDIA H100 80GB HBM3",
            offered_as=(PublishedForm.WHOLE, PublishedForm.PARTITIONS),
            health=HealthWord.HEALTHY,
        )
        for index in range(2)
    ]
    if first:
        gpus[0] = NodeGpu(name="gpu-0", uuid=f"GPU-{node}-0", **{"offered_as": gpus[0].offered_as, **first})
    status = GpuNodeStatus(
        driver_name=DRIVER,
        driver_version="580.65.06",
        nvml_version="13.580",
        toolkit_version="1.18.0",
        gpus=tuple(gpus),
        policies=policies,
        problems=problems,
    )
    return {"metadata": {"name": node}, "status": node_status(status, "2026-11-22T10:00:00Z")}


def workload(name: str = "train", *, namespace: str = "team-a", node: str = "", **spec: Any) -> Obj:
    """A pod that waits."""
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-of-{name}"},
        "spec": {"containers": [{"name": "main"}], **({"nodeName": node} if node else {}), **spec},
        "status": {"phase": "Pending"},
    }


def by_template(template: str) -> dict[str, Any]:
    """The claims of a pod that names a template."""
    return {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}]}


def template(name: str, *, namespace: str = "team-a", device_class: str = DRIVER) -> Obj:
    spec = {"devices": {"requests": [exactly(deviceClassName=device_class)]}}
    return named(name, namespace, spec={"spec": spec})


def event(reason: str, about: Obj, message: str, *, kind: str = "Pod", component: str = "kubelet") -> Obj:
    metadata = about["metadata"]
    namespace = metadata.get("namespace", "")
    return {
        "metadata": {"name": f"e-{metadata['name']}-{reason}", "namespace": namespace or "default"},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "involvedObject": {"kind": kind, "namespace": namespace, "name": metadata["name"], "uid": metadata.get("uid")},
        "source": {"component": component},
        "lastTimestamp": "2026-11-22T10:00:00Z",
    }


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BrokenSetup:
    """``edits`` break a healthy cluster; the doctor's first finding has this layer, status and reason, and ``says``."""

    name: str
    layer: Layer
    reason: str
    says: tuple[str, ...]
    status: Status
    scope: DoctorScope
    edits: Mapping[str, Any] = field(default_factory=dict)

    def cluster(self) -> Cluster:
        found = Cluster()
        for path, value in self.edits.items():
            _put(found.__dict__, path.split(">"), copy.deepcopy(value) if value is not GONE else GONE)
        return found


def fail(name: str, layer: Layer, reason: str, *says: str, scope: DoctorScope = CLUSTER) -> BrokenSetup:
    return BrokenSetup(name=name, layer=layer, reason=reason, says=says, status=Status.FAIL, scope=scope)


def warn(name: str, layer: Layer, reason: str, *says: str, scope: DoctorScope = CLUSTER) -> BrokenSetup:
    return BrokenSetup(name=name, layer=layer, reason=reason, says=says, status=Status.WARN, scope=scope)


def unknown(name: str, layer: Layer, reason: str, *says: str) -> BrokenSetup:
    return BrokenSetup(name=name, layer=layer, reason=reason, says=says, status=Status.UNKNOWN, scope=CLUSTER)


def rows(table: Mapping[BrokenSetup, Mapping[str, Any]]) -> tuple[BrokenSetup, ...]:
    """The rows of a table: what is reported, by the edits that break the cluster."""
    return tuple(replace(row, edits=edits) for row, edits in table.items())


def _put(place: Any, path: list[str], value: object) -> None:
    key: Any = path[0] if isinstance(place, dict) or path[0] in "*-" else int(path[0])
    if key == "*":
        for index in range(len(place)):
            _put(place, [str(index), *path[1:]], value)
    elif path[1:]:
        _put(place[key], path[1:], value)
    elif key == "-":
        place.append(value)
    elif value is not GONE:
        place[key] = value
    elif not isinstance(place, dict) or key in place:
        del place[key]


def examined(row: BrokenSetup) -> DoctorReport:
    cluster = row.cluster()
    began = time.monotonic()
    facts = read_facts(cluster, server=SERVER, namespace="team-a")
    return diagnose(facts, row.scope, clock=time.monotonic, took_s=time.monotonic() - began)


def first_of(report: DoctorReport) -> Finding | None:
    """What is said first: the first broken layer; else the first warning; else the first question without an answer."""
    for status in (Status.FAIL, Status.WARN, Status.UNKNOWN):
        found = next((finding for finding in report.findings if finding.status is status), None)
        if found is not None:
            return found
    return None
