"""One row of the table of broken set-ups, and running it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from dra_driver.core.finding import Finding, Layer, Status
from dra_driver.diagnose.doctor.cluster import DoctorScope, diagnose
from dra_driver.diagnose.doctor.reading import read_facts
from dra_driver.diagnose.doctor.report import DoctorReport
from tests.doctor_faults.cluster import SERVER, Cluster

CLUSTER = DoctorScope()
WARN, UNKNOWN = Status.WARN, Status.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenSetup:
    """``breaks`` breaks a healthy cluster; the first thing that the doctor reports has this layer, status and words."""

    name: str
    breaks: Callable[[Cluster], None]
    layer: Layer
    says: tuple[str, ...]
    status: Status
    scope: DoctorScope


ROWS: list[BrokenSetup] = []
"""In the order in which their modules define them."""


def broken(
    name: str, layer: Layer, *says: str, status: Status = Status.FAIL, scope: DoctorScope = CLUSTER
) -> Callable[[Callable[[Cluster], None]], Callable[[Cluster], None]]:
    """Make a row of the function that breaks a cluster."""

    def row(breaks: Callable[[Cluster], None]) -> Callable[[Cluster], None]:
        ROWS.append(BrokenSetup(name=name, breaks=breaks, layer=layer, says=says, status=status, scope=scope))
        return breaks

    return row


def examined(row: BrokenSetup) -> DoctorReport:
    """What the doctor says of the broken cluster."""
    cluster = Cluster()
    row.breaks(cluster)
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
