"""Mount and unmount small file systems in memory, with bounds on bytes and files.

These are raw system calls through the C library, as in ``namespace.py``. What is mounted is read from
``/proc/self/mountinfo`` (proc_pid_mountinfo(5)).
"""

import ctypes
import errno
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from dra_driver.hardware.sharing.selinux import container_label

log = logging.getLogger(__name__)

SOURCE: Final = "dra-driver-mps"
"""What mountinfo shows as the source of this driver's file systems."""

# linux/mount.h
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MNT_DETACH = 2, 4, 8, 2
_FLAGS: Final = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


class TmpfsBounds(Struct, frozen=True, kw_only=True):
    """The most that one file system holds: ``size_bytes`` in ``files`` files, folders and links."""

    size_bytes: int
    files: int


class Mounted(Struct, frozen=True, kw_only=True):
    """What is mounted at a path: the type and source of the file system."""

    kind: str
    source: str

    @property
    def is_own(self) -> bool:
        """Whether this driver mounted it."""
        return (self.kind, self.source) == ("tmpfs", SOURCE)


class Mounts(Protocol):
    """The mounts of this process' namespace. Methods raise OSError."""

    def at(self, path: Path) -> Mounted | None:
        """What is mounted at exactly this path, None without a mount."""

    def is_shared(self, path: Path) -> bool:
        """Whether what is mounted below the folder appears in other mount namespaces, the host's among them."""

    def mount(self, path: Path, limits: TmpfsBounds) -> None:
        """Mount an empty tmpfs on the folder, which only root can list."""

    def unmount(self, path: Path) -> None:
        """Unmount what is at the path. Containers that have a part of it mounted keep that."""


class SystemMounts:
    """Mounts of the kernel. Needs CAP_SYS_ADMIN. ``label`` gives the SELinux label of all files, None without."""

    def __init__(self, label: Callable[[], str | None] = container_label) -> None:
        self._label = label

    def at(self, path: Path) -> Mounted | None:
        found = None
        for place, _, system in _mountinfo():
            if place == path:
                kind, source, _ = system.split(" ", 2)
                found = Mounted(kind=kind, source=_unescaped(source))  # the last one covers the others
        return found

    def is_shared(self, path: Path) -> bool:
        holding = [(len(place.parts), fields) for place, fields, _ in _mountinfo() if path.is_relative_to(place)]
        depth = max((depth for depth, _ in holding), default=0)
        last = next((fields for found, fields in reversed(holding) if found == depth), [])
        return any(field.startswith("shared:") for field in last)

    def mount(self, path: Path, limits: TmpfsBounds) -> None:
        # 0711: any user reaches the folders in it, whose names are known.
        options = f"mode=0711,size={limits.size_bytes},nr_inodes={limits.files}"
        label = self._label()
        try:
            _mount(path, options if label is None else f"{options},context={label}")
        except OSError as error:
            if label is None or error.errno != errno.EINVAL:
                raise
            log.warning("SELinux policy does not know the type of container files", extra={"label": label})
            _mount(path, options)

    def unmount(self, path: Path) -> None:
        try:
            _call(_libc().umount2(os.fsencode(path), 0), f"unmount {path}")
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            _call(_libc().umount2(os.fsencode(path), _MNT_DETACH), f"unmount {path}")


def own_mounts() -> tuple[Path, ...]:
    """Where this driver's file systems are mounted, as this process sees it."""
    return tuple(place for place, _, system in _mountinfo() if system.split(" ")[:2] == ["tmpfs", SOURCE])


def _mountinfo() -> Iterator[tuple[Path, list[str], str]]:
    """For each mount in order: its path, its optional fields, and type, source and options of its file system."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - small
        for line in file:
            mount, _, system = line.partition(" - ")
            fields = mount.split(" ")
            yield Path(_unescaped(fields[4])), fields[6:], system


def _mount(path: Path, options: str) -> None:
    result = _libc().mount(SOURCE.encode(), os.fsencode(path), b"tmpfs", ctypes.c_ulong(_FLAGS), options.encode())
    _call(result, f"mount {path}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
