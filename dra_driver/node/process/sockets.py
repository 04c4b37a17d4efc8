"""Name the unix sockets of this driver, and publish them where the kubelet looks.

Names (``kubernetes/dynamic-resource-allocation`` kubeletplugin/draplugin.go): ``<driver>-reg.sock`` and ``dra.sock``
for one process per node; with a pod's UID ``<driver>-<uid>-reg.sock`` and ``dra-<uid>.sock``, so that two pods can
overlap in a rolling update. The kubelet accepts any name, so hashes replace names that would be too long. The kernel
accepts 107 bytes (``sun_path`` of unix(7), less the final NUL).

A server binds under a private, hidden name (the kubelet skips names with a leading dot: pkg/kubelet/pluginmanager/
pluginwatcher/plugin_watcher.go) and ``publish`` renames it once the server accepts calls. Otherwise gRPC would listen
before handlers run, replace the socket of a living process, and remove a successor's socket when it stops.
"""

import base64
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.unix_socket import is_served

MAX_PATH_BYTES = 107


class SocketPaths(Struct, frozen=True, kw_only=True):
    """The two public paths. ``registration`` is in the kubelet's registry, ``dra`` in the driver's directory."""

    registration: Path
    dra: Path

    @classmethod
    def choose(cls, *, driver: str, registrar_dir: Path, plugin_dir: Path, pod_uid: str | None = None) -> "SocketPaths":
        """The most readable names that fit. Raises ConfigurationError if a directory's path is too long."""
        if pod_uid is None:
            registration = [f"{driver}-reg.sock", f"dra-{_hashed(driver, size=16)}-reg.sock"]
            dra = ["dra.sock"]
        else:
            short = _hashed(pod_uid, size=8)
            registration = [
                f"{driver}-{pod_uid}-reg.sock",
                f"{driver}-{short}-reg.sock",
                f"dra-{_hashed(driver, pod_uid, size=16)}-reg.sock",
            ]
            # The last fits under /var/lib/kubelet/plugins with a driver name of any length that Kubernetes takes.
            dra = [f"dra-{pod_uid}.sock", f"dra-{short}.sock", f"dra-{_hashed(pod_uid, size=6)}.sock"]
        return cls(
            registration=_first_that_fits(registrar_dir, registration, "--kubelet-registrar-dir"),
            dra=_first_that_fits(plugin_dir, dra, "--kubelet-plugins-dir or --driver-name"),
        )


class Published(Struct, frozen=True):
    path: Path
    device: int
    inode: int

    def is_in_place(self) -> bool:
        return self._found() == (self.device, self.inode)

    def is_missing(self) -> bool:
        return self._found() is None

    def _found(self) -> tuple[int, int] | None:
        try:
            status = os.lstat(self.path)  # once a second
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_dev, status.st_ino

    def withdraw(self) -> bool:
        """Remove the file if it is still this socket; return whether it was. Idempotent."""
        if not self.is_in_place():
            return False
        with suppress(FileNotFoundError):
            self.path.unlink()
        return True


def private_path(public: Path) -> Path:
    """The path of a server before it is published: hidden, in the same directory, never longer than ``dra.sock``. The
    same for every process that publishes ``public``, so a crash leaves at most one such file, which is reused."""
    return public.with_name("." + _hashed(public.name, size=4)[:6])


def publish(private: Path, public: Path) -> Published:
    """Rename a bound socket to its public path, over the socket of a dead process. Raises ConfigurationError if another
    kind of file exists there, or a living process answers."""
    check_free(public)
    status = private.lstat()
    private.rename(public)
    return Published(public, status.st_dev, status.st_ino)


def check_free(path: Path) -> None:
    """Raises ConfigurationError unless ``path`` is missing or a socket on which no process listens."""
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if not stat.S_ISSOCK(mode):
            kind = "directory" if stat.S_ISDIR(mode) else "file that is not a socket"
            raise ConfigurationError(
                f"cannot serve on {path}: found a {kind}, expected no file or an old socket: remove it",
                reason="PathOccupied",
            )
        if is_served(path):
            raise ConfigurationError(
                f"another process already serves {path}: stop it first, or give each process its own --pod-uid (two"
                " drivers of one name on a node would allocate the same devices twice)"
            )


def remove_dead(directory: Path, pattern: str) -> list[Path]:
    """Remove and return sockets matching ``pattern`` on which no process listens.

    A killed pod leaves its sockets behind, and the kubelet would dial a dead registration socket forever. Sockets of
    living processes accept connections from the moment they are visible.
    """
    removed = []
    for path in _sockets(directory, pattern):
        if not is_served(path):
            with suppress(FileNotFoundError):
                path.unlink()
                removed.append(path)
    return removed


def _sockets(directory: Path, pattern: str) -> Iterator[Path]:
    for path in sorted(directory.glob(pattern)):
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                yield path


def _hashed(*parts: str, size: int) -> str:
    digest = hashlib.sha256("\0".join(parts).encode()).digest()[:size]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _first_that_fits(directory: Path, names: list[str], settings: str) -> Path:
    for name in names:
        path = directory / name
        if len(str(path).encode()) <= MAX_PATH_BYTES:
            return path
    raise ConfigurationError(
        f"socket path {directory / names[-1]} has {len(str(directory / names[-1]).encode())} bytes, the limit is"
        f" {MAX_PATH_BYTES}: choose a shorter {settings}",
        reason="PathTooLong",
    )
