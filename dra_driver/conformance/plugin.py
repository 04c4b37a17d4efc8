"""Act as the kubelet towards a plugin: its registration socket, prepare, unprepare, and the health stream.

Every socket at any depth counts, except hidden names (pkg/kubelet/pluginmanager/pluginwatcher/plugin_watcher.go).
"""

import os
import socket
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from dra_driver.conformance.values import TimeLimits, ViolationError
from dra_driver.core._pb.dra_v1 import api_pb2 as v1
from dra_driver.core._pb.dra_v1beta1 import api_pb2 as v1beta1
from dra_driver.core._pb.health_v1 import api_pb2 as health_v1
from dra_driver.core._pb.health_v1alpha1 import api_pb2 as health_v1alpha1
from dra_driver.core._pb.pluginregistration import api_pb2 as pb
from dra_driver.core.unix_grpc import CallError, HealthStream, Peer, PendingCall, Service, shown
from dra_driver.core.unix_socket import is_served

REGISTRATION: Final = Service(pb, "Registration")
MAX_SOCKETS: Final = 64
"""A node has a handful of plugins; the search ends at this number."""
MAX_VERSIONS: Final = 64


class PluginInfo(Struct, frozen=True, kw_only=True):
    """A plugin's answer to GetInfo, with bounded lengths."""

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]


class Registrar(Struct, frozen=True, kw_only=True):
    """One registration socket: its answer, or the error. ``identity`` differs for a later socket."""

    path: Path
    identity: tuple[int, int]
    info: PluginInfo | None = None
    problem: str = ""


