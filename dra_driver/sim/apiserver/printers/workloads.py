"""Rows of deployments, replica sets, daemon sets and jobs (kubernetes/kubernetes pkg/printers/internalversion)."""

from datetime import datetime

from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries, mapping, parse_time
from dra_driver.sim.apiserver.kind import Column, Printer
from dra_driver.sim.apiserver.printers.common import (
    AGE,
    NAME,
    age,
    containers,
    count,
    duration,
    label_text,
    name,
    selector_text,
)

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
