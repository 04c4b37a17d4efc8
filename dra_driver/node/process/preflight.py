"""Check directories and free space: before the node process starts, and while it runs, for readiness.

A failed check at the start ends the process with a message and exit status 2. A missing NVIDIA driver or API server, or
a full file system, does not: running pods need their unprepare. A later check writes only missing files of claims: a
container runtime reads its CDI directory again after every change there.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError, DraError
from dra_driver.core.files import holder_of, lock_file, name_holder
from dra_driver.hardware.cdi import FolderWatch

log = logging.getLogger(__name__)

# A claim's CDI file has about 10 KiB; the journal grows by pages of 4 KiB, about ten of them for a claim.
ENOUGH_BYTES = 256 * 1024
ENOUGH_FILES = 4
LOOK_S = 60.0
"""Seconds after which the CDI directory is checked even without a change."""
_OWN_MODE = 0o750
LOCK_NAME = "process.lock"


def check_driver_root(path: Path) -> None:
    """Raises ConfigurationError unless ``path`` is a readable directory, or can still become one. A driver container
    creates its root (``/run/nvidia/driver``) in an existing directory other than ``/``."""
    if not path.exists() and path.parent.is_dir() and path.parent != Path("/"):
        return
    if not path.is_dir():
        raise ConfigurationError(
            f"the driver root {path} is not a directory: set --driver-root (DRIVER_ROOT) to where this process sees the"
            " root of the NVIDIA driver's installation"
        )
    if not os.access(path, os.R_OK | os.X_OK):
        raise ConfigurationError(
            f"the driver root {path} cannot be read by user {os.geteuid()}: run as root, or give that user access"
        )


def check_host_dev(path: Path | None) -> None:
    """Raises ConfigurationError unless ``path``, where it is set, is a directory; it may be read-only."""
    if path is not None and not path.is_dir():
        raise ConfigurationError(
            f"the host's device directory {path} is not a directory: set --host-dev (HOST_DEV) to where this process"
            " sees the host's /dev, or leave it out"
        )


def check_registrar_dir(path: Path) -> None:
    """Raises ConfigurationError unless the kubelet's registry exists and is writable. It is not created: in a registry
    that no kubelet reads, the driver would stay unregistered."""
    if not path.is_dir():
        raise ConfigurationError(
            f"the kubelet's registry {path} is not a directory: set --kubelet-registrar-dir (KUBELET_REGISTRAR_DIR) to"
            " plugins_registry in the kubelet's root directory, and mount it there if this is a container"
        )
    _check_writable(path, "the kubelet's registry", "--kubelet-registrar-dir")


def make_plugin_dir(plugins_dir: Path, driver: str) -> Path:
    """The driver's directory, created if missing, for root only. Raises ConfigurationError. A kubelet that mounts the
    directory into this pod may have created it, for all users."""
    path = plugins_dir / driver
    _make(path, _OWN_MODE, "the driver's directory", "--kubelet-plugins-dir")
    with suppress(OSError):  # a file system without modes
        if path.stat().st_mode & 0o777 & ~_OWN_MODE:
            path.chmod(_OWN_MODE)
    _check_writable(path, "the driver's directory", "--kubelet-plugins-dir")
    return path


def make_cdi_dir(path: Path) -> None:
    """Create a missing CDI directory (it is often on tmpfs). Raises ConfigurationError if it is not writable."""
    _make(path, 0o755, "the CDI directory", "--cdi-dir")
    _check_writable(path, "the CDI directory", "--cdi-dir")


class ProcessLock:
    """One process per driver and node; several with a pod UID each can share it. Ends with the process."""

    def __init__(self, plugin_dir: Path, *, shared: bool) -> None:
        self._path = plugin_dir / LOCK_NAME
        self._shared = shared
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise ConfigurationError that names the process that has it. Never waits."""
        try:
            self._descriptor = lock_file(self._path, shared=self._shared, create_mode=0o640)
        except BlockingIOError as error:
            raise ConfigurationError(
                f"another process of this driver runs on this node (lock {self._path}, held by"
                f" {holder_of(self._path)}): stop it first, or start both with the --pod-uid of their pods for a"
                " rolling update"
            ) from error
        except OSError as error:
            raise ConfigurationError(f"cannot open the lock file {self._path}: {error.strerror}") from error
        name_holder(self._descriptor)

    def release(self) -> None:
        """Release the lock. Idempotent. The file stays: two processes could otherwise lock two files of one name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _make(path: Path, mode: int, what: str, setting: str) -> None:
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot create {what} {path}: {error.strerror}; see {setting}") from error


def _check_writable(path: Path, what: str, setting: str) -> None:
    if problem := why_not_writable(path, what, setting):
        raise ConfigurationError(problem)


def why_not_writable(path: Path, what: str, setting: str) -> str | None:
    """The reason why the directory ``path`` is not writable, or None. Writes nothing."""
    # access(2) also reports read-only file systems and immutable directories, to root as well.
    if os.access(path, os.W_OK | os.X_OK) and path.is_dir():
        return None
    if not path.is_dir():
        reason = "it does not exist" if not path.exists() else "it is not a directory"
    elif os.statvfs(path).f_flag & os.ST_RDONLY:
        reason = "its file system is read-only"
    else:
        reason = f"user {os.geteuid()} has no write permission"
    return f"{what} {path} is not writable: {reason}; see {setting}"


class Folder(Struct, frozen=True, kw_only=True):
    """A directory in which this driver writes; ``what`` and ``setting`` name it in messages."""

    path: Path
    what: str
    setting: str


class Space(Struct, frozen=True, kw_only=True):
    """Free space of a file system; ``files`` is None where their number has no limit."""

    bytes: int
    files: int | None


def space(path: Path) -> Space:
    """The bytes and files that this process can still write below ``path``. Raises OSError."""
    found = os.statvfs(path)
    blocks, files = (found.f_bfree, found.f_ffree) if os.geteuid() == 0 else (found.f_bavail, found.f_favail)
    return Space(bytes=blocks * found.f_frsize, files=files if found.f_files else None)


class Rewrite(Protocol):
    """Signature of ``claims.ClaimService.rewrite_missing_files``."""

    def __call__(self, *, may_miss: bool) -> Sequence[str]: ...


class ClaimFiles:
    """Checks for missing files of claims only after a change in the CDI directory, while one is missing, and every
    `LOOK_S`: the comparison with the journal is expensive. For one thread."""

    def __init__(self, cdi_dir: str, rewrite: Rewrite, clock: Callable[[], float] = time.monotonic) -> None:
        self._cdi_dir = cdi_dir
        self._watch: FolderWatch | None = None
        self._rewrite, self._clock = rewrite, clock
        self._look_at = float("-inf")

    def bring_back(self) -> Sequence[str]:
        """Write missing or outdated files; return a message about each that cannot be written."""
        due = self._clock() >= self._look_at or self._watch is None or not self._watch.is_quiet()
        if due:
            self._look_at = float("-inf")  # until this check has succeeded
            self._watch = FolderWatch([self._cdi_dir], [self._cdi_dir])  # the directory may have been replaced
            self._watch.arm()
        missing = self._rewrite(may_miss=due)
        if due and not missing:
            self._look_at = self._clock() + LOOK_S
        return missing


class StorageHealth:
    """Call ``check`` from one thread, every few seconds; ``problem`` from any."""

    def __init__(
        self, folders: Sequence[Folder], bring_back: Callable[[], Sequence[str]], space: Callable[[Path], Space] = space
    ) -> None:
        self._folders, self._bring_back, self._space = folders, bring_back, space
        self.problem: str | None = None

    def check(self) -> None:
        """Check once and restore missing files. Never raises a DraError or OSError."""
        try:
            problems = [*self._bring_back()]
        except DraError as error:
            problems = [str(error)]
        for folder in self._folders:
            problems += [why_not_writable(folder.path, folder.what, folder.setting) or self._why_full(folder) or ""]
        problem = "; ".join(filter(None, problems)) or None
        if problem != self.problem:
            if problem:
                log.error("cannot write driver files", extra={"reason": problem})
            else:
                log.info("driver files can be written again")
        self.problem = problem

    def _why_full(self, folder: Folder) -> str | None:
        try:
            left = self._space(folder.path)
        except OSError as error:
            return f"{folder.what} {folder.path} cannot be checked: {error.strerror}; see {folder.setting}"
        if left.bytes < ENOUGH_BYTES:
            free_kib = left.bytes // 1024
            return f"{folder.what} {folder.path} is on a full file system ({free_kib} KiB free): free space there"
        if left.files is not None and left.files < ENOUGH_FILES:
            return f"{folder.what} {folder.path} is on a file system without free inodes: remove files there"
        return None
