"""Each broken set-up is named by its layer first, with what was seen and what to do; a healthy one by none."""

import json
import time
from functools import cache
from pathlib import Path

import pytest

from dra_driver.core.finding import Status
from dra_driver.diagnose.doctor.cluster import CHECKS, DoctorScope, diagnose
from dra_driver.diagnose.doctor.reading import read_facts
from dra_driver.diagnose.doctor.report import DoctorReport
from tests.doctor_faults import ROWS
from tests.doctor_faults.__main__ import DATA, name_of
from tests.doctor_faults.cluster import SERVER, Cluster, by_template, event, named, template, workload
from tests.doctor_faults.row import BrokenSetup, examined, first_of
from tests.fakes.dra_objects import claim, exactly
from tests.fakes.node_faults import FAULTS


@cache
def seen(row: BrokenSetup) -> DoctorReport:
    """Each set-up is examined once."""
    return examined(row)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_broken_setup_is_named_first(row: BrokenSetup) -> None:
    """The first finding has the layer, and says what was seen and what to do."""
    report = seen(row)
    first = first_of(report)
    assert first is not None
    said = f"{first.object} {first.seen} {first.expected} {first.fix}"
    assert (first.layer, first.status) == (row.layer, row.status), said
    missing = [words for words in row.says if words not in said]
    assert not missing, said
    assert first.expected or first.status is Status.UNKNOWN
    assert first.fix


def test_a_healthy_cluster_has_no_finding_but_good_ones() -> None:
    """Otherwise every row of the table could be right by accident."""
    report = diagnose(read_facts(Cluster(), server=SERVER), DoctorScope(), clock=time.monotonic)
    assert [finding for finding in report.findings if finding.status is not Status.OK] == []
    assert report.exit_status == 0


def test_devices_of_other_drivers_are_no_concern() -> None:
    """A network card that is not ready, in a claim of its own driver."""
    cluster = Cluster()
    condition = {"type": "Ready", "status": "False", "reason": "NoLink", "message": "no link"}
    device = {"driver": "net.example.com", "pool": "p", "device": "eth0", "conditions": [condition]}
    card = claim("card", namespace="team-a")
    card["status"] = {"devices": [device]}
    cluster.claims.append(card)
    report = diagnose(read_facts(cluster, server=SERVER), DoctorScope(), clock=time.monotonic)
    assert report.first_broken is None


def test_pods_of_other_drivers_are_no_concern() -> None:
    """One is not scheduled, one is not prepared: both have a network driver's claim alone."""
    cluster = Cluster()
    guard = 'device.driver == "net.example.com"'
    cluster.classes.append(named("nets", spec={"selectors": [{"cel": {"expression": guard}}]}))
    cluster.templates.append(template("cards", device_class="nets"))
    waiting, failing = (
        workload("waits", **by_template("cards")),
        workload("fails", node="gpu-a", **by_template("cards")),
    )
    waiting["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": "no card"}]
    cluster.pods += [waiting, failing]
    said = "Failed to prepare dynamic resources: DRA driver net.example.com is not registered"
    cluster.events.append(event("FailedPrepareDynamicResources", failing, said))
    report = diagnose(read_facts(cluster, server=SERVER), DoctorScope(), clock=time.monotonic)
    assert [str(each) for each in report.findings if each.status is not Status.OK] == []


def test_what_a_pod_of_unknown_purpose_lacks_is_a_warning_of_the_cluster() -> None:
    """A network driver's pod whose claim is missing breaks no GPU; who asks about the pod or claim is told it fails."""
    cluster = Cluster()
    cluster.pods.append(workload(resourceClaims=[{"name": "card", "resourceClaimName": "card"}]))
    cluster.claims.append(claim("uplink", exactly(deviceClassName="nets"), namespace="team-a"))
    facts = read_facts(cluster, server=SERVER)
    of_all = diagnose(facts, DoctorScope(), clock=time.monotonic)
    warned = [each.check for each in of_all.findings if each.status is Status.WARN]
    assert (of_all.exit_status, sorted(warned)) == (0, ["claims-and-templates-exist", "classes-of-claims-exist"])
    for scope in (("pod", "train"), ("claim", "uplink")):
        asked = DoctorScope(kind=scope[0], namespace="team-a", name=scope[1])
        assert diagnose(facts, asked, clock=time.monotonic).exit_status == 1, scope


def test_names_of_rows_and_checks_are_unique() -> None:
    """They are the keys of the page and of the JSON report."""
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    checks = [check.name for check in CHECKS]
    assert len(set(checks)) == len(checks)


def test_every_check_that_can_fail_is_the_first_to_speak_in_some_row() -> None:
    """A check that no broken set-up needs is not known to work."""
    spoke = {finding.check for row in ROWS for finding in seen(row).findings if finding.status is not Status.OK}
    silent = {check.name for check in CHECKS} - spoke
    assert silent == set()


def test_the_page_has_every_setup() -> None:
    """A row that is added is examined, and the page written again."""
    page = (Path(__file__).resolve().parents[4] / "docs" / "doctor-faults.md").read_text()
    assert [row.name for row in ROWS if f"| {row.name} | `{row.layer}` | {row.status} |" not in page] == []


def test_every_broken_set_up_is_recorded_with_its_layer() -> None:
    """The page is made from the record; a new or changed set-up needs `python -m tests.doctor_faults --write`."""
    found = json.loads(DATA.read_text())
    assert [(row["name"], row["layer"], row["status"]) for row in found["cluster"]] == [
        (row.name, row.layer, row.status) for row in ROWS
    ]
    assert [(row["name"], row["layer"]) for row in found["node"]] == [(name_of(each), each.layer) for each in FAULTS]
