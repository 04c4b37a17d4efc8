"""What the processes of simulated pods offer: container logs, and the ports at which they answer on this machine.

The simulated kubelet writes logs, `kubectl logs` reads them; the newest `MAX_LOG_BYTES` of a container are kept.
Processes that the embedded cluster runs for a node, such as its usage exporter, have a pod in the API and a port on
loopback. Only the cluster adds ports: no object of the API can lead a request anywhere. Both end with the pod.
"""

import threading
from datetime import datetime

from dra_driver.sim.apiserver.jsonvalue import utc_now
from dra_driver.sim.apiserver.kinds import PODS
from dra_driver.sim.apiserver.state import ObjectChange

MAX_LOG_BYTES = 1 << 20

Line = tuple[datetime, str]


class PodLogs:
    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the lines
        self._lines: dict[tuple[str, str], dict[str, list[Line]]] = {}

    def append(self, namespace: str, pod: str, container: str, text: str, at: datetime | None = None) -> None:
        """Add ``text`` (whole lines) to a container's log; drops the oldest lines beyond `MAX_LOG_BYTES`."""
        moment = at or utc_now()
        with self._lock:
            lines = self._lines.setdefault((namespace, pod), {}).setdefault(container, [])
            lines.extend((moment, line) for line in text.splitlines())
            excess = sum(len(line) + 1 for _, line in lines) - MAX_LOG_BYTES
            while excess > 0 and lines:
                excess -= len(lines.pop(0)[1]) + 1

    def read(self, namespace: str, pod: str, container: str) -> list[Line]:
        with self._lock:
            return list(self._lines.get((namespace, pod), {}).get(container, ()))

    def forget_removed(self, change: ObjectChange) -> None:
        if change.kind is PODS and change.type == "DELETED":
            with self._lock:
                self._lines.pop(change.key, None)


class PodPorts:
    """Ports on 127.0.0.1 by namespace, pod and the pod's own port. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the ports
        self._ports: dict[tuple[str, str], dict[int, int]] = {}

    def serve(self, namespace: str, pod: str, port: int, local_port: int) -> None:
        with self._lock:
            self._ports.setdefault((namespace, pod), {})[port] = local_port

    def find(self, namespace: str, pod: str, port: int) -> int | None:
        with self._lock:
            return self._ports.get((namespace, pod), {}).get(port)

    def forget_removed(self, change: ObjectChange) -> None:
        if change.kind is PODS and change.type == "DELETED":
            with self._lock:
                self._ports.pop(change.key, None)
