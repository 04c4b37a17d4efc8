"""Broken set-ups of DeviceClasses and GpuPolicies."""

from datetime import UTC, datetime
from typing import Any

from dra_driver.controller.policy_totals import PolicyView, status_of
from dra_driver.core.finding import Layer
from dra_driver.core.model.gpu_node import (
    NodePolicy,
    PolicyCount,
    PolicyOrigin,
    PolicyPlace,
    PolicyState,
    PolicyStatus,
)
from tests.doctor_faults.cluster import (
    DRIVER,
    Cluster,
    Obj,
    by_template,
    claim,
    exactly,
    named,
    template,
    told,
    workload,
)
from tests.doctor_faults.row import WARN, broken
from tests.fakes.dra_objects import device_class


def policy(totals: PolicyStatus | None, generation: int = 1, **spec: Any) -> Obj:
    """A GpuPolicy with the status that the controller writes for these totals."""
    item = named("share", spec=spec)
    item["metadata"].update(generation=generation, uid="u")
    if totals is not None:
        view = PolicyView(name="share", uid="u", generation=generation, written=item)
        item["status"] = status_of(view, totals, datetime(2026, 11, 22, tzinfo=UTC))
    return item


@broken("class gpu.nvidia.com missing", Layer.CLASSES, "does not exist")
def class_missing(cluster: Cluster) -> None:
    cluster.classes = [item for item in cluster.classes if item["metadata"]["name"] != DRIVER]


@broken("class gpu.nvidia.com of another driver", Layer.CLASSES, "another driver", "deviceclasses.yaml")
def class_of_another_driver(cluster: Cluster) -> None:
    cluster.classes[0]["spec"]["selectors"][0]["cel"]["expression"] = 'device.driver == "gpu.example.com"'


@broken("class whose selector fails", Layer.CLASSES, "class/fast", "memoryBandwidth")
def class_that_fails(cluster: Cluster) -> None:
    expression = f'device.attributes["{DRIVER}"].memoryBandwidth >= 3000'
    cluster.classes.append(device_class("fast", expression=expression))


@broken(
    "claims for partitions that no policy allows",
    Layer.CLASSES,
    "class/mig.nvidia.com",
    "claim/team-a/slice",
    "no node offers partitions",
)
def class_without_partitions(cluster: Cluster) -> None:
    """Claims for partitions, and policies that allow none."""
    for item in cluster.slices:
        item["spec"]["devices"] = [each for each in item["spec"]["devices"] if "mig" not in each["name"]]
    for item in cluster.gpu_nodes:
        for each in item["status"]["gpus"]:
            each["offeredAs"] = ["Whole"]
    cluster.claims.append(claim("slice", exactly(deviceClassName="mig.nvidia.com"), namespace="team-a"))


@broken("template for partitions that no policy allows", Layer.CLASSES, "template/team-a/slice")
def waiting_for_partition(cluster: Cluster) -> None:
    class_without_partitions(cluster)
    cluster.claims = []
    cluster.templates.append(template("slice", device_class="mig.nvidia.com"))
    cluster.pods.append(workload(**by_template("slice")))


@broken("two classes for nvidia.com/gpu", Layer.CLASSES, "several classes", "nvidia.com/gpu", status=WARN)
def two_classes_for_one_resource(cluster: Cluster) -> None:
    item = device_class("gpu-b.example")
    item["spec"]["extendedResourceName"] = "nvidia.com/gpu"
    cluster.classes.append(item)


@broken("policy that matches no GPU", Layer.POLICIES, "selects no GPU", "nodeSelector", status=WARN)
def policy_matches_nothing(cluster: Cluster) -> None:
    cluster.gpu_policies = [policy(PolicyStatus(observed_generation=1))]


@broken("policy that nodes refuse", Layer.POLICIES, "refused by 1 node", "MPS host")
def policy_refused(cluster: Cluster) -> None:
    place = PolicyPlace(node="gpu-a", message="spec.gpus[0].sharing.strategy: MPS needs the MPS host")
    refused = PolicyCount(nodes=1, gpus=2, places=(place,))
    cluster.gpu_policies = [policy(PolicyStatus(observed_generation=1, selected=refused, refused=refused))]


@broken("two policies in conflict", Layer.POLICIES, "with whole", "priority")
def policies_conflict(cluster: Cluster) -> None:
    found = PolicyCount(nodes=1, gpus=2, places=(PolicyPlace(node="gpu-a", gpus=("gpu-0",), policies=("whole",)),))
    cluster.gpu_policies = [policy(PolicyStatus(observed_generation=1, selected=found, conflicting=found))]


@broken("policy that waits for a claim", Layer.POLICIES, "team-a/train", status=WARN)
def policy_waits(cluster: Cluster) -> None:
    found = PolicyCount(nodes=1, gpus=1, places=(PolicyPlace(node="gpu-a", claims=("team-a/train",)),))
    cluster.gpu_policies = [policy(PolicyStatus(observed_generation=1, selected=found, waiting=found))]


@broken("refused policy without a controller", Layer.POLICIES, "on gpu-a: unknown field")
def policy_without_controller(cluster: Cluster) -> None:
    cluster.gpu_policies = [policy(None)]
    refused = NodePolicy(
        name="share", origin=PolicyOrigin.OBJECT, state=PolicyState.REFUSED, generation=1, message="unknown field"
    )
    cluster.gpu_nodes[0] = told("gpu-a", policies=(refused,))


@broken("policy file in conflict", Layer.POLICIES, "of a file", "gpu-a")
def policy_file_conflicts(cluster: Cluster) -> None:
    found = NodePolicy(name="default", origin=PolicyOrigin.FILE, state=PolicyState.CONFLICTING, gpus=("gpu-0",))
    cluster.gpu_nodes[0] = told("gpu-a", policies=(found,))
