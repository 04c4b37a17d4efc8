"""The values of doctor: findings, the first broken layer, exit status, text, and JSON there and back."""

import json
from typing import Any

import pytest

from dra_driver.core.document import to_wire
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.finding import Check, Finding, Layer, Status, UnansweredError, run_all
from dra_driver.diagnose.doctor.report import DoctorReport, document_of, from_wire, merged, render


def finding(layer: Layer, status: Status, **changed: str) -> Finding:
    texts = {"check": "a-check", "object": "node/a", "seen": "it is so", "expected": "it is not", "fix": "Change it."}
    return Finding(layer=layer, status=status, **{**texts, **changed})


def report(*findings: Finding) -> DoctorReport:
    return DoctorReport(target="cluster", findings=findings)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        *(((), 2), ((Status.OK,), 0), ((Status.OK, Status.WARN), 0)),
        *(((Status.OK, Status.UNKNOWN), 2), ((Status.UNKNOWN, Status.FAIL), 1)),
    ],
)
def test_exit_status(statuses: tuple[Status, ...], expected: int) -> None:
    """0 for all is well, 1 for a failure, 2 where not everything could be seen."""
    assert report(*(finding(Layer.API, status) for status in statuses)).exit_status == expected
    assert report(finding(Layer.API_SERVER, Status.FAIL)).exit_status == 2, "it may answer from another machine"


def test_a_check_that_misses_a_fact_or_breaks_stops_no_other() -> None:
    def unanswered(_: dict[str, Any]) -> list[Finding]:
        raise UnansweredError("the list of nodes was refused", "Ask for the right to list nodes.")

    def broken(facts: dict[str, Any]) -> list[Finding]:
        return [facts["missing"]]

    def good(_: dict[str, Any]) -> list[Finding]:
        return [finding(Layer.API, Status.OK)]

    rows = ((Layer.SLICES, "slices", broken), (Layer.NODE, "nodes", unanswered), (Layer.API, "api", good))
    checks = [Check[dict[str, Any]](name=about, layer=layer, about=about, look=look) for layer, about, look in rows]
    found = run_all(checks, {})
    assert [item.status for item in found] == [Status.OK, Status.UNKNOWN, Status.UNKNOWN]
    assert (found[1].seen, found[1].expected) == ("the list of nodes was refused", "nodes")
    assert "KeyError" in found[2].seen


def test_json_there_and_back() -> None:
    whole = report(finding(Layer.API, Status.OK), finding(Layer.CDI, Status.FAIL))
    wire = json.loads(json.dumps(to_wire(document_of(whole))))
    assert wire["exitStatus"] == 1
    assert wire["firstBroken"]["layer"] == "cdi"
    assert from_wire(wire, "report.json") == whole


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "List"}, "no DoctorReport"),
        ({"apiVersion": "v2"}, "apiVersion v2, this program reads cli.dra-driver.io/v1"),
        ({"items": {}}, "must be a list"),
        ({"items": [1]}, "Expected `object`, got `int`"),
        ({"items": [{"layer": "moon", "status": "ok"}]}, "moon"),
        ({"items": [{"layer": "api", "status": "ok", "seen": 1}]}, "Expected `str`, got `int`"),
        ({"items": [{"status": "fail", "seen": "x"}]}, "a finding has no layer"),
    ],
)
def test_a_report_of_another_shape_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        from_wire({**to_wire(document_of(report())), **changed}, "report.json")


def test_texts_of_a_report_are_bounded() -> None:
    long = {"layer": "api", "status": "fail", "seen": "x" * 9000, "fix": "y" * 9000}
    (found,) = from_wire({**to_wire(document_of(report())), "items": [long]}, "report.json").findings
    assert (len(found.seen), len(found.fix)) == (4000, 4000)


def test_merged_reports_are_in_the_order_of_layers() -> None:
    cluster = DoctorReport(target="cluster", findings=(finding(Layer.SLICES, Status.FAIL),), source="api", took_s=1.0)
    node = DoctorReport(target="node/a", findings=(finding(Layer.DRIVER, Status.FAIL),), source="node a", took_s=0.5)
    both = merged("node/a", [cluster, node])
    assert [item.layer for item in both.findings] == [Layer.DRIVER, Layer.SLICES]
    assert (both.source, both.took_s) == ("api; node a", 1.5)


def test_text_begins_with_the_lowest_broken_layer_and_what_to_do() -> None:
    text = render(report(finding(Layer.SLICES, Status.FAIL), finding(Layer.CRDS, Status.FAIL, seen="no gpunodes")))
    first, expected, do, *rest = text.splitlines()
    assert first == "cluster: the first broken layer is crds: node/a: no gpunodes"
    assert (expected.strip(), do.strip()) == ("expected: it is not", "do: Change it.")
    assert "Also broken (may follow from it)" in rest
    # Commands to the terminal in objects do not reach it.
    text = render(report(finding(Layer.API, Status.FAIL, seen="a\x1b[2Jb\nc", object="node/\x07")))
    assert "\x1b" not in text
    assert "\x07" not in text


def test_equal_warnings_are_shown_once_with_their_number() -> None:
    found = [finding(Layer.NODE, Status.WARN, object=f"node/{at}") for at in range(22)]
    other = finding(Layer.NODE, Status.WARN, object="node/x", seen="it is old")
    shown = render(report(*found, other))
    assert "  node: node/0 and 21 more: it is so" in shown.splitlines()
    assert "  node: node/x: it is old" in shown.splitlines()
    assert "node/21: it is so" in render(report(*found), verbose=True)


def test_a_question_without_an_answer_is_shown_once_with_the_layers_that_need_it() -> None:
    """A user without rights would read the same sentence forty times otherwise."""
    same = {"seen": "may not list nodes (403)", "fix": "Ask for it."}
    found = (
        finding(Layer.NODE, Status.UNKNOWN, **same),
        finding(Layer.RUNTIME, Status.UNKNOWN, **same),
        finding(Layer.SLICES, Status.UNKNOWN, seen="may not list slices (403)", fix="Ask for it."),
    )
    text = render(report(*found))
    assert "2 questions without an answer" in text.splitlines()[0]
    assert "  node, runtime: may not list nodes (403)" in text.splitlines()
    assert text.partition("Layers")[0].count("may not list nodes") == 1
    # Nor is a silent API server repeated for every question.
    down = finding(Layer.API_SERVER, Status.FAIL, seen="no answer")
    text = render(report(down, finding(Layer.NODE, Status.UNKNOWN, seen="not asked")))
    assert "Could not be looked at" not in text
