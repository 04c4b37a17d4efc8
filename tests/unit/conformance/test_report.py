"""A run as a table, JSON and JUnit XML, its exit status, and the choice of checks."""

import json
from xml.etree import ElementTree

from dra_driver.conformance import report, suite
from dra_driver.conformance.bench import Bench
from dra_driver.conformance.checks import CHECKS
from dra_driver.conformance.values import CAPABILITIES, Check, CheckOutcome
from dra_driver.core.finding import Finding, Status


def something(_bench: Bench) -> None:
    """Something is done.

    It must.
    """


def outcome(status: Status, seen: str = "", *, seconds: float = 0.0) -> CheckOutcome:
    check = Check(id="a-check", source="file.go:1", run=something)
    return CheckOutcome(check=check, finding=Finding(status=status, seen=seen), seconds=seconds)


STATUSES = (Status.OK, Status.FAIL, Status.WARN, Status.SKIPPED, Status.UNKNOWN)


def test_a_line_has_verdict_rule_source_and_what_was_seen() -> None:
    text = report.line(outcome(Status.FAIL, "it did\x1b[31m not", seconds=1.25))
    assert text.splitlines() == [
        "FAIL    a-check                      Something is done (1.2 s)",
        "        It must. [file.go:1]",
        "        seen: it did?[31m not",
    ]


def test_json_has_every_check() -> None:
    document = json.loads(report.as_json("d.example.com", "full", [outcome(status) for status in STATUSES]))
    assert document["driver"] == "d.example.com"
    verdicts = [check["verdict"] for check in document["checks"]]
    assert verdicts == ["passed", "failed", "advice", "not applicable", "unable"]
    assert document["checks"][0]["source"] == "file.go:1"


def test_junit_counts_failures_errors_and_skips() -> None:
    outcomes = [outcome(status, "\x00<seen>") for status in STATUSES]
    root = ElementTree.fromstring(report.as_junit("d.example.com", outcomes))  # noqa: S314 - our own text
    assert [root.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["5", "1", "1", "1"]
    failure = root.find("./testcase/failure")
    assert failure is not None
    assert (failure.get("message"), failure.text) == ("?<seen>", "It must. [file.go:1]")


def test_the_basic_profile_is_a_part_of_the_full_one() -> None:
    basic, full = suite.select("basic"), suite.select("full")
    assert set(basic) < set(full) == set(CHECKS)
    assert all(not check.needs or "restart" not in check.needs for check in basic)


def test_checks_are_chosen_by_pattern_whatever_the_profile() -> None:
    chosen = suite.select("basic", ["restart-*", "slices-count"])
    assert {check.id.partition("-")[0] for check in chosen} == {"restart", "slices"}


def test_checks_have_unique_ids_rules_and_sources() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS) >= 75
    assert all(check.rule and check.source and check.title for check in CHECKS)
    assert {need for check in CHECKS for need in check.needs} == set(CAPABILITIES)
