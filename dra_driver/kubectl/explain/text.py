"""Renders an explanation as text for one screen: the verdict first, then the causes, then the fixes.

Long lists are cut. Control characters in texts of objects are replaced, so they cannot reach the terminal.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.text import one_line, wrapped
from dra_driver.kubectl.explain.report import Answer, Explanation, NodeDetail, RequestSummary

_MAX_REASONS: Final = 8
_MAX_REQUESTS: Final = 6
_MAX_NODES: Final = 6
_MAX_DEVICES: Final = 200

Style = Callable[[str, str], str]
"""(text, kind) -> text with colours. The kinds are good, bad, head and dim."""


def plain(text: str, _what: str) -> str:
    return text


def render(report: Explanation, style: Style = plain) -> str:
    """Renders the explanation; the text ends with a newline."""
    report = _on_one_line(report)
    first, *rest = wrapped(f"{report.subject} {report.verdict.sentence}", "  ")
    lines = [style(first, "good" if report.verdict.answer.is_good else "bad"), *rest]
    if report.fitting_nodes and report.verdict.answer is Answer.FITS:
        more = report.verdict.nodes_fit - len(report.fitting_nodes)
        shown = ", ".join(report.fitting_nodes) + (f" and {more} more" if more else "")
        lines += wrapped(f"  on {shown}", "    ")
    lines += _causes(report, style)
    lines += _requests(report, style)
    lines += _nodes(report, style)
    lines += _miss(report, style)
    if report.node is not None:
        lines += _detail(report.node, style)
    if report.scheduler:
        lines += ["", style("Scheduler message", "head"), *wrapped(f"  {report.scheduler}", "  ")]
    if report.notes:
        lines += [
            "",
            style("Notes", "head"),
            *(line for note in report.notes for line in wrapped(f"  {note}", "  ")),
        ]
    return "\n".join(lines) + "\n"


def _causes(report: Explanation, style: Style) -> Iterator[str]:
    sentence = report.verdict.sentence
    for cause in report.causes:
        if cause.message not in sentence:
            yield from wrapped(f"  {'' if cause.blocks else 'also: '}{cause.message}", "    ")
        if cause.fix:
            yield from wrapped(f"  {style('fix:', 'dim')} {cause.fix}", "    ")


def _requests(report: Explanation, style: Style) -> Iterator[str]:
    for request in report.requests[:_MAX_REQUESTS]:
        yield ""
        yield style(
            f"{request.claim}, request {request.request}: {request.count} of class {request.class_name}", "head"
        )
        yield from _funnel(request, style)
    if len(report.requests) > _MAX_REQUESTS:
        yield f"  and {len(report.requests) - _MAX_REQUESTS} more requests (-o json shows all)"


def _funnel(request: RequestSummary, style: Style) -> Iterator[str]:
    width = max(len(str(request.devices)), 3)
    yield f"  {request.devices:>{width}} device{'' if request.devices == 1 else 's'} checked"
    for reason in request.reasons[:_MAX_REASONS]:
        yield from wrapped(f"  {-reason.devices:>{width}} {reason.message}", " " * (width + 5))
        for seen in reason.seen:
            yield from wrapped(f"  {'':>{width}}   {style('seen:', 'dim')} {seen}", " " * (width + 7))
    if len(request.reasons) > _MAX_REASONS:
        yield f"  {'':>{width}} and {len(request.reasons) - _MAX_REASONS} more reasons (-o json shows all)"
    yield f"  {request.fitting:>{width}} left"


def _nodes(report: Explanation, style: Style) -> Iterator[str]:
    if not report.nodes:
        return
    yield ""
    yield style("Nodes that cannot take it", "head")
    width = max(len(str(reason.nodes)) for reason in report.nodes)
    for reason in report.nodes[:_MAX_NODES]:
        names = ", ".join(reason.examples) + (", …" if reason.nodes > len(reason.examples) else "")
        yield from wrapped(f"  {reason.nodes:>{width}} {reason.message}: {names}", " " * (width + 4))
    if len(report.nodes) > _MAX_NODES:
        yield f"  {'':>{width}} and {len(report.nodes) - _MAX_NODES} more reasons (-o json shows all)"


def _miss(report: Explanation, style: Style) -> Iterator[str]:
    miss = report.nearest_miss
    if miss is None:
        return
    yield ""
    yield style("Nearest miss", "head")
    what = f"{miss.device} on {miss.node} for request {miss.request}" if miss.device else f"node {miss.node}"
    yield from wrapped(f"  {what}: {'; '.join(miss.faults)}", "    ")
    yield from wrapped(f"  {style('fix:', 'dim')} {miss.fix}", "    ")


def _detail(detail: NodeDetail, style: Style) -> Iterator[str]:
    yield ""
    yield style(f"Node {detail.name}: {detail.message}", "head")
    for given in detail.allocation:
        yield f"  would be allocated {given}"
    shown: Sequence[str] = [line.device for line in detail.devices[:_MAX_DEVICES]]
    width = max(map(len, shown), default=0)
    request = ""
    for line in detail.devices[:_MAX_DEVICES]:
        if line.request != request:
            request = line.request
            yield f"  request {request}"
        yield from wrapped(f"    {line.device:<{width}}  {line.message}", " " * (width + 8))
    if len(detail.devices) > _MAX_DEVICES:
        yield f"    and {len(detail.devices) - _MAX_DEVICES} more (-o json shows all)"


def _on_one_line(value: Any) -> Any:
    """Replaces unprintable characters in every text of the value; line ends become spaces."""
    if isinstance(value, StrEnum):
        return value
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, tuple | list):
        return tuple(_on_one_line(item) for item in value)
    if isinstance(value, Struct):
        return replace(value, **{name: _on_one_line(getattr(value, name)) for name in value.__struct_fields__})
    return value
