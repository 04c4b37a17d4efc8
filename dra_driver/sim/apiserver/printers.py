"""The columns and rows of `kubectl get`, by kind (k8s.io/apimachinery pkg/util/duration, kubernetes/kubernetes
pkg/printers/internalversion/printers.go); this project's kinds have the columns of their CustomResourceDefinitions."""

import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec import Struct

from dra_driver.config.status import NODE_COLUMNS, NODE_WIDE, POLICY_COLUMNS, POLICY_WIDE, ShownField
from dra_driver.core.time import parse_time
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries, mapping

NONE = "<none>"
UNKNOWN = "<unknown>"

Cell = Callable[[Obj, datetime], object]
"""Reads one cell from an object; the second argument is the current time, for ages."""


class Column(Struct, frozen=True):
    """A column of `kubectl get`; one of ``priority`` 1 is shown with ``-o wide`` only."""

    name: str
    cell: Cell
    type: str = "string"
    priority: int = 0
    format: str = ""


Printer = Sequence[Column]

_SECONDS = {"y": 365 * 86400, "d": 86400, "h": 3600, "m": 60, "s": 1}
_UNITS_BELOW = (
    (120, "s"),
    (600, "ms"),
    (3 * 3600, "m"),
    (8 * 3600, "hm"),
    (48 * 3600, "h"),
    (8 * 86400, "dh"),
    (2 * 365 * 86400, "d"),
    (8 * 365 * 86400, "yd"),
    (math.inf, "y"),
)


def duration(seconds: float) -> str:
    """A duration as ``5s``, ``3m20s``, ``26h`` or ``3d4h``: at most two units."""
    if int(seconds) < -1:
        return "<invalid>"
    total = max(int(seconds), 0)
    units = next(units for below, units in _UNITS_BELOW if total < below)
    count, rest = divmod(total, _SECONDS[units[0]])
    smaller = [f"{rest // _SECONDS[unit]}{unit}" for unit in units[1:] if rest >= _SECONDS[unit]]
    return "".join([f"{count}{units[0]}", *smaller])


def since(stamp: object, now: datetime) -> str:
    moment = parse_time(stamp)
    return UNKNOWN if moment is None else duration((now - moment).total_seconds())


def age(obj: Obj, now: datetime) -> str:
    return since(dig(obj, "metadata", "creationTimestamp"), now)


def name(obj: Obj) -> str:
    return str(dig(obj, "metadata", "name", default=""))


def _at(*path: str | int, default: str = "") -> Cell:
    return lambda obj, _now: dig(obj, *path) or default


def _wide(title: str, cell: Cell) -> Column:
    return Column(title, cell, priority=1)


NAME = Column("Name", lambda obj, _now: name(obj), format="name")
AGE = Column("Age", age)


def selector_text(selector: Obj) -> str:
    operators = {"In": "in", "NotIn": "notin"}
    parts = [f"{key}={value}" for key, value in sorted(mapping(selector, "matchLabels").items())]
    for item in entries(selector, "matchExpressions"):
        values = ",".join(item.get("values") or ())
        operator = item.get("operator", "")
        negated = "!" if operator == "DoesNotExist" else ""
        parts.append(
            f"{item['key']} {operators[operator]} ({values})" if operator in operators else f"{negated}{item['key']}"
        )
    return ",".join(parts) or NONE


def _count(obj: Obj, *path: str) -> int:
    found = dig(obj, *path, default=0)
    return found if isinstance(found, int) else 0


def _number(title: str, *path: str) -> Column:
    return Column(title, lambda obj, _now: _count(obj, *path), "integer")


def _node_roles(obj: Obj, _now: datetime) -> str:
    labels = mapping(obj, "metadata", "labels")
    named = (key.partition("node-role.kubernetes.io/") for key in labels)
    roles = {role for before, found, role in named if found and not before}
    return ",".join(sorted({*roles, labels.get("kubernetes.io/role", "")} - {""})) or NONE


def _address(wanted: str) -> Cell:
    def cell(obj: Obj, _now: datetime) -> str:
        addresses = entries(obj, "status", "addresses")
        return next((item.get("address", "") for item in addresses if item.get("type") == wanted), NONE)

    return cell


