"""Broken set-ups of workloads, and errors of preparing claims. Messages are those of Kubernetes and containerd."""

from typing import Any

from dra_driver.core.finding import Layer, Status
from dra_driver.diagnose.doctor.cluster import DoctorScope
from tests.doctor_faults.cluster import Cluster, by_template, claim, event, exactly, template, workload
from tests.doctor_faults.row import BrokenSetup
from tests.fakes.dra_objects import allocated


def template_in_another_namespace(cluster: Cluster) -> None:
    cluster.templates.append(template("gpus", namespace="default"))
    cluster.pods.append(workload(**by_template("gpus")))


def template_missing(cluster: Cluster) -> None:
    cluster.pods.append(workload(**by_template("gpus")))


def claim_in_another_namespace(cluster: Cluster) -> None:
    cluster.claims.append(claim("shared", namespace="default"))
    cluster.pods.append(workload(resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}]))


def class_misspelt(cluster: Cluster) -> None:
    cluster.claims.append(claim("train", exactly(deviceClassName="nvidia-gpu"), namespace="team-a"))


def _asking(cluster: Cluster, resource: str, **spec: Any) -> None:
    pod = workload("old", **spec)
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource: "1"}}
    cluster.pods.append(pod)


def device_plugin_resource(cluster: Cluster) -> None:
    _asking(cluster, "nvidia.com/mig-1g.10gb")


def device_plugin_gone(cluster: Cluster) -> None:
    cluster.classes[0]["spec"].pop("extendedResourceName")
    _asking(cluster, "nvidia.com/gpu")


def asks_twice(cluster: Cluster) -> None:
    cluster.templates.append(template("gpus"))
    _asking(cluster, "nvidia.com/gpu", **by_template("gpus"))


def not_scheduled(cluster: Cluster) -> None:
    cluster.templates.append(template("gpus"))
    pod = workload(**by_template("gpus"))
    said = "0/3 nodes are available: 3 cannot allocate all claims."
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": said}]
    cluster.pods.append(pod)


def _failing(cluster: Cluster, reason: str, message: str) -> None:
    cluster.templates.append(template("gpus"))
    pod = workload(node="gpu-a", **by_template("gpus"))
    cluster.pods.append(pod)
    cluster.events.append(event(reason, pod, message))


def driver_not_registered(cluster: Cluster) -> None:
    said = "Failed to prepare dynamic resources: prepare dynamic resources: DRA driver gpu.nvidia.com is not registered"
    _failing(cluster, "FailedPrepareDynamicResources", said)


def prepare_fails(cluster: Cluster) -> None:
    said = (
        "Failed to prepare dynamic resources: claim team-a/train: MPS daemon of gpu-0 is not ready: no MPS host "
        "runs on "
        "this node; install it (mpsHost.enabled of the chart)"
    )
    _failing(cluster, "FailedPrepareDynamicResources", said)


def uvm_missing(cluster: Cluster) -> None:
    said = "Failed to prepare dynamic resources: claim team-a/train: /dev/nvidia-uvm is missing: load nvidia-uvm"
    _failing(cluster, "FailedPrepareDynamicResources", said)


def cdi_not_found(cluster: Cluster) -> None:
    said = (
        "Error: failed to create containerd container: CDI device injection failed: unresolvable CDI devices "
        "k8s.gpu.nvidia.com/claim=0b3c"
    )
    _failing(cluster, "Failed", said)


def device_of_claim_lost(cluster: Cluster) -> None:
    item = allocated(claim("train", namespace="team-a"), "gpu-0", node_name="gpu-a")
    condition = {"type": "Ready", "status": "False", "reason": "Unhealthy", "message": "XID 79 on gpu-0"}
    device = {"driver": "gpu.nvidia.com", "pool": "gpu-a/gpu.nvidia.com", "device": "gpu-0", "conditions": [condition]}
    item["status"]["devices"] = [device]
    cluster.claims.append(item)


def claim_that_does_not_end(cluster: Cluster) -> None:
    item = allocated(claim("train", namespace="team-a"), "gpu-0", node_name="gpu-a")
    item["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    item["status"]["reservedFor"] = [{"resource": "pods", "name": "gone", "uid": "uid-of-gone"}]
    cluster.claims.append(item)


ROWS = (
    BrokenSetup(
        name="template in another namespace",
        breaks=template_in_another_namespace,
        layer=Layer.WORKLOAD,
        says=("pod/team-a/train", "gpus", "namespace default has one"),
    ),
    BrokenSetup(
        name="template missing",
        breaks=template_missing,
        layer=Layer.WORKLOAD,
        says=("does not exist in namespace team-a",),
        scope=DoctorScope(kind="pod", namespace="team-a", name="train"),
    ),
    BrokenSetup(
        name="claim in another namespace",
        breaks=claim_in_another_namespace,
        layer=Layer.WORKLOAD,
        says=("ResourceClaim shared", "namespace default has one"),
    ),
    BrokenSetup(
        name="class that does not exist",
        breaks=class_misspelt,
        layer=Layer.WORKLOAD,
        says=("DeviceClass nvidia-gpu", "gpu.nvidia.com"),
        scope=DoctorScope(kind="claim", namespace="team-a", name="train"),
    ),
    BrokenSetup(
        name="pod that asks for nvidia.com/mig-1g.10gb",
        breaks=device_plugin_resource,
        layer=Layer.WORKLOAD,
        says=("nvidia.com/mig-1g.10gb", "kubectl dra migrate"),
    ),
    BrokenSetup(
        name="pod that asks for nvidia.com/gpu, no class gives it",
        breaks=device_plugin_gone,
        layer=Layer.WORKLOAD,
        says=("nvidia.com/gpu", "extendedResourceName"),
    ),
    BrokenSetup(
        name="pod with a claim and nvidia.com/gpu",
        breaks=asks_twice,
        layer=Layer.WORKLOAD,
        status=Status.WARN,
        says=("gets both",),
    ),
    BrokenSetup(
        name="pod that is not scheduled",
        breaks=not_scheduled,
        layer=Layer.WORKLOAD,
        status=Status.WARN,
        says=("cannot allocate all claims", "kubectl dra explain pod/train -n team-a"),
    ),
    BrokenSetup(
        name="driver not registered when a pod starts",
        breaks=driver_not_registered,
        layer=Layer.REGISTRATION,
        says=("is not registered", "node/gpu-a"),
    ),
    BrokenSetup(name="prepare fails", breaks=prepare_fails, layer=Layer.PREPARE, says=("no MPS host runs",)),
    BrokenSetup(name="nvidia-uvm missing", breaks=uvm_missing, layer=Layer.UVM, says=("nvidia-uvm",)),
    BrokenSetup(
        name="CDI device that the runtime does not find",
        breaks=cdi_not_found,
        layer=Layer.CDI,
        says=("unresolvable CDI devices", "cdiDir"),
    ),
    BrokenSetup(
        name="device of a claim is lost", breaks=device_of_claim_lost, layer=Layer.PREPARE, says=("gpu-0 is not ready",)
    ),
    BrokenSetup(
        name="claim that does not end",
        breaks=claim_that_does_not_end,
        layer=Layer.PREPARE,
        status=Status.WARN,
        says=("reserved for pods that are gone: gone",),
    ),
)
