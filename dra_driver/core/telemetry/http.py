"""The HTTP endpoint of a process: ``/metrics``, ``/healthz`` and ``/readyz``.

A check returns reasons: none is 200 and ``ok``, else 503 with one reason per line. Remarks follow in both cases. Any
pod can connect to the port of the kubelet's liveness probe, so three limits keep clients from blocking the probe:

- One connection above `MAX_CONNECTIONS` closes the oldest that waits for its client. A limit for each address would be
  an attack: pods in the host network share the address of the kubelet.
- A client has `CLIENT_TIMEOUT_S` to send its request, and again to receive the answer.
- One thread at a time makes the answer of a path, and waiting requests share the answer (`_Page`).
"""

import errno
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from types import MappingProxyType
from typing import Any, Final

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.telemetry import metrics

log = logging.getLogger(__name__)

Reasons = Callable[[], list[str]]
Answer = tuple[HTTPStatus, str, bytes]
Scrape = Callable[[], tuple[str, bytes]]  # content type and body

CLIENT_TIMEOUT_S: Final = 5.0
MAX_CONNECTIONS: Final = 128
"""Connections that wait for their clients, with a thread each. Also the number of connections that a flood must open
to close that of a probe, which sends its request within 1 ms."""
MAX_WAITING: Final = 32
"""Requests that wait for the answer of one path. A check that hangs holds this many threads at most."""
FRESH: Final = 8
"""Requests for a path within one second that get an answer made after they came. Later ones share the last answer, if
it is at most `SHARED_S` old: making metrics for each of thousands would take all of Python's time."""
SHARED_S: Final = 1.0
_BACKLOG: Final = 4096
"""Connections that the kernel keeps until they are accepted, if net.core.somaxconn allows it. A connection that finds
the queue full tries again after a second."""
_NO_DESCRIPTORS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_TEXT: Final = "text/plain; charset=utf-8"
_SWEEP_S: Final = 1.0
_STOP_S: Final = 1.0


