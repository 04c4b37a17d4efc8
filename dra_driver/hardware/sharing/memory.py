"""Where the MPS daemons of a node have their pipes and shared memory.

    <run folder>/<id>/pipe, shm            a tmpfs for each daemon, with bounds on bytes and files
    <root>/daemons/<id>/pipe               a link to that pipe folder, for the node process
    <shm folder>/<id>                      shared memory of a daemon that an earlier version started

A tmpfs for each daemon, because containers write there: one that fills it harms only those that use the same GPU. Not
in ``/dev/shm``, from which logind removes the files of a user at the last logout (systemd, src/shared/clean-ipc.c).

A daemon that an earlier version started keeps its folders until it is released, also if it is started again: containers
have them mounted, and a container that restarts gets them from its claim's CDI document.
"""

import logging
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from dra_driver.core.errors import StorageError
from dra_driver.hardware.sharing.daemon import check_id
from dra_driver.hardware.sharing.mps_files import PIPE_MODE, DaemonFolder, make_own, storage
from dra_driver.hardware.sharing.safe_rmtree import remove_tree
from dra_driver.hardware.sharing.tmpfs import Mounts, TmpfsBounds

log = logging.getLogger(__name__)

SHM_MODE: Final = 0o1777  # as /dev/shm: any user creates files, and removes only their own
_PARENT_MODE: Final = 0o711
_VOLUME: Final = "in a volume of the MPS host with mountPropagation Bidirectional, as the chart mounts it"


class DaemonMemory(Protocol):
    """The daemons' pipes and shared memory. For one thread."""

    def start(self) -> None:
        """Make the common folder. Raises StorageError."""

    def shm(self, daemon_id: str) -> Path:
        """The daemon's shared memory. The same until `remove`."""

    def make(self, folder: DaemonFolder) -> None:
        """Make the folders of a daemon that starts. Idempotent. Raises StorageError and OSError."""

    def remove(self, daemon_id: str) -> None:
        """Remove the folders of a daemon that was released. Raises nothing."""

    def remove_unused(self, is_wanted: Callable[[str], bool]) -> None:
        """Remove the folders of daemons that are not wanted. Raises nothing."""

    def stop(self) -> None:
        """Remove the common folder if it is empty. Raises nothing."""


class SharedMemory:
    """One folder for all daemons, which use their long paths: for simulated drivers and without privilege."""

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
        """It stays for the others."""

    def remove_unused(self, is_wanted: Callable[[str], bool]) -> None:
        """It stays for the others."""

    def stop(self) -> None:
        """It stays for the next host."""


class OwnMemory:
    """A tmpfs for each daemon below ``run``, which is on a shared mount and has the same path for container runtimes.

    ``former`` is where earlier versions had the daemons' shared memory.
    """

    def __init__(self, run: Path, former: Path, mounts: Mounts, limits: TmpfsBounds) -> None:
        self._run = run
        self._former = former
        self._mounts = mounts
        self._limits = limits

    def start(self) -> None:
        with storage(f"make the folder for pipes and shared memory, {self._run}, {_VOLUME}"):
            make_own(self._run, _PARENT_MODE)
            if not self._mounts.is_shared(self._run):
                log.warning(
                    "containers of MPS clients do not start if the container runtime has another mount namespace",
                    extra={"folder": self._run, "reason": f"it is not on a shared mount; expected it {_VOLUME}"},
                )

    def shm(self, daemon_id: str) -> Path:
        return self._of_former(daemon_id) or self._run / check_id(daemon_id) / "shm"

    def make(self, folder: DaemonFolder) -> None:
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
        for parent in (*self._former_folder(), self._run):
            names: list[str] = []
            with suppress(OSError):
                names = os.listdir(parent)  # noqa: PTH208 - names, not paths
            for name in names:
                with suppress(ValueError):  # another program's
                    if not is_wanted(check_id(name)):
                        self.remove(name)

    def stop(self) -> None:
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
        """The folder that an earlier version made for the daemon, until it is removed."""
        found = [folder / check_id(daemon_id) for folder in self._former_folder()]
        return next((path for path in found if path.is_dir() and not path.is_symlink()), None)

    def _is_mounted(self, own: Path) -> bool:
        """Whether the daemon's tmpfs is there, also from a former host. Raises StorageError for another mount."""
        found = self._mounts.at(own)
        if found is None or found.is_own:
            return found is not None
        raise StorageError(
            f"{own} is a mount of {found.source} ({found.kind}), which this driver did not make: expected a folder for"
            " the pipes and shared memory of an MPS daemon; unmount it"
        )
