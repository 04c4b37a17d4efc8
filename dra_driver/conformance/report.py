"""Report a run as a table, as JSON, and as JUnit XML."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final
from xml.etree import ElementTree

from msgspec import Struct

from dra_driver import __version__
from dra_driver.conformance.values import VERDICTS, Check, CheckOutcome
from dra_driver.core.document import JsonDocument, camel, to_wire
from dra_driver.core.finding import Status
from dra_driver.core.text import wrapped

KUBERNETES: Final = "v1.36.2"
"""Version of kubernetes/kubernetes for sources without a repository."""
_WORDS: Final = {
    Status.OK: "PASS",
    Status.FAIL: "FAIL",
    Status.WARN: "ADVICE",
    Status.SKIPPED: "N/A",
    Status.UNKNOWN: "UNABLE",
}
_WIDTH: Final = 110
_INDENT: Final = " " * 8


def line(outcome: CheckOutcome) -> str:
    """Return one check as text: verdict, id and title, the rule with its source, and the detail."""
    check = outcome.check
    head = f"{_WORDS[outcome.finding.status]:<7} {check.id:<28} {check.title} ({outcome.seconds:.1f} s)"
    parts = [head, _wrapped(f"{check.rule} [{check.source}]")]
    if outcome.detail:
        parts.append(_wrapped(f"seen: {outcome.detail}"))
    return "\n".join(parts)


def summary(outcomes: Sequence[CheckOutcome]) -> str:
    """The number of each verdict, also 0, so that a script can parse the line."""
    return f"{len(outcomes)} checks: {', '.join(f'{count} {verdict}' for verdict, count in _counts(outcomes).items())}"


def _counts(outcomes: Sequence[CheckOutcome]) -> dict[str, int]:
    counts = Counter(outcome.verdict for outcome in outcomes)
    return {verdict: counts[verdict] for verdict in VERDICTS.values()}


def listing(checks: Sequence[Check]) -> str:
    return "\n".join(
        f"{check.id:<28} {check.profile:<6} {check.level:<7} {','.join(check.needs) or '-':<22} {check.title}"
        for check in checks
    )


class ConformanceResult(Struct, frozen=True, kw_only=True, rename=camel):
    """One check, and ``verdict``: passed, failed, advice, not applicable or unable."""

    id: str
    title: str
    verdict: str
    detail: str
    took_s: float
    level: str
    profile: str
    needs: Sequence[str]
    rule: str
    source: str


class ConformanceReport(JsonDocument, frozen=True, kw_only=True):
    """A run of the conformance suite. ``summary`` has the number of checks with each verdict; ``kubernetes`` is the
    version of the sources of the rules."""

    driver: str
    profile: str
    version: str
    kubernetes: str
    summary: Mapping[str, int]
    items: Sequence[ConformanceResult]


def document_of(driver: str, profile: str, outcomes: Sequence[CheckOutcome]) -> ConformanceReport:
    return ConformanceReport(
        driver=driver,
        profile=profile,
        version=__version__,
        kubernetes=KUBERNETES,
        summary={"checks": len(outcomes), **_counts(outcomes)},
        items=[
            ConformanceResult(
                id=outcome.check.id,
                title=outcome.check.title,
                verdict=outcome.verdict,
                detail=outcome.detail,
                took_s=round(outcome.seconds, 3),
                level=outcome.check.level,
                profile=outcome.check.profile,
                needs=outcome.check.needs,
                rule=outcome.check.rule,
                source=outcome.check.source,
            )
            for outcome in outcomes
        ],
    )


def as_json(driver: str, profile: str, outcomes: Sequence[CheckOutcome]) -> str:
    return json.dumps(to_wire(document_of(driver, profile, outcomes)), indent=1) + "\n"


def as_junit(driver: str, outcomes: Sequence[CheckOutcome]) -> str:
    """Return JUnit XML for CI systems: advice passes with a text, "not applicable" is skipped."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    suite = ElementTree.Element(
        "testsuite",
        name=f"dra-conformance {driver}",
        tests=str(len(outcomes)),
        failures=str(counts["failed"]),
        errors=str(counts["unable"]),
        skipped=str(counts["not applicable"]),
        time=f"{sum(outcome.seconds for outcome in outcomes):.3f}",
    )
    for outcome in outcomes:
        suite.append(_case(driver, outcome))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _case(driver: str, outcome: CheckOutcome) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=driver, name=outcome.check.id, time=f"{outcome.seconds:.3f}")
    detail, text = outcome.detail, f"{outcome.check.rule} [{outcome.check.source}]"
    match outcome.finding.status:
        case Status.FAIL:
            ElementTree.SubElement(case, "failure", message=detail).text = text
        case Status.UNKNOWN:
            ElementTree.SubElement(case, "error", message=detail).text = text
        case Status.SKIPPED:
            ElementTree.SubElement(case, "skipped", message=detail)
        case Status.WARN:
            ElementTree.SubElement(case, "system-out").text = f"{detail}; {text}"
    return case


def _wrapped(text: str) -> str:
    return "\n".join(wrapped(f"{_INDENT}{text}", _INDENT, _WIDTH))
