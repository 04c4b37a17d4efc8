"""Build CDI documents: the base document with the driver's files, and a document of devices for each claim.

A claim's file stays below 2 kB, and hooks run once per container with any number of claims. Device nodes always have
type, major and minor: the host often lacks ``nvidia-uvm`` and MIG capability nodes.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from dra_driver.core.errors import DeviceLostError, DriverUnavailableError
from dra_driver.core.files import read_start
from dra_driver.core.model.ids import ClaimUid
from dra_driver.hardware.cdi.hook import CdiHook, base_hooks, create_symlinks
from dra_driver.hardware.cdi.libraries import ALIASES, MPS_PROGRAMS, DriverFiles, Library
from dra_driver.hardware.cdi.names import COMMON, CdiNames
from dra_driver.hardware.cdi.spec import CdiDevice, CdiSpec, ContainerEdits, DeviceNode, Mount
from dra_driver.hardware.device_nodes.numbers import (
    CONTROL_NODES,
    MODESET,
    Majors,
    NodeKind,
    NodeNumbers,
    expected_numbers,
    kind_of,
    mig_minors,
)
from dra_driver.hardware.driver_root.root import DriverRoot

_READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
_SHARED_FOLDER = ("rw", "nosuid", "nodev", "bind")
_MASK = ("ro", "nosuid", "nodev", "noexec", "bind")

MPS_PIPE = "/tmp/nvidia-mps"  # noqa: S108 - a path in the container; CUDA's default
"""Path of the MPS daemon's pipes in containers."""

SIMULATED_CLAIM = "DRA_SIMULATED_CLAIM"
"""Prefix of the variables of containers with simulated GPUs; ``hardware/gpu/simulated/usage.py`` reads them."""

# 0666 whatever the mode on the host: an administrator restricts /dev/nvidia* (NVreg_DeviceFileMode) for users of the
# host, while the container's user was granted this device, and the device cgroup allows no other device.
_NODE_MODE = 0o666
_CAPABILITY_MODE = 0o444  # of the module; to read a node is enough to open its capability
_ACCESS_LIMIT = 4096  # an access file has three short lines
_MINOR_LIMIT = 1 << 20  # the kernel's MINORBITS
_LINE = re.compile(r"DeviceFile(Minor|Mode):\s*(\d{1,10})")
_PCI_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_DRM_NAME = re.compile(r"card\d{1,4}|renderD\d{1,4}")
_DEV_FILE = re.compile(r"(\d{1,10}):(\d{1,10})")


class Capability(Struct, frozen=True, kw_only=True):
    """The node ``nvidia-cap<minor>`` and its permission bits."""

    minor: int
    mode: int = _CAPABILITY_MODE

    @property
    def path(self) -> str:
        return f"/dev/nvidia-caps/nvidia-cap{self.minor}"


class DrmNode(Struct, frozen=True, kw_only=True):
    """A node in ``/dev/dri``: ``card1`` or ``renderD129``."""

    name: str
    numbers: NodeNumbers


def base_spec(
    names: CdiNames,
    files: DriverFiles,
    majors: Majors,
    hook: CdiHook | None,
    found: Mapping[str, NodeNumbers] | None = None,
) -> CdiSpec:
    """The base document: the driver's files, its control nodes, and one device by which a container requests them.
    ``hook`` is None for soname mode. ``found`` are nodes of the dev root, used where the kernel's list lacks their
    module. Raises `DriverUnavailableError` without a kernel module that every CUDA program needs."""
    edits = ContainerEdits(
        # An image's NVIDIA_VISIBLE_DEVICES=all would make the older NVIDIA runtime add every GPU of the node.
        env=("NVIDIA_VISIBLE_DEVICES=void",),
        device_nodes=tuple(_control_nodes(files.root, majors, found or {})),
        mounts=tuple(_mounts(files, hook)),
        hooks=base_hooks(hook, _links(files), files.library_folders, files.version) if hook else (),
    )
    # Consumers refuse a file with a device without edits; this variable also helps to debug a pod.
    common = CdiDevice(name=COMMON, container_edits=ContainerEdits(env=(f"DRA_GPU_DRIVER_VERSION={files.version}",)))
    return CdiSpec(kind=names.device_kind, devices=(common,), container_edits=edits)


