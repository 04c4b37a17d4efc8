"""The columns and rows of `kubectl get`, by kind.

Texts follow k8s.io/apimachinery pkg/util/duration and kubernetes/kubernetes
pkg/printers/internalversion/printers.go. This project's own kinds have the columns of their CustomResourceDefinitions.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from dra_driver.config.columns import NODE_COLUMNS, NODE_WIDE, POLICY_COLUMNS, POLICY_WIDE, ShownField
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries, mapping, parse_time
from dra_driver.sim.apiserver.kind import Column, Printer

NAME = Column("Name", format="name")
AGE = Column("Age")
NONE = "<none>"
UNKNOWN = "<unknown>"


def duration(seconds: float) -> str:
    """A duration as ``5s``, ``3m20s``, ``26h`` or ``3d4h``: at most two units."""
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    if total < 120:
        return f"{max(total, 0)}s"
    minutes = total // 60
    if minutes < 10:
        return f"{minutes}m{total % 60}s" if total % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    return _hours(total // 3600, minutes % 60)


def _hours(hours: int, minutes: int) -> str:
    if hours < 8:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    years = days // 365
    return f"{years}y{days % 365}d" if years < 8 and days % 365 else f"{years}y"


def since(stamp: object, now: datetime) -> str:
    """How long ago ``stamp`` was; ``<unknown>`` without one."""
    moment = parse_time(stamp)
    return UNKNOWN if moment is None else duration((now - moment).total_seconds())


def age(obj: Obj, now: datetime) -> str:
    """The object's age."""
    return since(dig(obj, "metadata", "creationTimestamp"), now)


def name(obj: Obj) -> str:
    """metadata.name"""
    return str(dig(obj, "metadata", "name", default=""))


def containers(obj: Obj) -> list[object]:
    """Names and images of a pod template's containers: two cells."""
    found = entries(obj, "spec", "template", "spec", "containers")
    return [",".join(item.get("name", "") for item in found), ",".join(item.get("image", "") for item in found)]


