"""Find libraries and programs below a driver root: NVML, nvidia-smi, the MPS programs and, for CDI, libcuda.

Nothing is cached, because a driver may be replaced at any time. Directories: those of NVIDIA's container toolkit
(``pkg/lookup/library.go``), one for each system that installs elsewhere (docs/driver-roots.md), then
``/etc/ld.so.cache`` of glibc >= 2.2 (glibc ``sysdeps/generic/dl-cache.h``); a damaged cache has no entries.
"""

import os
import stat
import struct
from collections.abc import Callable, Iterator
from typing import Final

from dra_driver.core.errors import CommandError, DriverUnavailableError
from dra_driver.hardware.driver_root.root import resolve

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


NVML: Final = "libnvidia-ml.so.1"
CUDA: Final = "libcuda.so.1"
WSL_FOLDER: Final = "/usr/lib/wsl"
_CACHE: Final = "/etc/ld.so.cache"


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


OWN_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"


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
