"""The NVIDIA driver's root as this process and the container runtime see it, and links inside it.

A file has three paths: *inside* the root (``/usr/lib64/libcuda.so.580``, also its path in containers), *here* in this
process (``/driver-root/usr/...``), and on the *host*, from which the runtime mounts (``/run/nvidia/driver/usr/...``).
"""

import os
import stat
from pathlib import PurePosixPath

from msgspec import Struct
from msgspec.structs import force_setattr

from dra_driver.core.errors import ConfigurationError

_MAX_LINKS = 40  # the kernel's MAXSYMLINKS


class DriverRoot(Struct, frozen=True, kw_only=True):
    """A driver's directory and the parent of its ``/dev``: ``root`` and ``dev_root`` as this process sees them, the
    others as the runtime does, by default the same."""

    root: str = "/"
    host_root: str = ""
    dev_root: str = "/"
    host_dev_root: str = ""

    def __post_init__(self) -> None:
        root = self._normalise("root", self.root)
        host_root = self._normalise("host_root", self.host_root or root)
        dev_root = self._normalise("dev_root", self.dev_root)
        self._normalise("host_dev_root", self.host_dev_root or (host_root if dev_root == root else dev_root))

    def _normalise(self, name: str, given: str) -> str:
        path = str(given) or "/"
        if not path.startswith("/"):
            raise ConfigurationError(
                f"driver root: {name} {path!r} is not an absolute path such as '/run/nvidia/driver'",
                reason="PathRelative",
            )
        normal = str(PurePosixPath(path)).rstrip("/")
        force_setattr(self, name, normal)
        return normal

    @classmethod
    def locate(cls, root: str, *, host_root: str = "", dev_root: str = "", host_dev_root: str = "") -> "DriverRoot":
        """A root with its own device nodes if it has a ``dev`` directory, as in a driver container, else the host's."""
        if not dev_root and os.path.isdir(os.path.join(root, "dev")):  # noqa: PTH112, PTH118 - see resolve()
            dev_root, host_dev_root = root, host_dev_root or host_root
        return cls(root=root, host_root=host_root, dev_root=dev_root, host_dev_root=host_dev_root)

    @property
    def shows_host(self) -> bool:
        """Return whether ``root`` shows the host's ``/``, so that files of the host can be found below it."""
        return self.host_root == ""

    def here(self, inside: str) -> str:
        return self.root + inside

    def host(self, inside: str) -> str:
        return self.host_root + inside

    def dev_here(self, path: str) -> str:
        return self.dev_root + path

    def dev_host(self, path: str) -> str:
        return self.host_dev_root + path


def resolve(root: str, inside: str, known: dict[str, str] | None = None) -> str | None:
    """``inside`` with every symbolic link followed as if ``root`` were ``/``; None when missing. ``os.path.realpath``
    would follow an absolute link out of the driver root, a hostile one to any file of this process. ``known`` caches
    resolved directories. Raises OSError for anything but a missing file."""
    known = {} if known is None else known
    todo = [part for part in reversed(inside.split("/")) if part not in ("", ".")]
    done, links = "", 0
    while todo:
        part = todo.pop()
        if part == "..":
            done = done.rpartition("/")[0]  # ".." of the root stays in the root, as in a chroot
            continue
        path = f"{done}/{part}"
        if path in known:
            done = known[path]
            continue
        try:
            target = os.readlink(root + path) if stat.S_ISLNK(os.lstat(root + path).st_mode) else None  # noqa: PTH115
        except (FileNotFoundError, NotADirectoryError):
            return None
        if target is None:
            done = path
            if todo:
                known[path] = path
            continue
        links += 1
        if links > _MAX_LINKS:
            return None
        done = "" if target.startswith("/") else done
        todo.extend(part for part in reversed(target.split("/")) if part not in ("", "."))
    return done or "/"
