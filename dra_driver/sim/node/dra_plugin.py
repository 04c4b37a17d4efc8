"""The connection of a simulated kubelet to one registered DRA plugin, and the health stream that it keeps open.

Follows kubernetes/kubernetes pkg/kubelet/cm/dra/plugin: one connection per plugin, restored without a new registration,
and a health stream that stays open.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Any, Final

from dra_driver.conformance.plugin import ClaimKey, Plugin, PluginInfo, PrepareAnswer
from dra_driver.core.errors import RetryableError
from dra_driver.core.unix_grpc import CallError
from dra_driver.core.worker import Worker
from dra_driver.sim.node.device_health import HealthCache
from dra_driver.sim.node.kubelet_state import NodeClaim

log = logging.getLogger(__name__)

CALL_TIMEOUT_S: Final = 45.0
HEALTH_RETRY_S: Final = 5.0


class DraPlugin:
    """One registered instance of a driver and the connection to it. Thread-safe."""

    def __init__(self, info: PluginInfo, service: str, reports: HealthCache) -> None:
        self.name, self.endpoint, self.service = info.name, info.endpoint, service
        self._reports = reports
        self._plugin = Plugin(info, service, CALL_TIMEOUT_S, as_kubelet=True)
        self._connected = threading.Event()
        self._plugin.peer.watch(lambda up: self._connected.set() if up else self._connected.clear())
        self.health_messages = 0
        self._health_call: Any = None
        self._health = Worker(f"kubelet-health-{self.name}", self._watch_health, interrupt=self._disconnect)
        self._health.start()

    @property
    def connected(self) -> bool:
        """Whether the connection is up. It is restored without a new registration."""
        return self._connected.is_set()

    def prepare(self, claims: Sequence[NodeClaim]) -> dict[str, PrepareAnswer]:
        """Call NodePrepareResources; returns the answer per claim UID. Raises RetryableError if the call fails."""
        try:
            return self._plugin.prepare(_keys(claims))
        except CallError as error:
            raise _failed("NodePrepareResources", error) from error

    def unprepare(self, claims: Sequence[NodeClaim]) -> dict[str, str]:
        """Call NodeUnprepareResources; returns an error or "" per UID. Raises RetryableError if the call fails."""
        try:
            return self._plugin.unprepare(_keys(claims))
        except CallError as error:
            raise _failed("NodeUnprepareResources", error) from error

    def close(self) -> None:
        """Close the connection and stop the health thread (5 s). Idempotent."""
        self._health.stop(HEALTH_RETRY_S)

    def _disconnect(self) -> None:
        if self._health_call is not None:
            self._health_call.close()
        self._plugin.close()

    def _watch_health(self) -> float:
        """Keep the v1alpha1 stream open, as kubelets up to 1.36 do: to every plugin, again 5 s after each end."""

        def report(message: Any) -> bool:
            self.health_messages += 1
            self._reports.report(self.name, message.devices)
            return False

        try:
            self._health_call = self._plugin.watch_health("v1alpha1.DRAResourceHealth", None)
            self._health_call.read(report)
        except (CallError, ValueError) as error:  # ValueError: the channel was closed
            log.debug("health stream ended", extra={"driver": self.name, "reason": error})
        self._reports.clear(self.name)
        return HEALTH_RETRY_S


def _keys(claims: Sequence[NodeClaim]) -> list[ClaimKey]:
    return [ClaimKey(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]


def _failed(method: str, error: CallError) -> RetryableError:
    """The error as the real kubelet shows it in a pod's event."""
    return RetryableError(f"{method} failed: rpc error: code = {error.code} desc = {error}")
