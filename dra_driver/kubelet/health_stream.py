"""Holds the kubelet's device health streams open and reports nothing; the kubelet then shows health as Unknown.

The streams are served all the same: kubelets up to 1.36 open the v1alpha1 stream to every DRA driver, advertised or
not, and dial again every 5 s with a log line each time when it ends or is not implemented (kubernetes/kubernetes
pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go). An open stream also keeps a kubelet 1.34 from its deadlock after 30
idle minutes.

A stream holds no thread, so streams never take one from a prepare.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

import grpc

from dra_driver._pb.health_v1 import api_pb2 as v1
from dra_driver._pb.health_v1alpha1 import api_pb2 as v1alpha1
from dra_driver.kubelet.server import generic_handler
from dra_driver.telemetry import metrics

log = logging.getLogger(__name__)

# A kubelet holds one, and two for a moment during its restart.
MAX_STREAMS = 16

Send = Callable[[Any], None]


class HealthStreams:
    """All open streams of both versions. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _open and _stopping
        self._open: dict[int, Send] = {}
        self._stopping = False

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """The gRPC handlers of both versions."""
        services = [module.DESCRIPTOR.services_by_name["DRAResourceHealth"] for module in (v1, v1alpha1)]
        return [generic_handler(service, {"NodeWatchResources": self.watch}) for service in services]

    def watch(self, _request: Any, context: grpc.ServicerContext, send: Send) -> None:
        """Registers a stream and returns; it stays open until the kubelet or ``stop`` ends it."""
        key = id(send)
        with self._lock:
            refused = self._stopping or len(self._open) >= MAX_STREAMS
            if not refused:
                self._open[key] = send
                metrics.health_streams.set(len(self._open))
        if refused:
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} health streams are open, or the driver stops"
            )
        if not context.add_callback(lambda: self._ended(key)):
            self._ended(key)

    def stop(self) -> None:
        """Ends all streams, so that the server does not wait for them, and refuses later ones. Idempotent."""
        with self._lock:
            self._stopping = True
            ending = list(self._open.values())
        for send in ending:
            send(None)

    @property
    def count(self) -> int:
        with self._lock:
            return len(self._open)

    def _ended(self, key: int) -> None:
        with self._lock:
            self._open.pop(key, None)
            metrics.health_streams.set(len(self._open))
