"""Broken set-ups of the API server, the installation, its permissions, and the published devices."""

import json
from typing import Any

from dra_driver.core.errors import ApiUnreachableError, ServerBusyError
from dra_driver.core.finding import Layer
from dra_driver.core.model.gpu_node import HealthWord, NodeProblem, PublishedForm
from dra_driver.diagnose.doctor.cluster import DoctorScope
from dra_driver.kube.reading import error_from_response
from tests.doctor_faults.cluster import (
    GONE,
    daemonset,
    devices,
    driver_pod,
    event,
    fail,
    rows,
    told,
    unknown,
    unready,
    warn,
    workload,
)
from tests.fakes.dra_objects import Obj, gpu, resource_slice

LOCAL = ("pods", "resourceclaims.resource.k8s.io", "resourceclaimtemplates.resource.k8s.io", "events")
ON_A = "dra-driver-node-gpu-a"
CRASH_LOOP = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
CONTROLLER = "dra-driver-controller-7d4f"
TEMPLATE = "daemonsets>0>spec>template>spec"


def container(node: str = "gpu-a", **status: Any) -> Obj:
    """The edit that makes the node process of a node unready, with this state of its container."""
    return {f"pods>{0 if node == 'gpu-a' else 1}": unready(driver_pod(node), **status)}


def waiting(reason: str, message: str, node: str = "gpu-a") -> Obj:
    return container(node, state={"waiting": {"reason": reason, "message": message}})


def crashed(**last: Any) -> Obj:
    return container(restartCount=7, state={"waiting": CRASH_LOOP}, lastState={"terminated": {"exitCode": 2, **last}})


def not_created(message: str) -> Obj:
    """A DaemonSet whose pods are refused."""
    refused = event("FailedCreate", daemonset(), f"Error creating: {message}", kind="DaemonSet", component="daemonset")
    status = {"desiredNumberScheduled": 2, "currentNumberScheduled": 0, "numberReady": 0}
    return {"daemonsets>0>status": status, "pods": [], "events": [refused]}


def unplaced() -> Obj:
    """A pod of the DaemonSet for which no node has room."""
    pod = unready(driver_pod("gpu-a"))
    pod["spec"].pop("nodeName")
    said = "0/3 nodes are available: 1 Insufficient memory."
    pod["status"] = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": said}]}
    return pod


