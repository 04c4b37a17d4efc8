"""A ``/dev`` as this process sees it: what is at a path, and the changes that are made there.

Links are never followed on the way to a change.
"""

import errno
import os
import stat
from enum import StrEnum
from typing import Final, Protocol

from msgspec import Struct

from dra_driver.hardware.device_nodes.numbers import NodeNumbers, char_link

_MAX_LINKS: Final = 4


class Found(StrEnum):
    MISSING = "missing"
    DEVICE = "character device"
    LINK = "symbolic link"
    OTHER = "file of another kind"


class Seen(Struct, frozen=True, kw_only=True):
    """One path at one moment; ``numbers``, ``mode``, ``uid`` and ``gid`` are a character device's."""

    found: Found
    numbers: NodeNumbers | None = None
    mode: int = 0
    uid: int = 0
    gid: int = 0


Stamp = tuple[int, int, int] | None
"""Inode, mode and numbers of what is at a path, by which a change is noticed; None while nothing can be seen there."""


class LinkState(StrEnum):
    RIGHT = "right"
    MISSING = "missing"
    WRONG = "wrong"
    FOREIGN = "foreign"
    """No link is there, but a file of another kind."""
    UNSEEN = "unseen"
    """It leads out of ``/dev``, as the GPU operator's do; this process may see other files there than the host."""


class DevFolder(Protocol):
    """A ``/dev``. Paths are those of the host (``/dev/nvidia0``). Raises OSError."""

    def stamp(self, path: str) -> Stamp: ...
    def look(self, path: str) -> Seen: ...
    def read_link(self, path: str) -> str | None: ...
    def make_node(self, path: str, numbers: NodeNumbers, *, mode: int, uid: int, gid: int, replace: bool) -> None: ...
    def make_link(self, path: str, target: str) -> None: ...
    def make_folder(self, path: str) -> None: ...


class RealDev:
    """The ``/dev`` that this process sees at ``folder``. Stateless."""

    def __init__(self, folder: str = "/dev") -> None:
        self._folder = folder.rstrip("/")

    def stamp(self, path: str) -> Stamp:
        """A short form of `look` for every prepare: one system call, and no error."""
        try:
            status = os.lstat(self._here(path))
        except OSError:
            return None
        return status.st_ino, status.st_mode, status.st_rdev

    def look(self, path: str) -> Seen:
        """What is there; a symbolic link is not followed. Raises OSError for anything but a missing file."""
        try:
            status = os.lstat(self._here(path))
        except (FileNotFoundError, NotADirectoryError):
            return Seen(found=Found.MISSING)
        if stat.S_ISLNK(status.st_mode):
            return Seen(found=Found.LINK)
        if not stat.S_ISCHR(status.st_mode):
            return Seen(found=Found.OTHER)
        return Seen(
            found=Found.DEVICE,
            numbers=NodeNumbers(major=os.major(status.st_rdev), minor=os.minor(status.st_rdev)),
            mode=stat.S_IMODE(status.st_mode),
            uid=status.st_uid,
            gid=status.st_gid,
        )

    def read_link(self, path: str) -> str | None:
        """What the symbolic link holds; None when there is no link."""
        try:
            return os.readlink(self._here(path))  # noqa: PTH115 - Path would normalise it
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            raise

    def make_node(self, path: str, numbers: NodeNumbers, *, mode: int, uid: int, gid: int, replace: bool) -> None:
        """Make the character device, for root alone until it has its owner and mode. FileExistsError for an existing
        file, unless ``replace``. Under its own name, not by a rename: SELinux labels nodes by that name."""
        here = self._here(path)
        if replace:
            os.unlink(here)  # noqa: PTH108
        os.mknod(here, stat.S_IFCHR | 0o600, os.makedev(numbers.major, numbers.minor))
        try:
            os.chown(here, uid, gid, follow_symlinks=False)
            os.chmod(here, mode)  # noqa: PTH101 - after chown, which may clear bits
        except OSError:
            os.unlink(here)  # noqa: PTH108
            raise

    def make_link(self, path: str, target: str) -> None:
        """Make the symbolic link, in place of what is there, by a rename.

        A process that dies meanwhile leaves a link ``.<name>.<pid>-<number>``.
        """
        new = self._temporary(path)
        os.symlink(target, new)  # noqa: PTH211
        try:
            os.rename(new, self._here(path))  # noqa: PTH104
        except BaseException:
            os.unlink(new)  # noqa: PTH108
            raise

    def make_folder(self, path: str) -> None:
        """Make the folder with mode 0755 unless it exists. Raises FileExistsError for anything but a folder."""
        here = self._here(path)
        try:
            os.mkdir(here, 0o755)  # noqa: PTH102
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(here).st_mode):
                raise
        else:
            os.chmod(here, 0o755)  # noqa: PTH101, S103 - as nvidia-modprobe, whatever the umask

    def _here(self, path: str) -> str:
        return self._folder + path.removeprefix("/dev")

    def _temporary(self, path: str) -> str:
        folder, _, name = self._here(path).rpartition("/")
        return f"{folder}/.{name}.{os.getpid()}-{os.urandom(4).hex()}"


def link_state(dev: DevFolder, numbers: NodeNumbers) -> LinkState:
    """Whether ``/dev/char/<major>:<minor>`` leads to a node with these numbers. Raises OSError."""
    path = char_link(numbers)
    seen = dev.look(path)
    if seen.found is Found.MISSING:
        return LinkState.MISSING
    if seen.found is not Found.LINK:
        return LinkState.RIGHT if seen.numbers == numbers else LinkState.FOREIGN
    end = _follow(dev, path)
    if end is None:
        return LinkState.UNSEEN
    return LinkState.RIGHT if dev.look(end).numbers == numbers else LinkState.WRONG


def link_end(dev: DevFolder, path: str) -> NodeNumbers | None:
    """The numbers of the device to which a symbolic link in ``/dev`` leads, None for anything else. Raises OSError."""
    end = _follow(dev, path)
    return None if end is None else dev.look(end).numbers


def _follow(dev: DevFolder, path: str) -> str | None:
    """Where the links at ``path`` end; None outside of ``/dev``."""
    for _ in range(_MAX_LINKS):
        target = dev.read_link(path)
        if target is None:
            break
        path = os.path.normpath(target if target.startswith("/") else f"{path.rpartition('/')[0]}/{target}")
        if not path.startswith("/dev/"):
            return None
    return path
