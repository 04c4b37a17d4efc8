"""A container of the embedded cluster: a directory with the files that it would see, a check run on it, and its process
for the usage exporter.

Device nodes become empty files and mounts become symbolic links, so no privilege is needed. The check is the mounted
``nvidia-smi -L``, run with DRA_SIM_SYSROOT set to the directory; the log is its output and the ``CUDA_*`` variables.
Commands of the pod and CDI hooks are not run. A crash leaves a directory that the next `create` replaces.

CDI documents are read as containerd and runc do (CDI specification; cncf-tags/container-device-interface pkg/cdi,
cache.go and container-edits.go), without `dra_driver.hardware.cdi`: a shared mistake would hide itself.
"""

import hashlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

from msgspec import Struct, field

from dra_driver.core.errors import RetryableError
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.node.kubelet_state import DeviceResponse
from dra_driver.sim.objects import key, uid

Wire = dict[str, Any]


class _Found(Struct, frozen=True):
    path: Path
    document: Wire
    device: Wire


class Edits(Struct, kw_only=True):
    """Container edits collected for one container, in the order of application."""

    env: dict[str, str] = field(default_factory=dict)
    device_nodes: dict[str, Wire] = field(default_factory=dict)
    mounts: dict[str, Wire] = field(default_factory=dict)

    def add(self, wire: Wire) -> None:
        for item in wire.get("env") or ():
            name, _, value = item.partition("=")
            self.env[name] = value
        for node in wire.get("deviceNodes") or ():
            self.device_nodes[node["path"]] = node
        for mount in wire.get("mounts") or ():
            self.mounts.pop(mount["containerPath"], None)
            self.mounts[mount["containerPath"]] = mount

    @property
    def sorted_mounts(self) -> list[Wire]:
        """Mounts by depth of their target, so that no mount hides a deeper one."""
        return sorted(self.mounts.values(), key=lambda mount: mount["containerPath"].rstrip("/").count("/"))


def inject(directories: Sequence[Path], names: Iterable[str]) -> Edits:
    """The edits for qualified device names. Later ``directories`` win; repeated names count once. Raises RetryableError
    with containerd's message if a name does not resolve."""
    devices = _load(directories)
    wanted = list(dict.fromkeys(names))
    missing = [name for name in wanted if name not in devices]
    if missing:
        raise RetryableError(
            "failed to create containerd container: CDI device injection failed: unresolvable CDI devices "
            + ", ".join(missing)
        )
    edits, seen = Edits(), set()
    for name in wanted:
        found = devices[name]
        if found.path not in seen:
            seen.add(found.path)
            edits.add(found.document.get("containerEdits") or {})
        edits.add(found.device.get("containerEdits") or {})
    return edits


def _load(directories: Sequence[Path]) -> dict[str, _Found]:
    """Resolvable devices by qualified name; leaves out a name that two documents of one directory define."""
    devices: dict[str, _Found] = {}
    for directory in directories:
        here: dict[str, list[_Found]] = {}
        for path in sorted(directory.glob("*.json")):
            document = _read(path)
            for device in document.get("devices") or ():
                found = _Found(path, document, device)
                here.setdefault(f"{document.get('kind')}={device.get('name')}", []).append(found)
        for name, definitions in here.items():
            devices.pop(name, None)
            if len(definitions) == 1:
                devices[name] = definitions[0]
    return devices


