"""The connection of a kubelet to one registered DRA plugin: prepare and unprepare calls, and the health stream.

Follows kubernetes/kubernetes pkg/kubelet/cm/dra/plugin: one connection per plugin, restored without a new registration,
and a health stream that stays open.
"""

import logging
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

import grpc

from dra_driver.core._pb.dra_v1 import api_pb2 as v1
from dra_driver.core._pb.dra_v1beta1 import api_pb2 as v1beta1
from dra_driver.core._pb.health_v1alpha1 import api_pb2 as health
from dra_driver.core.errors import RetryableError
from dra_driver.core.worker import Worker
from dra_driver.sim.node.kubelet_state import NodeClaim

log = logging.getLogger(__name__)

CALL_TIMEOUT_S: Final = 45.0
HEALTH_RETRY_S: Final = 5.0

# Service names that a kubelet supports. It uses the first entry of the driver's list that is one of them.
SERVICES: Final[dict[str, Any]] = {"v1.DRAPlugin": v1, "v1beta1.DRAPlugin": v1beta1}

# A separate pool per connection: in grpc's shared pool, a new connection inherits the back-off of one to a dead
# process. The real kubelet reconnects at once.
CHANNEL_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class HealthReports(Protocol):
    """Takes the messages of health streams, and their ends."""

    def report(self, driver: str, devices: Iterable[Any]) -> None: ...
    def clear(self, driver: str) -> None: ...


class DraPlugin:
    """One registered instance of a driver and the connection to it. Thread-safe."""

    def __init__(self, name: str, endpoint: str, service: str, reports: HealthReports | None = None) -> None:
        """``reports`` takes what the driver sends on its health stream."""
        self.name = name
        self._reports = reports
        self.endpoint = endpoint
        self.service = service
        self._messages = SERVICES[service]
        self._channel = grpc.insecure_channel(f"unix:{endpoint}", options=CHANNEL_OPTIONS)
        self._connected = threading.Event()
        self._channel.subscribe(self._changed, try_to_connect=True)
        self.health_messages = 0
        self._health_call: Any = None
        self._health = Worker(f"kubelet-health-{name}", self._watch_health, interrupt=self._disconnect)
        self._health.start()

    @property
    def connected(self) -> bool:
        """Whether the connection is up. It is restored without a new registration."""
        return self._connected.is_set()

    def prepare(self, claims: Sequence[NodeClaim], timeout_s: float = CALL_TIMEOUT_S) -> dict[str, Any]:
        """Call NodePrepareResources; returns the response per claim UID. Raises RetryableError if the call fails."""
        request = self._messages.NodePrepareResourcesRequest(claims=self._claims(claims))
        return dict(self._call("NodePrepareResources", request, timeout_s).claims)

    def unprepare(self, claims: Sequence[NodeClaim], timeout_s: float = CALL_TIMEOUT_S) -> dict[str, Any]:
        """Call NodeUnprepareResources; returns the response per claim UID. Raises RetryableError if the call fails."""
        request = self._messages.NodeUnprepareResourcesRequest(claims=self._claims(claims))
        return dict(self._call("NodeUnprepareResources", request, timeout_s).claims)

    def close(self) -> None:
        """Close the connection and stop the health thread (5 s). Idempotent."""
        self._health.stop(HEALTH_RETRY_S)

    def _disconnect(self) -> None:
        if self._health_call is not None:
            self._health_call.cancel()
        self._channel.close()

    def _claims(self, claims: Sequence[NodeClaim]) -> list[Any]:
        return [self._messages.Claim(namespace=c.namespace, uid=c.uid, name=c.name) for c in claims]

    def _call(self, method: str, request: Any, timeout_s: float) -> Any:
        return call_unary(self._channel, self._messages, "DRAPlugin", method, request, timeout_s)

    def _changed(self, connectivity: grpc.ChannelConnectivity) -> None:
        if connectivity is grpc.ChannelConnectivity.READY:
            self._connected.set()
        else:
            self._connected.clear()

    def _watch_health(self) -> float:
        """Keep the v1alpha1 stream open, as kubelets up to 1.36 do: to every plugin, again 5 s after each end."""
        call = self._channel.unary_stream(
            _method(health, "DRAResourceHealth", "NodeWatchResources"),
            request_serializer=health.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health.NodeWatchResourcesResponse.FromString,
        )
        try:
            self._health_call = call(health.NodeWatchResourcesRequest(), wait_for_ready=True)
            for message in self._health_call:
                self.health_messages += 1
                if self._reports is not None:
                    self._reports.report(self.name, message.devices)
        except (grpc.RpcError, ValueError) as error:  # ValueError: the channel was closed meanwhile
            log.debug("health stream ended", extra={"driver": self.name, "reason": type(error).__name__})
        if self._reports is not None:
            self._reports.clear(self.name)
        return HEALTH_RETRY_S


def _method(messages: Any, service: str, method: str) -> str:
    return f"/{messages.DESCRIPTOR.services_by_name[service].full_name}/{method}"


def call_unary(channel: grpc.Channel, messages: Any, service: str, method: str, request: Any, timeout_s: float) -> Any:  # noqa: PLR0917 - all parts of one gRPC call
    descriptor = messages.DESCRIPTOR.services_by_name[service].methods_by_name[method]
    answer = getattr(messages, descriptor.output_type.name)
    call = channel.unary_unary(
        _method(messages, service, method),
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )
    try:
        return call(request, timeout=timeout_s)
    except grpc.RpcError as error:
        code = error.code().name if isinstance(error, grpc.Call) else type(error).__name__
        details = error.details() if isinstance(error, grpc.Call) else str(error)
        raise RetryableError(f"{method} failed: rpc error: code = {code} desc = {details}") from error
    except ValueError as error:
        raise RetryableError(f"{method} failed: the connection is closed") from error
