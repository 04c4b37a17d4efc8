"""An HTTP proxy in front of an API server that records which requests arrive.

It forwards bodies, answers and watches as they come, so a client sees the API server itself.
"""

import base64
import json
import ssl
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import urllib3


class RecordingProxy:
    """A context manager. ``requests`` holds method and path with query, in the order of arrival; ``refused`` those that
    were answered with 403.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self._document = json.loads(kubeconfig.read_text())
        self.requests: list[tuple[str, str]] = []
        self.refused: list[tuple[str, str]] = []
        authority = base64.b64decode(self._document["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
        self._pool = urllib3.PoolManager(maxsize=8, ssl_context=ssl.create_default_context(cadata=authority))
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False

    def __enter__(self) -> "RecordingProxy":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._pool.clear()

    def kubeconfig(self, path: Path) -> Path:
        server = {"server": f"http://127.0.0.1:{self._server.server_address[1]}"}
        clusters = [{**item, "cluster": server} for item in self._document["clusters"]]
        path.write_text(json.dumps({**self._document, "clusters": clusters}))
        return path

    def forward(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Any:
        self.requests.append((method, path))
        url = self._document["clusters"][0]["cluster"]["server"] + path
        answer = self._pool.request(method, url, body=body, headers=headers, preload_content=False, retries=False)
        if answer.status == HTTPStatus.FORBIDDEN:
            self.refused.append((method, path))
        return answer


class _Handler(BaseHTTPRequestHandler):
    proxy: RecordingProxy

    def _forward(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        kept = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        answer = self.proxy.forward(self.command, self.path, body, kept)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            while chunk := answer.read1(65536):
                self.wfile.write(chunk)
                self.wfile.flush()
        except (OSError, urllib3.exceptions.HTTPError):
            pass  # the client ended its watch, or the API server stops
        finally:
            answer.close()
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _forward  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None: ...
