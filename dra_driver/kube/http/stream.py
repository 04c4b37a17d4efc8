"""One connection to a server: TCP, mostly with TLS on it, and timeouts of the request that uses it."""

import contextlib
import select
import socket
import ssl
import time

from msgspec import Struct

from dra_driver.kube.http.answer import TransportError

_READ_BYTES = 16 * 1024  # the largest TLS record
_LATE = "the answer did not end in time"
# Dead peers are found after 15 + 3 x 5 s, not only at the end of a watch's read timeout.
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class RequestLimits(Struct, frozen=True, kw_only=True):
    """Seconds for one request: to connect, between bytes, and the moment (monotonic clock) when all must be over."""

    connect_s: float
    read_s: float
    deadline: float | None = None

    def left_s(self, most_s: float) -> float:
        """The time for one wait; a moment when no time is left."""
        if self.deadline is None:
            return most_s
        return min(most_s, max(0.001, self.deadline - time.monotonic()))

    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() > self.deadline


class HttpStream:
    """A connected socket. For one thread at a time, except `interrupt`."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._limits = RequestLimits(connect_s=0.0, read_s=0.0)
        self.buffer = bytearray()

    @classmethod
    def open(
        cls, host: str, port: int, limits: RequestLimits, tls: ssl.SSLContext | None, server_name: str | None
    ) -> "HttpStream":
        """Connect. Raises `TransportError`."""
        try:
            plain = socket.create_connection((host, port), limits.left_s(limits.connect_s))
        except OSError as error:
            raise TransportError(f"cannot connect: {_reason(error)}") from error
        try:
            for option in _OPTIONS:
                plain.setsockopt(*option)
            plain.settimeout(limits.left_s(limits.connect_s))
            return cls(plain if tls is None else tls.wrap_socket(plain, server_hostname=server_name or host))
        except (OSError, ValueError) as error:
            plain.close()
            hint = "check the CA certificate" if isinstance(error, ssl.SSLError) else ""
            untrusted = isinstance(error, ssl.SSLCertVerificationError)
            raise TransportError(f"cannot begin TLS: {_reason(error)}", untrusted=untrusted, hint=hint) from error

    def send(self, data: bytes, limits: RequestLimits) -> None:
        """Send a whole request; its answer is read within ``limits``. Raises `TransportError`."""
        self._limits = limits
        self._socket.settimeout(limits.left_s(limits.read_s))
        try:
            self._socket.sendall(data)
        except TimeoutError as error:
            raise TransportError("sending the request timed out") from error
        except OSError as error:
            raise TransportError(f"the connection broke: {_reason(error)}", broke=True) from error

    def fill(self) -> bool:
        """Wait for bytes and append them to ``buffer``; False at the end. Raises `TransportError`."""
        if self._limits.deadline is not None:
            self._socket.settimeout(self._limits.left_s(self._limits.read_s))
        if self._limits.is_over():  # however fast single bytes come
            raise TransportError(_LATE)
        try:
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError as error:
            raise TransportError(_LATE if self._limits.is_over() else "the read timed out") from error
        except (OSError, ValueError) as error:
            raise TransportError(f"the connection broke: {_reason(error)}", broke=True) from error
        self.buffer += data
        return bool(data)

    def is_quiet(self) -> bool:
        """Whether the server has neither closed the connection nor sent something unasked."""
        poller = select.poll()
        try:
            poller.register(self._socket, select.POLLIN)
        except (OSError, ValueError):
            return False
        return not self.buffer and not poller.poll(0)

    def interrupt(self) -> None:
        """End a read in another thread. Not ``SSLSocket.shutdown``, which takes the TLS state from the reader."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RD)

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()


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
