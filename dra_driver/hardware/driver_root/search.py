"""Find a library or a program below a driver root: NVML, nvidia-smi, the MPS programs and, for CDI, libcuda.

Links are followed as if the root were ``/``: in a driver container or behind a host mount, an absolute link points into
the root and not into this process' file system. Nothing is cached, because a driver may be replaced at any time.
"""

import os
import stat
from collections.abc import Iterator
from typing import Final

from dra_driver.hardware.driver_root import ldcache
from dra_driver.hardware.driver_root.folders import LIBRARY_FOLDERS, PROGRAM_FOLDERS
from dra_driver.hardware.driver_root.root import resolve

NVML: Final = "libnvidia-ml.so.1"
CUDA: Final = "libcuda.so.1"
WSL_FOLDER: Final = "/usr/lib/wsl"
_CACHE: Final = "/etc/ld.so.cache"


def find_library(driver_root: str, name: str = NVML) -> str | None:
    """Full path, links followed, of the library ``name`` below ``driver_root``; None when there is none.

    The file's own name ends in the driver version, so after a driver upgrade the path differs and the dynamic linker
    loads the new library and does not reuse the one that it loaded under the old name. An unreadable folder counts as
    missing.
    """
    root = driver_root.rstrip("/")
    for inside in (f"{folder.rstrip('/')}/{name}" for folder in LIBRARY_FOLDERS):
        if found := _file(root, inside):
            return root + found
    try:
        return next((root + found for path in cached_libraries(root, {name}) if (found := _file(root, path))), None)
    except OSError:
        return None


def find_program(driver_root: str, name: str) -> str | None:
    """Full path, links followed, of the program below ``driver_root``; None without an executable file."""
    root = driver_root.rstrip("/")
    for folder in PROGRAM_FOLDERS:
        found = _file(root, f"{folder}/{name}")
        if found and os.access(root + found, os.X_OK):
            return root + found
    return None


def cached_libraries(root: str, names: set[str]) -> Iterator[str]:
    """Inside paths that the root's linker cache has for ``names``, links not followed. Raises OSError.

    Libraries of WSL are left out: they talk to Windows' driver through /dev/dxg and know no device nodes.
    """
    cache = resolve(root, _CACHE)
    data = ldcache.read_cache(root + cache) if cache else b""
    for name, path in ldcache.entries(data):
        if name in names and not path.startswith(f"{WSL_FOLDER}/"):
            yield path


def _file(root: str, inside: str) -> str | None:
    """The inside path of a regular file, links followed, or None."""
    try:
        found = resolve(root, inside)
        return found if found and stat.S_ISREG(os.lstat(root + found).st_mode) else None
    except OSError:
        return None
