"""Container logs: the simulated kubelet writes them, `kubectl logs` reads them.

Keeps the newest `MAX_LOG_BYTES` per container, and drops a pod's logs when the pod is deleted.
"""

import threading
from datetime import datetime

from dra_driver.sim.apiserver.jsonvalue import utc_now
from dra_driver.sim.apiserver.kinds import PODS
from dra_driver.sim.apiserver.state import ObjectChange

MAX_LOG_BYTES = 1 << 20

Line = tuple[datetime, str]


class PodLogs:
    """Log lines by namespace, pod and container. Thread-safe."""

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
        """Lines of one container, oldest first; empty without any output."""
        with self._lock:
            return list(self._lines.get((namespace, pod), {}).get(container, ()))

    def forget_removed(self, change: ObjectChange) -> None:
        """A listener of the store: drops the logs of a deleted pod."""
        if change.kind is PODS and change.type == "DELETED":
            with self._lock:
                self._lines.pop(change.key, None)
