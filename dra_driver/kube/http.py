"""HTTP/1.1 to one server: a pool of kept connections, and limits on the time of each request. Adds to `http.client` a
deadline for a whole answer, reuse of a connection only after a complete answer, and the end of a read from another
thread. docs/decisions/0018 compares the alternatives."""

import contextlib
import http.client
import io
import select
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

KEPT = 4  # one reflector, four prepares, the publisher and the event recorder; more are opened and closed as needed
_BUFFER_BYTES = 16 * 1024  # the largest TLS record
_LATE = "the answer did not end in time"
_CUT = "the answer ended before its end"
# Dead peers are found after 15 + 3 x 5 s, not only at the end of a watch's read timeout.
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class TransportError(Exception):
    """A request without a usable answer. ``broke``: the connection ended, so the server may not have received the
    request. ``untrusted``: the server's certificate is not accepted, so the request was not sent. ``hint`` is the next
    thing to check."""

    def __init__(self, text: str, *, broke: bool = False, untrusted: bool = False, hint: str = "") -> None:
        super().__init__(text)
        self.broke = broke
        self.untrusted = untrusted
        self.hint = hint


class RequestLimits(Struct, frozen=True, kw_only=True):
    """Seconds to connect and between bytes, and the moment (monotonic clock) when the whole request has to end."""

    connect_s: float
    read_s: float
    deadline: float | None = None

    def left_s(self, most_s: float) -> float:
        """The time for one wait; 1 ms when no time is left."""
        if self.deadline is None:
            return most_s
        return min(most_s, max(0.001, self.deadline - time.monotonic()))

    def is_over(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline


class HttpServer(Struct, frozen=True, kw_only=True):
    """Address of a server. ``path`` comes before the path of each request; ``make_tls`` is None for plain HTTP;
    ``server_name`` replaces ``host`` in the check of the certificate."""

    host: str
    port: int
    path: str
    make_tls: Callable[[], ssl.SSLContext] | None
    server_name: str | None = None


class HttpAnswer(Protocol):
    """One answer. ``headers`` have names in lower case. For one thread, except `interrupt`."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    def read_some(self, limit: int) -> bytes:
        """The next bytes of the body, at most ``limit``; b"" at its end. Raises `TransportError`."""

    def close(self) -> None:
        """Keep the connection for the next request if the body was read to its end, else close it. Idempotent."""

    def interrupt(self) -> None:
        """End a read in another thread."""


class HttpPool:
    """Requests to one server. Thread-safe."""

    def __init__(self, server: HttpServer, *, kept: int = KEPT) -> None:
        self._server = server
        self._kept = kept
        self._lock = threading.Lock()  # guards the fields below
        self._idle: list[_Connection] = []
        self._tls: ssl.SSLContext | None = None
        weakref.finalize(self, _close_all, self._idle).atexit = False  # for a client that is dropped without `clear`

    def send(
        self, verb: str, target: str, headers: Mapping[str, str], body: bytes | None, limits: RequestLimits
    ) -> Callable[[], HttpAnswer]:
        """Send a request. The caller must call the result, which reads the head of the answer; close the answer when
        done. Both raise `TransportError`."""
        connection = self._idle_connection() or self._open(limits)
        connection.wire.limits = limits
        try:
            connection.request(verb, self._server.path + target, body, headers)
        except (http.client.InvalidURL, ValueError) as error:
            connection.wire.hang_up()
            raise TransportError("the request holds a character that HTTP does not allow there") from error
        except BaseException:
            connection.wire.hang_up()
            raise
        return lambda: self._answer(connection)

    def clear(self, *, for_good: bool = False) -> None:
        """Close idle connections; ``for_good``, those in use too, once they are free. Idempotent."""
        with self._lock:
            if for_good:
                self._kept = 0
            _close_all(self._idle)

    def _answer(self, connection: "_Connection") -> HttpAnswer:
        try:
            return _ClientAnswer(connection, lambda: self._give_back(connection))
        except http.client.HTTPException as error:
            connection.wire.hang_up()
            raise _translated(error) from error
        except BaseException:
            connection.wire.hang_up()
            raise

    def _idle_connection(self) -> "_Connection | None":
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None or connection.wire.is_quiet():
                return connection
            connection.wire.hang_up()

    def _open(self, limits: RequestLimits) -> "_Connection":
        server = self._server
        connected = _connected(server.host, server.port, limits, self._tls_context(), server.server_name)
        return _Connection(server.host, server.port, _Wire(connected))

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

    def _give_back(self, connection: "_Connection") -> None:
        with self._lock:
            if not connection.wire.is_spent and len(self._idle) < self._kept:
                self._idle.append(connection)
                return
        connection.wire.hang_up()


class _Wire:
    """A connected socket with the methods that `http.client` uses and the limits of the request in progress. For one
    thread at a time, except `interrupt`."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.limits = RequestLimits(connect_s=0.0, read_s=0.0)
        self.is_spent = False
        """Return whether no further request can be sent."""
        self.has_ended = False
        """Return whether the server has closed its side."""

    def sendall(self, data: bytes) -> None:
        try:
            self._socket.settimeout(self.limits.left_s(self.limits.read_s))
            self._socket.sendall(data)
        except TimeoutError as error:
            raise TransportError("sending the request timed out") from error
        except OSError as error:
            raise TransportError(f"the connection broke: {_reason(error)}", broke=True) from error

    def makefile(self, _mode: str) -> io.BufferedReader:
        """The bytes of one answer."""
        return _AnswerBytes(_Receiver(self), _BUFFER_BYTES)

    def close(self) -> None:
        """Keep the connection open until the end of this answer, which is its last: `http.client` calls this early."""
        self.is_spent = True

    def receive_into(self, buffer: memoryview) -> int:
        """Wait for bytes; 0 at the end of the connection. Raises `TransportError`."""
        try:
            if self.limits.deadline is not None:
                self._socket.settimeout(self.limits.left_s(self.limits.read_s))
            if self.limits.is_over():  # however fast single bytes come
                raise TransportError(_LATE)
            size = self._socket.recv_into(buffer)
        except TimeoutError as error:
            raise TransportError(_LATE if self.limits.is_over() else "the read timed out") from error
        except (OSError, ValueError) as error:
            raise TransportError(f"the connection broke: {_reason(error)}", broke=True) from error
        self.has_ended = not size
        return size

    def is_quiet(self) -> bool:
        """Return whether the server has neither closed the connection nor sent anything after the last answer."""
        poller = select.poll()
        try:
            poller.register(self._socket, select.POLLIN)
            pending = self._socket.pending() if isinstance(self._socket, ssl.SSLSocket) else 0
        except (OSError, ValueError):
            return False
        return not pending and not poller.poll(0)

    def interrupt(self) -> None:
        """End a read in another thread. Not ``SSLSocket.shutdown``, which takes the TLS state from the reader."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RD)

    def hang_up(self) -> None:
        self._socket.close()


class _Connection(http.client.HTTPConnection):
    def __init__(self, host: str, port: int, wire: _Wire) -> None:
        super().__init__(host, port)
        self.sock = wire
        self.wire = wire


class _Receiver(io.RawIOBase):
    """The bytes of a connection while one answer is read."""

    def __init__(self, wire: _Wire) -> None:
        self.wire: _Wire | None = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # the buffered reader gives a memoryview
        return 0 if self.wire is None else self.wire.receive_into(buffer)


class _AnswerBytes(io.BufferedReader):
    """The same with a buffer. Bytes that are in it after the answer would be lost, so the connection is not reused."""

    raw: _Receiver

    def close(self) -> None:
        if not self.closed:
            wire, self.raw.wire = self.raw.wire, None
            if wire is not None and self.peek(1):
                wire.is_spent = True
        super().close()


class _ClientAnswer:
    """An `HttpAnswer` of `http.client`. ``done`` is called once, when the connection is free."""

    def __init__(self, connection: _Connection, done: Callable[[], None]) -> None:
        self._wire = connection.wire
        self._response = response = connection.getresponse()
        self._done: Callable[[], None] | None = done
        self.status = response.status
        self.headers = {name.lower(): value.strip() for name, value in response.getheaders()}
        self._ended = response.status in (http.client.NO_CONTENT, http.client.NOT_MODIFIED)
        if self._wire.has_ended:  # `http.client` takes the end of a connection for the end of the headers
            raise TransportError(_CUT, broke=True)
        if self.status < http.client.OK:
            raise TransportError(f"the answer has the status {self.status}, which no request asked for")
        coding = self.headers.get("transfer-encoding", "chunked")
        if coding.lower() != "chunked":  # `http.client` passes it over, and the end of the body would be a guess
            raise TransportError(f"the answer's transfer coding is {coding[:40]!r}, expected chunked")

    def read_some(self, limit: int) -> bytes:
        if self._ended:
            return b""
        try:
            data = self._response.read1(limit)
        except http.client.HTTPException as error:
            raise _translated(error) from error
        if not data:
            if self._response.length:
                raise TransportError(_CUT, broke=True)
            self._ended = True
        return data

    def close(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            self._response.close()
            self._wire.is_spent |= not self._ended
            done()

    def interrupt(self) -> None:
        """As `HttpAnswer.interrupt`. Not after `close`: the connection may serve another request then."""
        if self._done is not None:
            self._wire.interrupt()


def _connected(
    host: str, port: int, limits: RequestLimits, tls: ssl.SSLContext | None, server_name: str | None
) -> socket.socket:
    try:
        plain = socket.create_connection((host, port), limits.left_s(limits.connect_s))
    except OSError as error:
        raise TransportError(f"cannot connect: {_reason(error)}") from error
    try:
        for option in _OPTIONS:
            plain.setsockopt(*option)
        plain.settimeout(limits.left_s(limits.connect_s))
        return plain if tls is None else tls.wrap_socket(plain, server_hostname=server_name or host)
    except (OSError, ValueError) as error:
        plain.close()
        hint = "check the CA certificate" if isinstance(error, ssl.SSLError) else ""
        untrusted = isinstance(error, ssl.SSLCertVerificationError)
        raise TransportError(f"cannot begin TLS: {_reason(error)}", untrusted=untrusted, hint=hint) from error


def _close_all(connections: list[_Connection]) -> None:
    while connections:
        connections.pop().wire.hang_up()


def _translated(error: http.client.HTTPException) -> TransportError:
    if isinstance(error, http.client.RemoteDisconnected):
        return TransportError("the connection was closed without an answer", broke=True)
    if isinstance(error, http.client.IncompleteRead):
        return TransportError(_CUT, broke=True)
    return TransportError(f"the answer is not HTTP/1.1 ({type(error).__name__}: {str(error)[:80]})")


def _reason(error: Exception) -> str:
    """Without numbers that differ from time to time: events with the same text are put together."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not accepted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
