"""Where both DaemonSets run while NVIDIA's k8s-driver-manager upgrades the driver of a node.

The DaemonSet controller removes a pod whose required node affinity or nodeSelector no longer matches its node
(kubernetes pkg/controller/daemon/daemon_controller.go, NodeShouldRunDaemonPod).
"""

from typing import Any

import pytest

from dra_driver.node.process.detaching import LABELS, PAUSED
from dra_driver.scheduler.allocation.nodes import NodeUsage, unfit_reason
from tests.fakes import chart

CLIENT, DRA = LABELS
NAMES = ("dra-driver-node", "dra-driver-mps-host")
GPU_LABELS = (
    "nvidia.com/gpu.present",
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
)


def pod(name: str, preset: str = "plain-nodes") -> dict[str, Any]:
    objects = chart.objects(
        chart.preset(preset) | {"mpsHost": chart.preset(preset).get("mpsHost", {}) | {"enabled": True}}
    )
    template: dict[str, Any] = chart.found(objects, "DaemonSet", name)["spec"]["template"]
    return template


def runs(name: str, **labels: str) -> bool:
    metadata = {"name": "node-a", "labels": {"kubernetes.io/os": "linux", **labels}}
    node = {"metadata": metadata, "status": {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"}}}
    return not unfit_reason(pod(name), node, NodeUsage())


@pytest.mark.parametrize("gpu_label", GPU_LABELS)
def test_the_mps_host_leaves_a_node_whose_driver_is_upgraded(gpu_label: str) -> None:
    """It runs programs of the driver; on nodes without a GPU operator the label does not exist."""
    own = {gpu_label: "true"}
    assert runs("dra-driver-mps-host", **own)
    assert runs("dra-driver-mps-host", **own, **{CLIENT: "true"})
    assert runs("dra-driver-mps-host", **own, **{CLIENT: ""})
    assert not runs("dra-driver-mps-host", **own, **{CLIENT: PAUSED})
    assert not runs("dra-driver-mps-host", **own, **{CLIENT: "false"})


@pytest.mark.parametrize("gpu_label", GPU_LABELS)
def test_the_node_process_stays_until_the_last_claim_has_ended(gpu_label: str) -> None:
    """Pods that have claims are evicted after these labels are set; without it they would hang in Terminating."""
    assert runs("dra-driver-node", **{gpu_label: "true", CLIENT: PAUSED, DRA: PAUSED})


def test_with_the_preset_the_driver_manager_waits_for_the_mps_host() -> None:
    """It finds pods by the key of their nodeSelector alone (internal/kubernetes/client.go:194)."""
    assert CLIENT not in pod("dra-driver-mps-host")["spec"]["nodeSelector"]
    waited_for = [name for name in NAMES if CLIENT in pod(name, "gpu-operator")["spec"]["nodeSelector"]]
    assert waited_for == ["dra-driver-mps-host"]