def sockets(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Every socket below the directory, at most `MAX_SOCKETS`, with inode and change time."""
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


@contextmanager
def served_socket(path: Path) -> Iterator[None]:
    """Serve a plugin socket that accepts connections and does not answer."""
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
    info = PluginInfo(
        type=shown(answer.type),
        name=shown(answer.name),
        endpoint=str(answer.endpoint)
        or str(path),  # an empty endpoint means the registration socket (operation_generator.go:111)
        versions=tuple(shown(version) for version in answer.supported_versions[:MAX_VERSIONS]),
    )
    return Registrar(path=path, identity=identity, info=info)


def notify(path: Path, limits: TimeLimits, *, registered: bool, error: str = "") -> None:
    """Report to the plugin whether it is registered. Raises CallError."""
    peer = Peer(str(path))
    try:
        status = pb.RegistrationStatus(plugin_registered=registered, error=error)
        peer.call(REGISTRATION, "NotifyRegistrationStatus", status, limits.notify_s)
    finally:
        peer.close()


DRA_SERVICES: Final = {"v1.DRAPlugin": Service(v1, "DRAPlugin"), "v1beta1.DRAPlugin": Service(v1beta1, "DRAPlugin")}
"""Services that a kubelet supports, by their names in supported_versions (pkg/kubelet/cm/dra/plugin)."""
HEALTH_SERVICES: Final = {
    "v1.DRAResourceHealth": Service(health_v1, "DRAResourceHealth"),
    "v1alpha1.DRAResourceHealth": Service(health_v1alpha1, "DRAResourceHealth"),
}
MAX_ENTRIES: Final = 8
"""Number of entries of an answer that a message quotes."""


class ClaimKey(Struct, frozen=True, kw_only=True, order=True):
    """A claim in the form of a kubelet request."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{shown(self.namespace)}/{shown(self.name)}"


class AnsweredDevice(Struct, frozen=True, kw_only=True):
    """One device of an answer. ``share_id`` is None if the answer has none."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


class PrepareAnswer(Struct, frozen=True, kw_only=True):
    """The answer for one claim: its devices, or an error."""

    devices: tuple[AnsweredDevice, ...] = ()
    error: str = ""

    def sorted(self) -> tuple[AnsweredDevice, ...]:
        return tuple(sorted(self.devices, key=lambda device: (device.pool, device.device, device.share_id or "")))


class Plugin:
    """Connection to a plugin's DRA socket. With ``as_kubelet``, calls fail fast and errors are not shortened.
    Thread-safe."""

    def __init__(self, info: PluginInfo, version: str, call_s: float, *, as_kubelet: bool = False) -> None:
        self.info = info
        self.version = version
        self._service = DRA_SERVICES[version]
        self._call_s = call_s
        self.peer = Peer(info.endpoint, fails_fast=as_kubelet)
        self._shown: Callable[[object], str] = str if as_kubelet else shown

    def close(self) -> None:
        self.peer.close()

    def prepare(self, claims: Sequence[ClaimKey], timeout_s: float | None = None) -> dict[str, PrepareAnswer]:
        """Call NodePrepareResources; return the answer per UID, unchecked. Raises CallError."""
        answer = self.peer.call(self._service, *self._call("NodePrepareResources", claims, timeout_s))
        return _answers(answer, self._shown)

    def begin_prepare(self, claims: Sequence[ClaimKey], timeout_s: float | None = None) -> PendingCall:
        return self.peer.begin(self._service, *self._call("NodePrepareResources", claims, timeout_s))

    def unprepare(self, claims: Sequence[ClaimKey], timeout_s: float | None = None) -> dict[str, str]:
        """Call NodeUnprepareResources; return an error per UID, "" for success. Raises CallError."""
        answer = self.peer.call(self._service, *self._call("NodeUnprepareResources", claims, timeout_s))
        return {str(uid): self._shown(entry.error) for uid, entry in answer.claims.items()}

    def begin_unprepare(self, claims: Sequence[ClaimKey]) -> PendingCall:
        return self.peer.begin(self._service, *self._call("NodeUnprepareResources", claims, None))

    def watch_health(self, version: str, timeout_s: float | None) -> HealthStream:
        """Open the health stream of one version, by its name in supported_versions."""
        service = HEALTH_SERVICES[version]
        request = service.messages.NodeWatchResourcesRequest()
        return self.peer.stream(service, "NodeWatchResources", request, timeout_s)

    def _call(self, method: str, claims: Sequence[ClaimKey], timeout_s: float | None) -> tuple[str, Any, float]:
        messages = self._service.messages
        sent = [messages.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name) for claim in claims]
        return method, getattr(messages, f"{method}Request")(claims=sent), timeout_s or self._call_s


def read_prepared(pending: PendingCall) -> dict[str, PrepareAnswer]:
    """Wait for a call of `Plugin.begin_prepare`. Raises CallError."""
    return _answers(pending.answer())


def check_complete(method: str, asked: Sequence[ClaimKey], answered: Mapping[str, object]) -> None:
    """Raise ViolationError unless exactly the asked claims have an entry (pkg/kubelet/cm/dra/manager.go:405-437)."""
    wanted = {claim.uid for claim in asked}
    foreign = [shown(uid) for uid in answered if uid not in wanted][:MAX_ENTRIES]
    if foreign:
        raise ViolationError(f"{method} answered for claims that were not requested: {', '.join(foreign)}")
    missing = [str(claim) for claim in asked if claim.uid not in answered][:MAX_ENTRIES]
    if missing:
        raise ViolationError(f"{method} has no entry for {', '.join(missing)}; the kubelet fails the pod")


def _answers(message: Any, text: Callable[[object], str] = shown) -> dict[str, PrepareAnswer]:
    return {
        str(uid): PrepareAnswer(devices=tuple(_device(device) for device in entry.devices), error=text(entry.error))
        for uid, entry in message.claims.items()
    }


def _device(device: Any) -> AnsweredDevice:
    has_share = "share_id" in device.DESCRIPTOR.fields_by_name and device.HasField("share_id")
    return AnsweredDevice(
        requests=tuple(device.request_names),
        pool=device.pool_name,
        device=device.device_name,
        cdi_ids=tuple(device.cdi_device_ids),
        share_id=device.share_id if has_share else None,
    )
