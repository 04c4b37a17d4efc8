"""Ways in which a node is broken, one at a time: each changes a healthy `BrokenNode`, and says what the doctor says."""

from collections.abc import Callable
from typing import NamedTuple

from dra_driver.core.finding import Layer
from dra_driver.diagnose.doctor.node_driver import NvmlAnswer
from dra_driver.diagnose.doctor.node_kubelet import PluginWords
from tests.fakes.broken_node import DRIVER, BrokenNode, FakeRuntime, containerd
from tests.fakes.driver_root import FakeDriverRoot

REGISTRATION = f"kubelet/plugins_registry/{DRIVER}-reg.sock"
ENDPOINT = f"kubelet/plugins/{DRIVER}/dra.sock"
NVIDIA_PLUGIN = "kubelet/device-plugins/nvidia-gpu.sock"


def nothing_installed(node: BrokenNode) -> None:
    for folder in ("usr", "sys", "proc/driver", "cdi", "kubelet", "run", "proc/4711"):
        node.remove(folder)
    node.put("proc/devices", "Character devices:\n  1 mem\n")
    node.put("proc/modules")
    node.put("sys/bus/pci/devices/0000:00:01.0/vendor", "0x8086\n")
    node.dev.nodes.clear()


def windows(node: BrokenNode) -> None:
    node.put("usr/lib/wsl/lib/libcuda.so.1")


def no_gpu(node: BrokenNode) -> None:
    node.remove("sys/bus/pci/devices/0000:01:00.0")
    node.remove("sys/bus/pci/devices/0000:02:00.0")
    node.nvml = NvmlAnswer(problem="no devices")


def nouveau(node: BrokenNode) -> None:
    node.gpu("0000:01:00.0", "nouveau")
    node.gpu("0000:02:00.0", "nouveau")
    node.remove("sys/module")
    node.remove("proc/driver/nvidia/version")
    node.put("proc/devices", "Character devices:\n  1 mem\n")
    node.put("proc/modules", "nouveau 1 0\n")


def vfio(node: BrokenNode) -> None:
    node.gpu("0000:01:00.0", "vfio-pci")
    node.gpu("0000:02:00.0", "vfio-pci")
    node.nvml = NvmlAnswer()


def unbound(node: BrokenNode) -> None:
    node.gpu("0000:01:00.0", None)
    node.gpu("0000:02:00.0", None)
    node.nvml = NvmlAnswer()


def wrong_root(node: BrokenNode) -> None:
    (node.path / "run/nvidia/driver").mkdir(parents=True)
    node.set(driver_root=f"{node.path}/run/nvidia/driver", driver_root_on_host="/run/nvidia/driver")


def no_libraries(node: BrokenNode) -> None:
    node.remove("usr/lib")


def module_not_loaded(node: BrokenNode) -> None:
    node.remove("sys/module")
    node.remove("proc/driver/nvidia/version")
    node.put("proc/devices", "Character devices:\n  1 mem\n")
    node.gpu("0000:01:00.0", None)
    node.gpu("0000:02:00.0", None)


def other_library(node: BrokenNode) -> None:
    node.remove("usr/lib")
    FakeDriverRoot(node.path).libraries("/usr/lib/x86_64-linux-gnu", "580.95.05")
    node.nvml = NvmlAnswer(problem="Driver/library version mismatch")


def nvml_hangs(node: BrokenNode) -> None:
    node.nvml = NvmlAnswer(problem="NVML gave no answer within 30 s: the driver or a GPU hangs")


def nvml_without_gpus(node: BrokenNode) -> None:
    node.nvml = NvmlAnswer()


def no_uvm(node: BrokenNode) -> None:
    node.put("proc/devices", "Character devices:\n195 nvidia\n237 nvidia-caps\n")
    del node.dev.nodes["/dev/nvidia-uvm"], node.dev.nodes["/dev/nvidia-uvm-tools"]


def wrong_numbers(node: BrokenNode) -> None:
    node.dev.add("/dev/nvidia-uvm", 235, 0)


