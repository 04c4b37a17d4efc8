"""Reads sockets of kubelet plugins: which exist, which are served, and what their owners say of themselves."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.core._pb.pluginregistration import api_pb2 as pb
from dra_driver.core.unix_grpc import CallError, Peer, Service, shown
from dra_driver.diagnose.doctor.node_view import HostView

REGISTRATION: Final = Service(pb, "Registration")
CONNECT_S: Final = 2.0
GET_INFO_S: Final = 5.0
_MOST: Final = 64


class PluginWords(Struct, frozen=True, kw_only=True):
    """What a plugin says of itself: its driver's name, its DRA socket, its services."""

    driver: str
    endpoint: str
    versions: tuple[str, ...] = ()


class PluginSocket(Struct, frozen=True, kw_only=True):
    """A registration socket. ``served``: a process accepts connections. ``words`` is its answer, ``problem`` why there
    is none. ``endpoint_served`` is about the socket that it names, where the driver is the own one."""

    path: str
    served: bool
    words: PluginWords | None = None
    endpoint_served: bool = False
    problem: str | None = None


class SocketFacts(Struct, frozen=True, kw_only=True):
    """``registry`` is None where the kubelet's folder is missing, or cannot be read: then ``problem`` says why. ``own``
    are the sockets in the driver's own folder, and ``device_plugins`` those of other publishers of NVIDIA GPUs (None
    where they cannot be seen): path and whether a process listens."""

    registry_folder: str = ""
    registry: tuple[PluginSocket, ...] | None = None
    problem: str | None = None
    own: tuple[tuple[str, bool], ...] = ()
    device_plugins: tuple[tuple[str, bool], ...] | None = ()


GetInfo = Callable[[str], PluginWords]
"""Asks the process behind a registration socket. Raises CallError."""


def get_info(path: str) -> PluginWords:
    """The kubelet's first question to a plugin. Raises CallError."""
    peer = Peer(path)
    try:
        answer = peer.call(REGISTRATION, "GetInfo", pb.InfoRequest(), GET_INFO_S)
    finally:
        peer.close()
    versions = tuple(shown(each) for each in answer.supported_versions[:_MOST])
    return PluginWords(driver=shown(answer.name), endpoint=str(answer.endpoint) or path, versions=versions)


def read_sockets(view: HostView, ask: GetInfo = get_info) -> SocketFacts:
    """Look at all sockets. Takes at most some seconds for each process that hangs."""
    registry, problem = None, None
    try:
        os.listdir(view.registry)  # noqa: PTH208 - whether it can be read
        registry = tuple(_asked(view, path, ask) for path in sockets_in(str(view.registry))[:_MOST])
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        problem = f"{view.registry} cannot be read: {error.strerror}"
    return SocketFacts(
        registry_folder=str(view.registry),
        registry=registry,
        problem=problem,
        own=_looked(sockets_in(str(view.own_folder))),
        device_plugins=_device_plugins(view),
    )


def sockets_in(folder: str) -> list[str]:
    """Paths of the folder's sockets, hidden ones left out as the kubelet does; none for a folder that is missing."""
    try:
        found = sorted(os.listdir(folder))  # noqa: PTH208 - names
    except OSError:
        return []
    return [f"{folder}/{name}" for name in found if not name.startswith(".") and is_socket(f"{folder}/{name}")]


def is_socket(path: str) -> bool:
    """Whether a socket is at the path, links followed."""
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116
    except OSError:
        return False


def is_served(path: str) -> bool:
    """Whether a process accepts connections. A refused permission and a full queue count as yes."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CONNECT_S)
        try:
            probe.connect(path)
        except (PermissionError, TimeoutError):
            return True
        except OSError:
            return False
    return True


def _device_plugins(view: HostView) -> tuple[tuple[str, bool], ...] | None:
    try:
        os.listdir(view.device_plugins)  # noqa: PTH208 - whether it can be read
    except PermissionError:
        return None
    except OSError:
        return ()
    return _looked([path for path in sockets_in(view.device_plugins) if Path(path).name.startswith("nvidia-")])


def _looked(paths: list[str]) -> tuple[tuple[str, bool], ...]:
    return tuple((path, is_served(path)) for path in paths[:_MOST])


def _asked(view: HostView, path: str, ask: GetInfo) -> PluginSocket:
    if not is_served(path):
        return PluginSocket(path=path, served=False)
    try:
        words = ask(path)
    except CallError as error:
        return PluginSocket(path=path, served=True, problem=str(error))
    # Other plugins' folders are not mounted in the pod of --on-node: only the own endpoint is tried.
    endpoint_served = words.driver == view.driver and is_served(words.endpoint)
    return PluginSocket(path=path, served=True, words=words, endpoint_served=endpoint_served)