def _node_status(obj: Obj, _now: datetime) -> str:
    ready = [item.get("status") for item in entries(obj, "status", "conditions") if item.get("type") == "Ready"]
    status = ("Ready" if ready[-1] == "True" else "NotReady") if ready else "Unknown"
    return f"{status},SchedulingDisabled" if dig(obj, "spec", "unschedulable") else status


def _kernel(obj: Obj, _now: datetime) -> str:
    info = mapping(obj, "status", "nodeInfo")
    kernel = info.get("kernelVersion") or UNKNOWN
    return f"{kernel} ({info['architecture']})" if info.get("architecture") else kernel


NODES_PRINTER = (
    NAME,
    Column("Status", _node_status),
    Column("Roles", _node_roles),
    AGE,
    Column("Version", _at("status", "nodeInfo", "kubeletVersion")),
    _wide("Internal-IP", _address("InternalIP")),
    _wide("External-IP", _address("ExternalIP")),
    _wide("OS-Image", _at("status", "nodeInfo", "osImage", default=UNKNOWN)),
    _wide("Kernel-Version", _kernel),
    _wide("Container-Runtime", _at("status", "nodeInfo", "containerRuntimeVersion", default=UNKNOWN)),
)


def _first_seen(obj: Obj, now: datetime) -> str:
    return since(obj.get("firstTimestamp") or obj.get("eventTime"), now)


def _last_seen(obj: Obj, now: datetime) -> str:
    last = dig(obj, "series", "lastObservedTime") if obj.get("series") else obj.get("lastTimestamp")
    return since(last, now) if last or obj.get("series") else _first_seen(obj, now)


def _involved(obj: Obj, _now: datetime) -> str:
    kind, involved = dig(obj, "involvedObject", "kind", default="").lower(), dig(obj, "involvedObject", "name")
    return f"{kind}/{involved}" if involved else kind


def _event_source(obj: Obj, _now: datetime) -> str:
    component = dig(obj, "source", "component") or obj.get("reportingComponent") or ""
    host = dig(obj, "source", "host") or obj.get("reportingInstance") or ""
    return f"{component}, {host}" if host else component


EVENTS_PRINTER = (
    Column("Last Seen", _last_seen),
    Column("Type", _at("type")),
    Column("Reason", _at("reason")),
    Column("Object", _involved),
    _wide("Subobject", _at("involvedObject", "fieldPath")),
    _wide("Source", _event_source),
    Column("Message", lambda obj, _now: obj.get("message", "").strip()),
    _wide("First Seen", _first_seen),
    _wide("Count", lambda obj, _now: int((obj.get("series") or obj).get("count") or 1)),
    Column("Name", lambda obj, _now: name(obj), priority=1, format="name"),
)


def claim_state(obj: Obj, _now: datetime) -> str:
    """``pending``, ``allocated``, ``allocated,reserved``, with ``deleted`` in front during deletion."""
    deleted = bool(dig(obj, "metadata", "deletionTimestamp"))
    states = ["deleted"] if deleted else []
    if dig(obj, "status", "allocation") is not None:
        states.append("allocated")
        if entries(obj, "status", "reservedFor"):
            states.append("reserved")
    elif not deleted:
        states.append("pending")
    return ",".join(states)


def _node_selector(obj: Obj, _now: datetime) -> str:
    labels = mapping(obj, "spec", "template", "spec", "nodeSelector")
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or NONE


def _listed(field: str) -> Cell:
    return lambda obj, _now: ",".join(
        item.get(field, "") for item in entries(obj, "spec", "template", "spec", "containers")
    )


_TEMPLATE = (
    _wide("Containers", _listed("name")),
    _wide("Images", _listed("image")),
    _wide("Selector", lambda obj, _now: selector_text(mapping(obj, "spec", "selector"))),
)


def _job_status(obj: Obj, _now: datetime) -> str:
    true = {item.get("type") for item in entries(obj, "status", "conditions") if item.get("status") == "True"}
    if dig(obj, "metadata", "deletionTimestamp"):
        true.add("Terminating")
    order = ("Complete", "Failed", "Terminating", "Suspended", "FailureTarget", "SuccessCriteriaMet")
    return next((condition for condition in order if condition in true), "Running")


