"""Broken set-ups of workloads, and errors of preparing claims. Messages are those of Kubernetes and containerd."""

from typing import Any

from dra_driver.core.finding import Layer
from dra_driver.diagnose.doctor.cluster import DoctorScope
from tests.doctor_faults.cluster import DRIVER, Obj, by_template, claim, event, exactly, template, workload
from tests.doctor_faults.row import GONE, fail, rows, warn
from tests.fakes.dra_objects import allocated

CLAIM = DoctorScope(kind="claim", namespace="team-a", name="train")
GPUS = {"templates>-": template("gpus")}
WAITING = {"pods>-": workload(**by_template("gpus"))}
UNSCHEDULED = {
    "type": "PodScheduled",
    "status": "False",
    "message": "0/3 nodes are available: 3 cannot allocate all claims.",
}
LOST = {
    "driver": DRIVER,
    "pool": f"gpu-a/{DRIVER}",
    "device": "gpu-0",
    "conditions": [{"type": "Ready", "status": "False", "reason": "Unhealthy", "message": "XID 79 on gpu-0"}],
}


def asking(resource: str, **spec: Any) -> Obj:
    """A pod that requests an extended resource."""
    pod = workload("old", **spec)
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource: "1"}}
    return {"pods>-": pod}


def failing(message: str, reason: str = "FailedPrepareDynamicResources") -> Obj:
    """A pod on gpu-a that cannot start, with the kubelet's event."""
    pod = workload(node="gpu-a", **by_template("gpus"))
    said = f"Failed to prepare dynamic resources: {message}" if reason != "Failed" else message
    return {**GPUS, "pods>-": pod, "events>-": event(reason, pod, said)}


def held(node: str = "gpu-a", **changed: Any) -> Obj:
    """The claim train on a node; ``changed`` are further fields of its status."""
    item = allocated(claim("train", namespace="team-a"), "gpu-0", node_name=node)
    item["status"].update(changed)
    return {"claims>-": item}


ROWS = rows(
    {
        fail(
            "template in another namespace", Layer.WORKLOAD, "pod/team-a/train", "gpus", "namespace default has one"
        ): {"templates>-": template("gpus", namespace="default"), **WAITING},
        fail(
            "template missing",
            Layer.WORKLOAD,
            "does not exist in namespace team-a",
            scope=DoctorScope(kind="pod", namespace="team-a", name="train"),
        ): WAITING,
        fail("claim in another namespace", Layer.WORKLOAD, "ResourceClaim shared", "namespace default has one"): {
            "claims>-": claim("shared", namespace="default"),
            "pods>-": workload(resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}]),
        },
        fail("class that does not exist", Layer.WORKLOAD, "DeviceClass nvidia-gpu", "gpu.nvidia.com", scope=CLAIM): {
            "claims>-": claim("train", exactly(deviceClassName="nvidia-gpu"), namespace="team-a")
        },
        fail(
            "pod that asks for nvidia.com/mig-1g.10gb", Layer.WORKLOAD, "nvidia.com/mig-1g.10gb", "kubectl dra migrate"
        ): asking("nvidia.com/mig-1g.10gb"),
        fail(
            "pod that asks for nvidia.com/gpu, no class gives it",
            Layer.WORKLOAD,
            "nvidia.com/gpu",
            "extendedResourceName",
        ): {"classes>0>spec>extendedResourceName": GONE, **asking("nvidia.com/gpu")},
        warn("pod with a claim and nvidia.com/gpu", Layer.WORKLOAD, "gets both"): {
            **GPUS,
            **asking("nvidia.com/gpu", **by_template("gpus")),
        },
        warn(
            "pod that is not scheduled",
            Layer.WORKLOAD,
            "cannot allocate all claims",
            "kubectl dra explain pod/train -n team-a",
        ): {**GPUS, **WAITING, "pods>2>status>conditions": [UNSCHEDULED]},
        fail("driver not registered when a pod starts", Layer.REGISTRATION, "is not registered", "node/gpu-a"): failing(
            "prepare dynamic resources: DRA driver gpu.nvidia.com is not registered"
        ),
        fail("prepare fails", Layer.PREPARE, "no MPS host runs"): failing(
            "claim team-a/train: MPS daemon of gpu-0 is not ready: no MPS host runs on this node; install it "
            "(mpsHost.enabled of the chart)"
        ),
        fail("nvidia-uvm missing", Layer.UVM, "nvidia-uvm"): failing(
            "claim team-a/train: /dev/nvidia-uvm is missing: load nvidia-uvm"
        ),
        fail("CDI device that the runtime does not find", Layer.CDI, "unresolvable CDI devices", "cdiDir"): failing(
            "Error: failed to create containerd container: CDI device injection failed: unresolvable CDI devices "
            "k8s.gpu.nvidia.com/claim=0b3c",
            reason="Failed",
        ),
        fail("device of a claim is lost", Layer.PREPARE, "gpu-0 is not ready"): held(devices=[LOST]),
        fail("node of a claim that is gone", Layer.NODE, "node/gpu-z", "no longer exists", scope=CLAIM): held("gpu-z"),
        warn("claim that does not end", Layer.PREPARE, "reserved for pods that are gone: gone"): {
            **held(reservedFor=[{"resource": "pods", "name": "gone", "uid": "uid-of-gone"}]),
            "claims>0>metadata>deletionTimestamp": "2026-11-22T10:00:00Z",
        },
    }
)
