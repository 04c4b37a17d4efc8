"""A few kept connections to one server, and requests on them."""

import re
import ssl
import threading
import weakref
from collections.abc import Callable, Mapping

from msgspec import Struct

from dra_driver.kube.http.answer import StreamAnswer, TransportError
from dra_driver.kube.http.stream import HttpStream, RequestLimits

KEPT = 4
"""One reflector, four prepares, the publisher and the event recorder; more are opened and closed as needed."""
_TARGET = re.compile(r"/[!-~]*")
_FIELD = re.compile(r"[ -~\t]*")


class HttpServer(Struct, frozen=True, kw_only=True):
    """Where requests go. ``path`` comes before each request's own path; ``make_tls`` is None for plain HTTP.

    ``server_name`` replaces ``host`` in the check of the certificate.
    """

    host: str
    port: int
    path: str
    make_tls: Callable[[], ssl.SSLContext] | None
    server_name: str | None = None

    @property
    def host_field(self) -> str:
        """The value of the field ``Host``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class HttpPool:
    """Requests to one server. Thread-safe."""

    def __init__(self, server: HttpServer, *, kept: int = KEPT) -> None:
        self._server = server
        self._kept = kept
        self._lock = threading.Lock()  # guards the fields below
        self._idle: list[HttpStream] = []
        self._tls: ssl.SSLContext | None = None
        weakref.finalize(self, _close_all, self._idle).atexit = False  # for a client that is dropped without `clear`

    def request(
        self, verb: str, target: str, headers: Mapping[str, str], body: bytes | None, limits: RequestLimits
    ) -> StreamAnswer:
        """Send a request and read the head of its answer; close the answer when done. Raises `TransportError`."""
        return self.send(verb, target, headers, body, limits)()

    def send(
        self, verb: str, target: str, headers: Mapping[str, str], body: bytes | None, limits: RequestLimits
    ) -> Callable[[], StreamAnswer]:
        """Send a request; the result waits for its answer and has to be called. Both raise `TransportError`."""
        data = _encoded(verb, self._server.path + target, {"Host": self._server.host_field, **headers}, body)
        stream = self._idle_stream() or self._open(limits)
        try:
            stream.send(data, limits)
        except BaseException:
            stream.close()
            raise
        return lambda: self._answer(stream)

    def clear(self, *, for_good: bool = False) -> None:
        """Close idle connections; ``for_good``, those in use too, once they are free. Idempotent."""
        with self._lock:
            if for_good:
                self._kept = 0
            _close_all(self._idle)

    def _answer(self, stream: HttpStream) -> StreamAnswer:
        try:
            return StreamAnswer(stream, lambda reusable: self._give_back(stream, reusable=reusable))
        except BaseException:
            stream.close()
            raise

    def _idle_stream(self) -> HttpStream | None:
        while True:
            with self._lock:
                stream = self._idle.pop() if self._idle else None
            if stream is None or stream.is_quiet():
                return stream
            stream.close()

    def _open(self, limits: RequestLimits) -> HttpStream:
        server = self._server
        return HttpStream.open(server.host, server.port, limits, self._tls_context(), server.server_name)

    def _tls_context(self) -> ssl.SSLContext | None:
        if self._server.make_tls is None:
            return None
        with self._lock:
            if self._tls is None:
                try:
                    self._tls = self._server.make_tls()
                except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                    raise TransportError(
                        f"cannot use the certificates: {error}", hint="check the CA certificate and the client's own"
                    ) from error
            return self._tls

    def _give_back(self, stream: HttpStream, *, reusable: bool) -> None:
        with self._lock:
            if reusable and len(self._idle) < self._kept:
                self._idle.append(stream)
                return
        stream.close()


def _close_all(streams: list[HttpStream]) -> None:
    while streams:
        streams.pop().close()


def _encoded(verb: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """The request's bytes. Raises `TransportError` when a part would begin a line of its own."""
    if not _TARGET.fullmatch(target) or not all(map(_FIELD.fullmatch, headers.values())):
        raise TransportError("the request holds a character that HTTP does not allow there")
    lines = [f"{verb} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (body or b"")
