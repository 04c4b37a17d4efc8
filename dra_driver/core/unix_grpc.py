"""gRPC over a unix socket as the kubelet speaks it, with a limit on time and size of every answer: 4 MiB per message,
gRPC's default (google.golang.org/grpc clientconn.go, server.go defaultServerMaxReceiveMessageSize)."""

import threading
from collections.abc import Callable
from math import inf
from typing import Any, Final
from urllib.parse import quote

import grpc
from msgspec import Struct

from dra_driver.core.errors import DraError
from dra_driver.core.text import cut, printable

MAX_MESSAGE_BYTES: Final = 4 * 2**20
MAX_TEXT: Final = 300  # characters of a subject's text that go into a message


class Service(Struct, frozen=True):
    """One gRPC service: its generated module and its name in there."""

    messages: Any
    name: str

    def path(self, method: str) -> str:
        return f"/{self.messages.DESCRIPTOR.services_by_name[self.name].full_name}/{method}"

    def reader(self, method: str) -> Any:
        answer = self.messages.DESCRIPTOR.services_by_name[self.name].methods_by_name[method].output_type
        return getattr(self.messages, answer.name).FromString


class CallError(DraError):
    """A call failed; ``code`` is the name of the gRPC status, such as UNIMPLEMENTED."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Peer:
    """One connection to one socket, made at first use and again after a loss. Thread-safe. With ``fails_fast``, a unary
    call fails without a connection; by default it waits for one."""

    def __init__(self, path: str, *, fails_fast: bool = False) -> None:
        options = (
            ("grpc.use_local_subchannel_pool", 1),  # in the shared pool a new connection inherits back-off
            ("grpc.default_authority", quote(path, safe="")),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 500),
        )
        self.path = path
        self._waits = not fails_fast
        self._channel = grpc.insecure_channel(f"unix:{path}", options=options)

    def call(self, service: Service, method: str, request: Any, timeout_s: float) -> Any:
        """The answer of a unary call. Raises CallError."""
        make = self._made(self._channel.unary_unary, service, method, request)
        try:
            return make(request, timeout=timeout_s, wait_for_ready=self._waits)
        except grpc.RpcError as error:
            raise _failed(method, error, timeout_s) from error
        except ValueError as error:
            raise CallError(f"{method} failed: the connection is closed", "CANCELLED") from error

    def begin(self, service: Service, method: str, request: Any, timeout_s: float) -> "PendingCall":
        make = self._made(self._channel.unary_unary, service, method, request)
        return PendingCall(method, make.future(request, timeout=timeout_s, wait_for_ready=True), timeout_s)

    def stream(self, service: Service, method: str, request: Any, timeout_s: float | None) -> "HealthStream":
        """Open a stream of answers, which ends after ``timeout_s``; None for no limit."""
        make = self._made(self._channel.unary_stream, service, method, request)
        return HealthStream(method, make(request, timeout=timeout_s, wait_for_ready=True), timeout_s or inf)

    def _made(self, make: Callable[..., Any], service: Service, method: str, request: Any) -> Any:
        serialize, read = type(request).SerializeToString, service.reader(method)
        return make(service.path(method), request_serializer=serialize, response_deserializer=read)

    def watch(self, changed: Callable[[bool], None]) -> None:
        """Connect now, stay connected, and call ``changed`` with whether the connection is up, after each change."""
        self._channel.subscribe(lambda state: changed(state is grpc.ChannelConnectivity.READY), try_to_connect=True)

    def close(self) -> None:
        """Close the connection; calls in flight end. Idempotent."""
        self._channel.close()


class PendingCall:
    """A call that has been sent."""

    def __init__(self, method: str, call: Any, timeout_s: float) -> None:
        self._method, self._call, self._timeout_s = method, call, timeout_s

    def answer(self) -> Any:
        try:
            return self._call.result(self._timeout_s + 1.0)
        except (grpc.RpcError, grpc.FutureTimeoutError) as error:
            raise _failed(self._method, error, self._timeout_s) from error
        except grpc.FutureCancelledError as error:
            raise CallError(f"{self._method} was cancelled", "CANCELLED") from error

    def cancel(self) -> None:
        """Cancel the call, as a kubelet does when its process ends."""
        self._call.cancel()


class HealthStream:
    """A stream of answers. ``read`` calls a function with each; one thread at a time."""

    def __init__(self, method: str, call: Any, timeout_s: float) -> None:
        self._method, self._call, self._timeout_s = method, call, timeout_s

    def read(self, seen: Callable[[object], bool], within_s: float | None = None) -> bool:
        """Call ``seen`` with every message until it returns True. False if that exceeds ``within_s`` or the stream was
        closed: the stream has then ended. Raises CallError if the driver ends it."""
        timer = threading.Timer(threading.TIMEOUT_MAX if within_s is None else within_s, self._call.cancel)
        timer.daemon = True
        if within_s is not None:
            timer.start()
        try:
            for message in self._call:
                if seen(message):
                    return True
        except grpc.RpcError as error:
            if error.code() in {grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}:
                return False
            raise _failed(self._method, error, self._timeout_s) from error
        finally:
            timer.cancel()
        raise CallError(f"{self._method}: the driver ended the stream", "OK")

    def close(self) -> None:
        self._call.cancel()


def _failed(method: str, error: Exception, timeout_s: float) -> CallError:
    if isinstance(error, grpc.Call):
        code = error.code().name
        if code == "DEADLINE_EXCEEDED":
            return CallError(f"{method} gave no answer within {timeout_s:g} s", code)
        return CallError(f"{method} failed with {code}: {shown(error.details())}", code)
    return CallError(f"{method} gave no answer within {timeout_s:g} s", "DEADLINE_EXCEEDED")


def shown(text: object) -> str:
    return cut(printable(str(text)), MAX_TEXT)
