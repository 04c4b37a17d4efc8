"""Pipes and shared memory of the node's MPS daemons, in a tmpfs for each daemon.

    <run folder>/<id>/pipe, shm            a tmpfs for each daemon, with bounds on bytes and files
    <root>/daemons/<id>/pipe               a link to that pipe folder, for the node process
    <shm folder>/<id>                      shared memory of a daemon that an earlier version started, until its release

A container that fills a tmpfs harms only containers on the same GPU. Not in ``/dev/shm``: logind removes files of a
user there at the last logout (systemd, src/shared/clean-ipc.c). ``/proc/self/mountinfo``: proc_pid_mountinfo(5). With
SELinux, confined containers may use the files through the mount option ``context=`` (mount(8)), with the label of
NVIDIA's device plugin (k8s-device-plugin, cmd/mps-control-daemon/mps/daemon.go), which has no categories.
"""

import ctypes
import errno
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import StorageError
from dra_driver.hardware.sharing.control import checked, libc
from dra_driver.hardware.sharing.mps_files import PIPE_MODE, DaemonFolder, check_id, make_own, storage
from dra_driver.hardware.sharing.safe_rmtree import remove_tree

log = logging.getLogger(__name__)

LABEL: Final = "system_u:object_r:container_file_t:s0"
_FOLDER: Final = Path("/sys/fs/selinux")
_OWN: Final = Path("/proc/self/attr/current")
_PARTS: Final = 3  # user, role and type at least; other security modules write texts without colons there


def container_label(folder: Path = _FOLDER, own: Path = _OWN) -> str | None:
    """The label of files for containers; None if SELinux is off or has no policy."""
    if not folder.is_dir():
        return None
    try:
        label = own.read_text(errors="replace")
    except OSError:
        return None
    return LABEL if len(label.rstrip("\0\n").split(":")) >= _PARTS else None


SOURCE: Final = "dra-driver-mps"
"""The source of this driver's file systems in mountinfo."""

# linux/mount.h
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MNT_DETACH = 2, 4, 8, 2
_FLAGS: Final = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


class TmpfsBounds(Struct, frozen=True, kw_only=True):
    size_bytes: int
    files: int


class Mounted(Struct, frozen=True, kw_only=True):
    kind: str
    source: str

    @property
    def is_own(self) -> bool:
        return (self.kind, self.source) == ("tmpfs", SOURCE)


class SystemMounts:
    """The mounts of this process's namespace. Methods raise OSError."""

    def __init__(self, label: Callable[[], str | None] = container_label) -> None:
        self._label = label

    def at(self, path: Path) -> Mounted | None:
        """The mount at exactly this path."""
        found = None
        for place, _, system in _mountinfo():
            if place == path:
                kind, source, _ = system.split(" ", 2)
                found = Mounted(kind=kind, source=_unescaped(source))  # the last mount covers earlier ones
        return found

    def is_shared(self, path: Path) -> bool:
        """Return whether mounts below the folder appear in other mount namespaces, the host's among them."""
        holding = [(len(place.parts), fields) for place, fields, _ in _mountinfo() if path.is_relative_to(place)]
        depth = max((depth for depth, _ in holding), default=0)
        last = next((fields for found, fields in reversed(holding) if found == depth), [])
        return any(field.startswith("shared:") for field in last)

    def mount(self, path: Path, limits: TmpfsBounds) -> None:
        """Mount an empty tmpfs on the folder, which only root can list."""
        # 0711: any user who has the name of a folder can open it.
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
        """Unmount the file system at the path. Containers keep the parts that they have mounted."""
        try:
            checked(libc.umount2(os.fsencode(path), 0), f"unmount {path}")
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            checked(libc.umount2(os.fsencode(path), _MNT_DETACH), f"unmount {path}")


def own_mounts() -> tuple[Path, ...]:
    """Mount points of this driver's file systems, as this process sees them."""
    return tuple(place for place, _, system in _mountinfo() if system.split(" ")[:2] == ["tmpfs", SOURCE])


def _mountinfo() -> Iterator[tuple[Path, list[str], str]]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - small
        for line in file:
            mount, _, system = line.partition(" - ")
            fields = mount.split(" ")
            yield Path(_unescaped(fields[4])), fields[6:], system


def _mount(path: Path, options: str) -> None:
    result = libc.mount(SOURCE.encode(), os.fsencode(path), b"tmpfs", ctypes.c_ulong(_FLAGS), options.encode())
    checked(result, f"mount {path}")


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


SHM_MODE: Final = 0o1777  # as /dev/shm: any user creates files, and removes only their own
_PARENT_MODE: Final = 0o711
_VOLUME: Final = "in a volume of the MPS host with mountPropagation Bidirectional, as the chart mounts it"


