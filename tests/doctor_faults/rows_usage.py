"""Broken set-ups of what watches the use of GPUs."""

from typing import Any

from dra_driver.core.finding import Layer
from dra_driver.core.model.gpu_node import PolicyCount, PolicyStatus, ToldForeign, ToldUsage
from dra_driver.core.wire import to_wire
from tests.doctor_faults.cluster import Cluster, Obj, driver_pod
from tests.doctor_faults.row import WARN, broken
from tests.doctor_faults.rows_policies import policy


def acting(**usage: Any) -> Obj:
    selected = PolicyCount(nodes=2, gpus=4)
    return policy(PolicyStatus(observed_generation=1, selected=selected, in_force=selected), usage=usage)


@broken(
    "a policy evicts over the grant, and the exporter is left out",
    Layer.POLICIES,
    "policy/share",
    "Evict",
    "without USAGE",
    "exporter.enabled",
    status=WARN,
)
def evicts_without_exporter(cluster: Cluster) -> None:
    cluster.gpu_policies = [acting(overGrant={"action": "Evict"})]


@broken(
    "a policy reclaims idle claims, and no exporter runs",
    Layer.POLICIES,
    "policy/share",
    "Reclaim",
    "no usage exporter runs",
    status=WARN,
)
def reclaims_without_pods(cluster: Cluster) -> None:
    """Node processes tell of claims, and the exporter's DaemonSet is gone."""
    cluster.gpu_policies = [acting(overGrant={"action": "Report"}, idle={"afterMinutes": 30, "action": "Reclaim"})]
    env = cluster.daemonsets[0]["spec"]["template"]["spec"]["containers"][0].setdefault("env", [])
    env.append({"name": "USAGE", "value": "true"})


@broken(
    "usage exporter crashes",
    Layer.DAEMONSET,
    "dra-driver-exporter-x",
    "CrashLoopBackOff",
    "use of the GPUs",
    status=WARN,
)
def exporter_crashes(cluster: Cluster) -> None:
    pod = driver_pod("gpu-a")
    pod["metadata"].update(name="dra-driver-exporter-x", uid="e", labels={"app.kubernetes.io/component": "exporter"})
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    pod["status"]["containerStatuses"] = [
        {"name": "exporter", "ready": False, "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    ]
    cluster.pods.append(pod)


@broken("processes of no claim on a GPU", Layer.GPUS, "gpu/gpu-a/gpu-1", "2 processes with 9Gi", "python3", status=WARN)
def foreign_processes(cluster: Cluster) -> None:
    foreign = ToldForeign(gpu="gpu-1", processes=2, memory="9Gi", since="2026-11-22T10:00:00Z", commands=("python3",))
    cluster.gpu_nodes[0]["status"]["usage"] = to_wire(ToldUsage(unattributed=(foreign,)))
