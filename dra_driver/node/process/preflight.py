"""Checks the machine before the node process starts; a failed check ends it with a sentence and exit status 2.

Checks directories and takes the lock that allows one process per node and driver. A missing NVIDIA driver or API server
does not end the start: running pods need their unprepare, so the process waits for them. Nor does a full file system,
for the same reason; ``storage_health.py`` checks that while the process runs.
"""

import os
from contextlib import suppress
from pathlib import Path

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.files import holder_of, lock_file, name_holder

_OWN_MODE = 0o750
LOCK_NAME = "process.lock"


def check_driver_root(path: Path) -> None:
    """Raises ConfigurationError unless ``path`` is a directory that can be read, or can still become one.

    A driver container creates its root (``/run/nvidia/driver``) in a directory that exists. A missing directory right
    below ``/`` is more likely a mistyped setting, and a readiness reason alone would hide it.
    """
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
    """Raises ConfigurationError unless ``path``, where it is set, is a directory.

    Whether it can be written is no question of the start: most pods need no device nodes on the host.
    """
    if path is not None and not path.is_dir():
        raise ConfigurationError(
            f"the host's device directory {path} is not a directory: set --host-dev (HOST_DEV) to where this process"
            " sees the host's /dev, or leave it out"
        )


def check_registrar_dir(path: Path) -> None:
    """Raises ConfigurationError unless the kubelet's registry exists and is writable.

    It is not created: in a registry that no kubelet reads, the driver would stay unregistered for ever.
    """
    if not path.is_dir():
        raise ConfigurationError(
            f"the kubelet's registry {path} is not a directory: set --kubelet-registrar-dir (KUBELET_REGISTRAR_DIR) to"
            " plugins_registry in the kubelet's root directory, and mount it there if this is a container"
        )
    _check_writable(path, "the kubelet's registry", "--kubelet-registrar-dir")


def make_plugin_dir(plugins_dir: Path, driver: str) -> Path:
    """The driver's own directory, created if missing, for root alone. Raises ConfigurationError when that fails.

    A kubelet that mounts the directory into this pod may have created it, for all users.
    """
    path = plugins_dir / driver
    _make(path, _OWN_MODE, "the driver's directory", "--kubelet-plugins-dir")
    with suppress(OSError):  # a file system without modes
        if path.stat().st_mode & 0o777 & ~_OWN_MODE:
            path.chmod(_OWN_MODE)
    _check_writable(path, "the driver's directory", "--kubelet-plugins-dir")
    return path


def make_cdi_dir(path: Path) -> None:
    """Creates a missing CDI directory (it is often on tmpfs). Raises ConfigurationError when it is not writable."""
    _make(path, 0o755, "the CDI directory", "--cdi-dir")
    _check_writable(path, "the CDI directory", "--cdi-dir")


class ProcessLock:
    """One process per driver and node; several with a pod UID each may share. Ends with the process, however it ends.

    Not the journal's lock: that one serialises single steps, this one keeps a second process from starting at all.
    """

    def __init__(self, plugin_dir: Path, *, shared: bool) -> None:
        self._path = plugin_dir / LOCK_NAME
        self._shared = shared
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Takes the lock, or raises ConfigurationError that names the process that has it. Never waits."""
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
        """Releases the lock. Idempotent. The file stays: two processes could otherwise lock two files of one name."""
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
    """Why nothing can be written in the directory ``path``, or None. Writes nothing itself."""
    # access(2) also reports read-only file systems and immutable directories, to root as well.
    if os.access(path, os.W_OK | os.X_OK) and path.is_dir():
        return None
    if not path.is_dir():
        reason = "it is gone" if not path.exists() else "it is no directory"
    elif os.statvfs(path).f_flag & os.ST_RDONLY:
        reason = "its file system is read-only"
    else:
        reason = f"user {os.geteuid()} may not write there"
    return f"{what} {path} is not writable: {reason}; see {setting}"
