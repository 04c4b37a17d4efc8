"""The kubelet's plugin watcher: which sockets count, and what their owners say of themselves.

Follows pkg/kubelet/pluginmanager/pluginwatcher/plugin_watcher.go: every socket at any depth counts, except hidden
names.
"""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dra_driver.conformance.values import TimeLimits
from dra_driver.core._pb.pluginregistration import api_pb2 as pb
from dra_driver.core.unix_grpc import CallError, Peer, Service, shown

REGISTRATION: Final = Service(pb, "Registration")
MAX_SOCKETS: Final = 64
"""A node has a handful of plugins; a folder with more is not searched to its end."""
MAX_VERSIONS: Final = 64


class PluginInfo(Struct, frozen=True, kw_only=True):
    """What a plugin says of itself, with bounded lengths."""

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]


class Registrar(Struct, frozen=True, kw_only=True):
    """One registration socket: its answer, or why there is none. ``identity`` differs for a later socket."""

    path: Path
    identity: tuple[int, int]
    info: PluginInfo | None = None
    problem: str = ""


def sockets(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Every socket below the folder, at most `MAX_SOCKETS`, with inode and change time."""
    found = 0
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(here, name)
            try:
                status = path.lstat()
            except OSError:
                continue
            if stat.S_ISSOCK(status.st_mode) and not name.startswith(".") and found < MAX_SOCKETS:
                found += 1
                yield path, (status.st_ino, status.st_ctime_ns)


def is_served(path: Path, timeout_s: float) -> bool:
    """Whether a process accepts connections at the socket. A refused permission counts as yes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(timeout_s)
        try:
            probe.connect(str(path))
        except (PermissionError, TimeoutError):
            return True
        except OSError:
            return False
    return True


@contextmanager
def served_socket(path: Path) -> Iterator[None]:
    """A socket of a plugin that accepts connections and says nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        try:
            listener.listen()
            yield
        finally:
            path.unlink(missing_ok=True)


def ask(path: Path, identity: tuple[int, int], limits: TimeLimits) -> Registrar:
    """Dial a registration socket and call GetInfo, with the kubelet's time limits."""
    if not is_served(path, limits.dial_s):
        return Registrar(path=path, identity=identity, problem=f"no process accepts connections at {path}")
    peer = Peer(str(path))
    try:
        answer = peer.call(REGISTRATION, "GetInfo", pb.InfoRequest(), limits.get_info_s)
    except CallError as error:
        return Registrar(path=path, identity=identity, problem=f"{path}: {error}")
    finally:
        peer.close()
    return Registrar(path=path, identity=identity, info=_info(answer, path))


def notify(path: Path, limits: TimeLimits, *, registered: bool, error: str = "") -> None:
    """Tell the plugin whether it is registered. Raises CallError."""
    peer = Peer(str(path))
    try:
        status = pb.RegistrationStatus(plugin_registered=registered, error=error)
        peer.call(REGISTRATION, "NotifyRegistrationStatus", status, limits.notify_s)
    finally:
        peer.close()


def _info(answer: Any, path: Path) -> PluginInfo:
    """An empty endpoint means the registration socket (operation_generator.go:111)."""
    return PluginInfo(
        type=shown(answer.type),
        name=shown(answer.name),
        endpoint=str(answer.endpoint) or str(path),
        versions=tuple(shown(version) for version in answer.supported_versions[:MAX_VERSIONS]),
    )
