"""The two sockets as one thing: shown and taken away in the right order, made again when they vanish.

Owns both servers. Refuses to know when to look: the process calls ``check`` about once a second.

The DRA socket accepts calls before the registration socket appears, because the kubelet dials it right after
``GetInfo``. A kubelet that restarts walks its registry again and finds the registration socket by itself. But when the
file is gone (a cleaned directory, a node reset), nothing would ever bring it back: a unix socket cannot be put back
under a name, so a new server takes its place, and the old one finishes the calls that it has.

The registration socket goes last, after the calls in work: once it is gone the kubelet closes its connection with
every call on it (kubernetes/kubernetes pkg/kubelet/cm/dra/plugin, DeRegisterPlugin), and a pod whose prepare was cut
off waits half a minute for the next. Meanwhile the kubelet sees our service go and prefers a successor's.

A socket that somebody else has put in place of ours is left alone: two drivers taking turns would be worse than one.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import grpc

from dra_driver.errors import ConfigurationError
from dra_driver.kubelet.registration import Registration
from dra_driver.kubelet.server import UnixServer
from dra_driver.kubelet.sockets import SocketPaths
from dra_driver.telemetry import metrics

log = logging.getLogger(__name__)

# For unprepare, and for streams while they open; threads are made when needed. An unprepare waits for a prepare of the
# same claim, so there are more of them than claims that prepares have locked (``service.PREPARE_THREADS``).
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
        """Why the kubelet cannot reach us, None while both sockets are in place. May be read from any thread."""
        return self._problem

    def start(self) -> None:
        """Shows both sockets; raises ConfigurationError when one cannot be made, and then leaves none."""
        self._dra.start()
        try:
            self._registrar.start()
        except ConfigurationError:
            self._dra.stop(0)
            raise

    def check(self) -> None:
        """Makes sockets again whose files are gone; what stands in the way becomes ``problem``. Never raises."""
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
        """New calls are refused at once, those in work get ``grace_s``; registration ends after that."""
        self._dra.stop(grace_s)
        self._registrar.stop(0)

    def _restore(self) -> None:
        if self._dra.socket.is_missing():
            _log_missing(self._paths.dra)
            fresh = self._new_dra()
            _started(fresh, self._paths.dra)
            self._dra, old = fresh, self._dra
            metrics.sockets_recreated_total.labels("dra").inc()
            # Tells a connected kubelet to dial again; it finds the new server at the old path. Registering anew would
            # do that as well, but the kubelet would cut the calls in work (see above).
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
                    f"{server.socket.path} is not our socket any more: another process has put its own there; stop"
                    " that one (another driver of this name?) or remove the file, and ours comes back"
                )
        return None

    def _new_dra(self) -> UnixServer:
        return UnixServer(self._paths.dra, self._dra_handlers, threads=DRA_THREADS, name="dra")

    def _new_registrar(self) -> UnixServer:
        handlers = [self._registration.handler()]
        return UnixServer(self._paths.registration, handlers, threads=REGISTRATION_THREADS, name="registration")


def _log_missing(path: Path) -> None:
    log.warning("socket is gone, making it again", extra={"socket": path})


def _started(server: UnixServer, path: Path) -> None:
    with suppress(OSError):
        path.parent.mkdir(mode=0o750, exist_ok=True)  # it may be what was removed; its parent is not ours
    server.start()
