"""Rows of nodes, namespaces, events, claims, slices and other kinds.

Follows kubernetes/kubernetes pkg/printers/internalversion/printers.go.
"""

from datetime import datetime

from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries, mapping
from dra_driver.sim.apiserver.kind import Column, Printer
from dra_driver.sim.apiserver.printers.common import AGE, NAME, NONE, UNKNOWN, age, label_text, name, since

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
