"""Broken set-ups of what is published: second publishers, GPUs, slices."""

import copy
import json

from dra_driver.core.finding import Layer, Status
from dra_driver.core.model.gpu_node import (
    HealthWord,
    NodeProblem,
    PublishedForm,
)
from dra_driver.diagnose.doctor.cluster import DoctorScope
from tests.doctor_faults.cluster import (
    Cluster,
    daemonset,
    gpu,
    told,
    unready,
    workload,
)
from tests.doctor_faults.row import BrokenSetup
from tests.fakes.dra_objects import resource_slice

WITHDRAWN = (
    "devices are withdrawn, because each GPU could be given to two pods: a device plugin offers nvidia.com/gpu: 8 on "
    "this node. Keep one of the two off this node"
)
NO_NVML = (
    "no libnvidia-ml.so.1 below the driver root /: install the NVIDIA driver, wait for the driver container, or set "
    "--driver-root (DRIVER_ROOT) to another folder"
)


def device_plugin(cluster: Cluster) -> None:
    cluster.nodes[0]["status"]["allocatable"]["nvidia.com/gpu"] = "8"
    unready(cluster.pods[0])
    cluster.slices = cluster.slices[1:]
    cluster.gpu_nodes[0] = told("gpu-a", problems=(NodeProblem(reason="NotReady", message=WITHDRAWN),))


def device_plugin_allowed(cluster: Cluster) -> None:
    cluster.nodes[0]["status"]["allocatable"]["nvidia.com/gpu"] = "4"
    container = cluster.daemonsets[0]["spec"]["template"]["spec"]["containers"][0]
    container["env"].append({"name": "ALLOW_SECOND_PUBLISHER", "value": "true"})


def installed_twice(cluster: Cluster) -> None:
    cluster.daemonsets.append(daemonset("gpu-system"))


def nvidias_own_driver(cluster: Cluster) -> None:
    item = daemonset("nvidia")
    item["metadata"]["name"] = "nvidia-dra-driver-gpu-kubelet-plugin"
    image = "registry.example/dra-driver-nvidia/dra-driver-nvidia-gpu:v0.5.0"
    item["spec"]["template"]["spec"]["containers"] = [{"name": "gpus", "image": image}]
    cluster.daemonsets.append(item)


def pool_of_another_driver(cluster: Cluster) -> None:
    """NVIDIA's driver names its pools by the node alone."""
    item = resource_slice("gpu-a", gpu("gpu-0", uuid="GPU-other"), name="gpu-a-gpu.nvidia.com-abcde")
    item["spec"]["pool"]["name"] = "gpu-a"
    cluster.slices.append(item)


def same_gpu_by_another_name(cluster: Cluster) -> None:
    item = copy.deepcopy(cluster.slices[1])
    item["metadata"]["name"] = "other"
    item["spec"].update(driver="gpu.example.com", pool={"name": "gpu-b", "generation": 1, "resourceSliceCount": 1})
    cluster.slices.append(item)


def nvml_missing(cluster: Cluster) -> None:
    """The node process never read a GPU, so it has written no GpuNode: its log says why."""
    unready(cluster.pods[0])
    cluster.slices, cluster.gpu_nodes = cluster.slices[1:], cluster.gpu_nodes[1:]
    lines = [
        {"time": "2026-11-22T10:00:00Z", "level": "info", "message": "serving metrics and health"},
        {"time": "2026-11-22T10:00:01Z", "level": "warning", "message": "GPU driver unavailable", "reason": NO_NVML},
    ]
    cluster.logs[cluster.pods[0]["metadata"]["name"]] = "\n".join(json.dumps(line) for line in lines)


def driver_gone_later(cluster: Cluster) -> None:
    unready(cluster.pods[0])
    message = "the NVIDIA driver cannot be used: driver/library version mismatch"
    cluster.gpu_nodes[0] = told("gpu-a", problems=(NodeProblem(reason="NotReady", message=message),))


def gpu_left_out(cluster: Cluster) -> None:
    message = "GPU 0000:65:00.0 cannot be used: NVML_ERROR_GPU_IS_LOST"
    cluster.gpu_nodes[1] = told("gpu-b", problems=(NodeProblem(reason="GpuLeftOut", message=message),))


def gpu_unhealthy(cluster: Cluster) -> None:
    said = "XID 79: GPU has fallen off the bus"
    cluster.gpu_nodes[0] = told("gpu-a", health=HealthWord.UNHEALTHY, causes=("xid-79",), message=said)


