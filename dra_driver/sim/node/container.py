"""A container of the embedded cluster: a folder with what it would see, and the check that looks at it.

Owns the view folder: device nodes become empty files, mounts become symbolic links, nothing of the host changes and no
privilege is needed. The check is the mounted ``nvidia-smi -L``, run with DRA_SIM_SYSROOT pointing at the view; its
output, and after it the container's variables that steer CUDA (``CUDA_*``, in order of name), is the container's log.
Commands of the pod are not executed and hooks are not run. Wording of errors as from containerd and runc. Dying
half-way leaves a folder that the next `create` replaces.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dra_driver.errors import RetryableError
from dra_driver.sim.node.cdi_files import Edits, Wire, inject
from dra_driver.sim.node.kubelet_state import DeviceResponse

CHECK_TIMEOUT_S = 10.0
MAX_LOG_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What the container's check printed and how it ended."""

    exit_code: int
    output: str


def cdi_names(container: Wire, claims: Mapping[str, Sequence[DeviceResponse]]) -> list[str]:
    """CDI names for the claims that a container refers to, as the kubelet's GetResources finds them.

    ``claims`` maps the pod's claim names to prepared devices. A reference without a request takes every device, one
    with a request those that carry its base name, and a device without request names belongs to every request.
    """
    names: list[str] = []
    for reference in (container.get("resources") or {}).get("claims") or ():
        names += _of_request(claims.get(reference["name"], ()), reference.get("request", ""))
    return names


def extended_cdi_names(container: Wire, status: Wire, devices: Sequence[DeviceResponse]) -> list[str]:
    """CDI names for a container's extended resources; ``status`` is the pod's ``extendedResourceClaimStatus``.

    ``devices`` are those of the claim that it names. Only its mappings count: a container that asks for a resource
    which the node offers itself has none.
    """
    asked = (container.get("resources") or {}).get("requests") or {}
    names: list[str] = []
    for mapping in status.get("requestMappings") or ():
        if mapping["containerName"] == container["name"] and mapping["resourceName"] in asked:
            names += _of_request(devices, mapping["requestName"])
    return names


def _of_request(devices: Sequence[DeviceResponse], request: str) -> list[str]:
    found = (device for device in devices if not request or not device.request_names or request in device.request_names)
    return [name for device in found for name in device.cdi_ids]


class ContainerView:
    """One container's folder: ``rootfs`` is what it sees, ``config.json`` the environment it gets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rootfs = folder / "rootfs"

    @property
    def exists(self) -> bool:
        """Whether `create` has finished."""
        return (self._folder / "config.json").exists()

    def create(self, container: Wire, names: Iterable[str], cdi_directories: Sequence[Path]) -> None:
        """Build the view for these CDI devices. Raises RetryableError with a runtime's words when that fails."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self.rootfs.mkdir(parents=True)
        edits = inject(cdi_directories, names)
        for node in edits.device_nodes.values():
            self._node(node)
        for mount in edits.sorted_mounts:
            self._mount(mount)
        # CDI's values win over the pod's own.
        plain = {item["name"]: item.get("value", "") for item in container.get("env") or () if "valueFrom" not in item}
        config = {"env": {**plain, **edits.env}, "smi": _smi(edits)}
        (self._folder / "config.json").write_text(json.dumps(config))

    def check(self) -> CheckResult:
        """List devices and CUDA's variables; a container without nvidia-smi has nothing to check: silent success."""
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
        return CheckResult(exit_code=done.returncode, output=listed + _cuda_variables(config["env"]))

    def remove(self) -> None:
        """The folder goes; what it links to stays. Idempotent."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _inside(self, path: str) -> Path:
        """Where an absolute path of the container lies. Raises RetryableError for one that leads out of it."""
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
        """A mounted folder is a link to the host's: nothing may be created through it."""
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


def _cuda_variables(env: Mapping[str, str]) -> str:
    """What ``env | grep ^CUDA_ | sort`` prints: limits of MPS, and the choice of devices."""
    return "".join(f"{name}={env[name]}\n" for name in sorted(env) if name.startswith("CUDA_"))


def _smi(edits: Edits) -> str | None:
    return next((target for target in edits.mounts if PurePosixPath(target).name == "nvidia-smi"), None)
