"""The HTTP endpoint of a process: ``/metrics``, ``/healthz`` and ``/readyz``.

A check is a callable that returns reasons. No reason is 200 and ``ok``; otherwise the answer is 503 with one reason a
line, written for a person who runs curl. Remarks follow in both cases and do not change the status.

`http_loop` says how it stays reachable for probes whatever other clients do.
"""

import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from types import MappingProxyType

from dra_driver.core.telemetry import metrics
from dra_driver.core.telemetry.http_loop import BACKLOG, MAX_CONNECTIONS, HttpLoop
from dra_driver.core.telemetry.http_request import Request, render

log = logging.getLogger(__name__)

Reasons = Callable[[], list[str]]
Answer = tuple[HTTPStatus, str, bytes]
Scrape = Callable[[], tuple[str, bytes]]
"""Content type and body."""

_TEXT = "text/plain; charset=utf-8"
_STOP_S = 1.0


class ObservabilityServer:
    """Serves until ``stop``. ``addr`` is ``host:port``, or ``:port`` for all addresses; port 0 is any free port.

    Raises OSError when the address cannot be bound, ValueError when it is no address. ``ready``, ``live`` and
    ``remarks``, which ``/readyz`` adds, are called in request threads, as ``scrape``, the content of ``/metrics``.
    ``connections`` are open at most. ``pages`` are further paths with what makes their content.
    """

    def __init__(
        self,
        addr: str,
        ready: Reasons,
        live: Reasons,
        remarks: Reasons = list,
        *,
        connections: int = MAX_CONNECTIONS,
        scrape: Scrape = metrics.render,
        pages: Mapping[str, Scrape] = MappingProxyType({}),
    ) -> None:
        host, _, port = addr.rpartition(":")
        listener = listen(host.strip("[]"), int(port))
        self.port = int(listener.getsockname()[1])
        self._routes: dict[str, Callable[[], Answer]] = {
            **{path: partial(_page, make) for path, make in {"/metrics": scrape, **pages}.items()},
            "/healthz": lambda: _verdict(live()),
            "/readyz": lambda: _verdict(ready(), remarks()),
        }
        self._loop = HttpLoop(listener, self._answer, connections, question=self._question)
        self._thread = threading.Thread(target=self._loop.run, name="http-endpoint", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops accepting; requests in flight end with the process. Safe to repeat."""
        if self._thread.ident is None:
            self._loop.close()
            return
        self._loop.stop()
        self._thread.join(_STOP_S)

    def _question(self, request: Request) -> tuple[str, str]:
        """All requests that are refused for one reason are one question."""
        if request.method not in ("GET", "HEAD"):
            return str(bool(request.method)), ""
        return request.method, request.path if request.path in self._routes else ""

    def _answer(self, request: Request) -> bytes:
        status, content_type, body = self._answer_to(request)
        return render(status, content_type, body, with_body=request.method != "HEAD")

    def _answer_to(self, request: Request) -> Answer:
        if not request.method:
            return HTTPStatus.BAD_REQUEST, _TEXT, b"this is no HTTP request\n"
        if request.method not in ("GET", "HEAD"):
            return HTTPStatus.NOT_IMPLEMENTED, _TEXT, b"only GET and HEAD are served\n"
        route = self._routes.get(request.path)
        if route is None:
            return HTTPStatus.NOT_FOUND, _TEXT, f"not found; try {', '.join(self._routes)}\n".encode()
        try:
            return route()
        except Exception:  # request boundary: a defect of a check is an answer, a log line and a count
            log.exception("health or metrics request failed", extra={"path": request.path})
            metrics.internal_error("http")
            return _verdict(["internal error, see the log"])


def _page(make: Scrape) -> Answer:
    return HTTPStatus.OK, *make()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Without a host, all addresses, IPv6 and IPv4. Raises OSError."""
    dual_stack = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual_stack or ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if dual_stack:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _verdict(reasons: list[str], remarks: Sequence[str] = ()) -> Answer:
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    lines = [*(reasons or ["ok"]), *(f"remark: {remark}" for remark in remarks)]
    return status, _TEXT, ("\n".join(lines) + "\n").encode()
