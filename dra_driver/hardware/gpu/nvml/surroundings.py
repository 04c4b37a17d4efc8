"""What an NVML session depends on and does not notice: which GPUs are bound to the driver, and which driver it is.

NVML counts and numbers the GPUs once per session; NVIDIA's own DCGM ends and begins its session at every bind and
unbind (DCGM, DcgmHostEngineHandler.cpp). A GPU that is unbound even waits for our session to end: its link below
/sys/bus/pci/drivers/nvidia is gone at once (Linux, drivers/base/dd.c), and the kernel module waits until the GPU's use
count is 0 (open-gpu-kernel-modules, kernel-open/nvidia/nv-pci.c).

A library that was replaced under a session keeps working as it is mapped. The new one works only with a kernel module
of its own release, so the session goes on until that is loaded.
"""

import os
import re
from pathlib import Path
from typing import Self

from msgspec import Struct

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_RELEASE = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)*)$")
_MAX_VERSION = 64


class Surroundings(Struct, frozen=True, kw_only=True):
    """One look.

    ``bound`` are address and inode of each link in the driver's folder (a GPU that was bound again has a new inode),
    None where sysfs cannot be read. ``library`` is the stamp of the library's file and ``release`` the version in its
    name; ``module`` the version of the loaded kernel module. Unknown ones are None.
    """

    bound: frozenset[tuple[str, int]] | None = None
    library: tuple[int, int, int, int] | None = None
    release: str | None = None
    module: str | None = None

    @classmethod
    def read(cls, sysfs_root: str, library_path: str | None) -> Self:
        """Look now. Never raises."""
        return cls(
            bound=_bound(sysfs_root),
            library=_stamp(library_path),
            release=_release(library_path),
            module=_text(Path(sysfs_root, "module/nvidia/version")),
        )

    def outdated(self, now: "Surroundings") -> str | None:
        """Why a session that began in these is outdated, and a new one would work; None while neither is known."""
        if now.bound is not None and now.bound != self.bound:
            came = sorted({address for address, _ in now.bound - (self.bound or frozenset())})
            gone = sorted({address for address, _ in (self.bound or frozenset()) - now.bound})
            return f"GPUs were bound ({', '.join(came) or 'none'}) or unbound ({', '.join(gone) or 'none'})"
        if now.module is not None and self.module is not None and now.module != self.module:
            return f"the kernel module is now {now.module}, it was {self.module}"
        if self.replaced(now) and now.release is not None and now.release == now.module:
            return f"the driver's library was replaced by {now.release}"
        return None

    def replaced(self, now: "Surroundings") -> bool:
        """Whether the library's file is another one."""
        return self.library is not None and now.library is not None and now.library != self.library


def _bound(sysfs_root: str) -> frozenset[tuple[str, int]] | None:
    try:
        with os.scandir(f"{sysfs_root}/bus/pci/drivers/nvidia") as entries:
            return frozenset((entry.name, entry.inode()) for entry in entries if _ADDRESS.fullmatch(entry.name))
    except OSError:
        return None


def _stamp(path: str | None) -> tuple[int, int, int, int] | None:
    if path is None:
        return None
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _release(path: str | None) -> str | None:
    """``580.65.06`` of ``libnvidia-ml.so.580.65.06``, to which the path leads."""
    if path is None:
        return None
    found = _RELEASE.search(os.path.realpath(path))
    return found[1] if found else None


def _text(path: Path) -> str | None:
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            return file.read(_MAX_VERSION).strip() or None
    except OSError:
        return None