def no_gpu_on_node(cluster: Cluster) -> None:
    item = told("gpu-a")
    item["status"].update(gpus=[], problems=[])
    cluster.gpu_nodes[0], cluster.slices = item, cluster.slices[1:]


def not_registered(cluster: Cluster) -> None:
    message = (
        "the kubelet has not registered this driver yet: check that it runs and reads the directory of "
        "--kubelet-registrar-dir"
    )
    cluster.gpu_nodes[0] = told("gpu-a", problems=(NodeProblem(reason="NotReady", message=message),))
    cluster.slices = cluster.slices[1:]


def different_drivers(cluster: Cluster) -> None:
    cluster.gpu_nodes[1]["status"]["driverVersion"] = "570.133.20"


def hook_on_one_node(cluster: Cluster) -> None:
    cluster.gpu_nodes[1]["status"].pop("toolkitVersion")


def shares_dropped(cluster: Cluster) -> None:
    """This user may not read the gates; what a node means to offer and what is published tells."""
    cluster.refused = {"get /metrics"}
    cluster.gpu_nodes[0] = told("gpu-a", offered_as=(PublishedForm.SHARED,))


def old_containerd(cluster: Cluster) -> None:
    cluster.nodes[0]["status"]["nodeInfo"]["containerRuntimeVersion"] = "containerd://1.6.20"


def containerd_without_switch(cluster: Cluster) -> None:
    cluster.nodes[0]["status"]["nodeInfo"]["containerRuntimeVersion"] = "containerd://1.7.24"


def docker(cluster: Cluster) -> None:
    cluster.nodes[1]["status"]["nodeInfo"]["containerRuntimeVersion"] = "docker://26.1.5"


