"""Rows of pods, with READY, STATUS and RESTARTS as `kubectl get pods` shows them.

Follows printPod of kubernetes/kubernetes pkg/printers/internalversion/printers.go.
"""

from datetime import datetime

from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries, parse_time
from dra_driver.sim.apiserver.kind import Column, Printer
from dra_driver.sim.apiserver.printers.common import AGE, NAME, NONE, age, duration, name


def _is_sidecar(container: Obj) -> bool:
    return container.get("restartPolicy") == "Always"


def _has_condition(obj: Obj, wanted: str) -> bool:
    return any(
        item.get("type") == wanted and item.get("status") == "True" for item in entries(obj, "status", "conditions")
    )


def _ended(terminated: Obj, prefix: str = "") -> str:
    if terminated.get("reason"):
        return prefix + str(terminated["reason"])
    if terminated.get("signal"):
        return f"{prefix}Signal:{terminated['signal']}"
    return f"{prefix}ExitCode:{terminated.get('exitCode', 0)}"


def _init_reason(status: Obj, at: int, total: int) -> str:
    """The STATUS while this init container has not completed."""
    terminated, waiting = dig(status, "state", "terminated"), dig(status, "state", "waiting", "reason")
    if terminated is not None:
        return _ended(terminated, "Init:")
    if waiting and waiting != "PodInitializing":
        return f"Init:{waiting}"
    return f"Init:{at}/{total}"


class _Row:
    """Derives READY, STATUS and RESTARTS from the states of the containers."""

    def __init__(self, pod: Obj) -> None:
        self.pod = pod
        self.ready = 0
        self.restarts = 0
        self.last_restart: datetime | None = None
        self.reason = str(dig(pod, "status", "reason") or dig(pod, "status", "phase", default=""))
        if any(dig(item, "reason") == "SchedulingGated" for item in entries(pod, "status", "conditions")):
            self.reason = "SchedulingGated"
        sidecars = {item.get("name"): item for item in entries(pod, "spec", "initContainers") if _is_sidecar(item)}
        self.total = len(entries(pod, "spec", "containers")) + len(sidecars)
        initializing = self._init_containers(sidecars)
        if not initializing or _has_condition(pod, "Initialized"):
            self._containers(sidecars)
        self._deletion()

    def _count(self, status: Obj) -> None:
        self.restarts += int(status.get("restartCount", 0))
        finished = parse_time(dig(status, "lastState", "terminated", "finishedAt"))
        if finished and (self.last_restart is None or self.last_restart < finished):
            self.last_restart = finished

    def _init_containers(self, sidecars: Obj) -> bool:
        total = len(entries(self.pod, "spec", "initContainers"))
        for at, status in enumerate(entries(self.pod, "status", "initContainerStatuses")):
            self._count(status)
            if dig(status, "state", "terminated", "exitCode") == 0:
                continue
            if status.get("name") in sidecars and status.get("started"):
                self.ready += bool(status.get("ready"))
                continue
            self.reason = _init_reason(status, at, total)
            return True
        return False

    def _containers(self, sidecars: Obj) -> None:
        self.restarts, self.last_restart = 0, None
        for status in entries(self.pod, "status", "initContainerStatuses"):
            if status.get("name") in sidecars:
                self._count(status)
        running, failure = False, ""
        for status in reversed(entries(self.pod, "status", "containerStatuses")):
            self._count(status)
            terminated = dig(status, "state", "terminated")
            if waiting := dig(status, "state", "waiting", "reason"):
                self.reason = str(waiting)
            elif terminated is not None:
                self.reason = _ended(terminated)
                failure = self.reason if terminated.get("exitCode") else failure
            elif status.get("ready") and dig(status, "state", "running") is not None:
                running = True
                self.ready += 1
        if self.reason == "Completed":
            self._completed(running=running, failure=failure)

    def _completed(self, *, running: bool, failure: str) -> None:
        if running and _has_condition(self.pod, "Ready"):
            self.reason = "Running"
        elif failure:
            self.reason = failure
        elif running:
            self.reason = "NotReady"

    def _deletion(self) -> None:
        if dig(self.pod, "metadata", "deletionTimestamp"):
            if dig(self.pod, "status", "reason") == "NodeLost":
                self.reason = "Unknown"
            elif dig(self.pod, "status", "phase") not in {"Succeeded", "Failed"}:
                self.reason = "Terminating"


def _gates(pod: Obj) -> str:
    gates = [item.get("conditionType", "") for item in entries(pod, "spec", "readinessGates")]
    return f"{sum(_has_condition(pod, gate) for gate in gates)}/{len(gates)}" if gates else NONE


def _cells(pod: Obj, now: datetime) -> list[object]:
    row = _Row(pod)
    restarts = str(row.restarts)
    if row.restarts and row.last_restart:
        restarts = f"{row.restarts} ({duration((now - row.last_restart).total_seconds())} ago)"
    return [
        name(pod),
        f"{row.ready}/{row.total}",
        row.reason,
        restarts,
        age(pod, now),
        dig(pod, "status", "podIPs", 0, "ip", default=NONE),
        dig(pod, "spec", "nodeName", default=NONE),
        dig(pod, "status", "nominatedNodeName", default=NONE),
        _gates(pod),
    ]


PODS_PRINTER = Printer(
    (
        NAME,
        Column("Ready"),
        Column("Status"),
        Column("Restarts"),
        AGE,
        Column("IP", priority=1),
        Column("Node", priority=1),
        Column("Nominated Node", priority=1),
        Column("Readiness Gates", priority=1),
    ),
    _cells,
)
