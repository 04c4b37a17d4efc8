"""A driver root for simulated GPUs: the files that CDI discovery looks for and that containers get to see.

Owns what lies below the folder: empty libraries with the names, versions and SONAMEs of NVIDIA's, an ``nvidia-smi``
that lists what a container may see, and ``proc/devices`` with the device majors. Refuses to know CDI. Needs no
privilege and makes no device nodes: a CDI device node with type, major and minor is created by the container runtime.
"""

import os
import platform
import re
import shlex
from pathlib import Path

from dra_driver.errors import ConfigurationError, StorageError
from dra_driver.gpu.shared_object import MACHINES, shared_object
from dra_driver.model.gpu import Gpu, Snapshot

SMI_TEMPLATE = Path(__file__).with_name("simulated_smi.sh")

# Library -> number of its SONAME. What a compute container needs (capabilities "utility" and "compute").
LIBRARIES = {
    "libcuda": 1,
    "libcudadebugger": 1,
    "libnvidia-allocator": 1,
    "libnvidia-cfg": 1,
    "libnvidia-ml": 1,
    "libnvidia-nvvm": 4,
    "libnvidia-opencl": 1,
    "libnvidia-ptxjitcompiler": 1,
}
# 195 is NVIDIA's registered major (Documentation/admin-guide/devices.txt); the kernel hands out the others dynamically,
# downwards from 254 and then from 511, and these are values often seen.
PROC_DEVICES = """\
Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
237 nvidia-caps
510 nvidia-uvm

Block devices:
  7 loop
"""


def write(root: Path, snapshot: Snapshot) -> None:
    """Make ``root`` the driver root of ``snapshot``; GPUs that are left out are not mentioned.

    Idempotent: files that are right already are not touched. Every file is replaced by a rename, ``nvidia-smi`` last,
    so a reader sees the old or the new one; a write that dies half-way leaves a mixture that the next call repairs.
    Libraries of another driver version are removed. One writer at a time.
    Raises ConfigurationError without a driver version or on an unknown machine, StorageError when a file cannot be
    written.
    """
    version = snapshot.driver_version
    machine = platform.machine()
    if version is None or re.fullmatch(r"\d+(\.\d+)+", version) is None:
        raise ConfigurationError(f"a simulated driver root needs a driver version such as 580.65.06, got {version!r}")
    if machine not in MACHINES:
        raise ConfigurationError(f"a simulated driver root can be made on {', '.join(MACHINES)}, not on {machine}")
    try:
        _write_libraries(root / "usr/lib" / f"{machine}-linux-gnu", version, machine)
        _put(root / "proc/devices", PROC_DEVICES.encode(), 0o644)
        _put(root / "usr/bin/nvidia-smi", smi_script(snapshot).encode(), 0o755)
    except OSError as error:
        raise StorageError(f"cannot write the simulated driver root {root}: {error}") from error


def smi_script(snapshot: Snapshot) -> str:
    """The text of ``nvidia-smi`` for the GPUs of ``snapshot``, in order of minor."""
    cuda = snapshot.cuda_driver_version
    return (
        SMI_TEMPLATE.read_text(encoding="ascii")
        .replace("@DRIVER_VERSION@", snapshot.driver_version or "")
        .replace("@CUDA_VERSION@", f"{cuda[0]}.{cuda[1]}" if cuda else "")
        .replace("@GPUS@", "\n".join(_smi_line(gpu) for gpu in snapshot.gpus))
    )


def _smi_line(gpu: Gpu) -> str:
    capability = gpu.cuda_compute_capability
    words = (
        str(gpu.minor),
        gpu.product_name or "Unknown",
        gpu.uuid,
        "" if gpu.memory_bytes is None else str(gpu.memory_bytes // 2**20),
        f"0000{gpu.pci_bus_id}".upper() if gpu.pci_bus_id else "",  # nvidia-smi prints a domain of eight digits
        f"{capability[0]}.{capability[1]}" if capability else "",
    )
    return '    gpu "$1" ' + " ".join(shlex.quote(word) for word in words)


def _write_libraries(folder: Path, version: str, machine: str) -> None:
    for name, number in LIBRARIES.items():
        soname = f"{name}.so.{number}"
        file = f"{name}.so.{version}"
        _put(folder / file, shared_object(soname, machine), 0o755)
        _link(folder / soname, file)
        for stale in folder.glob(f"{name}.so.*"):
            if stale.name not in (file, soname):
                stale.unlink(missing_ok=True)
    _link(folder / "libcuda.so", "libcuda.so.1")


def _put(path: Path, content: bytes, mode: int) -> None:
    if (
        not path.is_symlink()
        and path.is_file()
        and path.read_bytes() == content
        and path.stat().st_mode & 0o777 == mode
    ):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(content)
    temporary.chmod(mode)
    temporary.replace(path)


def _link(path: Path, target: str) -> None:
    if path.is_symlink() and os.readlink(path) == target:  # noqa: PTH115 - Path.readlink would normalise the target
        return
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(path)
