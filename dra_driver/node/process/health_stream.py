"""The kubelet's device health streams, v1 and v1alpha1: keeps them open and sends what ``report`` is given.

Each message has all devices, with a timeout of ``TIMEOUT_S`` after which the kubelet shows a device as Unknown.
Nothing is sent before the first report, nor with health off. The streams are served anyway: kubelets up to 1.36 open
the v1alpha1 stream to every DRA driver and dial again every 5 s, with a log line, when it ends
(kubernetes/kubernetes pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go). An open stream also keeps a kubelet 1.34 from
its deadlock after 30 idle minutes.

A stream holds no thread, so streams never take one from a prepare. gRPC's ``send`` blocks while the other side does not
read: ``SENDERS`` threads send, one message at a time per stream and always the newest. A stream on which one takes
longer than ``SLOW_S`` is ended, and the kubelet opens it again.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType
from typing import Final

import grpc
from msgspec import Struct

from dra_driver.core._pb.health_v1 import api_pb2 as v1
from dra_driver.core._pb.health_v1alpha1 import api_pb2 as v1alpha1
from dra_driver.core.telemetry import metrics
from dra_driver.node.process.health_report import DeviceReport
from dra_driver.node.process.server import generic_handler

log = logging.getLogger(__name__)

# A kubelet holds one, and two for a moment during its restart.
MAX_STREAMS = 16
SENDERS = 2
TIMEOUT_S: Final = 30
SLOW_S: Final = 5.0

Send = Callable[[object], None]


class _Stream(Struct):
    """``sent`` is the number of the report that was sent last; ``sending_since`` is None while nothing is sent."""

    messages: ModuleType
    context: grpc.ServicerContext
    send: Send
    sent: int = 0
    sending_since: float | None = None


class HealthStreams:
    """All open streams of both versions. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards the fields below, those of streams too
        self._open: dict[int, _Stream] = {}
        self._stopping = False
        self._number = 0  # of the newest report
        self._reports: tuple[DeviceReport, ...] = ()
        self._built: dict[str, object] = {}  # messages of the newest report, by version
        self._senders = ThreadPoolExecutor(SENDERS, thread_name_prefix="health-stream")

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        return [
            generic_handler(
                messages.DESCRIPTOR.services_by_name["DRAResourceHealth"],
                {"NodeWatchResources": partial(self.watch, messages)},
            )
            for messages in (v1, v1alpha1)
        ]

    def watch(self, messages: ModuleType, _request: object, context: grpc.ServicerContext, send: Send) -> None:
        """Registers a stream and returns; it stays open until the kubelet or ``stop`` ends it."""
        key, stream = id(send), _Stream(messages, context, send)
        with self._lock:
            refused = self._stopping or len(self._open) >= MAX_STREAMS
            if not refused:
                self._open[key] = stream
                metrics.health_streams.set(len(self._open))
        if refused:
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} health streams are open, or the driver stops"
            )
        if not context.add_callback(lambda: self._ended(key)):
            self._ended(key)
        with self._lock:
            self._offer(stream)

    def report(self, devices: Sequence[DeviceReport]) -> None:
        """Send this to every stream, soon; an empty report only while a former one was not. Returns at once."""
        with self._lock:
            if devices or self._reports:
                self._number += 1
                self._reports = tuple(devices)
                self._built = {}
            self._end_slow()
            for stream in self._open.values():
                self._offer(stream)

    def stop(self) -> None:
        """Ends all streams, so that the server does not wait for them, and refuses later ones. Idempotent."""
        with self._lock:
            self._stopping = True
            ending = list(self._open.values())
        for stream in ending:
            stream.send(None)
        self._senders.shutdown(wait=False, cancel_futures=True)

    @property
    def count(self) -> int:
        with self._lock:
            return len(self._open)

    @property
    def sending(self) -> int:
        """On how many of them a message is on its way."""
        with self._lock:
            return sum(stream.sending_since is not None for stream in self._open.values())

    def _offer(self, stream: _Stream) -> None:
        """Begins to send the newest report where that is due. Call it with the lock."""
        if not self._stopping and stream.sending_since is None and stream.sent < self._number:
            stream.sending_since = self._clock()
            self._senders.submit(self._send, stream)

    def _send(self, stream: _Stream) -> None:
        with self._lock:
            stream.sending_since = self._clock()  # from here on; before, it waited for a thread
            stream.sent, message = self._number, self._message(stream.messages)
        try:
            stream.send(message)
        except Exception:  # thread boundary: the kubelet opens a new stream
            log.exception("health stream failed")
            metrics.internal_error("health")
        with self._lock:
            stream.sending_since = None
            if id(stream.send) in self._open:
                self._offer(stream)

    def _message(self, messages: ModuleType) -> object:
        version = messages.DESCRIPTOR.name
        if version not in self._built:
            self._built[version] = message_of(messages, self._reports)
        return self._built[version]

    def _end_slow(self) -> None:
        """Ends streams whose kubelet does not read, which also frees their threads. Call it with the lock."""
        for stream in list(self._open.values()):
            if stream.sending_since is not None and self._clock() - stream.sending_since > SLOW_S:
                log.warning("a health stream is not read; ending it", extra={"seconds": SLOW_S})
                stream.context.cancel()

    def _ended(self, key: int) -> None:
        with self._lock:
            self._open.pop(key, None)
            metrics.health_streams.set(len(self._open))


def message_of(messages: ModuleType, devices: Sequence[DeviceReport]) -> object:
    """The message of one version (its generated module). Pure."""
    now = int(time.time())
    return messages.NodeWatchResourcesResponse(
        devices=[
            messages.DeviceHealth(
                device=messages.DeviceIdentifier(pool_name=each.pool, device_name=each.device),
                health=messages.HealthStatus.Value(each.state.value),
                last_updated_time=now,
                health_check_timeout_seconds=TIMEOUT_S,
                message=each.message,
            )
            for each in devices
        ]
    )
