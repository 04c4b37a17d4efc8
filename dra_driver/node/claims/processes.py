"""Detect which runs of the node process are alive, by one locked file per run.

A claim that another run began is cleaned up only when that run is dead. An age or a process id cannot decide this (a
slow disk; two containers with the same pid). The kernel releases a ``flock`` when its process dies, in all containers.
"""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

from dra_driver.core.errors import StorageError
from dra_driver.core.files import lock_file
from dra_driver.node.claims.entry import OwnerId

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""The id of the node's current boot, the same in every container."""
_PREFIX = "owner-"
_SUFFIX = ".lock"
_TRIES = 100


class ProcessRegistry:
    """The lock of this run, and the check of other runs' locks. Thread-safe.

    A new run removes the files of dead runs.
    """

    def __init__(self, directory: Path, own: OwnerId, fd: int) -> None:
        self._directory = directory
        self.own = own
        self._fd = fd

    @classmethod
    def register(cls, directory: Path | str, own: str) -> "ProcessRegistry":
        """Register this run as ``own``, a new id. Raises StorageError when its file cannot be created."""
        directory = Path(directory)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sweep(directory)
            fd = _take(directory / f"{_PREFIX}{own}{_SUFFIX}")
        except OSError as error:
            raise StorageError(
                f"cannot register this process in {directory}: {(error.strerror or str(error)).lower()}; "
                "check the plugin directory's path, permissions and free space",
                reason="NotRegistered",
            ) from error
        return cls(directory, OwnerId(own), fd)

    def is_alive(self, owner: OwnerId) -> bool:
        """Return whether the run is alive; True when its file cannot be checked."""
        if owner == self.own:
            return True
        try:
            return not _is_free(self._directory / f"{_PREFIX}{owner}{_SUFFIX}")
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Count as dead from now on. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                (self._directory / f"{_PREFIX}{self.own}{_SUFFIX}").unlink()
            os.close(fd)


def living_runs(directory: Path) -> frozenset[OwnerId]:
    """Return the live runs of the node process in ``directory``. A run whose file cannot be checked counts."""
    found: set[OwnerId] = set()
    for path in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):
            try:
                alive = not _is_free(path)
            except PermissionError:
                alive = True
            if alive:
                found.add(OwnerId(path.name[len(_PREFIX) : -len(_SUFFIX)]))
    return frozenset(found)


def _take(path: Path) -> int:
    """Create and lock the file; repeat when another run's sweep removed it before it was locked."""
    for _ in range(_TRIES):
        try:
            fd = lock_file(path)
        except BlockingIOError:
            time.sleep(0.01)  # another run is checking whether it is free
            continue
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(fd).st_ino:
                return fd
        os.close(fd)
    raise TimeoutError(errno.ETIMEDOUT, "another process keeps locking or removing this process' file")


def _sweep(directory: Path) -> None:
    for path in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(OSError), _locked(path, shared=False) as fd:
            if path.stat().st_ino == os.fstat(fd).st_ino:  # not a file of that name that a run has locked since
                path.unlink()  # under the lock, so that `_take` sees either the lock or that the file is missing


def _is_free(path: Path) -> bool:
    """Return whether no run has the lock. Takes a shared lock, so that two checks do not take each other for a run."""
    try:
        with _locked(path, shared=True):
            return True
    except BlockingIOError:
        return False


@contextlib.contextmanager
def _locked(path: Path, *, shared: bool) -> Iterator[int]:
    """Raises BlockingIOError immediately when another descriptor has the lock."""
    fd = lock_file(path, shared=shared, create_mode=None)
    try:
        yield fd
    finally:
        os.close(fd)


def read_boot_id(path: Path = BOOT_ID) -> str:
    """Read the boot id; "" when it cannot be read, which makes no entry count as one of an earlier boot."""
    try:
        return path.read_text(encoding="ascii").strip()[:64]
    except (OSError, UnicodeDecodeError):
        return ""
