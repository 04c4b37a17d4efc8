"""The folder in which a kubelet looks for plugins: which files in it are sockets worth dialling.

Follows kubernetes/kubernetes pkg/kubelet/pluginmanager/pluginwatcher/plugin_watcher.go: any socket at any depth counts,
hidden names do not, and a new file under an old name is a new plugin.
"""

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from dra_driver.errors import RetryableError

Identity = tuple[int, int]
"""What tells a socket from a later one under the same name: inode and time of the last change."""


def find_sockets(registry: Path) -> Iterator[tuple[Path, Identity]]:
    """Every socket below the folder, in order of names."""
    for path in sorted(registry.rglob("*")):
        if any(part.startswith(".") for part in path.relative_to(registry).parts):
            continue
        try:
            status = path.lstat()
        except OSError:
            continue
        if stat.S_ISSOCK(status.st_mode):
            yield path, (status.st_ino, status.st_ctime_ns)


def check_served(path: Path, timeout_s: float) -> None:
    """Raise RetryableError for a socket that a dead process left behind, instead of waiting for a dial to time out."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(timeout_s)
        try:
            probe.connect(str(path))
        except OSError as error:
            raise RetryableError(f"nobody accepts connections at {path}: {error.strerror or error}") from error
