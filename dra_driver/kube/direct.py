"""The usual session with an API server: this project's HTTP, and a token or a client certificate."""

import threading
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from dra_driver.kube.access import Access, read_token
from dra_driver.kube.http import HttpAnswer, HttpPool, HttpServer, RequestLimits

_TOKEN_FOR_S = 60.0
"""A token file is read again after this time, because the kubelet rotates it (BoundServiceAccountTokenVolume)."""


class DirectSession:
    """Requests with one `Access`. Thread-safe. Raises ConfigurationError when the token cannot be read."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._pool = HttpPool(_server(access))
        self._lock = threading.Lock()  # guards _token
        self._token = self._read_token()  # until when (monotonic clock), and which

    @property
    def server(self) -> str:
        """The API server's address."""
        return self._access.server

    def headers(self) -> dict[str, str]:
        """The header with the credentials; none with a client certificate. Raises ConfigurationError."""
        token = self._fresh_token()
        return {"authorization": f"Bearer {token}"} if token else {}

    def send(
        self, verb: str, target: str, headers: Mapping[str, str], body: bytes | None, limits: RequestLimits
    ) -> Callable[[], HttpAnswer]:
        """Send a request; the result waits for its answer. Both raise `TransportError`."""
        return self._pool.send(verb, target, headers, body, limits)

    def clear(self, *, for_good: bool = False) -> None:
        """Close idle connections; ``for_good``, those in use too, once they are free."""
        self._pool.clear(for_good=for_good)

    def _fresh_token(self) -> str | None:
        if self._access.token_file is None:
            return self._access.token
        with self._lock:
            if time.monotonic() >= self._token[0]:
                self._token = self._read_token()
            return self._token[1]

    def _read_token(self) -> tuple[float, str | None]:
        file = self._access.token_file
        return time.monotonic() + _TOKEN_FOR_S, read_token(file) if file else self._access.token


def _server(access: Access) -> HttpServer:
    url = urlsplit(access.server)
    secure = url.scheme == "https"
    return HttpServer(
        host=url.hostname or "",
        port=url.port or (443 if secure else 80),
        path=url.path.rstrip("/"),
        make_tls=access.tls if secure else None,
        server_name=access.server_name,
    )
