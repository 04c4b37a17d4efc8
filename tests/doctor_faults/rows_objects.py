"""Broken set-ups of what is published: second publishers, GPUs, slices."""

import json
from typing import Any

from dra_driver.core.finding import Layer
from dra_driver.core.model.gpu_node import HealthWord, NodeProblem, PublishedForm
from dra_driver.diagnose.doctor.cluster import DoctorScope
from tests.doctor_faults.cluster import Obj, daemonset, devices, driver_pod, gpu, told, unready, workload
from tests.doctor_faults.row import GONE, fail, rows, warn
from tests.fakes.dra_objects import resource_slice

WITHDRAWN = (
    "devices are withdrawn, because each GPU could be given to two pods: a device plugin offers nvidia.com/gpu: 8 on "
    "this node. Keep one of the two off this node"
)
NO_NVML = (
    "no libnvidia-ml.so.1 below the driver root /: install the NVIDIA driver, wait for the driver container, or set "
    "--driver-root (DRIVER_ROOT) to another folder"
)
NOT_REGISTERED = (
    "the kubelet has not registered this driver yet: check that it runs and reads the directory of "
    "--kubelet-registrar-dir"
)
LOG = (
    {"time": "2026-11-22T10:00:00Z", "level": "info", "message": "serving metrics and health"},
    {"time": "2026-11-22T10:00:01Z", "level": "warning", "message": "GPU driver unavailable", "reason": NO_NVML},
)
UNREADY = {"pods>0": unready(driver_pod("gpu-a"))}
ALLOWED = {"name": "ALLOW_SECOND_PUBLISHER", "value": "true"}


def problem(node: str, message: str, reason: str = "NotReady") -> Obj:
    return told(node, problems=(NodeProblem(reason=reason, message=message),))


def other_daemonset(namespace: str, of: str, **container: Any) -> Obj:
    item = daemonset(namespace)
    item["metadata"]["name"] = of
    item["spec"]["template"]["spec"]["containers"] = [container]
    return item


def slice_in_pool(pool: Obj, *found: Obj, node: str, name: str, **spec: Any) -> Obj:
    item = resource_slice(node, *found, name=name)
    item["spec"] |= {"pool": item["spec"]["pool"] | pool, **spec}
    return item


