"""Broken set-ups of DeviceClasses and GpuPolicies."""

from datetime import UTC, datetime
from typing import Any

from dra_driver.controller.policy_conditions import status_of
from dra_driver.controller.policy_views import PolicyView
from dra_driver.core.finding import Layer, Status
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
from tests.doctor_faults.row import BrokenSetup
from tests.fakes.dra_objects import device_class


def class_missing(cluster: Cluster) -> None:
    cluster.classes = [item for item in cluster.classes if item["metadata"]["name"] != DRIVER]


def class_of_another_driver(cluster: Cluster) -> None:
    cluster.classes[0]["spec"]["selectors"][0]["cel"]["expression"] = 'device.driver == "gpu.example.com"'


def class_that_fails(cluster: Cluster) -> None:
    expression = f'device.attributes["{DRIVER}"].memoryBandwidth >= 3000'
    cluster.classes.append(device_class("fast", expression=expression))


def class_without_partitions(cluster: Cluster) -> None:
    """Claims for partitions, and policies that allow none."""
    for item in cluster.slices:
        item["spec"]["devices"] = [each for each in item["spec"]["devices"] if "mig" not in each["name"]]
    for item in cluster.gpu_nodes:
        for each in item["status"]["gpus"]:
            each["offeredAs"] = ["Whole"]
    cluster.claims.append(claim("slice", exactly(deviceClassName="mig.nvidia.com"), namespace="team-a"))


def two_classes_for_one_resource(cluster: Cluster) -> None:
    item = device_class("gpu-b.example")
    item["spec"]["extendedResourceName"] = "nvidia.com/gpu"
    cluster.classes.append(item)


def policy(totals: PolicyStatus | None, generation: int = 1, **spec: Any) -> Obj:
    """A GpuPolicy with the status that the controller writes for these totals."""
    item = named("share", spec=spec)
    item["metadata"].update(generation=generation, uid="u")
    if totals is not None:
        view = PolicyView(name="share", uid="u", generation=generation, written=item)
        item["status"] = status_of(view, totals, datetime(2026, 11, 22, tzinfo=UTC))
    return item


def policy_matches_nothing(cluster: Cluster) -> None:
    cluster.gpu_policies = [policy(PolicyStatus(observed_generation=1))]


def policy_refused(cluster: Cluster) -> None:
    place = PolicyPlace(node="gpu-a", message="spec.gpus[0].sharing.strategy: MPS needs the MPS host")
    refused = PolicyCount(nodes=1, gpus=2, places=(place,))
    cluster.gpu_policies = [policy(PolicyStatus(observed_generation=1, selected=refused, refused=refused))]


def policies_conflict(cluster: Cluster) -> None:
    found = PolicyCount(nodes=1, gpus=2, places=(PolicyPlace(node="gpu-a", gpus=("gpu-0",), policies=("whole",)),))
    cluster.gpu_policies = [policy(PolicyStatus(observed_generation=1, selected=found, conflicting=found))]


def policy_waits(cluster: Cluster) -> None:
    found = PolicyCount(nodes=1, gpus=1, places=(PolicyPlace(node="gpu-a", claims=("team-a/train",)),))
    cluster.gpu_policies = [policy(PolicyStatus(observed_generation=1, selected=found, waiting=found))]


def policy_without_controller(cluster: Cluster) -> None:
    cluster.gpu_policies = [policy(None)]
    refused = NodePolicy(
        name="share", origin=PolicyOrigin.OBJECT, state=PolicyState.REFUSED, generation=1, message="unknown field"
    )
    cluster.gpu_nodes[0] = told("gpu-a", policies=(refused,))


def policy_file_conflicts(cluster: Cluster) -> None:
    found = NodePolicy(name="default", origin=PolicyOrigin.FILE, state=PolicyState.CONFLICTING, gpus=("gpu-0",))
    cluster.gpu_nodes[0] = told("gpu-a", policies=(found,))


def waiting_for_partition(cluster: Cluster) -> None:
    class_without_partitions(cluster)
    cluster.claims = []
    cluster.templates.append(template("slice", device_class="mig.nvidia.com"))
    cluster.pods.append(workload(**by_template("slice")))


WARN = Status.WARN

ROWS = (
    BrokenSetup(
        name="class gpu.nvidia.com missing", breaks=class_missing, layer=Layer.CLASSES, says=("does not exist",)
    ),
    BrokenSetup(
        name="class gpu.nvidia.com of another driver",
        breaks=class_of_another_driver,
        layer=Layer.CLASSES,
        says=("another driver", "deviceclasses.yaml"),
    ),
    BrokenSetup(
        name="class whose selector fails",
        breaks=class_that_fails,
        layer=Layer.CLASSES,
        says=("class/fast", "memoryBandwidth"),
    ),
    BrokenSetup(
        name="claims for partitions that no policy allows",
        breaks=class_without_partitions,
        layer=Layer.CLASSES,
        says=("class/mig.nvidia.com", "claim/team-a/slice", "no node offers partitions"),
    ),
    BrokenSetup(
        name="template for partitions that no policy allows",
        breaks=waiting_for_partition,
        layer=Layer.CLASSES,
        says=("template/team-a/slice",),
    ),
    BrokenSetup(
        name="two classes for nvidia.com/gpu",
        breaks=two_classes_for_one_resource,
        layer=Layer.CLASSES,
        status=WARN,
        says=("several classes", "nvidia.com/gpu"),
    ),
    BrokenSetup(
        name="policy that matches no GPU",
        breaks=policy_matches_nothing,
        layer=Layer.POLICIES,
        status=WARN,
        says=("selects no GPU", "nodeSelector"),
    ),
    BrokenSetup(
        name="policy that nodes refuse",
        breaks=policy_refused,
        layer=Layer.POLICIES,
        says=("refused by 1 node", "MPS host"),
    ),
    BrokenSetup(
        name="two policies in conflict", breaks=policies_conflict, layer=Layer.POLICIES, says=("with whole", "priority")
    ),
    BrokenSetup(
        name="policy that waits for a claim",
        breaks=policy_waits,
        layer=Layer.POLICIES,
        status=WARN,
        says=("team-a/train",),
    ),
    BrokenSetup(
        name="refused policy without a controller",
        breaks=policy_without_controller,
        layer=Layer.POLICIES,
        says=("on gpu-a: unknown field",),
    ),
    BrokenSetup(
        name="policy file in conflict", breaks=policy_file_conflicts, layer=Layer.POLICIES, says=("of a file", "gpu-a")
    ),
)
