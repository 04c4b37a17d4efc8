"""Broken set-ups of workloads, and errors of preparing claims. Messages are those of Kubernetes and containerd."""

from typing import Any

from dra_driver.core.finding import Layer
from dra_driver.diagnose.doctor.cluster import DoctorScope
from tests.doctor_faults.cluster import Cluster, by_template, claim, event, exactly, template, workload
from tests.doctor_faults.row import WARN, broken
from tests.fakes.dra_objects import allocated


def _asking(cluster: Cluster, resource: str, **spec: Any) -> None:
    pod = workload("old", **spec)
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource: "1"}}
    cluster.pods.append(pod)


def _failing(cluster: Cluster, reason: str, message: str) -> None:
    cluster.templates.append(template("gpus"))
    pod = workload(node="gpu-a", **by_template("gpus"))
    cluster.pods.append(pod)
    cluster.events.append(event(reason, pod, message))


@broken("template in another namespace", Layer.WORKLOAD, "pod/team-a/train", "gpus", "namespace default has one")
def template_in_another_namespace(cluster: Cluster) -> None:
    cluster.templates.append(template("gpus", namespace="default"))
    cluster.pods.append(workload(**by_template("gpus")))


@broken(
    "template missing",
    Layer.WORKLOAD,
    "does not exist in namespace team-a",
    scope=DoctorScope(kind="pod", namespace="team-a", name="train"),
)
def template_missing(cluster: Cluster) -> None:
    cluster.pods.append(workload(**by_template("gpus")))


@broken("claim in another namespace", Layer.WORKLOAD, "ResourceClaim shared", "namespace default has one")
def claim_in_another_namespace(cluster: Cluster) -> None:
    cluster.claims.append(claim("shared", namespace="default"))
    cluster.pods.append(workload(resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}]))


@broken(
    "class that does not exist",
    Layer.WORKLOAD,
    "DeviceClass nvidia-gpu",
    "gpu.nvidia.com",
    scope=DoctorScope(kind="claim", namespace="team-a", name="train"),
)
def class_misspelt(cluster: Cluster) -> None:
    cluster.claims.append(claim("train", exactly(deviceClassName="nvidia-gpu"), namespace="team-a"))


@broken("pod that asks for nvidia.com/mig-1g.10gb", Layer.WORKLOAD, "nvidia.com/mig-1g.10gb", "kubectl dra migrate")
def device_plugin_resource(cluster: Cluster) -> None:
    _asking(cluster, "nvidia.com/mig-1g.10gb")


@broken("pod that asks for nvidia.com/gpu, no class gives it", Layer.WORKLOAD, "nvidia.com/gpu", "extendedResourceName")
def device_plugin_gone(cluster: Cluster) -> None:
    cluster.classes[0]["spec"].pop("extendedResourceName")
    _asking(cluster, "nvidia.com/gpu")


@broken("pod with a claim and nvidia.com/gpu", Layer.WORKLOAD, "gets both", status=WARN)
def asks_twice(cluster: Cluster) -> None:
    cluster.templates.append(template("gpus"))
    _asking(cluster, "nvidia.com/gpu", **by_template("gpus"))


@broken(
    "pod that is not scheduled",
    Layer.WORKLOAD,
    "cannot allocate all claims",
    "kubectl dra explain pod/train -n team-a",
    status=WARN,
)
def not_scheduled(cluster: Cluster) -> None:
    cluster.templates.append(template("gpus"))
    pod = workload(**by_template("gpus"))
    said = "0/3 nodes are available: 3 cannot allocate all claims."
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": said}]
    cluster.pods.append(pod)


@broken("driver not registered when a pod starts", Layer.REGISTRATION, "is not registered", "node/gpu-a")
def driver_not_registered(cluster: Cluster) -> None:
    said = "Failed to prepare dynamic resources: prepare dynamic resources: DRA driver gpu.nvidia.com is not registered"
    _failing(cluster, "FailedPrepareDynamicResources", said)


@broken("prepare fails", Layer.PREPARE, "no MPS host runs")
def prepare_fails(cluster: Cluster) -> None:
    said = (
        "Failed to prepare dynamic resources: claim team-a/train: MPS daemon of gpu-0 is not ready: no MPS host "
        "runs on "
        "this node; install it (mpsHost.enabled of the chart)"
    )
    _failing(cluster, "FailedPrepareDynamicResources", said)


@broken("nvidia-uvm missing", Layer.UVM, "nvidia-uvm")
def uvm_missing(cluster: Cluster) -> None:
    said = "Failed to prepare dynamic resources: claim team-a/train: /dev/nvidia-uvm is missing: load nvidia-uvm"
    _failing(cluster, "FailedPrepareDynamicResources", said)


@broken("CDI device that the runtime does not find", Layer.CDI, "unresolvable CDI devices", "cdiDir")
def cdi_not_found(cluster: Cluster) -> None:
    said = (
        "Error: failed to create containerd container: CDI device injection failed: unresolvable CDI devices "
        "k8s.gpu.nvidia.com/claim=0b3c"
    )
    _failing(cluster, "Failed", said)


@broken("device of a claim is lost", Layer.PREPARE, "gpu-0 is not ready")
def device_of_claim_lost(cluster: Cluster) -> None:
    item = allocated(claim("train", namespace="team-a"), "gpu-0", node_name="gpu-a")
    condition = {"type": "Ready", "status": "False", "reason": "Unhealthy", "message": "XID 79 on gpu-0"}
    device = {"driver": "gpu.nvidia.com", "pool": "gpu-a/gpu.nvidia.com", "device": "gpu-0", "conditions": [condition]}
    item["status"]["devices"] = [device]
    cluster.claims.append(item)


@broken(
    "node of a claim that is gone",
    Layer.NODE,
    "node/gpu-z",
    "no longer exists",
    scope=DoctorScope(kind="claim", namespace="team-a", name="train"),
)
def node_of_claim_gone(cluster: Cluster) -> None:
    cluster.claims.append(allocated(claim("train", namespace="team-a"), "gpu-0", node_name="gpu-z"))


@broken("claim that does not end", Layer.PREPARE, "reserved for pods that are gone: gone", status=WARN)
def claim_that_does_not_end(cluster: Cluster) -> None:
    item = allocated(claim("train", namespace="team-a"), "gpu-0", node_name="gpu-a")
    item["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    item["status"]["reservedFor"] = [{"resource": "pods", "name": "gone", "uid": "uid-of-gone"}]
    cluster.claims.append(item)