def controller() -> Obj:
    pod = unready(driver_pod("cpu-a"), restartCount=4, state={"waiting": {"reason": "CrashLoopBackOff"}})
    pod["metadata"].update(name=CONTROLLER, labels={"app.kubernetes.io/component": "controller"})
    return pod


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
        fail("API server down", Layer.API_SERVER, "ApiServerAnswers", "10.0.0.1"): {
            "version": ApiUnreachableError("GET /version: no answer from the API server https://10.0.0.1:6443: refused")
        },
        fail("token expired", Layer.API_SERVER, "ApiServerAnswers", "401"): {
            "version": error_from_response("GET /version", 401, b'{"kind":"Status","message":"Unauthorized"}', {})
        },
        unknown("API server fails on some questions", Layer.KUBERNETES, "KubeletVersions", "503"): {
            f"failing>{path}": ServerBusyError(f"GET {path} failed: 503: etcdserver: request timed out", status=503)
            for path in ("/api/v1/nodes", "/apis/resource.k8s.io/v1/resourceslices", "/metrics")
        },
        fail("Kubernetes 1.33", Layer.KUBERNETES, "OldKubernetes", "v1.33.4", "1.34"): {
            "version>gitVersion": "v1.33.4",
            "resource_api": ["v1beta2", "v1beta1"],
            "gates": {},
        },
        fail("a kubelet of 1.33", Layer.KUBERNETES, "KubeletVersions", "gpu-a", "v1.33.1"): {
            "nodes>0>status>nodeInfo>kubeletVersion": "v1.33.1"
        },
        fail(
            "feature gate DynamicResourceAllocation off",
            Layer.KUBERNETES,
            "FeatureGateOff",
            "DynamicResourceAllocation",
        ): {
            "gates>DynamicResourceAllocation": False,
            "resource_api": [],
        },
        fail("resource.k8s.io/v1 switched off", Layer.API, "ApiServed", "v1beta1", "--runtime-config"): {
            "resource_api": ["v1beta1"]
        },
        warn(
            "feature gate DRAPartitionableDevices off", Layer.KUBERNETES, "FeatureGateOff", "DRAPartitionableDevices"
        ): {"gates>DRAPartitionableDevices": False, "slices>*>spec>devices>3": GONE, "slices>*>spec>devices>1": GONE},
        fail("CustomResourceDefinitions missing", Layer.CRDS, "Crds", "gpupolicies, gpunodes", "crds.yaml"): {
            "gpu_api": [],
            "gpu_nodes": [],
        },
        fail("one CustomResourceDefinition missing", Layer.CRDS, "Crds", "gpupolicies"): {"gpu_api": ["gpunodes"]},
        fail(
            "ClusterRoleBinding of the driver removed",
            Layer.RIGHTS,
            "DriverRights",
            "dra-driver/dra-driver-node",
            "create resourceslices.resource.k8s.io",
        ): {"denied_to_driver": {f"{verb} resourceslices" for verb in ("create", "list", "update")}, "slices": []},
        unknown(
            "user with a token of one namespace",
            Layer.KUBERNETES,
            "KubeletVersions",
            "list",
            "403",
            "kubectl auth can-i",
        ): {"refuses_all_but": {f"list {what} in namespace team-a" for what in LOCAL}},
        unknown("user may not review rights", Layer.RIGHTS, "ReviewUnanswered", "subjectaccessreviews"): {
            "refused": {"create subjectaccessreviews.authorization.k8s.io"}
        },
        fail("driver not installed", Layer.DAEMONSET, "NotInstalled", "helm"): {
            "daemonsets": [],
            "pods": [],
            "slices": [],
            "gpu_nodes": [],
            "classes": [],
        },
        warn("node processes without a DaemonSet", Layer.DAEMONSET, "NoDaemonSet", "dra-driver-node", "sim up"): {
            "daemonsets": [],
            "pods": [],
        },
        fail(
            "image cannot be pulled",
            Layer.DAEMONSET,
            "ImagePullFailed",
            "ImagePullBackOff",
            "node/gpu-a",
            "imagePullSecrets",
        ): waiting("ImagePullBackOff", 'Back-off pulling image "registry.example/dra-driver:0.1.0"'),
        fail("image not imported on a node", Layer.DAEMONSET, "ImagePullFailed", "ErrImageNeverPull"): waiting(
            "ErrImageNeverPull", "Container image is not present with pull policy of Never", "gpu-b"
        ),
        fail(
            "wrong setting, crash loop", Layer.DAEMONSET, "ContainerCrashed", "7 times", "exit status 2", "CDI_DIR"
        ): crashed(reason="Error", message="dra-driver: CDI_DIR: /nowhere is not a directory"),
        fail(
            "wrong setting, told by the log alone",
            Layer.DAEMONSET,
            "ContainerCrashed",
            "7 times",
            "HTTP_ADDR",
            "--previous",
        ): {
            **crashed(reason="Error"),
            f"logs>{ON_A}": "dra-driver: HTTP_ADDR: expected HOST:PORT, got 'nonsense'\n",
        },
        warn(
            "controller crashes", Layer.DAEMONSET, "OtherPodsReady", CONTROLLER, "4 restarts", "libpython3.11.so.1.0"
        ): {
            "pods>-": controller(),
            f"logs>{CONTROLLER}": "/opt/python: error while loading shared libraries: libpython3.11.so.1.0\n",
        },
        fail("node process out of memory", Layer.DAEMONSET, "ContainerCrashed", "OOMKilled", "137"): container(
            restartCount=3, state={"running": {}}, lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
        ),
        fail(
            "host folder cannot be mounted",
            Layer.DAEMONSET,
            "ContainerNotStarted",
            "CreateContainerError",
            "read-only file system",
        ): waiting("CreateContainerError", "failed to mkdir /var/lib/kubelet: read-only file system"),
        fail("quota of the namespace", Layer.DAEMONSET, "DaemonsetPodsCreated", "exceeded quota"): not_created(
            'pods "dra-driver-node-" is forbidden: exceeded quota: gke-resource-quotas'
        ),
        fail(
            "namespace forbids privileged pods",
            Layer.DAEMONSET,
            "DaemonsetPodsCreated",
            "PodSecurity",
            "enforce=privileged",
        ): not_created('pods "x" is forbidden: violates PodSecurity "restricted:latest"'),
        fail("no room for the node process", Layer.DAEMONSET, "PodNotScheduled", "Insufficient memory"): {
            "pods>0": unplaced()
        },
        warn("two images on the nodes", Layer.DAEMONSET, "DaemonsetOneImage", "0.0.9 on gpu-b"): {
            "pods>1>spec>containers>0>image": "localhost/dra-driver:0.0.9"
        },
        fail("no node has a GPU label", Layer.NODE, "NoNodeSelected", "3 nodes", "kubectl label node"): {
            "nodes>*>metadata>labels>nvidia.com/gpu.present": GONE,
            "daemonsets>0>status": {"desiredNumberScheduled": 0, "currentNumberScheduled": 0},
            "pods": [],
            "slices": [],
            "gpu_nodes": [],
        },
        fail("a GPU node outside the node affinity", Layer.NODE, "NodeNotSelected", "node/gpu-b", "pool=gpu"): {
            f"{TEMPLATE}>affinity>nodeAffinity>requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["gpu"]}]}]
            },
            "nodes>0>metadata>labels>pool": "gpu",
            "pods>1": GONE,
            "slices>1": GONE,
            "gpu_nodes>1": GONE,
        },
        fail("a taint that is not tolerated", Layer.NODE, "NodeNotSelected", "node/gpu-b", "taint team (NoExecute)"): {
            f"{TEMPLATE}>tolerations": [],
            "nodes>0>spec>taints": [],
            "nodes>1>spec>taints": [{"key": "team", "value": "research", "effect": "NoExecute"}],
            "pods>1": GONE,
            "slices>1": GONE,
            "gpu_nodes>1": GONE,
        },
        fail("node not ready", Layer.NODE, "NodeNotReady", "node/gpu-a", "stopped posting"): {
            "nodes>0>status>conditions": [
                {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}
            ]
        },
        warn("node cordoned", Layer.NODE, "NodeCordoned", "kubectl uncordon gpu-a"): {
            "nodes>0>spec>unschedulable": True
        },
        warn(
            "node process that tells nothing",
            Layer.GPUS,
            "GpuNodeWritten",
            "node/gpu-b",
            scope=DoctorScope(kind="node", name="gpu-b"),
        ): {"gpu_nodes>1": GONE},
        fail(
            "device plugin beside the driver",
            Layer.SECOND_PUBLISHER,
            "DevicePlugin",
            "node/gpu-a",
            "nvidia.com/gpu: 8",
            "kubectl dra migrate",
        ): {
            "nodes>0>status>allocatable>nvidia.com/gpu": "8",
            **UNREADY,
            "slices>0": GONE,
            "gpu_nodes>0": problem("gpu-a", WITHDRAWN),
        },
        warn("device plugin that is allowed", Layer.SECOND_PUBLISHER, "DevicePlugin", "nvidia.com/gpu: 4"): {
            "nodes>0>status>allocatable>nvidia.com/gpu": "4",
            "daemonsets>0>spec>template>spec>containers>0>env>-": ALLOWED,
        },
        fail("driver installed twice", Layer.SECOND_PUBLISHER, "TwoInstallations", "2 times", "gpu-system"): {
            "daemonsets>-": daemonset("gpu-system")
        },
        fail(
            "NVIDIA's DRA driver on the same nodes",
            Layer.SECOND_PUBLISHER,
            "NvidiasDraDriver",
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
            "ForeignPools",
            "node/gpu-a",
            ": gpu-a",
        ): {
            # NVIDIA's driver names its pools by the node alone.
            "slices>-": slice_in_pool(
                {"name": "gpu-a"}, gpu("gpu-0", uuid="GPU-other"), node="gpu-a", name="gpu-a-gpu.nvidia.com-abcde"
            )
        },
        fail(
            "same GPUs by a driver of another name",
            Layer.SECOND_PUBLISHER,
            "GpusPublishedTwice",
            "2 GPUs",
            "gpu.example.com",
        ): {
            "slices>-": slice_in_pool(
                {"name": "gpu-b"}, *devices("gpu-b"), node="gpu-b", name="other", driver="gpu.example.com"
            )
        },
        fail("NVIDIA driver not installed on a node", Layer.NVML, "PodNotReady", "libnvidia-ml.so.1", "node/gpu-a"): {
            # The node process never read a GPU, so it has written no GpuNode: its log says why.
            **UNREADY,
            "slices>0": GONE,
            "gpu_nodes>0": GONE,
            "logs>dra-driver-node-gpu-a": "\n".join(map(json.dumps, LOG)),
        },
        fail("NVIDIA driver replaced under a running node", Layer.DRIVER, "PodNotReady", "version mismatch"): {
            **UNREADY,
            "gpu_nodes>0": problem("gpu-a", "the NVIDIA driver cannot be used: driver/library version mismatch"),
        },
        fail("node without any GPU", Layer.NVML, "NoGpuFound", "nvidia-smi -L"): {
            "gpu_nodes>0>status>gpus": [],
            "gpu_nodes>0>status>problems": [],
            "slices>0": GONE,
        },
        fail("a GPU that NVML lost", Layer.GPUS, "GpuLeftOut", "GPU_IS_LOST", "node/gpu-b"): {
            "gpu_nodes>1": problem(
                "gpu-b", "GPU 0000:65:00.0 cannot be used: NVML_ERROR_GPU_IS_LOST", reason="GpuLeftOut"
            )
        },
        fail("GPU with XID 79", Layer.GPUS, "GpuHealth", "gpu/gpu-a/gpu-0", "xid-79", "bus"): {
            "gpu_nodes>0": told(
                "gpu-a", health=HealthWord.UNHEALTHY, causes=("xid-79",), message="XID 79: GPU has fallen off the bus"
            )
        },
        fail("kubelet does not register the driver", Layer.REGISTRATION, "NotReady", "not registered", "gpu-a"): {
            "gpu_nodes>0": problem("gpu-a", NOT_REGISTERED),
            "slices>0": GONE,
        },
        warn("nodes with different drivers", Layer.DRIVER, "DriverVersions", "570.133.20 on gpu-b"): {
            "gpu_nodes>1>status>driverVersion": "570.133.20"
        },
        warn("CDI hook on one of two nodes", Layer.TOOLKIT, "ToolkitVersions", "gpu-b"): {
            "gpu_nodes>1>status>toolkitVersion": GONE
        },
        # This user may not read the gates; the published slices differ from what the node offers.
        warn(
            "shares that the API server drops",
            Layer.KUBERNETES,
            "FormsPublished",
            "node/gpu-a",
            "DRAConsumableCapacity",
        ): {
            "refused": {"get /metrics"},
            "gpu_nodes>0": told("gpu-a", offered_as=(PublishedForm.SHARED,)),
        },
        fail("containerd 1.6", Layer.RUNTIME, "OldRuntime", "1.6.20", "2.0"): runtime("containerd://1.6.20"),
        warn("containerd 1.7", Layer.RUNTIME, "CdiDisabled", "1.7.24", "enable_cdi"): runtime("containerd://1.7.24"),
        fail("Docker", Layer.RUNTIME, "CriDockerd", "Docker", "node/gpu-b"): runtime("docker://26.1.5", 1),
        warn(
            "pod with NVIDIA_VISIBLE_DEVICES and no claim",
            Layer.RUNTIME,
            "VisibleDevicesSet",
            "team-a/old-style",
            "NVIDIA_VISIBLE_DEVICES=all",
        ): {"pods>-": pod_with_variable()},
        warn(
            "toolkit that sets NVIDIA's runtime as default",
            Layer.RUNTIME,
            "NvidiaRuntimeDefault",
            "CONTAINERD_SET_AS_DEFAULT",
        ): {
            "daemonsets>-": other_daemonset(
                "gpu-operator", "nvidia-container-toolkit-daemonset", name="toolkit", image="toolkit", env=[]
            )
        },
        fail("node without ResourceSlices", Layer.SLICES, "NodeWithoutSlices", "node/gpu-b"): {"slices>1": GONE},
        fail("pool incomplete", Layer.SLICES, "PoolIncomplete", "1 of 3", "gpu-a"): {
            "slices>0>spec>pool>resourceSliceCount": 3
        },
        warn("slices of an older generation", Layer.SLICES, "OldGeneration", "1 ResourceSlices"): {
            "slices>0>spec>pool>generation": 2,
            "slices>-": resource_slice("gpu-a", gpu("gpu-9", uuid="GPU-old"), name="stale"),
        },
        fail("slices without a node process", Layer.SLICES, "SlicesWithoutNodeProcess", "node/gpu-b", "4 devices"): {
            "pods>1": GONE
        },
        warn("slices of a node that is gone", Layer.SLICES, "SlicesOfMissingNodes", "gpu-z"): {
            "slices>-": resource_slice("gpu-z", gpu("gpu-0", uuid="GPU-z"))
        },
        warn(
            "node drained and forgotten",
            Layer.SLICES,
            "DevicesTainted",
            "all 4 devices",
            "undrain",
            scope=DoctorScope(kind="node", name="gpu-a"),
        ): {"slices>0>spec>devices>*>taints": [{"key": "gpu.dra-driver.io/draining", "effect": "NoSchedule"}]},
    }
)