class ObservabilityServer:
    """Serves until ``stop``. ``addr`` is ``host:port``, or ``:port`` for all addresses; port 0 is any free port. Raises
    ConfigurationError when the address cannot be bound, or is malformed. ``ready``, ``live``, ``remarks`` (for
    ``/readyz``), ``scrape`` (for ``/metrics``) and ``pages`` (further paths) are called in request threads."""

    def __init__(
        self,
        addr: str,
        ready: Reasons,
        live: Reasons,
        remarks: Reasons = list,
        *,
        scrape: Scrape = metrics.render,
        pages: Mapping[str, Scrape] = MappingProxyType({}),
    ) -> None:
        host, _, port = addr.rpartition(":")
        routes: dict[str, Callable[[], Answer]] = {
            **{path: partial(_content, make) for path, make in {"/metrics": scrape, **pages}.items()},
            "/healthz": lambda: _verdict(live()),
            "/readyz": lambda: _verdict(ready(), remarks()),
        }
        pages_of = {path: _Page(path, make) for path, make in routes.items()}
        try:
            self._server = _Server(host.strip("[]"), int(port), pages_of)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"cannot listen on {addr}: {error}: choose another --http-addr (HTTP_ADDR)"
            ) from error
        self.port = int(self._server.socket.getsockname()[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_SWEEP_S,), name="http-endpoint", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop accepting; requests in flight end with the process. Safe to repeat."""
        if self._thread.is_alive():
            with suppress(OSError):
                self._server.socket.shutdown(
                    socket.SHUT_RDWR
                )  # wakes the thread, which polls every `_SWEEP_S` otherwise
            self._server.shutdown()
            self._thread.join(_STOP_S)
        self._server.server_close()


class _Page:
    """The answers of one path. Thread-safe."""

    def __init__(self, path: str, make: Callable[[], Answer]) -> None:
        self._path = path
        self._make = make
        self._turn = threading.Lock()  # held while an answer is made
        self._lock = threading.Lock()  # guards the fields below
        self._waiting = 0
        self._asked = 0
        self._second_ends = 0.0
        self._last: tuple[float, Answer] | None = None  # when it was begun, and the answer

    def answer(self) -> Answer:
        """An answer that was begun after this call; under a flood the last one, or 503."""
        came = time.monotonic()
        with self._lock:
            if came >= self._second_ends:
                self._asked, self._second_ends = 0, came + 1.0
            self._asked += 1
            if self._asked > FRESH and self._last is not None and came - self._last[0] <= SHARED_S:
                return self._last[1]
            if self._waiting >= MAX_WAITING:
                return _verdict([f"{MAX_WAITING} requests wait for this answer; try again later"])
            self._waiting += 1
        try:
            return self._begun_after(came)
        finally:
            with self._lock:
                self._waiting -= 1

    def _begun_after(self, came: float) -> Answer:
        if not self._turn.acquire(timeout=CLIENT_TIMEOUT_S):
            return _verdict([f"no answer within {CLIENT_TIMEOUT_S:g} s; see the log of the process"])
        try:
            if self._last is None or self._last[0] < came:
                self._last = (time.monotonic(), self._made())
            return self._last[1]
        finally:
            self._turn.release()

    def _made(self) -> Answer:
        try:
            return self._make()
        except Exception:  # request boundary: a defect of a check is an answer, a log line and a count
            log.exception("health or metrics request failed", extra={"path": self._path})
            metrics.internal_error("http")
            return _verdict(["internal error, see the log"])


class _Server(socketserver.TCPServer):
    """A thread for each connection, and a limit for connections that wait for their clients."""

    allow_reuse_address = True
    request_queue_size = _BACKLOG

    def __init__(self, host: str, port: int, pages: Mapping[str, _Page]) -> None:
        self._dual_stack = not host and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if self._dual_stack or ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.pages = pages
        self._lock = threading.Lock()  # guards _waiting
        self._waiting: dict[socket.socket, float] = {}  # for their clients, and since when; oldest first

    def server_bind(self) -> None:
        """Bind; without a host, to all addresses of IPv6 and IPv4."""
        if self._dual_stack:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def wait_for_client(self, connection: socket.socket) -> None:
        """Wait for the client, and close the oldest connection if there are too many."""
        with self._lock:
            if len(self._waiting) >= MAX_CONNECTIONS:
                self._close_oldest()
            self._waiting[connection] = time.monotonic()

    def stop_waiting(self, connection: socket.socket) -> None:
        with self._lock:
            self._waiting.pop(connection, None)

    def get_request(self) -> tuple[socket.socket, object]:
        """As the library's. Without descriptors, the oldest connection is closed before the next attempt."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                with self._lock:
                    self._close_oldest()
                time.sleep(0.1)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        self.wait_for_client(request)
        arguments = (request, client_address)
        threading.Thread(target=self._serve, args=arguments, name="http-request", daemon=True).start()

    def service_actions(self) -> None:
        too_old = time.monotonic() - CLIENT_TIMEOUT_S
        with self._lock:
            while self._waiting and next(iter(self._waiting.values())) < too_old:
                self._close_oldest()

    def shutdown_request(self, request: Any) -> None:
        self.stop_waiting(request)  # first: a closed socket cannot be shut down for being the oldest
        super().shutdown_request(request)

    def handle_error(self, *_: object) -> None:
        """Log a defect of this process, or that it gets no more threads."""
        log.exception("HTTP request failed")

    def _serve(self, request: socket.socket, client_address: object) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:  # the client hung up, or was too slow
            return
        except Exception:  # noqa: BLE001 - thread boundary: the client sees a closed connection
            self.handle_error()
        finally:
            self.shutdown_request(request)

    def _close_oldest(self) -> None:
        oldest = next(iter(self._waiting), None)
        if oldest is not None:
            del self._waiting[oldest]
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "dra-driver", ""
    error_message_format, error_content_type = "%(message)s\n", _TEXT
    timeout = CLIENT_TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        self.server.stop_waiting(self.connection)
        status, content_type, body = self._answer()
        self.server.wait_for_client(self.connection)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the names that the library looks for

    def log_message(self, *_: object) -> None:
        """Log nothing: probes come every few seconds."""

    def _answer(self) -> Answer:
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            return HTTPStatus.NOT_FOUND, _TEXT, f"not found; try {', '.join(self.server.pages)}\n".encode()
        return page.answer()


def _content(make: Scrape) -> Answer:
    return HTTPStatus.OK, *make()


def _verdict(reasons: list[str], remarks: Sequence[str] = ()) -> Answer:
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    lines = [*(reasons or ["ok"]), *(f"remark: {remark}" for remark in remarks)]
    return status, _TEXT, ("\n".join(lines) + "\n").encode()
