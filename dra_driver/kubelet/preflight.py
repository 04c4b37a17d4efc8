"""What must hold before the node process starts, checked on the machine; anything else is a sentence and exit status 2.

Owns the checks of directories and the lock that keeps one process per node and driver. Refuses to check what may come
later: a missing NVIDIA driver or API server is waited for, because pods that already run need their unprepare. Nor does
a full file system end the start, for the same reason; ``disk.py`` looks at that while the process runs.
"""

import os
from pathlib import Path

from dra_driver.errors import ConfigurationError
from dra_driver.files import holder_of, lock_file, name_holder

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


def check_registrar_dir(path: Path) -> None:
    """Raises ConfigurationError unless the kubelet's registry is there and writable.

    It is not created: a registry in which no kubelet looks would leave the driver unregistered for ever.
    """
    if not path.is_dir():
        raise ConfigurationError(
            f"the kubelet's registry {path} is not a directory: set --kubelet-registrar-dir (KUBELET_REGISTRAR_DIR) to"
            " plugins_registry in the kubelet's root directory, and mount it there if this is a container"
        )
    _check_writable(path, "the kubelet's registry", "--kubelet-registrar-dir")


def make_plugin_dir(plugins_dir: Path, driver: str) -> Path:
    """The driver's own directory, made if missing, for root alone. Raises ConfigurationError when that fails."""
    path = plugins_dir / driver
    _make(path, 0o750, "the driver's directory", "--kubelet-plugins-dir")
    _check_writable(path, "the driver's directory", "--kubelet-plugins-dir")
    return path


def make_cdi_dir(path: Path) -> None:
    """Makes the CDI directory if missing (it is often on tmpfs). Raises ConfigurationError when it is not writable."""
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
        """Takes the lock or raises ConfigurationError, naming who has it. Never waits."""
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
        """Lets go; idempotent. The file stays: removing it would let two processes lock two files of one name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _make(path: Path, mode: int, what: str, setting: str) -> None:
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot make {what} {path}: {error.strerror}; see {setting}") from error


def _check_writable(path: Path, what: str, setting: str) -> None:
    if problem := why_not_writable(path, what, setting):
        raise ConfigurationError(problem)


def why_not_writable(path: Path, what: str, setting: str) -> str | None:
    """A sentence when nothing can be written in the directory ``path``, else None. Writes nothing itself."""
    # access(2) knows read-only file systems and immutable directories too, also for root.
    if os.access(path, os.W_OK | os.X_OK) and path.is_dir():
        return None
    if not path.is_dir():
        reason = "it is gone" if not path.exists() else "it is no directory"
    elif os.statvfs(path).f_flag & os.ST_RDONLY:
        reason = "its file system is read-only"
    else:
        reason = f"user {os.geteuid()} may not write there"
    return f"{what} {path} is not writable: {reason}; see {setting}"