def gpu_edits(
    minor: int, majors: Majors, root: DriverRoot, *, found: NodeNumbers | None = None, uuid: str | None = None
) -> ContainerEdits:
    """A whole GPU: its node, and ``DRA_GPU_<minor>_UUID``, because CDI replaces variables of the same name. ``found``
    are the numbers of a node in the dev root. Raises `DriverUnavailableError` when no module is loaded."""
    # The kernel's list wins over a node, which may be one of a former driver. A node counts where the list lacks the
    # module: it may have registered under an unknown name.
    path = f"/dev/nvidia{minor}"
    node = device_node(root, path, expected_numbers(path, majors) or found or _no_numbers(path))
    return ContainerEdits(env=(f"DRA_GPU_{minor}_UUID={uuid}",) if uuid else (), device_nodes=(node,))


def partition_edits(
    minor: int,
    majors: Majors,
    root: DriverRoot,
    capabilities: Sequence[Capability],
    *,
    found: NodeNumbers | None = None,
    variable: str | None = None,
) -> ContainerEdits:
    """A MIG partition: its capability nodes and its parent's node, which does not open other partitions; no DRM nodes,
    as a partition cannot render. ``variable`` is a whole ``NAME=value``. Raises `DriverUnavailableError`."""
    if majors.caps is None:
        raise DriverUnavailableError(
            f"no device numbers for the MIG capabilities of /dev/nvidia{minor}: /proc/devices does not list "
            "'nvidia-caps'; the NVIDIA kernel module must be 450.80.02 or newer and loaded without "
            "nv_cap_enable_devfs=0 (see /etc/modprobe.d)"
        )
    parent = gpu_edits(minor, majors, root, found=found)
    nodes = tuple(
        device_node(root, cap.path, NodeNumbers(major=majors.caps, minor=cap.minor), file_mode=cap.mode)
        for cap in capabilities
    )
    return parent + ContainerEdits(env=(variable,) if variable else (), device_nodes=nodes)


def mps_edits(pipe: Path, shm: Path, *, memory_limit_mib: int | None, percentage: int | None) -> ContainerEdits:
    """An MPS client: the daemon's folders, and limits of CUDA that only lower the daemon's defaults (MPS documentation,
    "Environment Variables"): memory of CUDA device 0, and percent of the multiprocessors."""
    env = [f"CUDA_MPS_PIPE_DIRECTORY={MPS_PIPE}"]
    if memory_limit_mib is not None:
        env.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={memory_limit_mib}M")
    if percentage is not None:
        env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={percentage}")
    return ContainerEdits(
        env=tuple(env),
        mounts=(
            Mount(host_path=str(pipe), container_path=MPS_PIPE, options=_SHARED_FOLDER),
            # The daemon and its clients use shared memory, so its folder replaces the container's own /dev/shm.
            Mount(host_path=str(shm), container_path="/dev/shm", options=_SHARED_FOLDER),  # noqa: S108 - CUDA's path
        ),
    )


def metadata_edits(host_path: str, container_path: str) -> ContainerEdits:
    """A metadata file of the claim (KEP-5304), read-only."""
    return ContainerEdits(mounts=(Mount(host_path=host_path, container_path=container_path, options=_MASK),))


def graphics_edits(nodes: Sequence[DrmNode], root: DriverRoot, pci_bus_id: str, hook: CdiHook | None) -> ContainerEdits:
    """A GPU's ``/dev/dri`` nodes, and with a hook the ``by-path`` links, which some programs use to choose a node."""
    links = [
        (f"../{node.name}", f"/dev/dri/by-path/pci-{pci_bus_id}-{'card' if node.name.startswith('card') else 'render'}")
        for node in nodes
    ]
    return ContainerEdits(
        device_nodes=tuple(device_node(root, f"/dev/dri/{node.name}", node.numbers) for node in nodes),
        hooks=(create_symlinks(hook.path, links),) if hook and links else (),
    )


def device_node(root: DriverRoot, path: str, numbers: NodeNumbers, *, file_mode: int = _NODE_MODE) -> DeviceNode:
    host_path = root.dev_host(path)
    return DeviceNode(
        path=path,
        host_path="" if host_path == path else host_path,
        type="c",
        major=numbers.major,
        minor=numbers.minor,
        file_mode=file_mode,
        permissions="rwm",
    )


