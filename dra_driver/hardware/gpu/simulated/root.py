"""Write the driver root of simulated GPUs: the files that CDI discovery finds and that containers see.

It has empty libraries with NVIDIA's names and SONAMEs, ``proc/devices``, the MIG capability files below ``proc/driver``
(numbered in fixed steps: NVIDIA's MIG user guide, "Device Nodes and Capabilities"), and programs, described at the head
of each script. Needs no privilege and creates no device nodes: the container runtime does.
"""

import functools
import os
import platform
import re
import shlex
import struct
from collections.abc import Iterator
from pathlib import Path

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.files import replace_file
from dra_driver.core.model.gpu import Gpu, Snapshot

MACHINES = {"x86_64": 62, "aarch64": 183}  # EM_X86_64, EM_AARCH64
HEADER_SIZE, PROGRAM_HEADER_SIZE = 64, 56
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
READ_WRITE = 6
PAGE = 0x10000  # arm64 kernels may use pages of 64 KiB
DT_NULL, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_SONAME = 0, 4, 5, 6, 10, 11, 14
SYMBOL_SIZE = 24


def shared_object(soname: str, machine: str) -> bytes:
    """A library whose DT_SONAME is ``soname`` for ``machine`` (``x86_64`` or ``aarch64``; KeyError otherwise)."""
    hash_table = struct.pack("<4I", 1, 1, 0, 0)  # one bucket and one chain: the null symbol
    symbols = bytes(SYMBOL_SIZE)
    strings = b"\0" + soname.encode("ascii") + b"\0"
    hash_at = HEADER_SIZE + 3 * PROGRAM_HEADER_SIZE
    symbols_at = hash_at + len(hash_table)
    strings_at = symbols_at + len(symbols)
    dynamic_at = (strings_at + len(strings) + 7) // 8 * 8
    entries = (
        (DT_SONAME, 1),
        (DT_HASH, hash_at),
        (DT_STRTAB, strings_at),
        (DT_SYMTAB, symbols_at),
        (DT_STRSZ, len(strings)),
        (DT_SYMENT, SYMBOL_SIZE),
        (DT_NULL, 0),
    )
    dynamic = b"".join(struct.pack("<qQ", tag, value) for tag, value in entries)
    size = dynamic_at + len(dynamic)
    head = (
        _header(MACHINES[machine])
        + _segment(PT_LOAD, 0, size, PAGE)
        + _segment(PT_DYNAMIC, dynamic_at, len(dynamic), 8)
        + _segment(PT_GNU_STACK, 0, 0, 16)
    )
    body = head + hash_table + symbols + strings
    return body + bytes(dynamic_at - len(body)) + dynamic


def _header(machine: int) -> bytes:
    ident = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)  # 64 bits, little-endian, version 1, System V
    et_dyn = 3
    return ident + struct.pack("<HHIQQQIHHHHHH", et_dyn, machine, 1, 0, HEADER_SIZE, 0, 0, HEADER_SIZE, 56, 3, 64, 0, 0)


def _segment(kind: int, offset: int, size: int, align: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, READ_WRITE, offset, offset, offset, size, size, align)


CONFIG, MONITOR, FIRST = 1, 2, 3
GPU_INSTANCES, COMPUTE_INSTANCES = 15, 8  # numbers reserved per GPU and per GPU instance
STEP = 1 + COMPUTE_INSTANCES
FOLDER = "proc/driver/nvidia/capabilities"
MINORS = "proc/driver/nvidia-caps/mig-minors"


def instance_minor(gpu_minor: int, gi_id: int, ci_id: int | None = None) -> int:
    minor = FIRST + gpu_minor * GPU_INSTANCES * STEP + gi_id * STEP
    return minor if ci_id is None else minor + 1 + ci_id


def access_files(snapshot: Snapshot) -> dict[str, bytes]:
    """Content by path below the root, for all instances that exist; {} for a node without MIG."""
    capable = [gpu for gpu in snapshot.gpus if gpu.mig_capable]
    if not capable:
        return {}
    files = {f"{FOLDER}/mig/config": _access(CONFIG, 0o400), f"{FOLDER}/mig/monitor": _access(MONITOR, 0o444)}
    for gpu in capable:
        files |= {f"{FOLDER}/gpu{gpu.minor}/mig/{name}/access": _access(n, 0o444) for name, n in _instance_files(gpu)}
    return files


@functools.lru_cache(maxsize=4)  # 3 ms for 64 GPUs, at every change of an instance
def _minors(gpu_minors: tuple[int, ...]) -> bytes:
    """All minor numbers that instances of these GPUs can have."""
    lines = [f"config {CONFIG}", f"monitor {MONITOR}"]
    for gpu in gpu_minors:
        for gi in range(GPU_INSTANCES):
            lines.append(f"gpu{gpu}/gi{gi}/access {instance_minor(gpu, gi)}")
            lines += [f"gpu{gpu}/gi{gi}/ci{ci}/access {instance_minor(gpu, gi, ci)}" for ci in range(COMPUTE_INSTANCES)]
    return "".join(f"{line}\n" for line in lines).encode()


def _instance_files(gpu: Gpu) -> Iterator[tuple[str, int]]:
    for instance in gpu.mig_instances:
        yield f"gi{instance.gi_id}", instance_minor(gpu.minor, instance.gi_id)
        for compute in instance.compute:
            name = f"gi{instance.gi_id}/ci{compute.ci_id}"
            yield name, instance_minor(gpu.minor, instance.gi_id, compute.ci_id)


def _access(minor: int, mode: int) -> bytes:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n".encode()


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

# Library -> number of its SONAME, for a compute container (capabilities "utility" and "compute").
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
# 195 is NVIDIA's registered major (Documentation/admin-guide/devices.txt). The kernel assigns further majors
# dynamically, downwards from 254 and then from 511; these values are common.
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
    """Make ``root`` the driver root of ``snapshot``. Idempotent; correct files are not touched, others replaced by a
    rename, obsolete ones removed last, records over 1 MiB rotated. One writer at a time, see ``announce``. Raises
    ConfigurationError without a driver version or on an unknown machine, and StorageError."""
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
        raise StorageError(
            f"cannot write the simulated driver root {root}: {error}", reason="RootNotWritable"
        ) from error


def _proc_devices(root: Path) -> str:
    missing = (root / UVM_MISSING).exists()
    return "".join(line for line in PROC_DEVICES.splitlines(True) if not (missing and "nvidia-uvm" in line))


def smi_script(snapshot: Snapshot) -> str:
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
            numbers = " ".join(str(instance_minor(gpu.minor, *node)) for node in nodes)
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
    files = access_files(snapshot)
    for path, content in files.items():
        _put(root / path, content, 0o444)
    if capable := tuple(gpu.minor for gpu in snapshot.gpus if gpu.mig_capable):
        _put(root / MINORS, _minors(capable), 0o444)
    else:
        (root / MINORS).unlink(missing_ok=True)
    folder = root / FOLDER
    # The kernel module keeps the files of a GPU that does not answer; they do not identify that GPU here.
    answering = {f"gpu{gpu.minor}" for gpu in snapshot.gpus} if snapshot.left_out else None
    for found in list(folder.glob("*/mig/**/access")):  # a list, as folders disappear during the loop
        may_go = answering is None or found.relative_to(folder).parts[0] in answering
        if may_go and found.relative_to(root).as_posix() not in files:
            found.unlink(missing_ok=True)
            _remove_empty(found.parent, folder)


def _remove_empty(path: Path, above: Path) -> None:
    while path != above:
        try:
            path.rmdir()
        except OSError:  # the directory has other entries
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
