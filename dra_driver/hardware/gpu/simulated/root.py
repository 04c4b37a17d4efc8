"""Write the driver root of simulated GPUs: the files that CDI discovery finds and that containers see.

Needs no privilege and creates no device nodes: the container runtime creates a CDI device node with type, major and
minor. The root contains

- empty libraries with the names, versions and SONAMEs of NVIDIA's, and ``proc/devices`` with the device majors;
- ``proc/driver/nvidia/capabilities`` and ``proc/driver/nvidia-caps/mig-minors``, which describe MIG capability nodes;
- programs: an ``nvidia-smi`` that lists the GPUs that a container sees, ``nvidia-cuda-mps-control`` and
  ``nvidia-cuda-mps-server``. They record their calls below ``var/log/nvidia-stub``, and hang or fail when one of the
  files of FAULTS exists below ``etc/nvidia-stub``; the head of each script says more;
- ``var/lib/nvidia-stub``, where ``nvidia-smi`` keeps settings, one file per GPU.
"""

import os
import platform
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.files import replace_file
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.hardware.gpu.shared_object import MACHINES, shared_object
from dra_driver.hardware.gpu.simulated import caps

SMI_TEMPLATE = Path(__file__).with_name("smi.sh")
MPS_PROGRAMS = {
    "nvidia-cuda-mps-control": Path(__file__).with_name("mps_control.sh"),
    "nvidia-cuda-mps-server": Path(__file__).with_name("mps_server.sh"),
}

FAULTS = "etc/nvidia-stub"
"""Folder of the files that make programs misbehave: smi-hang, smi-fail, mps-fail, mps-never-ready, mps-hang; and
uvm-missing: the kernel module nvidia-uvm is not loaded."""
UVM_MISSING = f"{FAULTS}/uvm-missing"
RECORDS = "var/log/nvidia-stub"
"""Folder of nvidia-smi.log and mps-control.log, with a line per call."""
TIMESLICE, COMPUTE_MODE = "var/lib/nvidia-stub/timeslice", "var/lib/nvidia-stub/compute-mode"
"""Folders with the settings of nvidia-smi, one file per GPU, named by its UUID."""
MARKER = f"{FAULTS}/driver-root"  # marks the root on the node, which is missing in containers
MAX_RECORD_BYTES = 1024 * 1024

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
    """Make ``root`` the driver root of ``snapshot``, without its left-out GPUs.

    Idempotent, and cheap when little changed: correct files are not touched. Every file is replaced by a rename and
    obsolete ones are removed last, so readers see the old or the new file. After a crash the files are mixed until the
    next call. Libraries of another driver version are removed; records over 1 MiB are rotated. Only one writer at a
    time, with the newest snapshot: see ``SimulatedBackend.announce``.
    Raises ConfigurationError without a driver version or on an unknown machine, StorageError when a file cannot be
    written.
    """
    version = snapshot.driver_version
    machine = platform.machine()
    if version is None or re.fullmatch(r"\d+(\.\d+)+", version) is None:
        raise ConfigurationError(f"a simulated driver root needs a driver version such as 580.65.06, got {version!r}")
    if machine not in MACHINES:
        raise ConfigurationError(f"a simulated driver root can be written on {', '.join(MACHINES)}, not on {machine}")
    try:
        _write_libraries(root / "usr/lib" / f"{machine}-linux-gnu", version, machine)
        _put(root / "proc/devices", _proc_devices(root).encode(), 0o644)
        _write_programs(root)
        _write_capabilities(root, snapshot)
        _put(root / "usr/bin/nvidia-smi", smi_script(snapshot).encode(), 0o755)
    except OSError as error:
        raise StorageError(f"cannot write the simulated driver root {root}: {error}") from error


def _proc_devices(root: Path) -> str:
    missing = (root / UVM_MISSING).exists()
    return "".join(line for line in PROC_DEVICES.splitlines(True) if not (missing and "nvidia-uvm" in line))


def smi_script(snapshot: Snapshot) -> str:
    """The text of ``nvidia-smi`` for the GPUs of ``snapshot``, in order of minor."""
    cuda = snapshot.cuda_driver_version
    return (
        SMI_TEMPLATE.read_text(encoding="ascii")
        .replace("@DRIVER_VERSION@", snapshot.driver_version or "")
        .replace("@CUDA_VERSION@", f"{cuda[0]}.{cuda[1]}" if cuda else "")
        .replace("@GPUS@", "\n".join(line for gpu in snapshot.gpus for line in _smi_lines(gpu)))
    )


def _smi_lines(gpu: Gpu) -> Iterator[str]:
    capability = gpu.cuda_compute_capability
    words = (
        str(gpu.minor),
        gpu.product_name or "Unknown",
        gpu.uuid,
        "" if gpu.memory_bytes is None else str(gpu.memory_bytes // 2**20),
        f"0000{gpu.pci_bus_id}".upper() if gpu.pci_bus_id else "",  # nvidia-smi prints a domain of eight digits
        f"{capability[0]}.{capability[1]}" if capability else "",
        ("Enabled" if gpu.mig_enabled else "Disabled") if gpu.mig_capable else "[N/A]",
    )
    yield '    gpu "$1" ' + " ".join(shlex.quote(word) for word in words)
    for instance in sorted(gpu.mig_instances, key=lambda instance: instance.gi_id):
        for compute in instance.compute:
            nodes = (instance.gi_id, None), (instance.gi_id, compute.ci_id)
            numbers = " ".join(str(caps.instance_minor(gpu.minor, *node)) for node in nodes)
            name = instance.profile_name if compute.spans else f"1c.{instance.profile_name}"
            yield f"    mig {numbers} {shlex.quote(name)} {compute.uuid}"


def _write_programs(root: Path) -> None:
    for name, source in MPS_PROGRAMS.items():
        _put(root / "usr/bin" / name, source.read_bytes(), 0o755)
    for folder in (RECORDS, TIMESLICE, COMPUTE_MODE):
        (root / folder).mkdir(parents=True, exist_ok=True)
    _put(root / MARKER, b"This folder is the root of a simulated driver.\n", 0o644)
    for record in (root / RECORDS).glob("*.log"):
        if record.stat().st_size > MAX_RECORD_BYTES:
            record.replace(record.with_suffix(".log.1"))


def _write_capabilities(root: Path, snapshot: Snapshot) -> None:
    files = caps.access_files(snapshot)
    for path, content in files.items():
        _put(root / path, content, 0o444)
    minors = caps.minors_file(snapshot)
    if minors is None:
        (root / caps.MINORS).unlink(missing_ok=True)
    else:
        _put(root / caps.MINORS, minors, 0o444)
    folder = root / caps.FOLDER
    # The kernel module keeps the files of a GPU that does not answer, and which GPU that is cannot be told here.
    answering = {f"gpu{gpu.minor}" for gpu in snapshot.gpus} if snapshot.left_out else None
    for found in list(folder.glob("*/mig/**/access")):  # a list, as folders go away meanwhile
        may_go = answering is None or found.relative_to(folder).parts[0] in answering
        if may_go and found.relative_to(root).as_posix() not in files:
            found.unlink(missing_ok=True)
            _remove_empty(found.parent, folder)


def _remove_empty(path: Path, above: Path) -> None:
    while path != above:
        try:
            path.rmdir()
        except OSError:  # something else is in it
            return
        path = path.parent


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
    replace_file(path, content, mode=mode)


def _link(path: Path, target: str) -> None:
    if path.is_symlink() and os.readlink(path) == target:  # noqa: PTH115 - Path.readlink would normalise the target
        return
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(path)
