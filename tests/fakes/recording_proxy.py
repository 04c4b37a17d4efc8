"""An HTTP proxy in front of an API server that records which requests arrive, and misbehaves as a test says.

``rule`` decides for each request; `refuse` and `silent` act on connections, which are kept as an API server keeps them.
"""

import base64
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import urllib3

SILENCE_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request as it arrived; ``path`` has the query. ``at`` is a monotonic clock's seconds."""

    verb: str
    path: str
    at: float

    @property
    def is_watch(self) -> bool:
        return "watch=true" in self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Misbehaviour:
    """What happens instead of the answer (``status``), before it (``delay_s``), or to a watch (``watch_s``)."""

    status: int | None = None
    reason: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    watch_s: float | None = None

    def body(self) -> bytes:
        said = {"code": self.status, "reason": self.reason, "message": f"{self.reason}, said by the test"}
        return json.dumps({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", **said}).encode()


GOOD = Misbehaviour()
Rule = Callable[[Call], Misbehaviour]


class RecordingProxy:
    """A context manager. ``calls`` has every request in the order of arrival, ``refused`` those answered with 403.

    ``tls`` makes it serve HTTPS with that context; it is asked for each connection, so it may change.
    """

    def __init__(self, kubeconfig: Path, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        self.document: dict[str, Any] = json.loads(kubeconfig.read_text())
        cluster = self.document["clusters"][0]["cluster"]
        self._target = cluster["server"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._pool = urllib3.PoolManager(
            maxsize=16, ssl_context=ssl.create_default_context(cadata=authority), timeout=urllib3.Timeout(300.0)
        )
        self.calls: list[Call] = []
        self.refused: list[tuple[str, str]] = []
        self.rule: Rule = lambda call: GOOD
        self.silent = threading.Event()
        """While set, no byte passes in either direction and no connection ends: half-open connections."""
        self._tls = tls
        self._guard = threading.Lock()  # guards the two below
        self._open: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self._closed = False

    def __enter__(self) -> Self:
        self.accept()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self.refuse()
        self._pool.clear()

    @property
    def requests(self) -> list[tuple[str, str]]:
        return [(call.verb, call.path) for call in self.calls]

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    def kubeconfig(self, path: Path, cluster: Mapping[str, str] | None = None) -> Path:
        """A kubeconfig with which clients come through this proxy; ``cluster`` has more fields of its cluster."""
        clusters = [{**item, "cluster": {"server": self.url, **(cluster or {})}} for item in self.document["clusters"]]
        path.write_text(json.dumps({**self.document, "clusters": clusters}))
        return path

    def refuse(self) -> None:
        with self._guard:
            server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        self.drop_connections()

    def accept(self) -> None:
        handler = type("Handler", (_Handler,), {"proxy": self})
        server = _Server(("127.0.0.1", self._port), handler)
        server.proxy = self
        self._port = server.server_address[1]
        with self._guard:
            self._server = server
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def drop_connections(self) -> None:
        with self._guard:
            found = list(self._open)
        for each in found:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def opened(self, connection: socket.socket) -> socket.socket:
        """The connection, secured; here, in its thread, because a handshake may take long."""
        secured = self._tls().wrap_socket(connection, server_side=True) if self._tls else connection
        with self._guard:
            self._open.add(secured)
        return secured

    def ended(self, connection: socket.socket) -> None:
        with self._guard:
            self._open.discard(connection)

    def hold(self) -> None:
        while self.silent.is_set() and not self._closed:
            time.sleep(SILENCE_POLL_S)

    def forward(self, verb: str, path: str, body: bytes | None, headers: dict[str, str]) -> Any:
        url = self._target + path
        answer = self._pool.request(verb, url, body=body, headers=headers, preload_content=False, retries=False)
        if answer.status == HTTPStatus.FORBIDDEN:
            self.refused.append((verb, path))
        return answer


def _end(answer: Any) -> None:
    with contextlib.suppress(OSError, AttributeError):
        socket.socket.shutdown(answer.connection.sock, socket.SHUT_RD)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    proxy: RecordingProxy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client went away, or did not trust the certificate."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: RecordingProxy

    def setup(self) -> None:
        self.request.settimeout(60.0)
        self.request = self.proxy.opened(self.request)
        super().setup()

    def finish(self) -> None:
        self.proxy.ended(self.request)
        with contextlib.suppress(OSError, ValueError):
            super().finish()
        self.request.close()  # what TLS has wrapped is not known to the server

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        call = Call(verb=self.command, path=self.path, at=time.monotonic())
        self.proxy.calls.append(call)
        self.proxy.hold()
        found = self.proxy.rule(call)
        time.sleep(found.delay_s)
        try:
            self._answer(call, found, body)
        except (OSError, urllib3.exceptions.HTTPError):
            self.close_connection = True  # the client ended its watch, or the API server stops

    def _answer(self, call: Call, found: Misbehaviour, body: bytes | None) -> None:
        if found.status is not None:
            self._send(found.status, {"Content-Type": "application/json", **found.headers}, found.body())
            return
        kept = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        answer = self.proxy.forward(call.verb, call.path, body, kept)
        try:
            if call.is_watch and answer.status == 200:
                self._stream(answer, found.watch_s)
            else:
                self.proxy.hold()
                self._send(answer.status, dict(answer.headers), answer.read())
        finally:
            answer.close()

    def _send(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "content-length", "connection", "content-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, answer: Any, seconds: float | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        ending = threading.Timer(seconds, _end, (answer,)) if seconds is not None else None
        if ending is not None:
            ending.daemon = True
            ending.start()
        with contextlib.suppress(urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError):
            while chunk := answer.read1(65536):
                self.proxy.hold()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None: ...
