"""Find the driver root of a node, and libraries and programs below a root: NVML, nvidia-smi, MPS programs, libcuda.

Nothing below a root is cached, because a driver may be replaced at any time. Directories: the same as NVIDIA's
container toolkit (``pkg/lookup/library.go``), one per system with another location (docs/driver-roots.md), then
``/etc/ld.so.cache`` of glibc >= 2.2 (glibc ``sysdeps/generic/dl-cache.h``); a damaged cache has no entries. Roots:
NVIDIA/gpu-operator, ``cmd/nvidia-validator/driver.go``, also distinguishes a driver of the host and one of a driver
container.
"""

import logging
import os
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Final

from dra_driver.core.errors import CommandError, DriverUnavailableError
from dra_driver.core.files import read_start
from dra_driver.hardware.driver_root.root import DriverRoot, resolve

log = logging.getLogger(__name__)

TRIPLETS: Final = ("x86_64-linux-gnu", "aarch64-linux-gnu")
"""Debian's folder name of each machine that NVIDIA has Linux drivers for."""

LIBRARY_FOLDERS: Final = (
    "/usr/lib64",
    *(f"/usr/lib/{triplet}{sub}" for triplet in TRIPLETS for sub in ("", "/nvidia/current")),
    "/lib64",
    *(f"/lib/{triplet}{sub}" for triplet in TRIPLETS for sub in ("", "/nvidia/current")),
    "/usr/lib",  # Bottlerocket
    "/usr/lib/nvidia/tesla",  # Bottlerocket with R570 and older
    "/usr/local/lib",  # Talos
    "/usr/local/glibc/usr/lib",  # Talos before 1.13
    "/opt/nvidia/current/usr/lib64",  # Flatcar's nvidia.service
    "/run/opengl-driver/lib",  # NixOS
    "/",
)
"""Folders below a driver root that are searched for libraries; the linker's cache comes after them."""

PROGRAM_FOLDERS: Final = (
    "/opt/bin",  # Flatcar's nvidia.service
    "/usr/bin",
    "/usr/sbin",
    "/bin",
    "/sbin",
    "/usr/local/bin",  # Talos
    "/usr/local/sbin",
    "/usr/libexec/nvidia/tesla/bin",  # Bottlerocket before the programs moved to /usr/bin
    "/run/current-system/sw/bin",  # NixOS
)
"""Folders below a driver root that are searched for programs."""

SEARCHED_BY_CONTAINERS: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""The usual PATH of images: a program in another folder is mounted in /usr/bin."""

NVML: Final = "libnvidia-ml.so.1"
CUDA: Final = "libcuda.so.1"
WSL_FOLDER: Final = "/usr/lib/wsl"
_CACHE: Final = "/etc/ld.so.cache"
OWN_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"

CANDIDATES: Final = ("/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia")
"""Driver roots on hosts: a package or image of the host, a driver container, Google's Container-Optimized OS."""
_TEGRA_FILES: Final = ("/etc/nv_tegra_release", "/sys/devices/soc0/family")

RootSource = Callable[[], DriverRoot]
"""Returns the current driver root. Raises DriverUnavailableError without one."""

_OLD_MAGIC = b"ld.so-1.7.0"
_NEW_MAGIC = b"glibc-ld.so.cache1.1"
_OLD_HEADER, _OLD_ENTRY = 16, 12
_NEW_HEADER = 48
_ENTRY = struct.Struct("<iIIIQ")
_LIB64 = (0x0300, 0x0A00)  # x86-64 and aarch64
_MAX_BYTES = 16 * 1024 * 1024  # a large desktop's cache is below 1 MiB
_MAX_STRING = 4096  # PATH_MAX


