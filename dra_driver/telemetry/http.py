"""The HTTP endpoint of a process: ``/metrics``, ``/healthz`` and ``/readyz``.

A check is a callable that returns reasons. No reason is 200 and ``ok``; otherwise the answer is 503 with one reason a
line, written for a person who runs curl. Remarks follow in both cases and do not change the status.

Any pod can connect to the port, and the kubelet's liveness probe comes through it as well. So a client cannot hold it:

- The request line has to arrive within ``LINE_TIMEOUT_S``, the whole request within ``REQUEST_TIMEOUT_S``.
- At most ``MAX_CONCURRENT`` connections are open. One more closes the oldest that waits for its client, no matter
  which address it has. A limit per address would be an attack itself: pods in the host network share the kubelet's.
"""

import io
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from dra_driver.telemetry import metrics

log = logging.getLogger(__name__)

Reasons = Callable[[], list[str]]

LINE_TIMEOUT_S = 1.0
REQUEST_TIMEOUT_S = 5.0
# Also how many connections a flood must open before it closes that of a probe, which sends its request within 1 ms.
MAX_CONCURRENT = 32
# How long a new connection waits while a check runs on each of the others.
_CHECKS_TIMEOUT_S = 1.0
# Writing an answer takes a millisecond; a client that has not taken it after this long holds up others.
_WRITE_GRACE_S = 0.1
# serve_forever has to wake up only for shutdown, and stop() wakes it through the socket.
_WAKE_UP_S = 3600.0


class ObservabilityServer:
    """Serves until ``stop``. ``addr`` is ``host:port``, or ``:port`` for all addresses; port 0 is any free port.

    Raises OSError when the address cannot be bound, ValueError when it is no address. ``ready``, ``live`` and
    ``remarks``, which ``/readyz`` adds, are called in request threads.
    """

    def __init__(self, addr: str, ready: Reasons, live: Reasons, remarks: Reasons = list) -> None:
        host, _, port = addr.rpartition(":")
        self._server = _Server(host.strip("[]"), int(port), ready, live, remarks)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_WAKE_UP_S,), name="http-endpoint", daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops accepting; requests in flight end with the process. Safe to repeat."""
        if self._thread.is_alive():
            # Wakes the selector, which otherwise sleeps for _WAKE_UP_S.
            self._server.socket.shutdown(socket.SHUT_RDWR)
            self._server.shutdown()
        self._server.server_close()


class _Phase(Enum):
    READING = auto()
    """The request is not complete."""
    CHECKING = auto()
    """The process works on the answer."""
    WRITING = auto()
    """The client has not taken the whole answer."""


class _Slots:
    """The open connections. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards _phases
        self._phases: dict[socket.socket, tuple[_Phase, float]] = {}  # with its begin; oldest connection first

    def admit(self, connection: socket.socket) -> bool:
        """Takes a connection in, if need be in place of the oldest that waits for its client; False if none does."""
        with self._changed:
            deadline = time.monotonic() + _CHECKS_TIMEOUT_S
            while not self._has_room():
                if time.monotonic() >= deadline:
                    return False
                self._changed.wait(_WRITE_GRACE_S / 2)
            self._phases[connection] = _Phase.READING, time.monotonic()
            return True

    def enter(self, connection: socket.socket, phase: _Phase) -> None:
        with self._changed:
            if connection in self._phases:
                self._phases[connection] = phase, time.monotonic()
                self._changed.notify()

    def leave(self, connection: socket.socket) -> None:
        with self._changed:
            self._phases.pop(connection, None)
            self._changed.notify()

    def _has_room(self) -> bool:
        if len(self._phases) < MAX_CONCURRENT:
            return True
        for phase, grace_s in ((_Phase.READING, 0.0), (_Phase.WRITING, _WRITE_GRACE_S)):
            before = time.monotonic() - grace_s
            found = (each for each, (its, begin) in self._phases.items() if its is phase and begin <= before)
            oldest = next(found, None)
            if oldest is not None:
                del self._phases[oldest]
                with suppress(OSError):  # the client was faster
                    oldest.shutdown(socket.SHUT_RDWR)  # wakes the connection's thread, which closes it
                return True
        return False


class _Server(HTTPServer):
    request_queue_size = 128

    def __init__(self, host: str, port: int, ready: Reasons, live: Reasons, remarks: Reasons) -> None:
        self.routes: dict[str, Callable[[], tuple[HTTPStatus, str, bytes]]] = {
            "/metrics": lambda: (HTTPStatus.OK, *metrics.render()),
            "/healthz": lambda: _verdict(live()),
            "/readyz": lambda: _verdict(ready(), remarks()),
        }
        self.slots = _Slots()
        dual_stack = not host and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if dual_stack or ":" in host else socket.AF_INET
        self._dual_stack = dual_stack
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        if self._dual_stack:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # HTTPServer.server_bind looks up the host's full name, which can block on DNS for seconds.
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves each connection in a thread of its own; it is closed unanswered when all others are being checked."""
        if not self.slots.admit(request):
            self.shutdown_request(request)
            return
        arguments = (request, client_address)
        threading.Thread(target=self._serve, args=arguments, name="http-request", daemon=True).start()

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:  # thread boundary: a client that goes away must not end in a traceback on stderr
            log.debug("HTTP request failed", exc_info=True, extra={"client": client_address[0]})
        finally:
            self.slots.leave(request)
            self.shutdown_request(request)


class _Request(io.RawIOBase):
    """The bytes that a client sends until ``deadline`` (monotonic clock); TimeoutError then ends the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._begin = time.monotonic()
        self._deadline = self._begin + LINE_TIMEOUT_S

    def line_is_complete(self) -> None:
        """The rest of the request may take the longer time."""
        self._deadline = self._begin + REQUEST_TIMEOUT_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the request took too long")
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S
    server: _Server
    server_version = "dra-driver"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self._stream = _Request(self.connection)
        self.rfile = io.BufferedReader(self._stream)

    def parse_request(self) -> bool:
        """Reads the headers; the request line has been read."""
        self._stream.line_is_complete()
        complete = super().parse_request()
        if complete:
            self.server.slots.enter(self.connection, _Phase.CHECKING)
        return complete

    def do_GET(self) -> None:
        route = self.server.routes.get(self.path.partition("?")[0])
        if route is None:
            paths = ", ".join(self.server.routes)
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", f"not found; try {paths}\n".encode())
            return
        try:
            answer = route()
        except Exception:  # request boundary: a defect of a check is an answer, a log line and a count
            log.exception("health or metrics request failed", extra={"path": self.path})
            metrics.internal_error("http")
            answer = _verdict(["internal error, see the log"])
        self._answer(*answer)

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.server.slots.enter(self.connection, _Phase.WRITING)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.connection.settimeout(REQUEST_TIMEOUT_S)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's signature
        """Logs nothing: probes come every few seconds."""


def _verdict(reasons: list[str], remarks: Sequence[str] = ()) -> tuple[HTTPStatus, str, bytes]:
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    lines = [*(reasons or ["ok"]), *(f"remark: {remark}" for remark in remarks)]
    return status, "text/plain; charset=utf-8", ("\n".join(lines) + "\n").encode()