def default_runtime(cluster: Cluster) -> None:
    pod = workload("old-style", node="gpu-a")
    pod["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    pod["status"]["phase"] = "Running"
    cluster.pods.append(pod)


def toolkit_sets_default(cluster: Cluster) -> None:
    item = daemonset("gpu-operator")
    item["metadata"]["name"] = "nvidia-container-toolkit-daemonset"
    item["spec"]["template"]["spec"]["containers"] = [{"name": "toolkit", "image": "toolkit", "env": []}]
    cluster.daemonsets.append(item)


def slices_missing(cluster: Cluster) -> None:
    cluster.slices = cluster.slices[:1]


def pool_incomplete(cluster: Cluster) -> None:
    cluster.slices[0]["spec"]["pool"]["resourceSliceCount"] = 3


def stale_generation(cluster: Cluster) -> None:
    item = resource_slice("gpu-a", gpu("gpu-9", uuid="GPU-old"), name="stale")
    cluster.slices[0]["spec"]["pool"]["generation"] = 2
    cluster.slices.append(item)


def node_process_gone(cluster: Cluster) -> None:
    cluster.pods = cluster.pods[:1]


def slices_of_a_node_that_is_gone(cluster: Cluster) -> None:
    cluster.slices.append(resource_slice("gpu-z", gpu("gpu-0", uuid="GPU-z")))


def all_drained(cluster: Cluster) -> None:
    for device in cluster.slices[0]["spec"]["devices"]:
        device["taints"] = [{"key": "gpu.dra-driver.io/draining", "effect": "NoSchedule"}]


GPU_A = DoctorScope(kind="node", name="gpu-a")
WARN = Status.WARN

ROWS = (
    BrokenSetup(
        name="device plugin beside the driver",
        breaks=device_plugin,
        layer=Layer.SECOND_PUBLISHER,
        says=("node/gpu-a", "nvidia.com/gpu: 8", "kubectl dra migrate"),
    ),
    BrokenSetup(
        name="device plugin that is allowed",
        breaks=device_plugin_allowed,
        layer=Layer.SECOND_PUBLISHER,
        status=WARN,
        says=("nvidia.com/gpu: 4",),
    ),
    BrokenSetup(
        name="driver installed twice",
        breaks=installed_twice,
        layer=Layer.SECOND_PUBLISHER,
        says=("2 times", "gpu-system"),
    ),
    BrokenSetup(
        name="NVIDIA's DRA driver on the same nodes",
        breaks=nvidias_own_driver,
        layer=Layer.SECOND_PUBLISHER,
        says=("NVIDIA's own DRA driver", "gpu-a, gpu-b", "ComputeDomains"),
    ),
    BrokenSetup(
        name="slices that another driver of the name left",
        breaks=pool_of_another_driver,
        layer=Layer.SECOND_PUBLISHER,
        says=("node/gpu-a", "pools that this driver does not use: gpu-a"),
    ),
    BrokenSetup(
        name="same GPUs by a driver of another name",
        breaks=same_gpu_by_another_name,
        layer=Layer.SECOND_PUBLISHER,
        says=("2 GPUs are published twice", "gpu.example.com"),
    ),
    BrokenSetup(
        name="NVIDIA driver not installed on a node",
        breaks=nvml_missing,
        layer=Layer.NVML,
        says=("libnvidia-ml.so.1", "node/gpu-a"),
    ),
    BrokenSetup(
        name="NVIDIA driver replaced under a running node",
        breaks=driver_gone_later,
        layer=Layer.DRIVER,
        says=("version mismatch",),
    ),
    BrokenSetup(
        name="node without any GPU", breaks=no_gpu_on_node, layer=Layer.NVML, says=("found no GPU", "nvidia-smi -L")
    ),
    BrokenSetup(name="a GPU that NVML lost", breaks=gpu_left_out, layer=Layer.GPUS, says=("GPU_IS_LOST", "node/gpu-b")),
    BrokenSetup(
        name="GPU with XID 79", breaks=gpu_unhealthy, layer=Layer.GPUS, says=("gpu/gpu-a/gpu-0", "xid-79", "bus")
    ),
    BrokenSetup(
        name="kubelet does not register the driver",
        breaks=not_registered,
        layer=Layer.REGISTRATION,
        says=("not registered", "gpu-a"),
    ),
    BrokenSetup(
        name="nodes with different drivers",
        breaks=different_drivers,
        layer=Layer.DRIVER,
        status=WARN,
        says=("570.133.20 on gpu-b",),
    ),
    BrokenSetup(
        name="CDI hook on one of two nodes",
        breaks=hook_on_one_node,
        layer=Layer.TOOLKIT,
        status=WARN,
        says=("not on gpu-b",),
    ),
    BrokenSetup(
        name="shares that the API server drops",
        breaks=shares_dropped,
        layer=Layer.KUBERNETES,
        status=WARN,
        says=("node/gpu-a", "shares", "DRAConsumableCapacity"),
    ),
    BrokenSetup(
        name="containerd 1.6", breaks=old_containerd, layer=Layer.RUNTIME, says=("1.6.20", "no CDI devices", "2.0")
    ),
    BrokenSetup(
        name="containerd 1.7",
        breaks=containerd_without_switch,
        layer=Layer.RUNTIME,
        status=WARN,
        says=("1.7.24", "enable_cdi"),
    ),
    BrokenSetup(name="Docker", breaks=docker, layer=Layer.RUNTIME, says=("Docker", "node/gpu-b")),
    BrokenSetup(
        name="pod with NVIDIA_VISIBLE_DEVICES and no claim",
        breaks=default_runtime,
        layer=Layer.RUNTIME,
        status=WARN,
        says=("team-a/old-style", "NVIDIA_VISIBLE_DEVICES=all"),
    ),
    BrokenSetup(
        name="toolkit that sets NVIDIA's runtime as default",
        breaks=toolkit_sets_default,
        layer=Layer.RUNTIME,
        status=WARN,
        says=("CONTAINERD_SET_AS_DEFAULT",),
    ),
    BrokenSetup(
        name="node without ResourceSlices",
        breaks=slices_missing,
        layer=Layer.SLICES,
        says=("node/gpu-b", "no ResourceSlice"),
    ),
    BrokenSetup(name="pool incomplete", breaks=pool_incomplete, layer=Layer.SLICES, says=("1 of 3", "gpu-a")),
    BrokenSetup(
        name="slices of an older generation", breaks=stale_generation, layer=Layer.SLICES, status=WARN, says=("older",)
    ),
    BrokenSetup(
        name="slices without a node process",
        breaks=node_process_gone,
        layer=Layer.SLICES,
        says=("node/gpu-b", "no node process is ready"),
    ),
    BrokenSetup(
        name="slices of a node that is gone",
        breaks=slices_of_a_node_that_is_gone,
        layer=Layer.SLICES,
        status=WARN,
        says=("gpu-z", "do not exist"),
    ),
    BrokenSetup(
        name="node drained and forgotten",
        breaks=all_drained,
        layer=Layer.SLICES,
        status=WARN,
        says=("all 4 devices", "undrain"),
        scope=GPU_A,
    ),
)
