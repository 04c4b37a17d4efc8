"""Read device nodes in a ``/dev``, and make a node and its link in ``/dev/char`` as the NVIDIA module's parameters
allow.

Links are never followed on the way to a change.
"""

import errno
import os
import re
import stat
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.hardware.device_nodes.numbers import CAPABILITIES, NodeNumbers, char_link, char_target

_MAX_LINKS: Final = 4
_CHAR: Final = "/dev/char"
_LIMIT: Final = 65536  # the file has some 60 short lines and the module's RegistryDwords
_LINE: Final = re.compile(r"^(\w{1,64}):[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
_NUMBER: Final = re.compile(r"\d{1,10}")
_MODIFY: Final = frozenset({"ModifyDeviceFiles", "DeviceFileModify"})
_LIMITS: Final = {"DeviceFileUID": 2**32 - 2, "DeviceFileGID": 2**32 - 2, "DeviceFileMode": 0o777}
_OTHERS: Final = 0o006


class Found(StrEnum):
    MISSING = "missing"
    DEVICE = "character device"
    LINK = "symbolic link"
    OTHER = "file of another kind"


class Seen(Struct, frozen=True, kw_only=True):
    """State of one path; fields after the first describe a character device."""

    found: Found
    numbers: NodeNumbers | None = None
    mode: int = 0
    uid: int = 0
    gid: int = 0


Stamp = tuple[int, int, int] | None
"""Return inode, mode and device numbers of a path, to detect a change; None while the path cannot be read."""


class LinkState(StrEnum):
    RIGHT = "right"
    MISSING = "missing"
    WRONG = "wrong"
    FOREIGN = "foreign"  # a file of another kind
    UNSEEN = "unseen"  # a link out of /dev, as the GPU operator's; the host may see other files there


class DevFolder:
    """The host's ``/dev``, mounted at ``folder``. Stateless. Paths are host paths (``/dev/nvidia0``).
    Raises OSError."""

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
        """The file at the path; a symbolic link is not followed. Raises OSError for anything but a missing file."""
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
        """The symbolic link's content; None without a link."""
        try:
            return os.readlink(self._here(path))  # noqa: PTH115 - Path would normalise it
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            raise

    def make_node(self, path: str, numbers: NodeNumbers, *, mode: int, uid: int, gid: int, replace: bool) -> None:
        """Make the character device, for root only until it has its owner and mode. FileExistsError for an existing
        file, unless ``replace``. Not by a rename: SELinux labels nodes by their name."""
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
        """Make the symbolic link by a rename. A process that dies before it leaves ``.<name>.<pid>-<number>``."""
        here = self._here(path)
        folder, _, name = here.rpartition("/")
        new = f"{folder}/.{name}.{os.getpid()}-{os.urandom(4).hex()}"
        os.symlink(target, new)  # noqa: PTH211
        try:
            os.rename(new, here)  # noqa: PTH104
        except BaseException:
            os.unlink(new)  # noqa: PTH108
            raise

    def make_folder(self, path: str) -> None:
        """Make the directory with mode 0755 unless it exists. FileExistsError for any other file."""
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


def link_state(dev: DevFolder, numbers: NodeNumbers) -> LinkState:
    """State of the link ``/dev/char/<major>:<minor>`` to a node with these numbers. Raises OSError."""
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
    """The numbers of the device to which a symbolic link in ``/dev`` leads; None for anything else. Raises OSError."""
    end = _follow(dev, path)
    return None if end is None else dev.look(end).numbers


def _follow(dev: DevFolder, path: str) -> str | None:
    """The end of the links at ``path``; None outside ``/dev``."""
    for _ in range(_MAX_LINKS):
        target = dev.read_link(path)
        if target is None:
            break
        path = os.path.normpath(target if target.startswith("/") else f"{path.rpartition('/')[0]}/{target}")
        if not path.startswith("/dev/"):
            return None
    return path


class NodeParams(Struct, frozen=True, kw_only=True):
    """Owner and mode of nodes. ``modify``: whether programs may change them; False with a ``problem``, because the
    administrator may have restricted them."""

    uid: int = 0
    gid: int = 0
    mode: int = 0o666
    modify: bool = True
    problem: str | None = None

    @property
    def open_to_all(self) -> bool:
        return self.mode & _OTHERS == _OTHERS


def params_path(proc_driver: str = "/proc/driver") -> str:
    return f"{proc_driver}/nvidia/params"


def read_params(path: str, *, mode: int = 0o666) -> NodeParams:
    """Parameters in ``nvidia/params`` or in a capability's ``access`` file; ``mode`` is the default. Never raises.

    Source: NVIDIA/nvidia-modprobe a9556df9, ``modprobe-utils/nvidia-modprobe-utils.c``
    (``init_device_file_parameters``): values are decimal, a missing file means the defaults, and any value but 1
    forbids programs to touch nodes. Options: ``NVreg_DeviceFileUID``, ``...GID``, ``...Mode`` and
    ``NVreg_ModifyDeviceFiles``.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - twice as fast as Path
            text = file.read(_LIMIT)
    except FileNotFoundError:
        return NodeParams(mode=mode)
    except OSError as error:
        return NodeParams(mode=mode, modify=False, problem=f"{path} cannot be read: {error.strerror}")
    params = parse_params(text, mode=mode)
    return params if params.problem is None else replace(params, problem=f"{path} {params.problem}")


def parse_params(text: str, *, mode: int = 0o666) -> NodeParams:
    """Parameters in the text; other lines are skipped. The last of repeated values counts."""
    values: dict[str, int] = {"DeviceFileMode": mode}
    modify, wrong = True, []
    for name, value in _LINE.findall(text):
        if name in _MODIFY:
            modify = value == "1"
            if value not in ("0", "1"):
                wrong.append(f"{name}: {value[:40]!r}")
        elif name in _LIMITS:
            if _NUMBER.fullmatch(value) and int(value) <= _LIMITS[name]:
                values[name] = int(value)
            else:
                wrong.append(f"{name}: {value[:40]!r}")
    problem = f"has {', '.join(wrong[:4])}, which is not understood" if wrong else None
    return NodeParams(
        uid=values.get("DeviceFileUID", 0),
        gid=values.get("DeviceFileGID", 0),
        mode=values["DeviceFileMode"],
        modify=modify and problem is None,
        problem=problem,
    )


class Ensured(Struct, frozen=True, kw_only=True):
    """The node's ``mode``, or why there is none: it is ``missing``, or ``refusal`` names a different file, which a
    container must not get."""

    mode: int | None = None
    missing: str | None = None
    refusal: str | None = None


def present_node(
    numbers: NodeNumbers, seen: Seen, params: NodeParams, behind: NodeNumbers | None = None
) -> Ensured | None:
    """The file in place of a node that should have ``numbers``; None if the node must be made. ``behind`` are the
    numbers at the end of a symbolic link."""
    if numbers in (seen.numbers, behind):
        return Ensured(mode=seen.mode if seen.numbers == numbers else params.mode)
    if seen.found is not Found.MISSING and (seen.found is not Found.DEVICE or seen.numbers is None):
        return Ensured(refusal=f"it is a {seen.found}")
    if params.modify:
        return None
    why = params.problem or "the NVIDIA module was loaded with NVreg_ModifyDeviceFiles=0"
    if seen.numbers is None:
        return Ensured(missing=f"must not be made: {why}")
    has = f"it has the device numbers {seen.numbers.major}:{seen.numbers.minor}"
    return Ensured(refusal=f"{has} and must not be replaced: {why}")


def ensure_node(dev: DevFolder, path: str, numbers: NodeNumbers, params: NodeParams) -> Ensured:
    """Make the node unless it exists, or replace one with other numbers, if ``params`` allow it. Raises no OSError."""
    try:
        if path.startswith(f"{CAPABILITIES}/") and dev.look(CAPABILITIES).found is Found.LINK:
            return Ensured(refusal=f"{CAPABILITIES} is a symbolic link, expected a folder")
        seen = dev.look(path)
        behind = link_end(dev, path) if seen.found is Found.LINK else None
    except OSError as error:
        return Ensured(missing=f"it cannot be read: {error.strerror}")
    return present_node(numbers, seen, params, behind) or _make(dev, path, numbers, params, seen)


def _make(dev: DevFolder, path: str, numbers: NodeNumbers, params: NodeParams, seen: Seen) -> Ensured:
    try:
        if path.startswith(f"{CAPABILITIES}/"):
            dev.make_folder(CAPABILITIES)
        over = seen.numbers is not None
        dev.make_node(path, numbers, mode=params.mode, uid=params.uid, gid=params.gid, replace=over)
    except OSError as error:
        if _appeared(dev, path, numbers):
            return Ensured(mode=params.mode)
        if seen.numbers is None:
            return Ensured(missing=f"it cannot be made: {error.strerror}")
        has = f"{seen.numbers.major}:{seen.numbers.minor}"
        return Ensured(refusal=f"it has the device numbers {has} and cannot be replaced: {error.strerror}")
    return Ensured(mode=params.mode)


def _appeared(dev: DevFolder, path: str, numbers: NodeNumbers) -> bool:
    """Return whether another program made the same node concurrently."""
    try:
        return dev.look(path).numbers == numbers
    except OSError:
        return False


def ensure_link(dev: DevFolder, path: str, numbers: NodeNumbers) -> str | None:
    """Make the node's link in ``/dev/char`` unless it leads there; the reason of a failure, or None. Replaces a link
    elsewhere in ``/dev``, because its number belongs to this node. Keeps links out of ``/dev`` and other files. Raises
    no OSError."""
    try:
        state = link_state(dev, numbers)
        if state in (LinkState.RIGHT, LinkState.UNSEEN):
            return None
        if state is LinkState.FOREIGN:
            return f"{char_link(numbers)} is not a symbolic link"
        dev.make_folder(_CHAR)
        dev.make_link(char_link(numbers), char_target(path))
    except OSError as error:
        return f"{char_link(numbers)} cannot be made: {error.strerror}"
    return None