def pod_with_variable() -> Obj:
    pod = workload("old-style", node="gpu-a")
    pod["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    pod["status"]["phase"] = "Running"
    return pod


def runtime(version: str, node: int = 0) -> Obj:
    return {f"nodes>{node}>status>nodeInfo>containerRuntimeVersion": version}


ROWS = rows(
    {
        fail(
            "device plugin beside the driver",
            Layer.SECOND_PUBLISHER,
            "node/gpu-a",
            "nvidia.com/gpu: 8",
            "kubectl dra migrate",
        ): {
            "nodes>0>status>allocatable>nvidia.com/gpu": "8",
            **UNREADY,
            "slices>0": GONE,
            "gpu_nodes>0": problem("gpu-a", WITHDRAWN),
        },
        warn("device plugin that is allowed", Layer.SECOND_PUBLISHER, "nvidia.com/gpu: 4"): {
            "nodes>0>status>allocatable>nvidia.com/gpu": "4",
            "daemonsets>0>spec>template>spec>containers>0>env>-": ALLOWED,
        },
        fail("driver installed twice", Layer.SECOND_PUBLISHER, "2 times", "gpu-system"): {
            "daemonsets>-": daemonset("gpu-system")
        },
        fail(
            "NVIDIA's DRA driver on the same nodes",
            Layer.SECOND_PUBLISHER,
            "NVIDIA's own DRA driver",
            "gpu-a, gpu-b",
            "ComputeDomains",
        ): {
            "daemonsets>-": other_daemonset(
                "nvidia",
                "nvidia-dra-driver-gpu-kubelet-plugin",
                name="gpus",
                image="registry.example/dra-driver-nvidia/dra-driver-nvidia-gpu:v0.5.0",
            )
        },
        fail(
            "slices that another driver of the name left",
            Layer.SECOND_PUBLISHER,
            "node/gpu-a",
            "pools that this driver does not use: gpu-a",
        ): {
            # NVIDIA's driver names its pools by the node alone.
            "slices>-": slice_in_pool(
                {"name": "gpu-a"}, gpu("gpu-0", uuid="GPU-other"), node="gpu-a", name="gpu-a-gpu.nvidia.com-abcde"
            )
        },
        fail(
            "same GPUs by a driver of another name",
            Layer.SECOND_PUBLISHER,
            "2 GPUs are published twice",
            "gpu.example.com",
        ): {
            "slices>-": slice_in_pool(
                {"name": "gpu-b"}, *devices("gpu-b"), node="gpu-b", name="other", driver="gpu.example.com"
            )
        },
        fail("NVIDIA driver not installed on a node", Layer.NVML, "libnvidia-ml.so.1", "node/gpu-a"): {
            # The node process never read a GPU, so it has written no GpuNode: its log says why.
            **UNREADY,
            "slices>0": GONE,
            "gpu_nodes>0": GONE,
            "logs>dra-driver-node-gpu-a": "\n".join(map(json.dumps, LOG)),
        },
        fail("NVIDIA driver replaced under a running node", Layer.DRIVER, "version mismatch"): {
            **UNREADY,
            "gpu_nodes>0": problem("gpu-a", "the NVIDIA driver cannot be used: driver/library version mismatch"),
        },
        fail("node without any GPU", Layer.NVML, "found no GPU", "nvidia-smi -L"): {
            "gpu_nodes>0>status>gpus": [],
            "gpu_nodes>0>status>problems": [],
            "slices>0": GONE,
        },
        fail("a GPU that NVML lost", Layer.GPUS, "GPU_IS_LOST", "node/gpu-b"): {
            "gpu_nodes>1": problem(
                "gpu-b", "GPU 0000:65:00.0 cannot be used: NVML_ERROR_GPU_IS_LOST", reason="GpuLeftOut"
            )
        },
        fail("GPU with XID 79", Layer.GPUS, "gpu/gpu-a/gpu-0", "xid-79", "bus"): {
            "gpu_nodes>0": told(
                "gpu-a",
                health=HealthWord.UNHEALTHY,
                causes=("xid-79",),
                message="XID 79: GPU has fallen off the bus",
            )
        },
        fail("kubelet does not register the driver", Layer.REGISTRATION, "not registered", "gpu-a"): {
            "gpu_nodes>0": problem("gpu-a", NOT_REGISTERED),
            "slices>0": GONE,
        },
        warn("nodes with different drivers", Layer.DRIVER, "570.133.20 on gpu-b"): {
            "gpu_nodes>1>status>driverVersion": "570.133.20"
        },
        warn("CDI hook on one of two nodes", Layer.TOOLKIT, "not on gpu-b"): {
            "gpu_nodes>1>status>toolkitVersion": GONE
        },
        # This user may not read the gates; the published slices differ from what the node offers.
        warn("shares that the API server drops", Layer.KUBERNETES, "node/gpu-a", "shares", "DRAConsumableCapacity"): {
            "refused": {"get /metrics"},
            "gpu_nodes>0": told("gpu-a", offered_as=(PublishedForm.SHARED,)),
        },
        fail("containerd 1.6", Layer.RUNTIME, "1.6.20", "no CDI devices", "2.0"): runtime("containerd://1.6.20"),
        warn("containerd 1.7", Layer.RUNTIME, "1.7.24", "enable_cdi"): runtime("containerd://1.7.24"),
        fail("Docker", Layer.RUNTIME, "Docker", "node/gpu-b"): runtime("docker://26.1.5", 1),
        warn(
            "pod with NVIDIA_VISIBLE_DEVICES and no claim",
            Layer.RUNTIME,
            "team-a/old-style",
            "NVIDIA_VISIBLE_DEVICES=all",
        ): {"pods>-": pod_with_variable()},
        warn("toolkit that sets NVIDIA's runtime as default", Layer.RUNTIME, "CONTAINERD_SET_AS_DEFAULT"): {
            "daemonsets>-": other_daemonset(
                "gpu-operator", "nvidia-container-toolkit-daemonset", name="toolkit", image="toolkit", env=[]
            )
        },
        fail("node without ResourceSlices", Layer.SLICES, "node/gpu-b", "no ResourceSlice"): {"slices>1": GONE},
        fail("pool incomplete", Layer.SLICES, "1 of 3", "gpu-a"): {"slices>0>spec>pool>resourceSliceCount": 3},
        warn("slices of an older generation", Layer.SLICES, "older"): {
            "slices>0>spec>pool>generation": 2,
            "slices>-": resource_slice("gpu-a", gpu("gpu-9", uuid="GPU-old"), name="stale"),
        },
        fail("slices without a node process", Layer.SLICES, "node/gpu-b", "no node process is ready"): {"pods>1": GONE},
        warn("slices of a node that is gone", Layer.SLICES, "gpu-z", "do not exist"): {
            "slices>-": resource_slice("gpu-z", gpu("gpu-0", uuid="GPU-z"))
        },
        warn(
            "node drained and forgotten",
            Layer.SLICES,
            "all 4 devices",
            "undrain",
            scope=DoctorScope(kind="node", name="gpu-a"),
        ): {"slices>0>spec>devices>*>taints": [{"key": "gpu.dra-driver.io/draining", "effect": "NoSchedule"}]},
    }
)