def _completions(obj: Obj, _now: datetime) -> str:
    succeeded, wanted = _count(obj, "status", "succeeded"), dig(obj, "spec", "completions")
    parallelism = _count(obj, "spec", "parallelism")
    if wanted is not None:
        return f"{succeeded}/{wanted}"
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _job_duration(obj: Obj, now: datetime) -> str:
    started = parse_time(dig(obj, "status", "startTime"))
    ended = parse_time(dig(obj, "status", "completionTime")) or now
    return duration((ended - started).total_seconds()) if started else ""


def has_condition(obj: Obj, wanted: str) -> bool:
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
    terminated, waiting = dig(status, "state", "terminated"), dig(status, "state", "waiting", "reason")
    if terminated is not None:
        return _ended(terminated, "Init:")
    if waiting and waiting != "PodInitializing":
        return f"Init:{waiting}"
    return f"Init:{at}/{total}"


class _Row:
    def __init__(self, pod: Obj) -> None:
        self.pod = pod
        self.ready = 0
        self.restarts = 0
        self.last_restart: datetime | None = None
        self.reason = str(dig(pod, "status", "reason") or dig(pod, "status", "phase", default=""))
        if any(dig(item, "reason") == "SchedulingGated" for item in entries(pod, "status", "conditions")):
            self.reason = "SchedulingGated"
        init = entries(pod, "spec", "initContainers")
        sidecars = {item.get("name") for item in init if item.get("restartPolicy") == "Always"}
        self.total = len(entries(pod, "spec", "containers")) + len(sidecars)
        initializing = self._init_containers(sidecars, len(init))
        if not initializing or has_condition(pod, "Initialized"):
            self._containers(sidecars)
        if dig(pod, "metadata", "deletionTimestamp"):
            if dig(pod, "status", "reason") == "NodeLost":
                self.reason = "Unknown"
            elif dig(pod, "status", "phase") not in {"Succeeded", "Failed"}:
                self.reason = "Terminating"

    def _count(self, status: Obj) -> None:
        self.restarts += int(status.get("restartCount", 0))
        finished = parse_time(dig(status, "lastState", "terminated", "finishedAt"))
        if finished and (self.last_restart is None or self.last_restart < finished):
            self.last_restart = finished

    def _init_containers(self, sidecars: set[str], total: int) -> bool:
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

    def _containers(self, sidecars: set[str]) -> None:
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
            if running and has_condition(self.pod, "Ready"):
                self.reason = "Running"
            elif failure or running:
                self.reason = failure or "NotReady"


def _gates(pod: Obj, _now: datetime) -> str:
    gates = [item.get("conditionType", "") for item in entries(pod, "spec", "readinessGates")]
    return f"{sum(has_condition(pod, gate) for gate in gates)}/{len(gates)}" if gates else NONE


def _restarts(pod: Obj, now: datetime) -> str:
    row = _Row(pod)
    if not row.restarts or not row.last_restart:
        return str(row.restarts)
    return f"{row.restarts} ({duration((now - row.last_restart).total_seconds())} ago)"


PODS_PRINTER = (
    NAME,
    Column("Ready", lambda pod, _now: f"{(row := _Row(pod)).ready}/{row.total}"),
    Column("Status", lambda pod, _now: _Row(pod).reason),
    Column("Restarts", _restarts),
    AGE,
    _wide("IP", _at("status", "podIPs", 0, "ip", default=NONE)),
    _wide("Node", _at("spec", "nodeName", default=NONE)),
    _wide("Nominated Node", _at("status", "nominatedNodeName", default=NONE)),
    _wide("Readiness Gates", _gates),
)


_STEP = re.compile(r'\.(\w+)|\[(\d+)\]|\[\?\(@\.(\w+)=="(\w+)"\)\]')


def value_at(obj: object, path: str) -> object:
    """The value at a JSONPath; None where there is none."""
    for field, index, key, wanted in _STEP.findall(path):
        if field:
            obj = obj.get(field) if isinstance(obj, dict) else None
        else:
            items = obj if isinstance(obj, list) else []
            found = items[int(index) : int(index) + 1] if index else [each for each in items if each.get(key) == wanted]
            obj = found[0] if found else None
    return obj


