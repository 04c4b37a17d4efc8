"""The doctor's report: verdict, exit status, text, JSON and back. The reader validates it, because reports come from
support bundles and from nodes."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.document import API_VERSION, JsonDocument
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.finding import (
    Finding,
    Layer,
    Status,
    Style,
    by_layer,
    check_document,
    exit_status,
    findings_from_wire,
    first_broken,
    next_steps,
    plain,
    printable,
    text_at,
)
from dra_driver.core.text import WIDTH, counted, cut, one_line, wrapped

KIND: Final = "DoctorReport"
_MOST_SHOWN: Final = 12
_KINDS: Final = {
    Status.FAIL: "bad",
    Status.UNKNOWN: "dim",
    Status.WARN: "head",
    Status.SKIPPED: "dim",
    Status.OK: "good",
}
"""Styles by status, the worst status first."""


class DoctorReport(Struct, frozen=True, kw_only=True):
    """``target`` is "cluster" or ``kind/name``. ``source`` names the origin of the facts."""

    target: str
    findings: tuple[Finding, ...]
    source: str = ""
    took_s: float = 0.0

    @property
    def first_broken(self) -> Finding | None:
        return first_broken(self.findings)

    @property
    def unknown(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.status is Status.UNKNOWN)

    @property
    def exit_status(self) -> int:
        """0: all is ok, or a warning. 1: a failure. 2: the API server does not answer, or a check got no answer."""
        first = self.first_broken
        if not self.findings or (first is not None and first.layer is Layer.API_SERVER):
            return 2
        return exit_status((finding.status for finding in self.findings), unanswered=2)


def merged(target: str, reports: Sequence[DoctorReport]) -> DoctorReport:
    """One report with the findings of all, by layer; times are added."""
    return DoctorReport(
        target=target,
        findings=by_layer(item for report in reports for item in report.findings),
        source="; ".join(dict.fromkeys(report.source for report in reports if report.source)),
        took_s=sum(report.took_s for report in reports),
    )


class DoctorDocument(JsonDocument, frozen=True, kw_only=True, tag=KIND):
    """The report of ``-o json``. ``first_broken`` is one of ``items``, which are in the order of the layers;
    ``explanation`` is that of `kubectl dra explain` for a pod or claim."""

    target: str
    source: str = ""
    took_s: float = 0.0
    exit_status: int = 0
    first_broken: Finding | None = None
    items: Sequence[Finding]
    explanation: JsonDocument | None = None


def document_of(report: DoctorReport, explanation: JsonDocument | None = None) -> DoctorDocument:
    return DoctorDocument(
        target=report.target,
        source=report.source,
        took_s=round(report.took_s, 3),
        exit_status=report.exit_status,
        first_broken=report.first_broken,
        items=report.findings,
        explanation=explanation,
    )


def from_wire(wire: object, where: str) -> DoctorReport:
    """The report in a document of any shape. Raises ConfigurationError; ``where`` begins its message."""
    document = check_document(wire, KIND, API_VERSION, where, version_key="apiVersion")
    took_s = document.get("tookSeconds")
    findings = findings_from_wire(document.get("items"), where)
    if any(finding.layer is None for finding in findings):
        raise ConfigurationError(f"{where}: a finding has no layer")
    return DoctorReport(
        target=text_at(document, "target", where),
        source=text_at(document, "source", where),
        took_s=float(took_s) if isinstance(took_s, int | float) and 0 <= took_s < 1e6 else 0.0,
        findings=findings,
    )


def render(report: DoctorReport, style: Style = plain, *, verbose: bool = False) -> str:
    """The report as text that ends with a newline. ``verbose`` adds passed checks and does not shorten lists."""
    report = replace(report, target=one_line(report.target), findings=tuple(map(printable, report.findings)))
    first = report.first_broken
    lines = wrapped(verdict(report), "  ")
    lines[0] = style(lines[0], "good" if report.exit_status == 0 else "bad")
    if first is not None:
        lines += next_steps(first, style)
    rest = [finding for finding in report.findings if finding is not first]
    titles = [(Status.FAIL, "Also broken (may follow from it)"), (Status.WARN, "Warnings")]
    for status, title in titles:
        lines += _section([finding for finding in rest if finding.status is status], title, style, verbose=verbose)
    if first is None or first.layer is not Layer.API_SERVER:  # else nothing more to report
        lines += _unanswered(report.unknown, style, verbose=verbose)
    if verbose:
        lines += _section([item for item in rest if item.status is Status.OK], "Well", style, verbose=True)
    lines += ["", style("Layers", "head"), *_layers(report.findings, style)]
    return "\n".join(lines) + "\n"


def verdict(report: DoctorReport) -> str:
    """The result in one sentence."""
    first = report.first_broken
    if first is not None:
        return f"{report.target}: the first broken layer is {first.layer}: {first.object}: {first.seen}"
    if not report.findings:
        return f"{report.target}: no check got an answer"
    warnings = sum(item.status is Status.WARN for item in report.findings)
    warned = f", {counted(warnings, 'warning')}" if warnings else ""
    if report.unknown:
        unanswered = f"{counted(len({item.seen for item in report.unknown}), 'question')} without an answer"
        return f"{report.target}: found no failure{warned}, but {unanswered}"
    return f"{report.target}: every checked layer works{warned}"


def _section(findings: Sequence[Finding], title: str, style: Style, *, verbose: bool) -> Iterator[str]:
    """Equal findings of several objects once, unless ``verbose``."""
    groups: dict[object, list[Finding]] = {}
    for at, finding in enumerate(findings):
        groups.setdefault(at if verbose else (finding.layer, finding.check, finding.seen), []).append(finding)
    entries = [
        [
            *wrapped(
                f"  {first.layer}: {first.object}{f' and {len(more)} more' if more else ''}: {first.seen}", "    "
            ),
            *(f"  {line}" for line in next_steps(first, style)),
        ]
        for first, *more in groups.values()
    ]
    return _listed(entries, title, style, verbose=verbose)


def _unanswered(findings: Sequence[Finding], style: Style, *, verbose: bool) -> Iterator[str]:
    """Each question once, with the layers that need it."""
    layers: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        layers.setdefault((finding.seen, finding.fix), []).append(str(finding.layer))
    entries = [
        [
            *wrapped(f"  {', '.join(dict.fromkeys(needing))}: {seen}", "    "),
            *wrapped(f"    {style('do:', 'dim')} {fix}", "      "),
        ]
        for (seen, fix), needing in layers.items()
    ]
    return _listed(entries, "Not checked", style, verbose=verbose)


def _listed(entries: Sequence[Sequence[str]], title: str, style: Style, *, verbose: bool) -> Iterator[str]:
    most = len(entries) if verbose else _MOST_SHOWN
    if entries:
        yield from ("", style(title, "head"))
    for entry in entries[:most]:
        yield from entry
    if len(entries) > most:
        yield f"  and {len(entries) - most} more (--verbose or -o json shows all)"


def _layers(findings: Sequence[Finding], style: Style) -> Iterator[str]:
    width = max(map(len, Layer))
    for layer in Layer:
        of_layer = [finding for finding in findings if finding.layer is layer]
        if not of_layer:
            continue
        worst = next(status for status in _KINDS if any(item.status is status for item in of_layer))
        shown = [item for item in of_layer if item.status is worst]
        more = f" (and {len(shown) - 1} more)" if len(shown) > 1 else ""
        text = cut(f"{shown[0].object}: {shown[0].seen}{more}", WIDTH - width - 13)
        yield f"  {layer:<{width}}  {style(f'{worst:<7}', _KINDS[worst])}  {text}"