def _read(path: Path) -> Wire:
    """Return the document, an empty one on a read error, which must not affect further documents."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


CHECK_TIMEOUT_S = 10.0
MAX_LOG_BYTES = 64 * 1024


class CheckResult(Struct, frozen=True, kw_only=True):
    exit_code: int
    output: str


def cdi_names(container: Wire, claims: Mapping[str, Sequence[DeviceResponse]]) -> list[str]:
    """CDI names for a container's claims, chosen as the kubelet's GetResources does. ``claims`` maps the pod's claim
    names to prepared devices. A reference without a request selects every device; a device without request names
    belongs to every request."""
    names: list[str] = []
    for reference in (container.get("resources") or {}).get("claims") or ():
        names += _of_request(claims.get(reference["name"], ()), reference.get("request", ""))
    return names


def extended_cdi_names(container: Wire, status: Wire, devices: Sequence[DeviceResponse]) -> list[str]:
    """CDI names for a container's extended resources, from ``devices`` of the claim in ``status``, the pod's
    ``extendedResourceClaimStatus``. A resource that the node itself offers has no mapping, and so no devices."""
    asked = (container.get("resources") or {}).get("requests") or {}
    names: list[str] = []
    for mapping in status.get("requestMappings") or ():
        if mapping["containerName"] == container["name"] and mapping["resourceName"] in asked:
            names += _of_request(devices, mapping["requestName"])
    return names


def _of_request(devices: Sequence[DeviceResponse], request: str) -> list[str]:
    found = (device for device in devices if not request or not device.requests or request in device.requests)
    return [name for device in found for name in device.cdi_ids]


class ContainerView:
    """One container's folder: ``rootfs`` has its files, ``config.json`` its environment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rootfs = folder / "rootfs"

    @property
    def exists(self) -> bool:
        return (self._folder / "config.json").exists()

    @property
    def environment(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self._folder / "config.json").read_text())["env"]
        return found

    def create(self, container: Wire, names: Iterable[str], cdi_directories: Sequence[Path]) -> None:
        """Build the folder for these CDI devices. Raises RetryableError with a container runtime's message."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self.rootfs.mkdir(parents=True)
        edits = inject(cdi_directories, names)
        for node in edits.device_nodes.values():
            self._node(node)
        for mount in edits.sorted_mounts:
            self._mount(mount)
        # CDI's values win over the pod's own.
        plain = {item["name"]: item.get("value", "") for item in container.get("env") or () if "valueFrom" not in item}
        smi = next((target for target in edits.mounts if PurePosixPath(target).name == "nvidia-smi"), None)
        config = {"env": {**plain, **edits.env}, "smi": smi}
        (self._folder / "config.json").write_text(json.dumps(config))

    def check(self) -> CheckResult:
        """List devices and CUDA variables. Succeeds without output if the container has no nvidia-smi."""
        config = json.loads((self._folder / "config.json").read_text())
        if config["smi"] is None:
            return CheckResult(exit_code=0, output="")
        environment = {"PATH": os.defpath, **config["env"], "DRA_SIM_SYSROOT": str(self.rootfs)}
        try:
            done = subprocess.run(
                [str(self._inside(config["smi"])), "-L"],
                env=environment,
                cwd=self.rootfs,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=CHECK_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RetryableError(f"failed to start container: {error}") from error
        listed = done.stdout[:MAX_LOG_BYTES].decode(errors="replace")
        # What ``env | grep ^CUDA_ | sort`` prints: MPS limits and visible devices.
        variables = [f"{name}={value}\n" for name, value in sorted(config["env"].items()) if name.startswith("CUDA_")]
        return CheckResult(exit_code=done.returncode, output="".join([listed, *variables]))

    def remove(self) -> None:
        """Delete the folder, not the targets of its links. Idempotent."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _inside(self, path: str) -> Path:
        """The host path of an absolute container path. Raises RetryableError for a path that leaves the container."""
        parts = PurePosixPath(path).parts
        if not path.startswith("/") or ".." in parts:
            raise RetryableError(f'failed to create containerd container: path "{path}" is not absolute and plain')
        return self.rootfs.joinpath(*parts[1:])

    def _node(self, node: Wire) -> None:
        if not node.get("type") or not node.get("major"):
            host = node.get("hostPath") or node["path"]
            if not os.path.lexists(host):
                raise RetryableError(
                    "failed to create containerd container: CDI device injection failed: failed to inject devices: "
                    f'failed to stat CDI host device "{host}": no such file or directory'
                )
        target = self._inside(node["path"])
        self._make_parent(target)
        target.touch()

    def _make_parent(self, place: Path) -> None:
        """Create parent folders. Raises RetryableError below a mounted folder, which is a link to the host's."""
        for parent in place.relative_to(self.rootfs).parents:
            if (self.rootfs / parent).is_symlink():
                raise RetryableError(
                    f'failed to create containerd container: "/{place.relative_to(self.rootfs)}" lies in the mounted '
                    f'folder "/{parent}", which the embedded cluster does not support'
                )
        place.parent.mkdir(parents=True, exist_ok=True)

    def _mount(self, mount: Wire) -> None:
        source, target = mount["hostPath"], mount["containerPath"]
        place = self._inside(target)
        if not Path(source).exists():
            raise RetryableError(
                f'failed to create shim task: OCI runtime create failed: error mounting "{source}" to rootfs at '
                f'"{target}": stat {source}: no such file or directory'
            )
        self._make_parent(place)
        if place.is_dir() and not place.is_symlink():
            raise RetryableError(
                f'failed to create containerd container: "{target}" is mounted over a folder that has a device or '
                "another mount in it already, which the embedded cluster does not support"
            )
        place.unlink(missing_ok=True)
        place.symlink_to(source)


FIRST_PID: Final = 1000
_CGROUP: Final = (
    "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{}.slice/cri-containerd-{}.scope\n"
)


class MadeProcesses:
    """A /proc with one process per container (``stat``, ``cgroup`` as containerd's with systemd and cgroup v2,
    ``environ``; proc(5)), and links to logs named as in kubernetes/kubernetes pkg/kubelet/kuberuntime/legacy.go.
    Thread-safe; the files outlive a kubelet."""

    def __init__(self, proc: Path, logs: Path) -> None:
        self._proc, self._logs = proc, logs
        self._lock = threading.Lock()  # guards the choice of process ids
        (proc / "1").mkdir(parents=True, exist_ok=True)
        logs.mkdir(parents=True, exist_ok=True)

    def begin(self, pod: Obj, container: str, environment: Mapping[str, str]) -> int:
        """A process of that container starts, after its former one has ended; returns its id."""
        self.end(uid(pod), container)
        namespace, name = key(pod)
        identity = container_id(uid(pod), container)
        with self._lock:
            pid = max([FIRST_PID, *(int(each.name) for each in self._proc.iterdir() if each.name.isdigit())]) + 1
            folder = self._proc / f".{pid}"
            folder.mkdir()
            began = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
            fields = " ".join(["S", *["0"] * 18, str(began), *["0"] * 30])
            (folder / "stat").write_text(f"{pid} ({container[:15]}) {fields}\n")
            (folder / "cgroup").write_text(_CGROUP.format(uid(pod).replace("-", "_"), identity))
            (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in environment.items()))
            folder.rename(self._proc / str(pid))
        link = self._logs / f"{name}_{namespace}_{container}-{identity}.log"
        link.unlink(missing_ok=True)
        link.symlink_to(f"/var/log/pods/{namespace}_{name}_{uid(pod)}/{container}/0.log")
        return pid

    def end(self, pod_uid: str, container: str) -> None:
        identity = container_id(pod_uid, container)
        for cgroup in self._proc.glob("[0-9]*/cgroup"):
            with suppress(FileNotFoundError):  # of another container that ends now
                if identity in cgroup.read_text():
                    shutil.rmtree(cgroup.parent, ignore_errors=True)
        for link in self._logs.glob(f"*-{identity}.log"):
            link.unlink(missing_ok=True)


def container_id(pod_uid: str, container: str) -> str:
    return hashlib.sha256(f"{pod_uid}/{container}".encode()).hexdigest()
