"""A gRPC server on one unix socket, and handlers built from descriptors.

Handlers come from the generated ``DESCRIPTOR``: generated service code would tie the project to one range of grpcio
versions. Sockets have mode 0755, which gRPC sets; the directories above them belong to root.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from dra_driver.core.errors import ConfigurationError
from dra_driver.node.process.sockets import Published, private_path, publish

# A pod's claims take some 100 bytes each, and a pod has at most a few dozen. The kubelet accepts answers of 4 MiB.
MAX_REQUEST_BYTES = 256 * 1024
# Calls in progress or waiting for a thread. Beyond it gRPC answers RESOURCE_EXHAUSTED immediately, to an unprepare too.
# A kubelet has one call per starting or ending pod (110 pods, 250 on large nodes) and repeats calls that timed out. A
# waiting call takes 21 KiB.
MAX_CONCURRENT_CALLS = 512
# The kubelet cancels a call after 45 s and ignores a later answer.
RETIREMENT_S = 45.0

Method = Callable[..., Any]


def generic_handler(
    service: ServiceDescriptor, methods: Mapping[str, Method], pools: Mapping[str, ThreadPoolExecutor] | None = None
) -> grpc.GenericRpcHandler:
    """A handler for ``service``. ``methods`` has one callable ``(request, context)`` for each of its methods.

    A method in ``pools`` runs on those threads instead of the server's. (gRPC reads the attribute
    ``experimental_thread_pool``, unchanged since 1.23.)

    A method that streams its answer is called as ``(request, context, send)`` and returns immediately:
    ``send(message)`` can be called later from any thread, and ``send(None)`` ends the stream. (gRPC's health service
    relies on the same ``experimental_non_blocking`` mark, unchanged since grpcio 1.23.)
    """
    if missing := service.methods_by_name.keys() ^ methods.keys():
        raise ValueError(f"{service.full_name}: methods do not match the service: {sorted(missing)}")
    placed = {name: _InPool(methods[name], pool) for name, pool in (pools or {}).items()}
    handlers = {
        name: _method_handler(service.methods_by_name[name], placed.get(name, method))
        for name, method in methods.items()
    }
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _method_handler(descriptor: MethodDescriptor, method: Method) -> "grpc.RpcMethodHandler[object, Message]":
    request = message_factory.GetMessageClass(descriptor.input_type)
    if descriptor.server_streaming:
        return grpc.unary_stream_rpc_method_handler(_NonBlocking(method), request.FromString, _serialize)
    return grpc.unary_unary_rpc_method_handler(method, request.FromString, _serialize)


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


class _NonBlocking:
    experimental_non_blocking = True

    def __init__(self, method: Method) -> None:
        self._method = method

    def __call__(self, request: object, context: grpc.ServicerContext, send: Callable[[object], None]) -> None:
        self._method(request, context, send)


class _InPool:
    def __init__(self, method: Method, pool: ThreadPoolExecutor) -> None:
        self._method = method
        self.experimental_thread_pool = pool

    def __call__(self, request: object, context: grpc.ServicerContext) -> object:
        return self._method(request, context)


class UnixServer:
    """Serves ``handlers`` on the socket ``path`` from ``start`` until ``stop``; cannot be started again."""

    def __init__(self, path: Path, handlers: Sequence[grpc.GenericRpcHandler], *, threads: int, name: str) -> None:
        self._path = path
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._server = grpc.server(
            self._pool,
            handlers=list(handlers),
            options=[("grpc.max_receive_message_length", MAX_REQUEST_BYTES)],
            maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS,
        )
        self._published: Published | None = None

    def start(self) -> None:
        """Accept calls, then publish the socket under its public name. Raises ConfigurationError if the socket cannot
        be created, and leaves no file behind."""
        private = private_path(self._path)
        try:
            self._server.add_insecure_port(f"unix:{private}")
            self._server.start()
            self._published = publish(private, self._path)
        except (RuntimeError, OSError) as error:
            self.stop(0)
            advice = "check that its directory exists and that this process may write there"
            raise ConfigurationError(f"cannot serve on {self._path}: {error}: {advice}") from error
        except ConfigurationError:
            self.stop(0)
            raise

    @property
    def socket(self) -> Published:
        """The published socket; only after ``start``."""
        if self._published is None:
            raise RuntimeError("the server has not been started")
        return self._published

    def retire(self) -> None:
        """Stop without waiting: a successor serves the path; calls in progress here complete."""
        self._server.stop(RETIREMENT_S)

    def stop(self, grace_s: float) -> None:
        """Withdraw the socket, refuse new calls, and give calls in progress ``grace_s``. Idempotent. A call that
        exceeds the grace period is canceled for its caller and continues in its thread."""
        if self._published is not None:
            self._published.withdraw()
        self._server.stop(grace_s).wait(grace_s + 0.3)
        self._pool.shutdown(wait=False, cancel_futures=True)