class SharedMemory:
    """One folder for all daemons, which stays: for simulated drivers and without privilege."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self) -> None:
        with storage(f"make the folder for shared memory, {self._folder}"):
            make_own(self._folder, SHM_MODE)

    def shm(self, daemon_id: str) -> Path:
        check_id(daemon_id)
        return self._folder

    def make(self, folder: DaemonFolder) -> None:
        del folder  # its pipes are in it
        make_own(self._folder, SHM_MODE)

    def remove(self, daemon_id: str) -> None:
        """The folder stays, here and below."""

    def remove_unused(self, is_wanted: Callable[[str], bool]) -> None:
        pass

    def stop(self) -> None:
        pass


class OwnMemory:
    """A tmpfs for each daemon below ``run``. ``former`` has the shared memory of earlier versions. For one thread."""

    def __init__(self, run: Path, former: Path, mounts: SystemMounts, limits: TmpfsBounds) -> None:
        self._run = run
        self._former = former
        self._mounts = mounts
        self._limits = limits

    def start(self) -> None:
        """Make the common folder. Raises StorageError."""
        with storage(f"make the folder for pipes and shared memory, {self._run}, {_VOLUME}"):
            make_own(self._run, _PARENT_MODE)
            if not self._mounts.is_shared(self._run):
                log.warning(
                    "containers of MPS clients do not start if the container runtime has another mount namespace",
                    extra={"folder": self._run, "reason": f"it is not on a shared mount; expected it {_VOLUME}"},
                )

    def shm(self, daemon_id: str) -> Path:
        """The daemon's shared memory. The same until `remove`."""
        return self._of_former(daemon_id) or self._run / check_id(daemon_id) / "shm"

    def make(self, folder: DaemonFolder) -> None:
        """Make the folders of a daemon that starts. Idempotent. Raises StorageError and OSError."""
        daemon_id = folder.path.name
        former = self._of_former(daemon_id)
        if former is not None:
            make_own(former, SHM_MODE)
            return
        own = self._run / check_id(daemon_id)
        is_mounted = self._is_mounted(own)
        make_own(own, _PARENT_MODE)
        if not is_mounted:
            with storage(f"mount a file system in memory on {own}"):
                self._mounts.mount(own, self._limits)
        for name, mode in (("pipe", PIPE_MODE), ("shm", SHM_MODE)):
            make_own(own / name, mode, take=True)
        folder.link_pipe(own / "pipe")

    def remove(self, daemon_id: str) -> None:
        """Remove the folders of a released daemon. Raises nothing."""
        try:
            former = self._of_former(daemon_id)
            if former is not None:
                remove_tree(former)
            own = self._run / daemon_id
            if own.is_dir():
                if self._is_mounted(own):
                    self._mounts.unmount(own)
                own.rmdir()
        except (OSError, StorageError) as error:
            log.warning(
                "cannot remove shared memory of an MPS daemon", extra={"daemon": daemon_id, "reason": str(error)}
            )

    def remove_unused(self, is_wanted: Callable[[str], bool]) -> None:
        """Remove the folders of unwanted daemons. Raises nothing."""
        for parent in (*self._former_folder(), self._run):
            names: list[str] = []
            with suppress(OSError):
                names = os.listdir(parent)  # noqa: PTH208 - names, not paths
            for name in names:
                with suppress(ValueError):  # another program's
                    if not is_wanted(check_id(name)):
                        self.remove(name)

    def stop(self) -> None:
        """Remove the common folder if it is empty. Raises nothing."""
        for folder in (*self._former_folder(), self._run):
            with suppress(OSError):  # not empty while daemons are wanted, or mounted itself
                folder.rmdir()

    def _former_folder(self) -> tuple[Path, ...]:
        """The folder of an earlier version, if it is one: any user may create folders and links in /dev/shm."""
        with suppress(OSError):
            found = self._former.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                return (self._former,)
        return ()

    def _of_former(self, daemon_id: str) -> Path | None:
        found = [folder / check_id(daemon_id) for folder in self._former_folder()]
        return next((path for path in found if path.is_dir() and not path.is_symlink()), None)

    def _is_mounted(self, own: Path) -> bool:
        found = self._mounts.at(own)
        if found is None or found.is_own:
            return found is not None
        raise StorageError(
            f"{own} is a mount of {found.source} ({found.kind}), which this driver did not make: expected a folder for"
            " the pipes and shared memory of an MPS daemon; unmount it",
            reason="ForeignMount",
        )


DaemonMemory = SharedMemory | OwnMemory
