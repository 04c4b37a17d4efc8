"""Broken set-ups of DeviceClasses, GpuPolicies, usage and workloads, with messages of Kubernetes and containerd."""

from datetime import UTC, datetime
from typing import Any

from dra_driver.controller.policy_status import PolicyView, status_of
from dra_driver.core.finding import Layer
from dra_driver.core.model.gpu_node import (
    NodePolicy,
    PolicyCount,
    PolicyOrigin,
    PolicyPlace,
    PolicyState,
    PolicyStatus,
    ReportedUnattributed,
    ReportedUsage,
)
from dra_driver.core.wire import to_wire
from dra_driver.diagnose.doctor.cluster import DoctorScope
from tests.doctor_faults.cluster import (
    GONE,
    by_template,
    driver_pod,
    event,
    fail,
    named,
    rows,
    template,
    told,
    unready,
    warn,
    workload,
)
from tests.fakes.dra_objects import DRIVER, Obj, allocated, claim, device_class, exactly

MIG = "mig.nvidia.com"
NO_PARTITIONS = {
    "slices>*>spec>devices>3": GONE,
    "slices>*>spec>devices>1": GONE,
    "gpu_nodes>*>status>gpus>*>offeredAs": ["Whole"],
}
ENV = "daemonsets>0>spec>template>spec>containers>0>env>-"
FOREIGN = ReportedUnattributed(
    gpu="gpu-1", processes=2, memory="9Gi", since="2026-11-22T10:00:00Z", commands=("python3",)
)


def policy(*parts: str, gpus: int = 2, spec: Obj | None = None, **place: Any) -> Obj:
    """The edit that adds a GpuPolicy with the status that the controller writes; ``parts`` of the totals have GPUs."""
    places = (PolicyPlace(node="gpu-a", **place),) if place else ()
    counts = dict.fromkeys(parts, PolicyCount(nodes=1, gpus=gpus, places=places))
    item = unreported_policy(spec)
    view = PolicyView(name="share", uid="u", generation=1, written=item)
    totals = PolicyStatus(observed_generation=1, **counts)
    return {"gpu_policies": [{**item, "status": status_of(view, totals, datetime(2026, 11, 22, tzinfo=UTC))}]}


def unreported_policy(spec: Obj | None = None) -> Obj:
    item = named("share", spec=spec or {})
    item["metadata"].update(generation=1, uid="u")
    return item


def acting(**usage: Obj) -> Obj:
    """A policy in force that acts on what claims use."""
    return policy("selected", "in_force", spec={"usage": usage})


def second_class() -> Obj:
    item = device_class("gpu-b.example")
    item["spec"]["extendedResourceName"] = "nvidia.com/gpu"
    return item


def exporter() -> Obj:
    pod = unready(driver_pod("gpu-a"), restartCount=4, state={"waiting": {"reason": "CrashLoopBackOff"}})
    pod["metadata"].update(name="dra-driver-exporter-x", uid="e", labels={"app.kubernetes.io/component": "exporter"})
    return pod


