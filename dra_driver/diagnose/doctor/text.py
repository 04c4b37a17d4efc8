"""Renders a report as text: the first broken layer, what else is wrong, and one line for each layer.

Control characters of objects cannot reach the terminal.
"""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from dra_driver.core.text import printable
from dra_driver.diagnose.doctor.finding import FindingStatus, Layer, LayerFinding
from dra_driver.diagnose.doctor.report import DoctorReport

WIDTH: Final = 118
_MOST_SHOWN: Final = 12
_KINDS: Final = {
    FindingStatus.OK: "good",
    FindingStatus.WARN: "head",
    FindingStatus.FAIL: "bad",
    FindingStatus.UNKNOWN: "dim",
}
_WORST: Final = (FindingStatus.FAIL, FindingStatus.UNKNOWN, FindingStatus.WARN, FindingStatus.OK)

Style = Callable[[str, str], str]
"""(text, kind) -> text with colours. The kinds are good, bad, head and dim."""


def plain(text: str, _what: str) -> str:
    """The text without colours."""
    return text


def render(report: DoctorReport, style: Style = plain, *, verbose: bool = False) -> str:
    """The report as text that ends with a newline. ``verbose`` shows what is well, too, and cuts no list."""
    report = _printable(report)
    first = report.first_broken
    lines = list(_wrapped(verdict(report), "  "))
    lines[0] = style(lines[0], "good" if report.exit_status == 0 else "bad")
    if first is not None:
        lines += _details(first, style)
    rest = [finding for finding in report.findings if finding is not first]
    for status, title in (
        (FindingStatus.FAIL, "Also broken (may follow from it)"),
        (FindingStatus.WARN, "Warnings"),
    ):
        lines += _section([finding for finding in rest if finding.status is status], title, style, verbose=verbose)
    if first is None or first.layer is not Layer.API_SERVER:  # else all is said
        lines += _unanswered(report.unknown, style, verbose=verbose)
    if verbose:
        lines += _section([item for item in rest if item.status is FindingStatus.OK], "Well", style, verbose=True)
    lines += ["", style("Layers", "head"), *_layers(report.findings, style)]
    return "\n".join(lines) + "\n"


def verdict(report: DoctorReport) -> str:
    """The answer in one sentence."""
    first = report.first_broken
    if first is not None:
        return f"{report.target}: the first broken layer is {first.layer}: {first.subject}: {first.seen}"
    if not report.findings:
        return f"{report.target}: nothing could be looked at"
    counts = {status: sum(item.status is status for item in report.findings) for status in FindingStatus}
    warned = f", {_many(counts[FindingStatus.WARN], 'warning')}" if counts[FindingStatus.WARN] else ""
    if counts[FindingStatus.UNKNOWN]:
        unanswered = f"{_many(len({item.seen for item in report.unknown}), 'question')} without an answer"
        return f"{report.target}: nothing broken was seen{warned}, but {unanswered}"
    return f"{report.target}: every layer works as far as can be seen from here{warned}"


def _details(finding: LayerFinding, style: Style) -> Iterator[str]:
    if finding.expected:
        yield from _wrapped(f"  {style('expected:', 'dim')} {finding.expected}", "    ")
    if finding.do:
        yield from _wrapped(f"  {style('do:', 'dim')} {finding.do}", "    ")


def _section(findings: Sequence[LayerFinding], title: str, style: Style, *, verbose: bool) -> Iterator[str]:
    if not findings:
        return
    yield ""
    yield style(title, "head")
    most = len(findings) if verbose else _MOST_SHOWN
    for finding in findings[:most]:
        yield from _wrapped(f"  {finding.layer}: {finding.subject}: {finding.seen}", "    ")
        for line in _details(finding, style):
            yield f"  {line}"
    if len(findings) > most:
        yield f"  and {len(findings) - most} more (--verbose or -o json shows all)"


def _unanswered(findings: Sequence[LayerFinding], style: Style, *, verbose: bool) -> Iterator[str]:
    """Each question once, with the layers that need it."""
    layers: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        layers.setdefault((finding.seen, finding.do), []).append(finding.layer)
    if layers:
        yield ""
        yield style("Could not be looked at", "head")
    most = len(layers) if verbose else _MOST_SHOWN
    for (seen, do), needing in list(layers.items())[:most]:
        yield from _wrapped(f"  {', '.join(dict.fromkeys(needing))}: {seen}", "    ")
        yield from _wrapped(f"    {style('do:', 'dim')} {do}", "      ")
    if len(layers) > most:
        yield f"  and {len(layers) - most} more (--verbose or -o json shows all)"


def _layers(findings: Sequence[LayerFinding], style: Style) -> Iterator[str]:
    """One line per layer that was looked at."""
    width = max((len(layer) for layer in Layer), default=0)
    for layer in Layer:
        found = [finding for finding in findings if finding.layer is layer]
        if not found:
            continue
        worst = next(status for status in _WORST if any(item.status is status for item in found))
        shown = [item for item in found if item.status is worst]
        more = f" (and {len(shown) - 1} more)" if len(shown) > 1 else ""
        text = f"{shown[0].subject}: {shown[0].seen}{more}"
        yield f"  {layer:<{width}}  {style(f'{worst:<7}', _KINDS[worst])}  {_cut(text, WIDTH - width - 13)}"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _printable(report: DoctorReport) -> DoctorReport:
    """The report with every text on one line: neither terminal commands nor line ends of objects get through."""
    findings = tuple(
        replace(
            item, subject=_line(item.subject), seen=_line(item.seen), expected=_line(item.expected), do=_line(item.do)
        )
        for item in report.findings
    )
    return replace(report, target=_line(report.target), findings=findings)


def _line(text: str) -> str:
    return printable(" ".join(text.split()))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _wrapped(text: str, indent: str) -> list[str]:
    lead = text[: len(text) - len(text.lstrip())]
    flat = lead + " ".join(text.split())
    return textwrap.wrap(flat, WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]
