"""What answers on this machine for the ports of simulated pods, whose addresses are made up.

Processes that the embedded cluster runs for a node, such as its usage exporter, have a pod in the API and a port on
loopback. Only the cluster itself adds entries: no object of the API can lead a request anywhere. A pod's entries end
with it.
"""

import threading

from dra_driver.sim.apiserver.kinds import PODS
from dra_driver.sim.apiserver.state import ObjectChange


class PodPorts:
    """Ports on 127.0.0.1 by namespace, pod and the pod's own port. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the ports
        self._ports: dict[tuple[str, str], dict[int, int]] = {}

    def serve(self, namespace: str, pod: str, port: int, local_port: int) -> None:
        """From now on ``local_port`` answers for ``port`` of the pod."""
        with self._lock:
            self._ports.setdefault((namespace, pod), {})[port] = local_port

    def find(self, namespace: str, pod: str, port: int) -> int | None:
        """The port on loopback, None if nothing answers."""
        with self._lock:
            return self._ports.get((namespace, pod), {}).get(port)

    def forget_removed(self, change: ObjectChange) -> None:
        """A listener of the store: a deleted pod answers no more."""
        if change.kind is PODS and change.type == "DELETED":
            with self._lock:
                self._ports.pop(change.key, None)
