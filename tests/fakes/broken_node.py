"""A node in a folder, as `dra-driver doctor` reads it, to be broken in one place. Files, folders and sockets are real;
NVML, the container runtime's answers and ``/dev`` are values."""

import json
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dra_driver.config.settings import NodeSettings
from dra_driver.core.unix_grpc import CallError
from dra_driver.diagnose.doctor.node import NodeReaders, examine
from dra_driver.diagnose.doctor.node_driver import NvmlAnswer
from dra_driver.diagnose.doctor.node_kubelet import PluginWords
from dra_driver.diagnose.doctor.node_runtime import CriClient
from dra_driver.diagnose.doctor.node_view import HostView
from dra_driver.diagnose.doctor.report import DoctorReport
from dra_driver.diagnose.hardware.values import CheckRecord
from dra_driver.diagnose.node_state import Places
from tests.fakes.dev_folder import MemoryDev
from tests.fakes.driver_root import PROC_DEVICES, VERSION, FakeDriverRoot

DRIVER = "gpu.nvidia.com"
CONFIGS = Path(__file__).parents[1] / "golden/cri"  # what real runtimes said of their configuration by CRI
_PARAMS = "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n"
_BOOT_LOG = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {v}  Release Build\nGCC version: 12\n"


@dataclass
class FakeRuntime(CriClient):
    name: str = "containerd"
    release: str = "2.1.9"
    config: Mapping[str, Any] = field(default_factory=dict)
    crio: str = ""
    not_ready: tuple[str, ...] = ()
    running: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Information about each container of the one pod, by the container's name."""

    def version(self) -> tuple[str, str]:
        return self.name, self.release

    def status(self) -> tuple[tuple[str, ...], Mapping[str, str]]:
        return self.not_ready, {"config": json.dumps(self.config)}

    def crio_config(self) -> str:
        return self.crio

    def containers(self, namespace: str, pod: str) -> tuple[tuple[str, str], ...]:
        return tuple((name, name) for name in self.running)

    def container(self, container_id: str) -> Mapping[str, str]:
        return {"info": json.dumps(self.running[container_id])}

    def close(self) -> None:
        pass


def containerd(release: str) -> FakeRuntime:
    wire = json.loads((CONFIGS / f"containerd-{release}.json").read_text())
    return FakeRuntime(name=wire["name"], release=wire["version"], config=wire["config"])