def file_in_place_of_node(node: BrokenNode) -> None:
    del node.dev.nodes["/dev/nvidia0"]
    node.dev.files.add("/dev/nvidia0")


def old_capabilities(node: BrokenNode) -> None:
    node.put("dev/nvidia-caps/nvidia-cap3")
    node.dev.add("/dev/nvidia-caps/nvidia-cap3", 511, 3)


def hook_is_not_there(node: BrokenNode) -> None:
    node.set(nvidia_cdi_hook_path="/usr/local/nvidia/toolkit/nvidia-cdi-hook")


def no_runtime(node: BrokenNode) -> None:
    node.remove("run/containerd/containerd.sock")


def dead_runtime(node: BrokenNode) -> None:
    node.kill("run/containerd/containerd.sock")


def containerd_1_6(node: BrokenNode) -> None:
    node.use(containerd("1.6.20"))


def containerd_1_7(node: BrokenNode) -> None:
    node.use(containerd("1.7.24"))


def containerd_2_off(node: BrokenNode) -> None:
    node.runtime.config = {**node.runtime.config, "enableCDI": False}


def other_cdi_folders(node: BrokenNode) -> None:
    node.runtime.config = {**node.runtime.config, "cdiSpecDirs": ["/etc/cdi"]}


def old_crio(node: BrokenNode) -> None:
    node.runtime = FakeRuntime(name="cri-o", release="1.27.8")


def crio_folders(node: BrokenNode) -> None:
    node.runtime = FakeRuntime(name="cri-o", release="1.34.1", crio='[crio.runtime]\ncdi_spec_dirs = ["/opt/cdi"]\n')


def kubelet_stopped(node: BrokenNode) -> None:
    node.remove("proc/4711")


def old_kubelet(node: BrokenNode) -> None:
    node.kubelet_version = "v1.33.9"


def gate_off(node: BrokenNode) -> None:
    node.kubelet(config="featureGates:\n  DynamicResourceAllocation: false\n")


def gate_off_by_flag(node: BrokenNode) -> None:
    node.kubelet("--feature-gates=DRAExtendedResource=true,DynamicResourceAllocation=false")


def other_kubelet_root(node: BrokenNode) -> None:
    node.kubelet("--root-dir", "/data/kubelet")


def no_registry(node: BrokenNode) -> None:
    node.remove("kubelet/plugins_registry")


def stale_sockets(node: BrokenNode) -> None:
    node.kill(REGISTRATION)
    node.kill(ENDPOINT)


def stale_endpoint(node: BrokenNode) -> None:
    node.kill(ENDPOINT)


def no_node_process(node: BrokenNode) -> None:
    node.remove(REGISTRATION)
    node.remove(ENDPOINT)


def silent_plugin(node: BrokenNode) -> None:
    node.words.clear()


def unknown_service(node: BrokenNode) -> None:
    (path, words), *_ = node.words.items()
    node.words[path] = PluginWords(driver=words.driver, endpoint=words.endpoint, versions=("v2.DRAPlugin",))


def device_plugin(node: BrokenNode) -> None:
    node.serve(NVIDIA_PLUGIN)


def broken_cdi_file(node: BrokenNode) -> None:
    node.put(f"cdi/k8s.{DRIVER}-claim_aa-11.json", '{"cdiVersion": "0.5.0", "kind": ')


def no_base(node: BrokenNode) -> None:
    node.claim("aa-11")
    node.remove(f"cdi/k8s.{DRIVER}-device_base.json")


def driver_upgraded(node: BrokenNode) -> None:
    node.claim("aa-11", mounts="/usr/lib/x86_64-linux-gnu/libcuda.so.570.1")


