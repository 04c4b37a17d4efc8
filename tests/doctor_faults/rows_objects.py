"""Broken set-ups of what is published: second publishers, GPUs, slices."""

import copy
import json

from dra_driver.core.finding import Layer
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
from tests.doctor_faults.row import WARN, broken
from tests.fakes.dra_objects import resource_slice

WITHDRAWN = (
    "devices are withdrawn, because each GPU could be given to two pods: a device plugin offers nvidia.com/gpu: 8 on "
    "this node. Keep one of the two off this node"
)
NO_NVML = (
    "no libnvidia-ml.so.1 below the driver root /: install the NVIDIA driver, wait for the driver container, or set "
    "--driver-root (DRIVER_ROOT) to another folder"
)
GPU_A = DoctorScope(kind="node", name="gpu-a")


@broken(
    "device plugin beside the driver", Layer.SECOND_PUBLISHER, "node/gpu-a", "nvidia.com/gpu: 8", "kubectl dra migrate"
)
def device_plugin(cluster: Cluster) -> None:
    cluster.nodes[0]["status"]["allocatable"]["nvidia.com/gpu"] = "8"
    unready(cluster.pods[0])
    cluster.slices = cluster.slices[1:]
    cluster.gpu_nodes[0] = told("gpu-a", problems=(NodeProblem(reason="NotReady", message=WITHDRAWN),))


@broken("device plugin that is allowed", Layer.SECOND_PUBLISHER, "nvidia.com/gpu: 4", status=WARN)
def device_plugin_allowed(cluster: Cluster) -> None:
    cluster.nodes[0]["status"]["allocatable"]["nvidia.com/gpu"] = "4"
    container = cluster.daemonsets[0]["spec"]["template"]["spec"]["containers"][0]
    container["env"].append({"name": "ALLOW_SECOND_PUBLISHER", "value": "true"})


@broken("driver installed twice", Layer.SECOND_PUBLISHER, "2 times", "gpu-system")
def installed_twice(cluster: Cluster) -> None:
    cluster.daemonsets.append(daemonset("gpu-system"))


@broken(
    "NVIDIA's DRA driver on the same nodes",
    Layer.SECOND_PUBLISHER,
    "NVIDIA's own DRA driver",
    "gpu-a, gpu-b",
    "ComputeDomains",
)
def nvidias_own_driver(cluster: Cluster) -> None:
    item = daemonset("nvidia")
    item["metadata"]["name"] = "nvidia-dra-driver-gpu-kubelet-plugin"
    image = "registry.example/dra-driver-nvidia/dra-driver-nvidia-gpu:v0.5.0"
    item["spec"]["template"]["spec"]["containers"] = [{"name": "gpus", "image": image}]
    cluster.daemonsets.append(item)


@broken(
    "slices that another driver of the name left",
    Layer.SECOND_PUBLISHER,
    "node/gpu-a",
    "pools that this driver does not use: gpu-a",
)
def pool_of_another_driver(cluster: Cluster) -> None:
    """NVIDIA's driver names its pools by the node alone."""
    item = resource_slice("gpu-a", gpu("gpu-0", uuid="GPU-other"), name="gpu-a-gpu.nvidia.com-abcde")
    item["spec"]["pool"]["name"] = "gpu-a"
    cluster.slices.append(item)


@broken(
    "same GPUs by a driver of another name", Layer.SECOND_PUBLISHER, "2 GPUs are published twice", "gpu.example.com"
)
def same_gpu_by_another_name(cluster: Cluster) -> None:
    item = copy.deepcopy(cluster.slices[1])
    item["metadata"]["name"] = "other"
    item["spec"].update(driver="gpu.example.com", pool={"name": "gpu-b", "generation": 1, "resourceSliceCount": 1})
    cluster.slices.append(item)


@broken("NVIDIA driver not installed on a node", Layer.NVML, "libnvidia-ml.so.1", "node/gpu-a")
def nvml_missing(cluster: Cluster) -> None:
    """The node process never read a GPU, so it has written no GpuNode: its log says why."""
    unready(cluster.pods[0])
    cluster.slices, cluster.gpu_nodes = cluster.slices[1:], cluster.gpu_nodes[1:]
    lines = [
        {"time": "2026-11-22T10:00:00Z", "level": "info", "message": "serving metrics and health"},
        {"time": "2026-11-22T10:00:01Z", "level": "warning", "message": "GPU driver unavailable", "reason": NO_NVML},
    ]
    cluster.logs[cluster.pods[0]["metadata"]["name"]] = "\n".join(json.dumps(line) for line in lines)


@broken("NVIDIA driver replaced under a running node", Layer.DRIVER, "version mismatch")
def driver_gone_later(cluster: Cluster) -> None:
    unready(cluster.pods[0])
    message = "the NVIDIA driver cannot be used: driver/library version mismatch"
    cluster.gpu_nodes[0] = told("gpu-a", problems=(NodeProblem(reason="NotReady", message=message),))


@broken("node without any GPU", Layer.NVML, "found no GPU", "nvidia-smi -L")
def no_gpu_on_node(cluster: Cluster) -> None:
    item = told("gpu-a")
    item["status"].update(gpus=[], problems=[])
    cluster.gpu_nodes[0], cluster.slices = item, cluster.slices[1:]


