"""Finds plugin sockets in the kubelet's registration folder.

Follows kubernetes/kubernetes pkg/kubelet/pluginmanager/pluginwatcher/plugin_watcher.go: every socket at any depth
counts except below hidden names, and a new file under an old name is a new plugin.
"""

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from dra_driver.core.errors import RetryableError

Identity = tuple[int, int]
"""Inode and change time in ns, which differ for a later socket of the same name."""


def find_sockets(registry: Path) -> Iterator[tuple[Path, Identity]]:
    """Every socket below the folder, by path."""
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
    """Connect once. Raises RetryableError for a socket of a dead process, on which gRPC would wait for its timeout."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(timeout_s)
        try:
            probe.connect(str(path))
        except OSError as error:
            raise RetryableError(f"no process accepts connections at {path}: {error.strerror or error}") from error