def _own_column(field: ShownField, priority: int = 0) -> Column:
    title, kind, path = field
    if kind == "date":
        return Column(title, age)

    def cell(obj: Obj, _now: datetime) -> object:
        value = value_at(obj, path)
        return "" if value is None else value

    return Column(title, cell, kind, priority)


def _own(columns: Sequence[ShownField], wide: Sequence[ShownField]) -> Printer:
    *shown, last = map(_own_column, columns)
    return (NAME, *shown, *(_own_column(field, 1) for field in wide), last)


_DEFAULT = (NAME, Column("Created At", _at("metadata", "creationTimestamp"), "date"))
_NAME_AND_AGE = (NAME, AGE)
_PRINTERS: dict[str, Printer] = {
    "ConfigMap": (
        NAME,
        Column("Data", lambda obj, _now: len(mapping(obj, "data")) + len(mapping(obj, "binaryData"))),
        AGE,
    ),
    "DaemonSet": (
        NAME,
        _number("Desired", "status", "desiredNumberScheduled"),
        _number("Current", "status", "currentNumberScheduled"),
        _number("Ready", "status", "numberReady"),
        _number("Up-to-date", "status", "updatedNumberScheduled"),
        _number("Available", "status", "numberAvailable"),
        Column("Node Selector", _node_selector),
        AGE,
        *_TEMPLATE,
    ),
    "Deployment": (
        NAME,
        Column("Ready", lambda obj, _: f"{_count(obj, 'status', 'readyReplicas')}/{_count(obj, 'spec', 'replicas')}"),
        # The API type of these two columns is string, their values are numbers, as in the real server.
        Column("Up-to-date", lambda obj, _now: _count(obj, "status", "updatedReplicas")),
        Column("Available", lambda obj, _now: _count(obj, "status", "availableReplicas")),
        AGE,
        *_TEMPLATE,
    ),
    "DeviceClass": _NAME_AND_AGE,
    "Event": EVENTS_PRINTER,
    "GpuNode": _own(NODE_COLUMNS, NODE_WIDE),
    "GpuPolicy": _own(POLICY_COLUMNS, POLICY_WIDE),
    "Job": (
        NAME,
        Column("Status", _job_status),
        Column("Completions", _completions),
        Column("Duration", _job_duration),
        AGE,
        *_TEMPLATE,
    ),
    "Lease": (NAME, Column("Holder", _at("spec", "holderIdentity")), AGE),
    "Namespace": (NAME, Column("Status", _at("status", "phase")), AGE),
    "Node": NODES_PRINTER,
    "Pod": PODS_PRINTER,
    "PodDisruptionBudget": (
        NAME,
        Column("Min Available", lambda obj, _now: str(dig(obj, "spec", "minAvailable", default="N/A"))),
        Column("Max Unavailable", lambda obj, _now: str(dig(obj, "spec", "maxUnavailable", default="N/A"))),
        _number("Allowed Disruptions", "status", "disruptionsAllowed"),
        AGE,
    ),
    "ReplicaSet": (
        NAME,
        _number("Desired", "spec", "replicas"),
        _number("Current", "status", "replicas"),
        _number("Ready", "status", "readyReplicas"),
        AGE,
        *_TEMPLATE,
    ),
    "ResourceClaim": (NAME, Column("State", claim_state), AGE),
    "ResourceClaimTemplate": _NAME_AND_AGE,
    "ResourceSlice": (
        NAME,
        Column("Node", _at("spec", "nodeName")),
        Column("Driver", _at("spec", "driver")),
        Column("Pool", _at("spec", "pool", "name")),
        AGE,
    ),
    "Secret": (NAME, Column("Type", _at("type")), Column("Data", lambda obj, _now: len(mapping(obj, "data"))), AGE),
    "Service": _NAME_AND_AGE,
    "ServiceAccount": _NAME_AND_AGE,
}


def printer_of(kind: str) -> Printer:
    return _PRINTERS.get(kind, _DEFAULT)
