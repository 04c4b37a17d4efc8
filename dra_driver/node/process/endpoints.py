"""Publish and withdraw the DRA socket and the registration socket, and replace them when their files disappear.

The DRA socket accepts calls before the registration socket appears, because the kubelet dials it right after
``GetInfo``. The registration socket is withdrawn last: when it disappears, the kubelet closes its connection with every
call on it (kubernetes/kubernetes pkg/kubelet/cm/dra/plugin, DeRegisterPlugin), and a pod whose prepare was canceled
waits half a minute. A listening unix socket cannot be linked again, so a new server takes the path of a deleted file,
and the old one finishes its calls.

After a refused registration the kubelet retries, with pauses of up to two minutes (pkg/kubelet/pluginmanager), so this
driver does not retry.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import grpc

from dra_driver.core._pb.pluginregistration import api_pb2 as pb
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.telemetry import metrics
from dra_driver.core.unix_grpc import CallError, Peer, Service
from dra_driver.core.unix_socket import is_served
from dra_driver.node.process.server import Method, UnixServer, generic_handler
from dra_driver.node.process.sockets import SocketPaths

log = logging.getLogger(__name__)

# The kubelet uses the first entry that it knows, so the newest comes first.
SUPPORTED_VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
_NOT_YET = (
    "the kubelet has not registered this driver yet: check that it runs and reads the directory of"
    " --kubelet-registrar-dir"
)


# For unprepare, and for streams while they open; threads start when needed. An unprepare waits for a prepare of the
# same claim. The kubelet unprepares all claims of a pod in one call, as it prepares them, so there are more of these
# threads than prepares that run at once (``service.PREPARE_THREADS``).
DRA_THREADS = 12
REGISTRATION_THREADS = 2
TIMEOUT_S = 2.0
GOOD_S: Final = 25.0
"""Validity of a successful check: checks every 10 s took a third of the CPU time of an idle node process."""


class Registration:
    """The registration service of one driver. Thread-safe. ``endpoint`` is the DRA socket as the kubelet sees it."""

    def __init__(self, *, driver: str, endpoint: Path) -> None:
        self._driver = driver
        self._endpoint = endpoint
        self._lock = threading.Lock()  # guards _problem
        self._problem: str | None = _NOT_YET

    def handler(self) -> grpc.GenericRpcHandler:
        methods: dict[str, Method] = {"GetInfo": self.get_info, "NotifyRegistrationStatus": self.notify}
        return generic_handler(pb.DESCRIPTOR.services_by_name["Registration"], methods)

    def get_info(self, _request: pb.InfoRequest, _context: grpc.ServicerContext) -> pb.PluginInfo:
        return pb.PluginInfo(
            type="DRAPlugin", name=self._driver, endpoint=str(self._endpoint), supported_versions=SUPPORTED_VERSIONS
        )

    def notify(self, request: pb.RegistrationStatus, _context: grpc.ServicerContext) -> pb.RegistrationStatusResponse:
        if request.plugin_registered:
            self._answered(None)
            log.info("registered with the kubelet", extra={"driver": self._driver, "endpoint": self._endpoint})
        else:
            reason = request.error or "no reason given"
            self._answered(f"the kubelet refused to register driver {self._driver}: {reason}")
            log.error("the kubelet refused the registration", extra={"driver": self._driver, "reason": reason})
        metrics.registrations_total.labels("registered" if request.plugin_registered else "refused").inc()
        return pb.RegistrationStatusResponse()

    def reset(self) -> None:
        """Return to not registered: the socket was created again, and the kubelet will register it again."""
        self._answered(_NOT_YET)

    @property
    def problem(self) -> str | None:
        with self._lock:
            return self._problem

    def _answered(self, problem: str | None) -> None:
        with self._lock:
            self._problem = problem
        metrics.registered.set(problem is None)


class Endpoints:
    """Both sockets. One owner calls ``start``, ``check`` and ``stop``, one at a time."""

    def __init__(
        self, paths: SocketPaths, registration: Registration, dra_handlers: Sequence[grpc.GenericRpcHandler]
    ) -> None:
        self._paths, self._registration, self._dra_handlers = paths, registration, dra_handlers
        self._dra, self._registrar = self._new_dra(), self._new_registrar()
        self.problem: str | None = None

    def start(self) -> None:
        """Publish both sockets. Raises ConfigurationError if one cannot be created, and then leaves none."""
        self._dra.start()
        try:
            self._registrar.start()
        except ConfigurationError:
            self._dra.stop(0)
            raise

    def check(self) -> None:
        """Replace sockets whose files disappeared; a failure becomes ``problem``. Never raises. A socket that another
        process put in place stays: two drivers that replace each other are worse than one not ready."""
        if self.problem is None and self._dra.socket.is_in_place() and self._registrar.socket.is_in_place():
            return
        problem = None
        try:
            self._restore()
        except ConfigurationError as error:
            problem = str(error)
        problem = problem or self._foreign()
        if problem != self.problem:
            if problem:
                log.error("the kubelet cannot reach this driver", extra={"reason": problem})
            self.problem = problem

    def stop(self, grace_s: float) -> None:
        """Refuse new calls and give calls in progress ``grace_s``; then withdraw the registration socket."""
        self._dra.stop(grace_s)
        self._registrar.stop(0)

    def _restore(self) -> None:
        if self._dra.socket.is_missing():
            fresh = self._new_dra()
            _started(fresh, self._paths.dra)
            self._dra, old = fresh, self._dra
            metrics.sockets_recreated_total.labels("dra").inc()
            # Makes a connected kubelet dial again; it finds the new server at the old path. A new registration would
            # too, but the kubelet would cancel the calls in progress (see above).
            old.retire()
        if self._registrar.socket.is_missing():
            registrar = self._new_registrar()
            self._registration.reset()
            _started(registrar, self._paths.registration)
            self._registrar, retired = registrar, self._registrar
            metrics.sockets_recreated_total.labels("registration").inc()
            retired.retire()

    def _foreign(self) -> str | None:
        for server in (self._dra, self._registrar):
            if not server.socket.is_in_place():
                return (
                    f"{server.socket.path} is not this driver's socket: another process has replaced it; stop that"
                    " process (another driver of this name?) or remove the file, and the driver restores the socket"
                )
        return None

    def _new_dra(self) -> UnixServer:
        return UnixServer(self._paths.dra, self._dra_handlers, threads=DRA_THREADS, name="dra")

    def _new_registrar(self) -> UnixServer:
        handlers = [self._registration.handler()]
        return UnixServer(self._paths.registration, handlers, threads=REGISTRATION_THREADS, name="registration")


def _started(server: UnixServer, path: Path) -> None:
    log.warning("socket disappeared; creating it again", extra={"socket": path})
    with suppress(OSError):
        path.parent.mkdir(mode=0o750, exist_ok=True)  # the folder may have been removed; its parent is the kubelet's
    server.start()


class Probe:
    """The liveness probe: calls this process' sockets as the kubelet does. From any thread. A good answer counts for
    `GOOD_S`; after a bad one each call checks."""

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
    """Reasons why the kubelet would get no answer. Takes at most about 3 s. ``GetInfo`` goes through a real connection.
    The DRA socket is only connected to: its workers may wait for an API server."""
    found = []
    if not is_served(paths.dra):
        found.append(f"nothing accepts connections on {paths.dra}")
    registration = Peer(str(paths.registration), fails_fast=True)
    try:
        registration.call(Service(pb, "Registration"), "GetInfo", pb.InfoRequest(), TIMEOUT_S)
    except CallError as error:
        found.append(f"no answer to GetInfo on {paths.registration}: {error}")
    finally:
        registration.close()
    return found
