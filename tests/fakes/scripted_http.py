"""An HTTP server on loopback whose answers a test scripts, failures of servers included."""

import json
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True, slots=True)
class Seen:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass(slots=True)
class Exchange:
    """One request and the means to answer it. A script calls exactly one of the methods."""

    seen: Seen
    number: int
    _handler: BaseHTTPRequestHandler
    _stopping: threading.Event = field(repr=False)

    def json(self, body: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.raw(json.dumps(body).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def raw(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._handler.send_response(status)
        for name, value in (headers or {}).items():
            self._handler.send_header(name, value)
        self._handler.send_header("Content-Length", str(len(body)))
        self._handler.end_headers()
        self._handler.wfile.write(body)

    def stream(self, lines: Iterable[Any], *, end: str = "eof") -> None:
        """Chunked lines: dicts become JSON. ``end``: "eof" ends politely, "abort" breaks off, "hang" stays silent."""
        self._handler.send_response(200)
        self._handler.send_header("Transfer-Encoding", "chunked")
        self._handler.end_headers()
        for line in lines:
            data = line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
            self._handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self._handler.wfile.flush()
        if end == "hang":
            self.hang()
        elif end == "eof":
            self._handler.wfile.write(b"0\r\n\r\n")
        else:
            self._handler.close_connection = True

    def hang(self) -> None:
        self._stopping.wait(30)
        self._handler.close_connection = True

    def drop(self) -> None:
        self._handler.close_connection = True


class ScriptedServer:
    def __init__(self, script: Callable[[Exchange], None]) -> None:
        self.requests: list[Seen] = []
        self._script = script
        self._lock = threading.Lock()  # guards requests
        self._stopping = threading.Event()
        self._scheme = "http"
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler_class())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def serve_tls(self, context: ssl.SSLContext) -> None:
        self._scheme = "https"
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "ScriptedServer":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def kubeconfig(self) -> str:
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "s", "user": "u"}}],
                "clusters": [{"name": "s", "cluster": {"server": self.url}}],
                "users": [{"name": "u", "user": {"token": "secret"}}],
            }
        )

    def _handler_class(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
                is_form = self.headers.get("Content-Type") == "application/x-www-form-urlencoded"
                body = dict(parse_qsl(data)) if is_form else json.loads(data) if data else None
                url = urlsplit(self.path)
                seen = Seen(self.command, url.path, dict(parse_qsl(url.query)), dict(self.headers.items()), body)
                with outer._lock:
                    outer.requests.append(seen)
                    number = len(outer.requests)
                try:
                    outer._script(Exchange(seen, number, self, outer._stopping))
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, *args: Any) -> None:
                pass

        for verb in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            setattr(Handler, f"do_{verb}", Handler._any)
        return Handler