def container(asked: list[str], nodes: list[str], *, allow: bool = True) -> dict[str, object]:
    devices = [{"path": path, "type": "c", "major": 195, "minor": 0} for path in nodes]
    rules = [{"allow": False, "access": "rwm"}]
    rules += [{"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}] if allow else []
    linux = {"devices": devices, "resources": {"devices": rules}}
    return {"config": {"CDI_devices": [{"name": name} for name in asked]}, "runtimeSpec": {"linux": linux}}


def container_without_node(node: BrokenNode) -> None:
    node.pods = ("default/train",)
    node.runtime.running = {"main": container([node.claim("aa-11")], [])}


def container_not_allowed(node: BrokenNode) -> None:
    node.pods = ("default/train",)
    node.runtime.running = {"main": container([node.claim("aa-11")], ["/dev/nvidia0"], allow=False)}


def container_of_old_claim(node: BrokenNode) -> None:
    node.pods = ("default/train",)
    node.runtime.running = {"main": container([f"k8s.{DRIVER}/claim=gone-gpu-0"], ["/dev/nvidia0"])}


class Fault(NamedTuple):
    """``seen`` and ``fix`` are names and values in the finding."""

    breaks: Callable[[BrokenNode], None]
    check: str
    layer: Layer
    reason: str
    seen: str
    fix: str


FAULTS = (
    Fault(nothing_installed, "kubelet", Layer.KUBERNETES, "KubeletNotRunning", "", "journalctl -u kubelet"),
    Fault(kubelet_stopped, "kubelet", Layer.KUBERNETES, "KubeletNotRunning", "", "journalctl -u kubelet"),
    Fault(windows, "machine", Layer.DRIVER, "Machine", "WSL2", "wsl"),
    Fault(no_gpu, "gpus-on-bus", Layer.DRIVER, "NoGpuOnBus", "1 PCI devices", "nodes.selector"),
    Fault(nouveau, "gpus-on-bus", Layer.DRIVER, "OpenDriverBound", "nouveau", "/etc/modprobe.d"),
    Fault(vfio, "gpus-on-bus", Layer.DRIVER, "VfioBound", "vfio-pci", "driverctl unset-override"),
    Fault(unbound, "gpus-on-bus", Layer.DRIVER, "NoDriverBound", "0000:01:00.0", "dmesg"),
    Fault(wrong_root, "driver-root", Layer.DRIVER, "OtherDriverRoot", "/run/nvidia/driver", "DRIVER_ROOT) to /,"),
    Fault(no_libraries, "driver-root", Layer.DRIVER, "LibrariesMissing", "580.65.06", "DRIVER_ROOT"),
    Fault(module_not_loaded, "kernel-module", Layer.DRIVER, "ModuleNotLoaded", "nvidia", "modprobe nvidia"),
    Fault(
        other_library,
        "driver-versions",
        Layer.DRIVER,
        "DriverVersions",
        "580.65.06, the libraries are 580.95.05",
        "modprobe nvidia",
    ),
    Fault(nvml_hangs, "nvml", Layer.NVML, "NvmlFailed", "30 s", "nvidia-smi"),
    Fault(nvml_without_gpus, "nvml", Layer.NVML, "NvmlWithoutGpus", "", "NVRM"),
    Fault(no_uvm, "uvm", Layer.UVM, "Uvm", "nvidia-uvm", "nvidia-modprobe -u -c0"),
    Fault(
        wrong_numbers,
        "device-nodes",
        Layer.DEVICE_NODES,
        "WrongDeviceNode",
        "/dev/nvidia-uvm has the numbers 235:0",
        "/dev/nvidia-uvm",
    ),
    Fault(
        file_in_place_of_node,
        "device-nodes",
        Layer.DEVICE_NODES,
        "WrongDeviceNode",
        "/dev/nvidia0 is a file",
        "/dev/nvidia0",
    ),
    Fault(
        old_capabilities,
        "capability-nodes",
        Layer.DEVICE_NODES,
        "OldCapabilityNodes",
        "nvidia-cap3",
        "/dev/nvidia-caps",
    ),
    Fault(
        hook_is_not_there,
        "toolkit",
        Layer.TOOLKIT,
        "HookUnusable",
        "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
        "NVIDIA_CDI_HOOK_PATH",
    ),
    Fault(
        no_runtime,
        "runtime-answers",
        Layer.RUNTIME,
        "NoRuntimeSocket",
        "/run/containerd/containerd.sock",
        "--cri-socket",
    ),
    Fault(
        dead_runtime, "runtime-answers", Layer.RUNTIME, "RuntimeFailed", "/run/containerd/containerd.sock", "journalctl"
    ),
    Fault(containerd_1_6, "cdi-switch", Layer.RUNTIME, "OldRuntime", "containerd 1.6.20~ds1", "containerd to 2.x"),
    Fault(containerd_1_7, "cdi-switch", Layer.RUNTIME, "CdiOff", "containerd 1.7.24~ds1", "io.containerd.grpc.v1.cri"),
    Fault(containerd_2_off, "cdi-switch", Layer.RUNTIME, "CdiOff", "containerd 2.1.9", "io.containerd.cri.v1.runtime"),
    Fault(
        other_cdi_folders,
        "cdi-folders",
        Layer.RUNTIME,
        "CdiFolders",
        "containerd reads CDI files in /etc/cdi",
        "cdi_spec_dirs of containerd",
    ),
    Fault(old_crio, "cdi-switch", Layer.RUNTIME, "OldRuntime", "cri-o 1.27.8", "CRI-O"),
    Fault(
        crio_folders,
        "cdi-folders",
        Layer.RUNTIME,
        "CdiFolders",
        "cri-o reads CDI files in /opt/cdi",
        "cdi_spec_dirs of cri-o",
    ),
    Fault(old_kubelet, "kubelet", Layer.KUBERNETES, "OldKubelet", "v1.33.9", "DaemonSet"),
    Fault(gate_off, "kubelet-gate", Layer.KUBERNETES, "KubeletGate", "DynamicResourceAllocation", "/etc/kubelet.yaml"),
    Fault(
        gate_off_by_flag,
        "kubelet-gate",
        Layer.KUBERNETES,
        "KubeletGate",
        "DynamicResourceAllocation",
        "--feature-gates",
    ),
    Fault(
        other_kubelet_root,
        "plugin-folders",
        Layer.SOCKETS,
        "OtherPluginDirectory",
        "/data/kubelet/plugins_registry",
        "kubelet.rootDir",
    ),
    Fault(no_registry, "plugin-folders", Layer.SOCKETS, "NoRegistry", "plugins_registry", "kubelet.rootDir"),
    Fault(stale_sockets, "stale-sockets", Layer.SOCKETS, "StaleSockets", "gpu.nvidia.com-reg.sock", "Remove them"),
    Fault(stale_endpoint, "stale-sockets", Layer.SOCKETS, "StaleSockets", "dra.sock", "Remove it"),
    Fault(
        no_node_process,
        "registration-socket",
        Layer.REGISTRATION,
        "NoRegistrationSocket",
        "gpu.nvidia.com",
        "kubectl logs",
    ),
    Fault(
        silent_plugin, "registration-socket", Layer.REGISTRATION, "NoAnswer", "gpu.nvidia.com-reg.sock", "kubectl logs"
    ),
    Fault(unknown_service, "registration-socket", Layer.REGISTRATION, "NoCommonService", "v2.DRAPlugin", "kubelet"),
    Fault(device_plugin, "device-plugin", Layer.SECOND_PUBLISHER, "DevicePluginRuns", "nvidia-gpu.sock", "DaemonSet"),
    Fault(broken_cdi_file, "cdi-files", Layer.CDI, "CdiFileUnusable", "claim_aa-11.json", "Remove"),
    Fault(no_base, "cdi-files", Layer.CDI, "NoBaseDocument", "", "pod"),
    Fault(driver_upgraded, "cdi-files", Layer.CDI, "MountedFilesMissing", "libcuda.so.570.1", "Restart"),
    Fault(
        container_without_node,
        "container",
        Layer.CONTAINER,
        "DeviceNodesMissing",
        "container main lacks /dev/nvidia0",
        "runtime",
    ),
    Fault(container_not_allowed, "container", Layer.CONTAINER, "DeviceNodesDenied", "/dev/nvidia0", "NRI"),
    Fault(
        container_of_old_claim, "container", Layer.CONTAINER, "CdiDeviceMissing", "claim=gone-gpu-0", "Delete the pod"
    ),
)
