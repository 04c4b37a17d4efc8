"""The values of doctor: findings, the first broken layer, exit status, text, and JSON there and back."""

import json
from typing import Any

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.diagnose.doctor.check import LayerCheck, UnansweredError, run_all
from dra_driver.diagnose.doctor.finding import FindingStatus, Layer, LayerFinding
from dra_driver.diagnose.doctor.report import DoctorReport, from_wire, merged, to_wire
from dra_driver.diagnose.doctor.text import render


def finding(layer: Layer, status: FindingStatus, **changed: str) -> LayerFinding:
    texts = {"check": "a-check", "subject": "node/a", "seen": "it is so", "expected": "it is not", "do": "Change it."}
    return LayerFinding(layer=layer, status=status, **{**texts, **changed})


def report(*findings: LayerFinding) -> DoctorReport:
    return DoctorReport(target="cluster", findings=findings)


def test_the_first_broken_layer_is_the_lowest_and_not_the_first_of_the_list() -> None:
    """What follows from a broken layer is not named before it."""
    low, high = finding(Layer.CRDS, FindingStatus.FAIL), finding(Layer.SLICES, FindingStatus.FAIL)
    assert report(high, finding(Layer.API, FindingStatus.WARN), low).first_broken == low


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((), 2),
        ((FindingStatus.OK,), 0),
        ((FindingStatus.OK, FindingStatus.WARN), 0),
        ((FindingStatus.OK, FindingStatus.UNKNOWN), 2),
        ((FindingStatus.UNKNOWN, FindingStatus.FAIL), 1),
    ],
)
def test_exit_status(statuses: tuple[FindingStatus, ...], expected: int) -> None:
    """0 for all is well, 1 for a failure, 2 where not everything could be seen."""
    assert report(*(finding(Layer.API, status) for status in statuses)).exit_status == expected


def test_an_api_server_that_does_not_answer_is_no_failure_of_the_cluster() -> None:
    """From elsewhere it may answer."""
    assert report(finding(Layer.API_SERVER, FindingStatus.FAIL)).exit_status == 2


def test_a_check_that_misses_a_fact_or_breaks_stops_no_other() -> None:
    """The right that is missing is in the finding; a defect of a check is, too."""

    def unanswered(_: dict[str, Any]) -> list[LayerFinding]:
        raise UnansweredError("the list of nodes was refused", "Ask for the right to list nodes.")

    def broken(facts: dict[str, Any]) -> list[LayerFinding]:
        return [facts["missing"]]

    def good(_: dict[str, Any]) -> list[LayerFinding]:
        return [finding(Layer.API, FindingStatus.OK)]

    checks = [
        LayerCheck[dict[str, Any]](name="c", layer=Layer.SLICES, about="slices", look=broken),
        LayerCheck[dict[str, Any]](name="b", layer=Layer.NODE, about="nodes", look=unanswered),
        LayerCheck[dict[str, Any]](name="a", layer=Layer.API, about="api", look=good),
    ]
    found = run_all(checks, {})
    assert [item.status for item in found] == [FindingStatus.OK, FindingStatus.UNKNOWN, FindingStatus.UNKNOWN]
    assert (found[1].seen, found[1].expected) == ("the list of nodes was refused", "nodes")
    assert "KeyError" in found[2].seen


def test_json_there_and_back() -> None:
    """A node's report travels as JSON."""
    whole = report(finding(Layer.API, FindingStatus.OK), finding(Layer.CDI, FindingStatus.FAIL))
    wire = json.loads(json.dumps(to_wire(whole)))
    assert wire["exitStatus"] == 1
    assert wire["firstBroken"]["layer"] == "cdi"
    assert from_wire(wire, "report.json") == whole


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "List"}, "no DoctorReport"),
        ({"schemaVersion": 2}, "schemaVersion 2, this program reads 1"),
        ({"findings": {}}, "no list"),
        ({"findings": [1]}, r"findings\[0\]: no object"),
        ({"findings": [{"layer": "moon", "status": "ok"}]}, "moon"),
        ({"findings": [{"layer": "api", "status": "ok", "seen": 1}]}, "seen is no text"),
    ],
)
def test_a_report_of_another_shape_is_refused(changed: dict[str, Any], message: str) -> None:
    """The file may be from another version, or from nowhere."""
    with pytest.raises(ConfigurationError, match=message):
        from_wire({**to_wire(report()), **changed}, "report.json")


def test_merged_reports_are_in_the_order_of_layers() -> None:
    """The node's findings stand between those of the cluster."""
    cluster = DoctorReport(
        target="cluster", findings=(finding(Layer.SLICES, FindingStatus.FAIL),), source="api", took_s=1.0
    )
    node = DoctorReport(
        target="node/a", findings=(finding(Layer.DRIVER, FindingStatus.FAIL),), source="node a", took_s=0.5
    )
    both = merged("node/a", [cluster, node])
    assert [item.layer for item in both.findings] == [Layer.DRIVER, Layer.SLICES]
    assert (both.source, both.took_s) == ("api; node a", 1.5)


def test_text_begins_with_the_first_broken_layer_and_what_to_do() -> None:
    """People read the first lines."""
    text = render(
        report(finding(Layer.CRDS, FindingStatus.FAIL, seen="no gpunodes"), finding(Layer.SLICES, FindingStatus.FAIL))
    )
    first, expected, do, *rest = text.splitlines()
    assert first == "cluster: the first broken layer is crds: node/a: no gpunodes"
    assert (expected.strip(), do.strip()) == ("expected: it is not", "do: Change it.")
    assert "Also broken (may follow from it)" in rest


def test_terminal_commands_of_objects_do_not_reach_the_terminal() -> None:
    """Names and messages are written by others."""
    text = render(report(finding(Layer.API, FindingStatus.FAIL, seen="a\x1b[2Jb\nc", subject="node/\x07")))
    assert "\x1b" not in text
    assert "\x07" not in text


def test_a_question_without_an_answer_is_shown_once_with_the_layers_that_need_it() -> None:
    """A user without rights would read the same sentence forty times otherwise."""
    same = {"seen": "may not list nodes (403)", "do": "Ask for it."}
    found = (
        finding(Layer.NODE, FindingStatus.UNKNOWN, **same),
        finding(Layer.RUNTIME, FindingStatus.UNKNOWN, **same),
        finding(Layer.SLICES, FindingStatus.UNKNOWN, seen="may not list slices (403)", do="Ask for it."),
    )
    text = render(report(*found))
    assert "2 questions without an answer" in text.splitlines()[0]
    assert "  node, runtime: may not list nodes (403)" in text.splitlines()
    assert text.partition("Layers")[0].count("may not list nodes") == 1


def test_a_silent_api_server_is_not_repeated_for_every_question() -> None:
    """The first line says all."""
    down = finding(Layer.API_SERVER, FindingStatus.FAIL, seen="no answer")
    text = render(report(down, finding(Layer.NODE, FindingStatus.UNKNOWN, seen="not asked")))
    assert "Could not be looked at" not in text
