"""Broken set-ups of DeviceClasses, GpuPolicies, and of what watches the use of GPUs."""

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
    ToldForeign,
    ToldUsage,
)
from dra_driver.core.wire import to_wire
from tests.doctor_faults.cluster import (
    DRIVER,
    Obj,
    by_template,
    claim,
    driver_pod,
    exactly,
    named,
    template,
    told,
    unready,
    workload,
)
from tests.doctor_faults.row import GONE, fail, rows, warn
from tests.fakes.dra_objects import device_class

MIG = "mig.nvidia.com"
NO_PARTITIONS = {
    "slices>*>spec>devices>3": GONE,
    "slices>*>spec>devices>1": GONE,
    "gpu_nodes>*>status>gpus>*>offeredAs": ["Whole"],
}
ENV = "daemonsets>0>spec>template>spec>containers>0>env>-"
FOREIGN = ToldForeign(gpu="gpu-1", processes=2, memory="9Gi", since="2026-11-22T10:00:00Z", commands=("python3",))


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


ROWS = rows(
    {
        fail("class gpu.nvidia.com missing", Layer.CLASSES, "does not exist"): {"classes>0": GONE},
        fail("class gpu.nvidia.com of another driver", Layer.CLASSES, "another driver", "deviceclasses.yaml"): {
            "classes>0>spec>selectors>0>cel>expression": 'device.driver == "gpu.example.com"'
        },
        fail("class whose selector fails", Layer.CLASSES, "class/fast", "memoryBandwidth"): {
            "classes>-": device_class("fast", expression=f'device.attributes["{DRIVER}"].memoryBandwidth >= 3000')
        },
        fail(
            "claims for partitions that no policy allows",
            Layer.CLASSES,
            "class/mig.nvidia.com",
            "claim/team-a/slice",
            "no node offers partitions",
        ): {**NO_PARTITIONS, "claims>-": claim("slice", exactly(deviceClassName=MIG), namespace="team-a")},
        fail("template for partitions that no policy allows", Layer.CLASSES, "template/team-a/slice"): {
            **NO_PARTITIONS,
            "templates>-": template("slice", device_class=MIG),
            "pods>-": workload(**by_template("slice")),
        },
        warn("two classes for nvidia.com/gpu", Layer.CLASSES, "several classes", "nvidia.com/gpu"): {
            "classes>-": second_class()
        },
        warn("policy that matches no GPU", Layer.POLICIES, "selects no GPU", "nodeSelector"): policy(),
        fail("policy that nodes refuse", Layer.POLICIES, "refused by 1 node", "MPS host"): policy(
            "selected", "refused", message="spec.gpus[0].sharing.strategy: MPS needs the MPS host"
        ),
        fail("two policies in conflict", Layer.POLICIES, "with whole", "priority"): policy(
            "selected", "conflicting", gpus=2, policies=("whole",)
        ),
        warn("policy that waits for a claim", Layer.POLICIES, "team-a/train"): policy(
            "selected", "waiting", gpus=1, claims=("team-a/train",)
        ),
        fail("refused policy without a controller", Layer.POLICIES, "on gpu-a: unknown field"): {
            "gpu_policies": [unreported_policy()],
            "gpu_nodes>0": node_policy(
                "share", PolicyOrigin.OBJECT, PolicyState.REFUSED, generation=1, message="unknown field"
            ),
        },
        fail("policy file in conflict", Layer.POLICIES, "of a file", "gpu-a"): {
            "gpu_nodes>0": node_policy("default", PolicyOrigin.FILE, PolicyState.CONFLICTING, gpus=("gpu-0",))
        },
        warn(
            "a policy evicts over the grant, and the exporter is left out",
            Layer.POLICIES,
            "policy/share",
            "Evict",
            "without USAGE",
            "exporter.enabled",
        ): acting(overGrant={"action": "Evict"}),
        warn(
            "a policy reclaims idle claims, and no exporter runs",
            Layer.POLICIES,
            "policy/share",
            "Reclaim",
            "no usage exporter runs",
        ): {
            **acting(overGrant={"action": "Report"}, idle={"afterMinutes": 30, "action": "Reclaim"}),
            ENV: {"name": "USAGE", "value": "true"},
        },
        warn(
            "usage exporter crashes", Layer.DAEMONSET, "dra-driver-exporter-x", "CrashLoopBackOff", "use of the GPUs"
        ): {"pods>-": exporter()},
        warn("processes of no claim on a GPU", Layer.GPUS, "gpu/gpu-a/gpu-1", "2 processes with 9Gi", "python3"): {
            "gpu_nodes>0>status>usage": to_wire(ToldUsage(unattributed=(FOREIGN,)))
        },
    }
)