def read_cache(path: str) -> bytes:
    """The cache's bytes, empty when it is missing, larger than 16 MiB or not a file. Raises other OSErrors."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(file.fileno())
        is_sane = stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES
        return file.read(_MAX_BYTES) if is_sane else b""


def cache_entries(data: bytes) -> Iterator[tuple[str, str]]:
    """``(library name, path)`` of the 64-bit x86 and ARM libraries in ``data``, in the cache's order."""
    base = _new_format_offset(data)
    if data[base : base + len(_NEW_MAGIC)] != _NEW_MAGIC or len(data) < base + _NEW_HEADER:
        return
    (count,) = struct.unpack_from("<I", data, base + len(_NEW_MAGIC))
    count = min(count, (len(data) - base - _NEW_HEADER) // _ENTRY.size)
    for i in range(count):
        flags, key, value, _, _ = _ENTRY.unpack_from(data, base + _NEW_HEADER + i * _ENTRY.size)
        name, path = _cache_string(data, base + key), _cache_string(data, base + value)
        if flags & 0xFF00 in _LIB64 and name and path.startswith("/"):
            yield name, path


def _new_format_offset(data: bytes) -> int:
    """0, or after the old format (aligned to 8 bytes)."""
    if not data.startswith(_OLD_MAGIC) or len(data) < _OLD_HEADER:
        return 0
    (count,) = struct.unpack_from("<I", data, 12)
    end: int = _OLD_HEADER + _OLD_ENTRY * count
    return end + -end % 8


def _cache_string(data: bytes, start: int) -> str:
    """The NUL-terminated string at ``start``, "" when it does not end within bounds or is not ASCII."""
    end = data.find(b"\0", start, start + _MAX_STRING)
    raw = data[start:end] if end >= 0 else b""
    return raw.decode("ascii", "ignore") if raw.isascii() else ""


def find_library(driver_root: str, name: str = NVML) -> str | None:
    """Full path, links followed, of the library ``name`` below ``driver_root``; None without one. The file's name ends
    in the driver version, so the dynamic linker loads a new library after an upgrade."""
    root = driver_root.rstrip("/")
    for inside in (f"{folder.rstrip('/')}/{name}" for folder in LIBRARY_FOLDERS):
        if found := _file(root, inside):
            return root + found
    try:
        return next((root + found for path in cached_libraries(root, {name}) if (found := _file(root, path))), None)
    except OSError:
        return None


def find_program(driver_root: str, name: str) -> str | None:
    """Full path, links followed, of an executable file below ``driver_root``; None without one."""
    root = driver_root.rstrip("/")
    for folder in PROGRAM_FOLDERS:
        found = _file(root, f"{folder}/{name}")
        if found and os.access(root + found, os.X_OK):
            return root + found
    return None


def root_of(given: str | Callable[[], str], name: str) -> str:
    """The driver's root, from a path or a function that finds it. Raises CommandError for the program ``name``."""
    try:
        return given if isinstance(given, str) else given()
    except DriverUnavailableError as error:
        raise CommandError(f"{name} cannot be found: {error}") from error


def require_program(root: str, name: str, package: str) -> str:
    """As `find_program`. Raises CommandError that names the ``package`` to install."""
    found = find_program(root, name)
    if found is None:
        raise CommandError(
            f"{name} is not below {root} (looked in {', '.join(PROGRAM_FOLDERS)}): install the driver's {package} on"
            " the node, or set --driver-root (DRIVER_ROOT) to where this process sees the driver's root"
        )
    return found


def cached_libraries(root: str, names: set[str]) -> Iterator[str]:
    """Inside paths of ``names`` in the root's linker cache, without WSL's, which use no nodes. Raises OSError."""
    cache = resolve(root, _CACHE)
    data = read_cache(root + cache) if cache else b""
    for name, path in cache_entries(data):
        if name in names and not path.startswith(f"{WSL_FOLDER}/"):
            yield path


def _file(root: str, inside: str) -> str | None:
    """The inside path of a regular file, links followed, or None."""
    try:
        found = resolve(root, inside)
        return found if found and stat.S_ISREG(os.lstat(root + found).st_mode) else None
    except OSError:
        return None


def inside(root: str, path: str) -> str:
    """The path as a process with the root ``root`` sees it."""
    return "/" + os.path.relpath(path, root)


def has_shell(root: str) -> bool:
    """Return whether ``root`` is a whole system in which programs can run, not only the driver's files."""
    found = _file(root.rstrip("/"), "/bin/sh")
    return found is not None and os.access(root.rstrip("/") + found, os.X_OK)


def search_path(root: str) -> str:
    """``PATH`` with the root's directories first, so that the driver's programs find each other."""
    if is_own(root):
        return OWN_PATH
    return ":".join([*(root.rstrip("/") + folder for folder in PROGRAM_FOLDERS), OWN_PATH])


def is_own(root: str) -> bool:
    return root in ("", "/")


class Detector:
    """Finds the driver root of a host whose ``/`` this process sees at ``host_root``: the first candidate with NVML, as
    other files may come later. Thread-safe. ``dev_root`` and ``host_dev_root`` replace the parent of the device nodes:
    the driver root if it has a ``dev`` directory, else ``/``."""

    def __init__(self, host_root: str, *, dev_root: str = "", host_dev_root: str = "") -> None:
        self._host_root = host_root.rstrip("/")
        self._dev_root = dev_root
        self._host_dev_root = host_dev_root
        self._lock = threading.Lock()  # guards _found
        self._found: str | None = None

    def current(self) -> DriverRoot:
        """The driver root; the last one while NVML is below it. Raises `DriverUnavailableError`."""
        with self._lock:
            previous = [self._found] if self._found is not None else []
            for candidate in dict.fromkeys((*previous, *CANDIDATES)):
                is_refused = candidate == "/" and unsupported(self._host_root) is not None
                if not is_refused and find_library(self._host_root + candidate, NVML):
                    self._report(candidate)
                    return self._located(candidate)
        raise DriverUnavailableError(
            unsupported(self._host_root)
            or f"no {NVML} below {', '.join(self._host_root + candidate for candidate in CANDIDATES)}: install the"
            " NVIDIA driver, wait for the driver container, or set --driver-root (DRIVER_ROOT) to the driver's folder"
        )

    def _report(self, candidate: str) -> None:
        if candidate != self._found:
            log.info("driver root found", extra={"root": candidate, "seen_at": self._host_root + candidate})
        self._found = candidate

    def _located(self, candidate: str) -> DriverRoot:
        # A link at the candidate's place is followed as the host does.
        inside = resolve(self._host_root, candidate) or candidate
        root = self._host_root + ("" if inside == "/" else inside)
        has_dev = os.path.isdir(f"{root}/dev")  # noqa: PTH112 - an empty root is this process' own
        return DriverRoot(
            root=root or "/",
            host_root=inside,
            dev_root=self._dev_root or (root if has_dev else self._host_root) or "/",
            host_dev_root=self._host_dev_root or ("" if self._dev_root else inside if has_dev else "/"),
        )


def unsupported(root: str) -> str | None:
    """Return why the driver below ``root`` cannot serve that system, with the next step; None if it can.

    Sources: NVIDIA/nvidia-container-toolkit d34b3046, ``pkg/nvcdi/lib-wsl.go`` (WSL); go-nvlib,
    ``pkg/nvlib/info/property-extractor.go`` (Tegra).
    """
    root = root.rstrip("/")
    if os.path.exists(f"{root}{WSL_FOLDER}/lib") or os.path.exists(f"{root}/dev/dxg"):  # noqa: PTH110
        return (
            "this node is a Windows Subsystem for Linux (WSL2): its GPU is Windows' and has no device nodes that can be"
            " given to containers one by one; use NVIDIA's device plugin with the CDI mode wsl of the NVIDIA Container"
            " Toolkit, or a node with Linux on the machine itself"
        )
    # The kernel has the module of discrete GPUs there: integrated GPUs are driven by nvgpu.
    has_discrete_driver = os.path.isdir(f"{root}/proc/driver/nvidia/gpus")  # noqa: PTH112
    if _is_tegra(root) and not has_discrete_driver:
        return (
            "this node is a Tegra system (Jetson, IGX): its integrated GPU belongs to the board's own software (L4T),"
            " and a driver for data-center GPUs does not work with it; use NVIDIA's device plugin with the CDI mode csv"
            " of the NVIDIA Container Toolkit"
        )
    return None


def _is_tegra(root: str) -> bool:
    release, family = (root + path for path in _TEGRA_FILES)
    if os.path.isfile(release):  # noqa: PTH113
        return True
    return (read_start(family, 64) or "").lower().startswith("tegra")
