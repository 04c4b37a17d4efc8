"""The HTTP endpoint of a process: ``/metrics``, ``/healthz``, ``/readyz``.

Owns the server and the plain-text answers. Refuses to know what makes a process healthy: it asks two callables for
reasons why it is not. An empty list is 200 and ``ok``; otherwise 503 with one reason a line, written for the person who
runs curl. A client that takes longer than a few seconds for its whole request is cut off, however it drips, and more
than a few connections at once are closed unanswered.
"""

import io
import logging
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dra_driver.telemetry import metrics

log = logging.getLogger(__name__)

Reasons = Callable[[], list[str]]

REQUEST_TIMEOUT_S = 5.0
MAX_CONCURRENT = 8
# serve_forever only has to wake up for shutdown, and stop() wakes it through the socket.
_WAKE_UP_S = 3600.0


class ObservabilityServer:
    """Serves until ``stop``; ``addr`` is ``host:port`` or ``:port`` for all addresses, port 0 for any free one.

    Raises OSError when the address cannot be bound, ValueError when it is none. ``ready`` and ``live`` are called in
    request threads.
    """

    def __init__(self, addr: str, ready: Reasons, live: Reasons) -> None:
        host, _, port = addr.rpartition(":")
        self._server = _Server(host.strip("[]"), int(port), ready, live)
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, host: str, port: int, ready: Reasons, live: Reasons) -> None:
        self.routes: dict[str, Callable[[], tuple[HTTPStatus, str, bytes]]] = {
            "/metrics": lambda: (HTTPStatus.OK, *metrics.render()),
            "/healthz": lambda: _verdict(live()),
            "/readyz": lambda: _verdict(ready()),
        }
        # Guards nothing but the number of request threads.
        self._slots = threading.BoundedSemaphore(MAX_CONCURRENT)
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
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - socketserver's signature
        log.debug("HTTP request failed", exc_info=True, extra={"client": client_address[0]})


class _Request(io.RawIOBase):
    """What a client sends, until the time for the whole request is over: TimeoutError then ends the connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline = time.monotonic() + REQUEST_TIMEOUT_S

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
        self.rfile = io.BufferedReader(_Request(self.connection))

    def do_GET(self) -> None:
        route = self.server.routes.get(self.path.partition("?")[0])
        if route is None:
            paths = ", ".join(self.server.routes)
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", f"not found; try {paths}\n".encode())
            return
        try:
            answer = route()
        except Exception:  # request boundary: a bug in a check must be seen as one
            log.exception("health or metrics request failed", extra={"path": self.path})
            metrics.internal_error("http")
            answer = _verdict(["internal error, see the log"])
        self._answer(*answer)

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.connection.settimeout(REQUEST_TIMEOUT_S)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's signature
        """Probes come every few seconds; they are not worth a line each."""


def _verdict(reasons: list[str]) -> tuple[HTTPStatus, str, bytes]:
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    return status, "text/plain; charset=utf-8", ("\n".join(reasons or ["ok"]) + "\n").encode()