@broken("a GPU that NVML lost", Layer.GPUS, "GPU_IS_LOST", "node/gpu-b")
def gpu_left_out(cluster: Cluster) -> None:
    message = "GPU 0000:65:00.0 cannot be used: NVML_ERROR_GPU_IS_LOST"
    cluster.gpu_nodes[1] = told("gpu-b", problems=(NodeProblem(reason="GpuLeftOut", message=message),))


@broken("GPU with XID 79", Layer.GPUS, "gpu/gpu-a/gpu-0", "xid-79", "bus")
def gpu_unhealthy(cluster: Cluster) -> None:
    said = "XID 79: GPU has fallen off the bus"
    cluster.gpu_nodes[0] = told("gpu-a", health=HealthWord.UNHEALTHY, causes=("xid-79",), message=said)


@broken("kubelet does not register the driver", Layer.REGISTRATION, "not registered", "gpu-a")
def not_registered(cluster: Cluster) -> None:
    message = (
        "the kubelet has not registered this driver yet: check that it runs and reads the directory of "
        "--kubelet-registrar-dir"
    )
    cluster.gpu_nodes[0] = told("gpu-a", problems=(NodeProblem(reason="NotReady", message=message),))
    cluster.slices = cluster.slices[1:]


@broken("nodes with different drivers", Layer.DRIVER, "570.133.20 on gpu-b", status=WARN)
def different_drivers(cluster: Cluster) -> None:
    cluster.gpu_nodes[1]["status"]["driverVersion"] = "570.133.20"


@broken("CDI hook on one of two nodes", Layer.TOOLKIT, "not on gpu-b", status=WARN)
def hook_on_one_node(cluster: Cluster) -> None:
    cluster.gpu_nodes[1]["status"].pop("toolkitVersion")


@broken(
    "shares that the API server drops", Layer.KUBERNETES, "node/gpu-a", "shares", "DRAConsumableCapacity", status=WARN
)
def shares_dropped(cluster: Cluster) -> None:
    """This user may not read the gates; what a node means to offer and what is published tells."""
    cluster.refused = {"get /metrics"}
    cluster.gpu_nodes[0] = told("gpu-a", offered_as=(PublishedForm.SHARED,))


@broken("containerd 1.6", Layer.RUNTIME, "1.6.20", "no CDI devices", "2.0")
def old_containerd(cluster: Cluster) -> None:
    cluster.nodes[0]["status"]["nodeInfo"]["containerRuntimeVersion"] = "containerd://1.6.20"


@broken("containerd 1.7", Layer.RUNTIME, "1.7.24", "enable_cdi", status=WARN)
def containerd_without_switch(cluster: Cluster) -> None:
    cluster.nodes[0]["status"]["nodeInfo"]["containerRuntimeVersion"] = "containerd://1.7.24"


@broken("Docker", Layer.RUNTIME, "Docker", "node/gpu-b")
def docker(cluster: Cluster) -> None:
    cluster.nodes[1]["status"]["nodeInfo"]["containerRuntimeVersion"] = "docker://26.1.5"


@broken(
    "pod with NVIDIA_VISIBLE_DEVICES and no claim",
    Layer.RUNTIME,
    "team-a/old-style",
    "NVIDIA_VISIBLE_DEVICES=all",
    status=WARN,
)
def default_runtime(cluster: Cluster) -> None:
    pod = workload("old-style", node="gpu-a")
    pod["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    pod["status"]["phase"] = "Running"
    cluster.pods.append(pod)


@broken("toolkit that sets NVIDIA's runtime as default", Layer.RUNTIME, "CONTAINERD_SET_AS_DEFAULT", status=WARN)
def toolkit_sets_default(cluster: Cluster) -> None:
    item = daemonset("gpu-operator")
    item["metadata"]["name"] = "nvidia-container-toolkit-daemonset"
    item["spec"]["template"]["spec"]["containers"] = [{"name": "toolkit", "image": "toolkit", "env": []}]
    cluster.daemonsets.append(item)


@broken("node without ResourceSlices", Layer.SLICES, "node/gpu-b", "no ResourceSlice")
def slices_missing(cluster: Cluster) -> None:
    cluster.slices = cluster.slices[:1]


@broken("pool incomplete", Layer.SLICES, "1 of 3", "gpu-a")
def pool_incomplete(cluster: Cluster) -> None:
    cluster.slices[0]["spec"]["pool"]["resourceSliceCount"] = 3


@broken("slices of an older generation", Layer.SLICES, "older", status=WARN)
def stale_generation(cluster: Cluster) -> None:
    item = resource_slice("gpu-a", gpu("gpu-9", uuid="GPU-old"), name="stale")
    cluster.slices[0]["spec"]["pool"]["generation"] = 2
    cluster.slices.append(item)


@broken("slices without a node process", Layer.SLICES, "node/gpu-b", "no node process is ready")
def node_process_gone(cluster: Cluster) -> None:
    cluster.pods = cluster.pods[:1]


@broken("slices of a node that is gone", Layer.SLICES, "gpu-z", "do not exist", status=WARN)
def slices_of_a_node_that_is_gone(cluster: Cluster) -> None:
    cluster.slices.append(resource_slice("gpu-z", gpu("gpu-0", uuid="GPU-z")))


@broken("node drained and forgotten", Layer.SLICES, "all 4 devices", "undrain", status=WARN, scope=GPU_A)
def all_drained(cluster: Cluster) -> None:
    for device in cluster.slices[0]["spec"]["devices"]:
        device["taints"] = [{"key": "gpu.dra-driver.io/draining", "effect": "NoSchedule"}]
