"""One row of the table of broken set-ups, and running it.

A set-up is broken by edits: a path into the healthy `Cluster` and the value to put there. ``>`` separates the parts of
a path, ``*`` stands for each item of a list, ``-`` appends to it, and the value `GONE` removes what is there.
"""

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dra_driver.core.finding import Finding, Layer, Status
from dra_driver.diagnose.doctor.cluster import DoctorScope, diagnose
from dra_driver.diagnose.doctor.reading import read_facts
from dra_driver.diagnose.doctor.report import DoctorReport
from tests.doctor_faults.cluster import SERVER, Cluster

CLUSTER = DoctorScope()
GONE = object()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BrokenSetup:
    """``edits`` break a healthy cluster; the first thing that the doctor reports has this layer, status and words."""

    name: str
    layer: Layer
    says: tuple[str, ...]
    status: Status
    scope: DoctorScope
    edits: Mapping[str, Any] = field(default_factory=dict)

    def cluster(self) -> Cluster:
        """The broken cluster."""
        found = Cluster()
        for path, value in self.edits.items():
            _put(found.__dict__, path.split(">"), copy.deepcopy(value) if value is not GONE else GONE)
        return found


def fail(name: str, layer: Layer, *says: str, scope: DoctorScope = CLUSTER) -> BrokenSetup:
    return BrokenSetup(name=name, layer=layer, says=says, status=Status.FAIL, scope=scope)


def warn(name: str, layer: Layer, *says: str, scope: DoctorScope = CLUSTER) -> BrokenSetup:
    return BrokenSetup(name=name, layer=layer, says=says, status=Status.WARN, scope=scope)


def unknown(name: str, layer: Layer, *says: str) -> BrokenSetup:
    return BrokenSetup(name=name, layer=layer, says=says, status=Status.UNKNOWN, scope=CLUSTER)


def rows(table: Mapping[BrokenSetup, Mapping[str, Any]]) -> tuple[BrokenSetup, ...]:
    """The rows of a table: what is reported, by the edits that break the cluster."""
    return tuple(replace(row, edits=edits) for row, edits in table.items())


def _put(place: Any, path: list[str], value: object) -> None:
    key: Any = path[0] if isinstance(place, dict) or path[0] in "*-" else int(path[0])
    if key == "*":
        for index in range(len(place)):
            _put(place, [str(index), *path[1:]], value)
    elif path[1:]:
        _put(place[key], path[1:], value)
    elif key == "-":
        place.append(value)
    elif value is not GONE:
        place[key] = value
    elif not isinstance(place, dict) or key in place:
        del place[key]


def examined(row: BrokenSetup) -> DoctorReport:
    """What the doctor says of the broken cluster."""
    cluster = row.cluster()
    began = time.monotonic()
    facts = read_facts(cluster, server=SERVER, namespace="team-a")
    return diagnose(facts, row.scope, clock=time.monotonic, took_s=time.monotonic() - began)


def first_of(report: DoctorReport) -> Finding | None:
    """What is said first: the first broken layer; else the first warning; else the first question without an answer."""
    for status in (Status.FAIL, Status.WARN, Status.UNKNOWN):
        found = next((finding for finding in report.findings if finding.status is status), None)
        if found is not None:
            return found
    return None