def label_text(labels: Obj) -> str:
    """A label map as ``a=b,c=d``."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or NONE


def selector_text(selector: Obj) -> str:
    """A metav1.LabelSelector as one line."""
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


def count(obj: Obj, *path: str) -> int:
    """A number of the object, 0 if it is missing."""
    found = dig(obj, *path, default=0)
    return found if isinstance(found, int) else 0


DEFAULT_PRINTER = Printer(
    (NAME, Column("Created At", "date")),
    lambda obj, _now: [name(obj), dig(obj, "metadata", "creationTimestamp", default="")],
)
NAME_AND_AGE = Printer((NAME, AGE), lambda obj, now: [name(obj), age(obj, now)])


_ROLE_PREFIX = "node-role.kubernetes.io/"


def _node_roles(obj: Obj) -> str:
    labels = mapping(obj, "metadata", "labels")
    roles = {key.removeprefix(_ROLE_PREFIX) for key in labels if key.startswith(_ROLE_PREFIX)}
    roles.add(labels.get("kubernetes.io/role", ""))
    return ",".join(sorted(roles - {""})) or NONE


def _address(obj: Obj, wanted: str) -> str:
    found = [item.get("address", "") for item in entries(obj, "status", "addresses") if item.get("type") == wanted]
    return found[0] if found else NONE


def _node(obj: Obj, now: datetime) -> list[object]:
    ready = [item.get("status") for item in entries(obj, "status", "conditions") if item.get("type") == "Ready"]
    status = ("Ready" if ready[-1] == "True" else "NotReady") if ready else "Unknown"
    if dig(obj, "spec", "unschedulable"):
        status += ",SchedulingDisabled"
    info = mapping(obj, "status", "nodeInfo")
    kernel = info.get("kernelVersion") or UNKNOWN
    if info.get("architecture"):
        kernel += f" ({info['architecture']})"
    return [
        name(obj),
        status,
        _node_roles(obj),
        age(obj, now),
        info.get("kubeletVersion", ""),
        _address(obj, "InternalIP"),
        _address(obj, "ExternalIP"),
        info.get("osImage") or UNKNOWN,
        kernel,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _event_source(obj: Obj) -> str:
    component = dig(obj, "source", "component") or obj.get("reportingComponent") or ""
    host = dig(obj, "source", "host") or obj.get("reportingInstance") or ""
    return f"{component}, {host}" if host else component


def _event(obj: Obj, now: datetime) -> list[object]:
    first = since(obj.get("firstTimestamp") or obj.get("eventTime"), now)
    last = since(obj["lastTimestamp"], now) if obj.get("lastTimestamp") else first
    times = obj.get("count") or 1
    if series := obj.get("series"):
        last, times = since(series.get("lastObservedTime"), now), series.get("count", 1)
    kind, involved = dig(obj, "involvedObject", "kind", default="").lower(), dig(obj, "involvedObject", "name")
    return [
        last,
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{kind}/{involved}" if involved else kind,
        dig(obj, "involvedObject", "fieldPath", default=""),
        _event_source(obj),
        obj.get("message", "").strip(),
        first,
        times,
        name(obj),
    ]


def claim_state(obj: Obj) -> str:
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


def _slice(obj: Obj, now: datetime) -> list[object]:
    node, driver = dig(obj, "spec", "nodeName", default=""), dig(obj, "spec", "driver", default="")
    return [name(obj), node, driver, dig(obj, "spec", "pool", "name", default=""), age(obj, now)]


def _port(port: Obj) -> str:
    node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port.get('port')}{node_port}/{port.get('protocol', 'TCP')}"


def _service(obj: Obj, now: datetime) -> list[object]:
    ports = ",".join(_port(port) for port in entries(obj, "spec", "ports")) or NONE
    kind = dig(obj, "spec", "type", default="ClusterIP")
    external = ",".join(entries(obj, "spec", "externalIPs")) or ("<pending>" if kind == "LoadBalancer" else NONE)
    if kind == "ExternalName":
        external = dig(obj, "spec", "externalName", default="")
    selector = label_text(mapping(obj, "spec", "selector"))
    return [name(obj), kind, dig(obj, "spec", "clusterIPs", 0, default=NONE), external, ports, age(obj, now), selector]


def _binding(obj: Obj, now: datetime) -> list[object]:
    role = f"{dig(obj, 'roleRef', 'kind', default='')}/{dig(obj, 'roleRef', 'name', default='')}"
    found: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for subject in entries(obj, "subjects"):
        prefix = f"{subject.get('namespace', '')}/" if subject.get("kind") == "ServiceAccount" else ""
        found.setdefault(subject.get("kind", ""), []).append(prefix + subject.get("name", ""))
    return [name(obj), role, age(obj, now), *(", ".join(found[kind]) for kind in ("User", "Group", "ServiceAccount"))]


def _policy(obj: Obj, now: datetime) -> list[object]:
    kind = mapping(obj, "spec", "paramKind")
    param = f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}" if kind else "<unset>"
    return [name(obj), len(entries(obj, "spec", "validations")), param, age(obj, now)]


def _policy_binding(obj: Obj, now: datetime) -> list[object]:
    ref = mapping(obj, "spec", "paramRef")
    param = f"{ref.get('namespace') or '*'}/{ref['name']}" if ref.get("name") else "<unset>"
    return [name(obj), dig(obj, "spec", "policyName", default=""), param, age(obj, now)]


NODES_PRINTER = Printer(
    (
        NAME,
        Column("Status"),
        Column("Roles"),
        AGE,
        Column("Version"),
        *(
            Column(title, priority=1)
            for title in ("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime")
        ),
    ),
    _node,
)
EVENTS_PRINTER = Printer(
    (
        Column("Last Seen"),
        Column("Type"),
        Column("Reason"),
        Column("Object"),
        Column("Subobject", priority=1),
        Column("Source", priority=1),
        Column("Message"),
        Column("First Seen", priority=1),
        Column("Count", priority=1),
        Column("Name", priority=1, format="name"),
    ),
    _event,
)
NAMESPACES_PRINTER = Printer(
    (NAME, Column("Status"), AGE),
    lambda obj, now: [name(obj), dig(obj, "status", "phase", default=""), age(obj, now)],
)
CLAIMS_PRINTER = Printer((NAME, Column("State"), AGE), lambda obj, now: [name(obj), claim_state(obj), age(obj, now)])
SLICES_PRINTER = Printer((NAME, Column("Node"), Column("Driver"), Column("Pool"), AGE), _slice)
SERVICES_PRINTER = Printer(
    (
        NAME,
        Column("Type"),
        Column("Cluster-IP"),
        Column("External-IP"),
        Column("Port(s)"),
        AGE,
        Column("Selector", priority=1),
    ),
    _service,
)
SECRETS_PRINTER = Printer(
    (NAME, Column("Type"), Column("Data"), AGE),
    lambda obj, now: [name(obj), obj.get("type", ""), len(mapping(obj, "data")), age(obj, now)],
)
CONFIG_MAPS_PRINTER = Printer(
    (NAME, Column("Data"), AGE),
    lambda obj, now: [name(obj), len(mapping(obj, "data")) + len(mapping(obj, "binaryData")), age(obj, now)],
)
LEASES_PRINTER = Printer(
    (NAME, Column("Holder"), AGE),
    lambda obj, now: [name(obj), dig(obj, "spec", "holderIdentity", default=""), age(obj, now)],
)


def _budget(obj: Obj, now: datetime) -> list[object]:
    spec = mapping(obj, "spec")
    limits = [str(spec.get(field, "N/A")) for field in ("minAvailable", "maxUnavailable")]
    return [name(obj), *limits, dig(obj, "status", "disruptionsAllowed", default=0), age(obj, now)]


BUDGETS_PRINTER = Printer(
    (NAME, Column("Min Available"), Column("Max Unavailable"), Column("Allowed Disruptions", "integer"), AGE), _budget
)
BINDINGS_PRINTER = Printer(
    (
        NAME,
        Column("Role"),
        AGE,
        *(Column(title, priority=1) for title in ("Users", "Groups", "ServiceAccounts")),
    ),
    _binding,
)
POLICIES_PRINTER = Printer((NAME, Column("Validations", "integer"), Column("ParamKind"), AGE), _policy)
POLICY_BINDINGS_PRINTER = Printer((NAME, Column("PolicyName"), Column("ParamRef"), AGE), _policy_binding)


_TEMPLATE_COLUMNS = (Column("Containers", priority=1), Column("Images", priority=1), Column("Selector", priority=1))


def _template(obj: Obj) -> list[object]:
    return [*containers(obj), selector_text(mapping(obj, "spec", "selector"))]


def _deployment(obj: Obj, now: datetime) -> list[object]:
    ready = f"{count(obj, 'status', 'readyReplicas')}/{count(obj, 'spec', 'replicas')}"
    updated, available = count(obj, "status", "updatedReplicas"), count(obj, "status", "availableReplicas")
    # The API type of these two columns is string, their values are numbers, as in the real server.
    return [name(obj), ready, updated, available, age(obj, now), *_template(obj)]


def _replica_set(obj: Obj, now: datetime) -> list[object]:
    numbers = [count(obj, "spec", "replicas"), count(obj, "status", "replicas"), count(obj, "status", "readyReplicas")]
    return [name(obj), *numbers, age(obj, now), *_template(obj)]


_DAEMON_NUMBERS = (
    "desiredNumberScheduled",
    "currentNumberScheduled",
    "numberReady",
    "updatedNumberScheduled",
    "numberAvailable",
)


def _daemon_set(obj: Obj, now: datetime) -> list[object]:
    numbers = [count(obj, "status", field) for field in _DAEMON_NUMBERS]
    node_selector = label_text(mapping(obj, "spec", "template", "spec", "nodeSelector"))
    return [name(obj), *numbers, node_selector, age(obj, now), *_template(obj)]


def _job_status(obj: Obj) -> str:
    true = {item.get("type") for item in entries(obj, "status", "conditions") if item.get("status") == "True"}
    for condition in ("Complete", "Failed"):
        if condition in true:
            return condition
    if dig(obj, "metadata", "deletionTimestamp"):
        return "Terminating"
    for condition in ("Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if condition in true:
            return condition
    return "Running"


def _job(obj: Obj, now: datetime) -> list[object]:
    succeeded, wanted = count(obj, "status", "succeeded"), dig(obj, "spec", "completions")
    parallelism = count(obj, "spec", "parallelism")
    if wanted is not None:
        completions = f"{succeeded}/{wanted}"
    else:
        completions = f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"
    started = parse_time(dig(obj, "status", "startTime"))
    ended = parse_time(dig(obj, "status", "completionTime")) or now
    took = duration((ended - started).total_seconds()) if started else ""
    return [name(obj), _job_status(obj), completions, took, age(obj, now), *_template(obj)]


DEPLOYMENTS_PRINTER = Printer(
    (NAME, Column("Ready"), Column("Up-to-date"), Column("Available"), AGE, *_TEMPLATE_COLUMNS), _deployment
)
REPLICA_SETS_PRINTER = Printer(
    (
        NAME,
        Column("Desired", "integer"),
        Column("Current", "integer"),
        Column("Ready", "integer"),
        AGE,
        *_TEMPLATE_COLUMNS,
    ),
    _replica_set,
)
DAEMON_SETS_PRINTER = Printer(
    (
        NAME,
        *(Column(title, "integer") for title in ("Desired", "Current", "Ready", "Up-to-date", "Available")),
        Column("Node Selector"),
        AGE,
        *_TEMPLATE_COLUMNS,
    ),
    _daemon_set,
)
JOBS_PRINTER = Printer(
    (NAME, Column("Status"), Column("Completions"), Column("Duration"), AGE, *_TEMPLATE_COLUMNS), _job
)


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


_STEP = re.compile(r'\.(\w+)|\[(\d+)\]|\[\?\(@\.(\w+)=="(\w+)"\)\]')


def value_at(obj: Any, path: str) -> Any:
    """The value at a JSONPath; None where there is none."""
    for field, index, key, wanted in _STEP.findall(path):
        if field:
            obj = obj.get(field) if isinstance(obj, dict) else None
        else:
            items = obj if isinstance(obj, list) else []
            found = items[int(index) : int(index) + 1] if index else [each for each in items if each.get(key) == wanted]
            obj = found[0] if found else None
    return obj


def _printer(columns: Sequence[ShownField], wide: Sequence[ShownField]) -> Printer:
    *shown, last = columns
    fields = [*((each, 0) for each in shown), *((each, 1) for each in wide), (last, 0)]

    def cells(obj: Obj, now: datetime) -> list[object]:
        found = [age(obj, now) if kind == "date" else value_at(obj, path) for (_, kind, path), _ in fields]
        return [name(obj), *("" if value is None else value for value in found)]

    made = [Column(title, "string" if kind == "date" else kind, priority) for (title, kind, _), priority in fields]
    return Printer((NAME, *made), cells)


GPU_POLICIES_PRINTER = _printer(POLICY_COLUMNS, POLICY_WIDE)
GPU_NODES_PRINTER = _printer(NODE_COLUMNS, NODE_WIDE)