def node_policy(name: str, origin: PolicyOrigin, state: PolicyState, **more: Any) -> Obj:
    return told("gpu-a", policies=(NodePolicy(name=name, origin=origin, state=state, **more),))


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
        fail("class gpu.nvidia.com missing", Layer.CLASSES, "ClassesPresent", "class/gpu.nvidia.com"): {
            "classes>0": GONE
        },
        fail("class gpu.nvidia.com of another driver", Layer.CLASSES, "ClassOfOtherDriver", "deviceclasses.yaml"): {
            "classes>0>spec>selectors>0>cel>expression": 'device.driver == "gpu.example.com"'
        },
        fail("class whose selector fails", Layer.CLASSES, "SelectorFails", "class/fast", "memoryBandwidth"): {
            "classes>-": device_class("fast", expression=f'device.attributes["{DRIVER}"].memoryBandwidth >= 3000')
        },
        fail(
            "claims for partitions that no policy allows",
            Layer.CLASSES,
            "NoPartitions",
            "class/mig.nvidia.com",
            "claim/team-a/slice",
        ): {**NO_PARTITIONS, "claims>-": claim("slice", exactly(deviceClassName=MIG), namespace="team-a")},
        fail("template for partitions that no policy allows", Layer.CLASSES, "NoPartitions", "template/team-a/slice"): {
            **NO_PARTITIONS,
            "templates>-": template("slice", device_class=MIG),
            "pods>-": workload(**by_template("slice")),
        },
        warn("two classes for nvidia.com/gpu", Layer.CLASSES, "ExtendedResources", "nvidia.com/gpu"): {
            "classes>-": second_class()
        },
        warn("policy that matches no GPU", Layer.POLICIES, "NothingSelected", "nodeSelector"): policy(),
        fail("policy that nodes refuse", Layer.POLICIES, "Refused", "1 node", "MPS host"): policy(
            "selected", "refused", message="spec.gpus[0].sharing.strategy: MPS needs the MPS host"
        ),
        fail("two policies in conflict", Layer.POLICIES, "Conflicting", "whole", "priority"): policy(
            "selected", "conflicting", gpus=2, policies=("whole",)
        ),
        warn("policy that waits for a claim", Layer.POLICIES, "Waiting", "team-a/train"): policy(
            "selected", "waiting", gpus=1, claims=("team-a/train",)
        ),
        fail("refused policy without a controller", Layer.POLICIES, "Refused", "gpu-a", "unknown field"): {
            "gpu_policies": [unreported_policy()],
            "gpu_nodes>0": node_policy(
                "share", PolicyOrigin.OBJECT, PolicyState.REFUSED, generation=1, message="unknown field"
            ),
        },
        fail("policy file in conflict", Layer.POLICIES, "Conflicting", "policy/default", "gpu-a"): {
            "gpu_nodes>0": node_policy("default", PolicyOrigin.FILE, PolicyState.CONFLICTING, gpus=("gpu-0",))
        },
        warn(
            "a policy evicts over the grant, and the exporter is left out",
            Layer.POLICIES,
            "UsageWatched",
            "policy/share",
            "Evict",
            "USAGE",
            "exporter.enabled",
        ): acting(overGrant={"action": "Evict"}),
        warn(
            "a policy reclaims idle claims, and no exporter runs",
            Layer.POLICIES,
            "UsageWatched",
            "policy/share",
            "Reclaim",
        ): {
            **acting(overGrant={"action": "Report"}, idle={"afterMinutes": 30, "action": "Reclaim"}),
            ENV: {"name": "USAGE", "value": "true"},
        },
        warn(
            "usage exporter crashes", Layer.DAEMONSET, "OtherPodsReady", "dra-driver-exporter-x", "CrashLoopBackOff"
        ): {"pods>-": exporter()},
        warn(
            "processes of no claim on a GPU",
            Layer.GPUS,
            "ProcessesWithoutClaim",
            "gpu/gpu-a/gpu-1",
            "2 processes",
            "9Gi",
            "python3",
        ): {"gpu_nodes>0>status>usage": to_wire(ReportedUsage(unattributed=(FOREIGN,)))},
        fail(
            "template in another namespace",
            Layer.WORKLOAD,
            "InOtherNamespace",
            "pod/team-a/train",
            "gpus",
            "namespace default",
        ): {"templates>-": template("gpus", namespace="default"), **WAITING},
        fail(
            "template missing",
            Layer.WORKLOAD,
            "MissingResourceClaimTemplate",
            "namespace team-a",
            scope=DoctorScope(kind="pod", namespace="team-a", name="train"),
        ): WAITING,
        fail(
            "claim in another namespace",
            Layer.WORKLOAD,
            "InOtherNamespace",
            "ResourceClaim shared",
            "namespace default",
        ): {
            "claims>-": claim("shared", namespace="default"),
            "pods>-": workload(resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}]),
        },
        fail(
            "class that does not exist",
            Layer.WORKLOAD,
            "ClassesOfClaimsExist",
            "DeviceClass nvidia-gpu",
            "gpu.nvidia.com",
            scope=CLAIM,
        ): {"claims>-": claim("train", exactly(deviceClassName="nvidia-gpu"), namespace="team-a")},
        fail(
            "pod that asks for nvidia.com/mig-1g.10gb",
            Layer.WORKLOAD,
            "ResourceNotProvided",
            "nvidia.com/mig-1g.10gb",
            "kubectl dra migrate",
        ): asking("nvidia.com/mig-1g.10gb"),
        fail(
            "pod that asks for a compute instance",
            Layer.WORKLOAD,
            "ResourceNotProvided",
            "nvidia.com/mig-1c.3g.20gb",
            "request the GPU instance 3g.20gb",
        ): asking("nvidia.com/mig-1c.3g.20gb"),
        fail(
            "pod that asks for nvidia.com/gpu, no class gives it",
            Layer.WORKLOAD,
            "ResourceNotProvided",
            "nvidia.com/gpu",
            "extendedResourceName",
        ): {"classes>0>spec>extendedResourceName": GONE, **asking("nvidia.com/gpu")},
        warn("pod with a claim and nvidia.com/gpu", Layer.WORKLOAD, "ResourceAndClaim", "nvidia.com/gpu"): {
            **GPUS,
            **asking("nvidia.com/gpu", **by_template("gpus")),
        },
        warn(
            "pod that is not scheduled",
            Layer.WORKLOAD,
            "PodsNotScheduled",
            "cannot allocate all claims",
            "kubectl dra explain pod/train -n team-a",
        ): {**GPUS, **WAITING, "pods>2>status>conditions": [UNSCHEDULED]},
        fail(
            "driver not registered when a pod starts",
            Layer.REGISTRATION,
            "PrepareFailed",
            "is not registered",
            "node/gpu-a",
        ): failing("prepare dynamic resources: DRA driver gpu.nvidia.com is not registered"),
        fail("prepare fails", Layer.PREPARE, "PrepareFailed", "no MPS host runs"): failing(
            "claim team-a/train: MPS daemon of gpu-0 is not ready: no MPS host runs on this node; install it "
            "(mpsHost.enabled of the chart)"
        ),
        fail("nvidia-uvm missing", Layer.UVM, "PrepareFailed", "nvidia-uvm"): failing(
            "claim team-a/train: /dev/nvidia-uvm is missing: load nvidia-uvm"
        ),
        fail(
            "CDI device that the runtime does not find",
            Layer.CDI,
            "CdiDeviceNotFound",
            "unresolvable CDI devices",
            "cdiDir",
        ): failing(
            "Error: failed to create containerd container: CDI device injection failed: unresolvable CDI devices "
            "k8s.gpu.nvidia.com/claim=0b3c",
            reason="Failed",
        ),
        fail("device of a claim is lost", Layer.PREPARE, "ClaimDevicesReady", "device gpu-0", "XID 79 on gpu-0"): held(
            devices=[LOST]
        ),
        fail("node of a claim that is gone", Layer.NODE, "NodeExists", "node/gpu-z", scope=CLAIM): held("gpu-z"),
        warn("claim that does not end", Layer.PREPARE, "ClaimsEnd", ": gone"): {
            **held(reservedFor=[{"resource": "pods", "name": "gone", "uid": "uid-of-gone"}]),
            "claims>0>metadata>deletionTimestamp": "2026-11-22T10:00:00Z",
        },
    }
)