class BrokenNode:
    """The node. ``folder`` has to be a short path: socket paths end at 107 characters."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.dev = MemoryDev()
        self.nvml = NvmlAnswer(gpus=2)
        self.kubelet_version: str | None = "v1.34.0"
        self.words: dict[str, PluginWords] = {}
        self.places: Places | None = None
        self.hardware: tuple[CheckRecord, ...] = ()
        self.pods: tuple[str, ...] = ()
        self._open: list[socket.socket] = []
        settings = NodeSettings(
            node_name="node-1",
            driver_name=DRIVER,
            host_root=str(folder),
            host_dev=f"{folder}/dev",
            proc_devices=f"{folder}/proc/devices",
            kubelet_plugins_dir=f"{folder}/kubelet/plugins",
            kubelet_registrar_dir=f"{folder}/kubelet/plugins_registry",
            cdi_dir=f"{folder}/cdi",
        )
        self.view = HostView(settings=settings, host=str(folder))
        self.runtime = FakeRuntime()
        self.use(containerd("2.1.9"))
        self._lay_out()

    def use(self, runtime: FakeRuntime) -> None:
        """Another container runtime, which reads this node's CDI folder where its default is read."""
        folders = runtime.config.get("cdiSpecDirs")
        if folders is not None:
            own = [str(self.view.cdi) if folder == "/var/run/cdi" else folder for folder in folders]
            runtime.config = {**runtime.config, "cdiSpecDirs": own}
        self.runtime = runtime

    def report(self) -> DoctorReport:
        readers = NodeReaders(
            ask_nvml=lambda _library: self.nvml,
            dial=lambda _path: self.runtime,
            dev=lambda _folder: self.dev,
            get_info=self._get_info,
            kubelet_version=lambda _view, _pid: self.kubelet_version,
            hardware=lambda _view: self.hardware,
        )
        return examine("node-1", self.view, pods=self.pods, places=self.places, readers=readers)

    def close(self) -> None:
        for each in self._open:
            each.close()

    # what the tests change

    def put(self, path: str, text: str = "") -> None:
        target = self.path / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def remove(self, path: str) -> None:
        target = self.path / path.lstrip("/")
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink()

    def serve(self, path: str, *, dead: bool = False) -> str:
        target = self.path / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(target))
        if dead:
            server.close()
        else:
            server.listen()
            self._open.append(server)
        return str(target)

    def kill(self, path: str) -> None:
        self.remove(path)
        self.serve(path, dead=True)

    def gpu(self, address: str, bound: str | None) -> None:
        folder = f"sys/bus/pci/devices/{address}"
        self.put(f"{folder}/vendor", "0x10de\n")
        self.put(f"{folder}/class", "0x030200\n")
        link = self.path / folder / "driver"
        link.unlink(missing_ok=True)
        if bound is not None:
            link.symlink_to(f"../../../bus/pci/drivers/{bound}")

    def set(self, **changes: Any) -> None:
        self.view = HostView(settings=replace(self.view.settings, **changes), host=self.view.host)

    def kubelet(self, *flags: str, config: str = "kind: KubeletConfiguration\n") -> None:
        root = f"--root-dir={self.path}/kubelet"
        command = ["/usr/bin/kubelet", root, "--config", "/etc/kubelet.yaml", *flags]
        self.put("proc/4711/cmdline", "\0".join(command) + "\0")
        self.put("proc/4711/comm", "kubelet\n")
        self.put("etc/kubelet.yaml", config)

    def claim(self, uid: str, *, node: str = "/dev/nvidia0", mounts: str = "") -> str:
        edits: dict[str, Any] = {"deviceNodes": [{"path": node, "type": "c", "major": 195, "minor": 0}]}
        if mounts:
            edits["mounts"] = [{"hostPath": mounts, "containerPath": mounts, "options": ["ro"]}]
        device = {"name": f"{uid}-gpu-0", "containerEdits": edits}
        document = {"cdiVersion": "0.5.0", "kind": f"k8s.{DRIVER}/claim", "devices": [device]}
        self.put(f"cdi/k8s.{DRIVER}-claim_{uid}.json", json.dumps(document))
        return f"k8s.{DRIVER}/claim={uid}-gpu-0"

    def _lay_out(self) -> None:
        driver = FakeDriverRoot(self.path)
        driver.libraries("/usr/lib/x86_64-linux-gnu")
        driver.put("/usr/bin/nvidia-smi", b"#!/bin/sh\n", 0o755)
        self.put("proc/2/comm", "kthreadd\n")
        self.put("proc/devices", PROC_DEVICES)
        self.put("proc/modules", "nvidia_uvm 1 0\nnvidia 1 1\n")
        self.put("proc/driver/nvidia/version", _BOOT_LOG.format(v=VERSION))
        self.put("proc/driver/nvidia/params", _PARAMS)
        self.put("proc/driver/nvidia-caps/mig-minors", "gpu0/gi0/access 3\n")
        self.put("sys/module/nvidia/version", f"{VERSION}\n")
        self.put("sys/bus/pci/devices/0000:00:01.0/vendor", "0x8086\n")
        for minor in (0, 1):
            self.gpu(f"0000:0{minor + 1}:00.0", "nvidia")
            self.put(f"proc/driver/nvidia/gpus/0000:0{minor + 1}:00.0/information", f"Device Minor: \t {minor}\n")
            self.dev.add(f"/dev/nvidia{minor}", 195, minor)
        self.dev.add("/dev/nvidiactl", 195, 255)
        self.dev.add("/dev/nvidia-uvm", 510, 0)
        self.dev.add("/dev/nvidia-uvm-tools", 510, 1)
        self.kubelet()
        self.serve("run/containerd/containerd.sock")
        registration = self.serve(f"kubelet/plugins_registry/{DRIVER}-reg.sock")
        endpoint = self.serve(f"kubelet/plugins/{DRIVER}/dra.sock")
        self.words[registration] = PluginWords(driver=DRIVER, endpoint=endpoint, versions=("v1.DRAPlugin",))
        base = {"cdiVersion": "0.5.0", "kind": f"k8s.{DRIVER}/device", "devices": [{"name": "common"}]}
        base["devices"][0]["containerEdits"] = {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}  # type: ignore[index]
        self.put(f"cdi/k8s.{DRIVER}-device_base.json", json.dumps(base))
        self.put("etc/ld.so.cache")
        self._show_absolute_paths()

    def _show_absolute_paths(self) -> None:
        """Settings have paths with this folder in them; the host's view of them leads here, too."""
        link = Path(f"{self.path}{self.path}")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(self.path)

    def _get_info(self, path: str) -> PluginWords:
        if path not in self.words:
            raise CallError("GetInfo gave no answer within 5 s", "DEADLINE_EXCEEDED")
        return self.words[path]