def simulated_claim_edits(claim: ClaimUid) -> ContainerEdits:
    """A variable by which the containers' processes are found in /proc; named by UID, as CDI replaces equal names."""
    return ContainerEdits(env=(f"{SIMULATED_CLAIM}_{claim.replace('-', '_')}={claim}",))


def claim_spec(names: CdiNames, devices: Sequence[tuple[str, ContainerEdits]]) -> CdiSpec:
    """A claim's document from ``(device name, edits)`` pairs; two requests may get the same GPU with admin access."""
    unique = tuple(CdiDevice(name=name, container_edits=edits) for name, edits in dict.fromkeys(devices))
    return CdiSpec(kind=names.claim_kind, devices=unique)


def _no_numbers(path: str) -> NoReturn:
    raise DriverUnavailableError(
        f"no device numbers for {path}: /proc/devices lists neither 'nvidia' nor 'nvidia-frontend' "
        "and no such node exists; load the NVIDIA kernel module (nvidia-modprobe, or start the driver container)"
    )


def _control_nodes(root: DriverRoot, majors: Majors, found: Mapping[str, NodeNumbers]) -> Iterator[DeviceNode]:
    for path in CONTROL_NODES:
        numbers = expected_numbers(path, majors)
        if numbers is None and majors.nvidia is not None and kind_of(path) is NodeKind.UVM:
            raise DriverUnavailableError(
                f"no device numbers for {path}: /proc/devices does not list 'nvidia-uvm', which every CUDA program"
                " needs; run `nvidia-modprobe -u -c0` on the node"
            )
        numbers = numbers or found.get(path)
        if numbers is not None:
            yield device_node(root, path, numbers)
        elif path != MODESET:  # whose module is needed for graphics alone
            _no_numbers(path)


def _mounts(files: DriverFiles, hook: CdiHook | None) -> Iterator[Mount]:
    """One mount per container path: the first of several files wins."""
    targets: set[str] = set()
    for source, target, options in _targets(files, hook):
        if target not in targets:
            targets.add(target)
            yield Mount(host_path=files.root.host(source), container_path=target, options=options)


def _targets(files: DriverFiles, hook: CdiHook | None) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for library in files.libraries:
        yield library.path, library.path, _READ_ONLY
    for file in files.files:
        yield file.path, file.container_path, _READ_ONLY
    for socket in files.sockets:
        yield socket.path, socket.container_path, _SOCKET
    if hook is None:
        for library in files.libraries:
            yield from ((library.path, target, _READ_ONLY) for target in _soname_targets(library, files.multiarch))


def _soname_targets(library: Library, multiarch: str) -> Iterator[str]:
    """Paths at which the loader searches the library after its cache: its folder, and defaults of distributions."""
    subfolder = "/vdpau" if library.folder.endswith("/vdpau") else ""  # libvdpau searches its drivers there
    folders = (library.folder, f"/usr/lib/{multiarch}{subfolder}", f"/usr/lib64{subfolder}")
    names = (library.file_name, library.soname or library.file_name, *ALIASES.get(library.stem, ()))
    yield from (f"{folder}/{name}" for folder in dict.fromkeys(folders) for name in dict.fromkeys(names))


def _links(files: DriverFiles) -> Iterator[tuple[str, str]]:
    """``(target, link)`` for the hook, as a package links libraries on the host."""
    made: set[str] = set()
    for library in files.libraries:
        soname = library.soname or library.file_name
        pairs = [(library.file_name, soname)] if soname != library.file_name else []
        pairs += [("../" * alias.count("/") + soname, alias) for alias in ALIASES.get(library.stem, ())]
        for target, name in pairs:
            link = f"{library.folder}/{name}"
            if link not in made:
                made.add(link)
                yield target, link


def without_mps_programs(files: DriverFiles, mask: str) -> ContainerEdits:
    """Hide the MPS programs from containers that share a GPU: root in one could change the daemon's limits or end it.
    Prevents accidents only, as an image can bring the program. ``mask`` is a readable plain file of the host.

    The claim's document mounts the mask over each program, as runtimes do for ``maskedPaths``; CDI removes an earlier
    mount of the same container path (cncf-tags/container-device-interface, pkg/cdi/container-edits.go). Not
    ``/dev/null``: in a user namespace CDI mounts are ``idmap``, which file systems of device nodes refuse
    (mount_setattr(2), EINVAL on Linux 6.18).
    """
    masked = [file.container_path for file in files.files if file.container_path.rpartition("/")[2] in MPS_PROGRAMS]
    return ContainerEdits(mounts=tuple(Mount(host_path=mask, container_path=path, options=_MASK) for path in masked))


