"""Publishes and withdraws the DRA socket and the registration socket, and replaces them when their files vanish.

The DRA socket accepts calls before the registration socket appears, because the kubelet dials it right after
``GetInfo``. A deleted file (a cleaned directory, a node reset) stays away: a listening unix socket cannot be linked
again. So a new server takes the path, and the old one finishes its calls.

At the stop the registration socket goes last, after the calls in progress: when it disappears, the kubelet closes its
connection with every call on it (kubernetes/kubernetes pkg/kubelet/cm/dra/plugin, DeRegisterPlugin), and a pod whose
prepare was cut off waits half a minute for the next.

A socket that another process has put in place of this driver's is left alone: two drivers that take turns would be
worse than one that is not ready.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import grpc

from dra_driver.core._pb.pluginregistration import api_pb2 as pb
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.telemetry import metrics
from dra_driver.node.process.registration import Registration
from dra_driver.node.process.server import UnixServer
from dra_driver.node.process.sockets import SocketPaths, is_served

log = logging.getLogger(__name__)

# For unprepare, and for streams while they open; threads start when needed. An unprepare waits for a prepare of the
# same claim. The kubelet unprepares all claims of a pod in one call, as it prepares them, so there are more of these
# threads than prepares that run at once (``service.PREPARE_THREADS``).
DRA_THREADS = 12
REGISTRATION_THREADS = 2


class Endpoints:
    """Both sockets. ``start``, ``check`` and ``stop`` are called by one owner, one at a time."""

    def __init__(
        self, paths: SocketPaths, registration: Registration, dra_handlers: Sequence[grpc.GenericRpcHandler]
    ) -> None:
        self._paths = paths
        self._registration = registration
        self._dra_handlers = dra_handlers
        self._dra = self._new_dra()
        self._registrar = self._new_registrar()
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the kubelet cannot reach this driver; None while both sockets are in place. Any thread may read it."""
        return self._problem

    def start(self) -> None:
        """Publishes both sockets. Raises ConfigurationError when one cannot be created, and then leaves none."""
        self._dra.start()
        try:
            self._registrar.start()
        except ConfigurationError:
            self._dra.stop(0)
            raise

    def check(self) -> None:
        """Replaces sockets whose files are gone; what prevents that becomes ``problem``. Never raises."""
        if self._problem is None and self._dra.socket.is_in_place() and self._registrar.socket.is_in_place():
            return
        problem = None
        try:
            self._restore()
        except ConfigurationError as error:
            problem = str(error)
        problem = problem or self._foreign()
        if problem != self._problem:
            if problem:
                log.error("the kubelet cannot reach this driver", extra={"reason": problem})
            self._problem = problem

    def stop(self, grace_s: float) -> None:
        """Refuses new calls at once and gives calls in progress ``grace_s``; then the registration socket goes."""
        self._dra.stop(grace_s)
        self._registrar.stop(0)

    def _restore(self) -> None:
        if self._dra.socket.is_missing():
            _log_missing(self._paths.dra)
            fresh = self._new_dra()
            _started(fresh, self._paths.dra)
            self._dra, old = fresh, self._dra
            metrics.sockets_recreated_total.labels("dra").inc()
            # Makes a connected kubelet dial again; it finds the new server at the old path. A new registration would do
            # that as well, but the kubelet would cut the calls in progress (see above).
            old.retire()
        if self._registrar.socket.is_missing():
            _log_missing(self._paths.registration)
            registrar = self._new_registrar()
            self._registration.forget()
            _started(registrar, self._paths.registration)
            self._registrar, retired = registrar, self._registrar
            metrics.sockets_recreated_total.labels("registration").inc()
            retired.retire()

    def _foreign(self) -> str | None:
        for server in (self._dra, self._registrar):
            if not server.socket.is_in_place():
                return (
                    f"{server.socket.path} is no longer this driver's socket: another process has put its own there;"
                    " stop that process (another driver of this name?) or remove the file, and the socket comes back"
                )
        return None

    def _new_dra(self) -> UnixServer:
        return UnixServer(self._paths.dra, self._dra_handlers, threads=DRA_THREADS, name="dra")

    def _new_registrar(self) -> UnixServer:
        handlers = [self._registration.handler()]
        return UnixServer(self._paths.registration, handlers, threads=REGISTRATION_THREADS, name="registration")


def _log_missing(path: Path) -> None:
    log.warning("socket is gone, creating it again", extra={"socket": path})


def _started(server: UnixServer, path: Path) -> None:
    with suppress(OSError):
        path.parent.mkdir(mode=0o750, exist_ok=True)  # the folder may have been removed; its parent is the kubelet's
    server.start()


TIMEOUT_S = 2.0
GOOD_S: Final = 25.0
"""How long a good answer counts. The kubelet asks every 10 s, and the connection of a check wakes all threads of gRPC
for a while: checking each time was a third of what a node process at rest does."""


class Probe:
    """The liveness probe: calls this process' own sockets as the kubelet would. From any thread.

    Remembers a good answer for `GOOD_S`; after a bad one each call checks.
    """

    def __init__(self, check: Callable[[], list[str]], clock: Callable[[], float] = time.monotonic) -> None:
        self._check, self._clock = check, clock
        self._good_until = float("-inf")  # replaced as a whole

    def problems(self) -> list[str]:
        now = self._clock()
        if now < self._good_until:
            return []
        found = self._check()
        self._good_until = float("-inf") if found else now + GOOD_S
        return found


def socket_problems(paths: SocketPaths) -> list[str]:
    """Reasons why the kubelet would get no answer; empty when it would get one. Takes at most about 3 s.

    ``GetInfo`` goes through a real connection, gRPC's event loop and a worker thread. The DRA socket is only connected
    to: its workers may be busy for as long as an API server is slow, and a restart would not make the API server
    faster.
    """
    found = []
    if not is_served(paths.dra):
        found.append(f"nothing accepts connections on {paths.dra}")
    try:
        get_info(paths)
    except grpc.RpcError as error:
        found.append(f"no answer to GetInfo on {paths.registration}: {error}")
    return found


def get_info(paths: SocketPaths) -> pb.PluginInfo:
    """One ``GetInfo`` on a connection of its own; raises grpc.RpcError."""
    # The default subchannel pool is process-wide; with a local one nothing outlives the probe.
    with grpc.insecure_channel(
        f"unix:{paths.registration}", options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        call = channel.unary_unary(
            "/pluginregistration.Registration/GetInfo",
            request_serializer=pb.InfoRequest.SerializeToString,
            response_deserializer=pb.PluginInfo.FromString,
        )
        info: pb.PluginInfo = call(pb.InfoRequest(), timeout=TIMEOUT_S)
        return info
