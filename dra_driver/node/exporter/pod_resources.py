"""Asks the kubelet which containers have which devices of claims: PodResources API v1, List.

In Kubernetes 1.34 and 1.35 the field ``dynamic_resources`` needs the feature gate KubeletPodResourcesDynamicResources,
on by default there. The kubelet makes the socket for root alone.
"""

from pathlib import Path
from typing import Any, Final

from dra_driver.core._pb.podresources_v1 import api_pb2 as pb
from dra_driver.core.unix_grpc import CallError, Peer, Service
from dra_driver.node.usage.sources import ClaimedDevice, PodClaims, Unread

CALL_S: Final = 3.0
LISTER: Final = Service(pb, "PodResourcesLister")
MAX_PODS: Final = 2000


class PodResourcesReader:
    """Of one thread. ``driver`` is the name of this driver; devices of others are left out. Close it."""

    def __init__(self, path: str, driver: str, call_s: float = CALL_S) -> None:
        self._path, self._driver, self._call_s = path, driver, call_s
        self._peer: Peer | None = None

    def close(self) -> None:
        """Idempotent; the next read connects again."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def read(self) -> PodClaims | Unread:
        """The devices of each container; waits at most ``call_s`` seconds."""
        if not Path(self._path).exists():
            return self._unread("there is no such socket")
        self._peer = self._peer or Peer(self._path)
        try:
            answer = self._peer.call(LISTER, "List", pb.ListPodResourcesRequest(), self._call_s)
        except CallError as error:
            self.close()
            return self._unread(str(error))
        return claims_of(answer, self._driver)

    def _unread(self, why: str) -> Unread:
        return Unread(
            reason=f"the kubelet does not tell which containers have which claims, at {self._path}: {why}; mount the "
            "folder of the socket and set --pod-resources-socket (POD_RESOURCES_SOCKET)"
        )


def claims_of(answer: Any, driver: str) -> PodClaims:
    """The devices of this driver in the kubelet's answer, by pod and container. Pure."""
    found: dict[tuple[str, str], dict[str, tuple[ClaimedDevice, ...]]] = {}
    for pod in answer.pod_resources[:MAX_PODS]:
        containers = {container.name: tuple(_devices(container, driver)) for container in pod.containers}
        if any(containers.values()):
            found[pod.namespace, pod.name] = containers
    return found


def _devices(container: Any, driver: str) -> list[ClaimedDevice]:
    return [
        ClaimedDevice(
            namespace=claim.claim_namespace,
            claim=claim.claim_name,
            pool=device.pool_name,
            device=device.device_name,
            share_id=device.share_id or None,
        )
        for claim in container.dynamic_resources
        for device in claim.claim_resources
        if device.driver_name == driver
    ]