def partition_capabilities(proc_driver: str, gpu_minor: int, gi_id: int, ci_id: int) -> tuple[Capability, Capability]:
    """The nodes of a GPU instance and of one compute instance in it; a program that can read both may use the latter.

    ``nvidia/capabilities/gpu<minor>/mig/gi<g>[/ci<c>]/access`` has minor and mode while the instance exists (MIG User
    Guide, "Device Nodes and Capabilities"). ``nvidia-caps/mig-minors`` lists all possible instances. It is read only
    where the first folder is missing: the minor of a destroyed instance opens the next instance with its id.
    ``gpu_minor`` is N of ``/dev/nvidiaN``. Raises `DriverUnavailableError` without either, `DeviceLostError` for a
    missing instance.
    """
    capabilities = f"{proc_driver}/nvidia/capabilities"
    gi, ci = f"gi{gi_id}", f"gi{gi_id}/ci{ci_id}"
    if os.path.isdir(capabilities):  # noqa: PTH112 - as below
        folder = f"{capabilities}/gpu{gpu_minor}/mig"
        return _from_access(folder, gi, gpu_minor), _from_access(folder, ci, gpu_minor)
    path = f"{proc_driver}/nvidia-caps/mig-minors"
    minors = mig_minors(proc_driver)
    if not minors:
        raise DriverUnavailableError(
            f"no capability nodes for MIG on /dev/nvidia{gpu_minor}: neither {capabilities} nor {path} can be read; "
            "the node process needs the node's /proc/driver, and an NVIDIA kernel module of 450.80.02 or newer"
        )
    return _from_minors(path, minors, gpu_minor, gi), _from_minors(path, minors, gpu_minor, ci)


def _from_access(folder: str, instance: str, gpu_minor: int) -> Capability:
    path = f"{folder}/{instance}/access"
    values = {name: int(number) for name, number in _LINE.findall(read_start(path, _ACCESS_LIMIT) or "")}
    minor = values.get("Minor")
    if minor is None or minor >= _MINOR_LIMIT:
        raise _lost(instance, gpu_minor, f"{path} is missing or has no DeviceFileMinor")
    return Capability(minor=minor, mode=values.get("Mode", _CAPABILITY_MODE) & 0o777)


def _from_minors(path: str, minors: dict[str, int], gpu_minor: int, instance: str) -> Capability:
    minor = minors.get(f"gpu{gpu_minor}/{instance}", _MINOR_LIMIT)
    if minor >= _MINOR_LIMIT:
        raise _lost(instance, gpu_minor, f"{path} does not list it")
    return Capability(minor=minor)


def _lost(instance: str, gpu_minor: int, seen: str) -> DeviceLostError:
    return DeviceLostError(
        f"no capability node for MIG instance {instance} of /dev/nvidia{gpu_minor}: {seen}; another program "
        "destroyed the instance, or the GPU's minor has changed (restart the node process)",
        reason="CapabilityNodeMissing",
    )


def drm_nodes(pci_bus_id: str | None, sysfs_root: str = "/sys") -> tuple[DrmNode, ...]:
    """DRM nodes of the GPU at ``pci_bus_id`` (``0000:65:00.0``), by name, with their numbers from sysfs."""
    if not pci_bus_id or not _PCI_BUS_ID.fullmatch(pci_bus_id.lower()):
        return ()
    folder = Path(sysfs_root, "bus/pci/devices", pci_bus_id.lower(), "drm")
    try:
        names = sorted(name for name in os.listdir(folder) if _DRM_NAME.fullmatch(name))  # noqa: PTH208 - names, not paths
        texts = [(name, (folder / name / "dev").read_text("ascii")) for name in names]
    except (OSError, UnicodeDecodeError):
        return ()
    matches = [(name, _DEV_FILE.fullmatch(text.strip())) for name, text in texts]
    return tuple(
        DrmNode(name=name, numbers=NodeNumbers(major=int(match[1]), minor=int(match[2])))
        for name, match in matches
        if match
    )
