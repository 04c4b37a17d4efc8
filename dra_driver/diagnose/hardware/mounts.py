"""A private mount namespace that ends with a check's process, by raw system calls (in Python only from 3.12 on).

Sources: unshare(2), mount(2), mount_namespaces(7).
"""

import ctypes
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dra_driver.hardware.sharing.control import checked, libc

_CLONE_NEWNS: Final = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_PLAIN_NODES: Final = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}
"""Device nodes of every container."""


def enter() -> None:
    """Move this process into a new mount namespace. Raises PermissionError without CAP_SYS_ADMIN."""
    checked(libc.unshare(_CLONE_NEWNS), "unshare the mount namespace")
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)


def tmpfs(target: Path, size: str = "16m") -> None:
    """Mount an empty file system that allows device nodes at ``target``."""
    _mount("tmpfs", str(target), "tmpfs", 0, f"mode=755,size={size}")


def bind(source: str, target: Path) -> None:
    """Mount ``source``, a file or a directory with its submounts, at ``target``, which is created."""
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount(source, str(target), None, _MS_BIND | _MS_REC)


def plain_dev(folder: Path) -> None:
    """Create a ``/dev`` without hardware devices, as in every container, at ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    tmpfs(folder)
    for name, (major, minor) in _PLAIN_NODES.items():
        make_node(folder / name, major, minor)
    for name in ("shm", "pts"):
        (folder / name).mkdir()


def make_node(path: Path, major: int, minor: int) -> None:
    """Create a character device for all users. Raises PermissionError without CAP_MKNOD."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    path.chmod(0o666)


def hide(paths: Iterable[str]) -> list[str]:
    """Cover programs with an empty file that cannot be executed; return the existing ones."""
    found = [path for path in paths if Path(path).is_file()]
    for path in found:
        _mount("/dev/null", path, None, _MS_BIND)
    return found


def device_files(folder: Path) -> list[dict[str, object]]:
    """NVIDIA's nodes in and below a ``dev`` directory: path, numbers and permissions, in order of path."""
    found = []
    for path in sorted(folder.glob("nvidia*")) + sorted(folder.glob("nvidia-caps*/*")):
        try:
            status = path.lstat()
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode):
            numbers = {"major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)}
            owner = {"mode": oct(stat.S_IMODE(status.st_mode)), "uid": status.st_uid, "gid": status.st_gid}
            found.append({"path": "/dev/" + str(path.relative_to(folder)), **numbers, **owner})
    return found


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind)]
    result = libc.mount(*texts, ctypes.c_ulong(flags), None if data is None else data.encode())
    checked(result, f"mount {source or kind or ''} at {target}")
