"""An explanation as data (JSON and YAML output) and as text.

Fields and codes are the output schema. Empty lists and texts are [] and "".
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any, Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.document import JsonDocument, camel
from dra_driver.core.finding import Style, plain
from dra_driver.core.text import counted, listed, one_line, wrapped


class CauseCode(StrEnum):
    """Code of a cause; codes of rejected devices are in ``reasons.py``."""

    CLAIM_MISSING = "claimMissing"
    CLAIM_DELETED = "claimDeleted"
    CLAIM_NOT_OWNED = "claimNotOwned"
    CLAIM_FULL = "claimFull"
    CLAIM_NOT_RESERVED = "claimNotReserved"
    CLAIM_NOT_ALLOCATED = "claimNotAllocated"
    TEMPLATE_MISSING = "templateMissing"
    CLASS_MISSING = "classMissing"
    RESOURCE_UNKNOWN = "resourceUnknown"
    NOT_WEIGHABLE = "notWeighable"
    SCHEDULER_FAULT = "schedulerFault"
    CEL_ERROR = "celError"
    SELECTORS_COSTLY = "selectorsCostly"
    NO_SLICES = "noSlices"
    DRIVER_SILENT = "driverSilent"
    DRIVER_NOT_ON_NODE = "driverNotOnNode"
    GATE_OFF = "gateOff"
    PREPARE_FAILING = "prepareFailing"
    VOLUME_WAITING = "volumeWaiting"
    SCHEDULING_GATES = "schedulingGates"
    QUEUED = "queued"
    OTHER_SCHEDULER = "otherScheduler"
    NO_NODES = "noNodes"
    NOT_WEIGHED = "notWeighed"
    BEING_DELETED = "beingDeleted"
    POOL_UNUSABLE = "poolUnusable"
    DEVICE_UNHEALTHY = "deviceUnhealthy"
    DEVICE_NOT_PUBLISHED = "deviceNotPublished"
    MIG_MODE_OFF = "migModeOff"
    COMPUTE_INSTANCE = "computeInstance"


class Cause(Struct, frozen=True, kw_only=True, rename=camel):
    """A cause of ``object``. ``blocks``: it prevents scheduling until it changes. ``fix`` can be ""."""

    code: CauseCode
    message: str
    fix: str = ""
    object: str = ""
    blocks: bool = True


class Answer(StrEnum):
    """Verdict. ``placed``: on a node but not started. ``unhealthy``: runs, or is allocated, with a device without
    confirmed health. ``unknown``: selectors are too costly to evaluate."""

    FITS = "fits"
    CANNOT_FIT = "cannotFit"
    PLACED = "placed"
    RUNNING = "running"
    FINISHED = "finished"
    ALLOCATED = "allocated"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"

    @property
    def is_good(self) -> bool:
        """Return whether the subject has, had or can get healthy devices."""
        return self not in (Answer.CANNOT_FIT, Answer.PLACED, Answer.UNHEALTHY, Answer.UNKNOWN)


class Verdict(Struct, frozen=True, kw_only=True, rename=camel):
    answer: Answer
    sentence: str
    nodes_fit: int = field(name="fittingNodeCount")
    nodes_total: int = field(name="nodeCount")


class Reason(Struct, frozen=True, kw_only=True, rename=camel):
    """Reason for rejected devices. ``seen``: found values, most frequent first; ``examples``: devices."""

    code: str
    message: str
    devices: int = field(name="deviceCount")
    nodes: int = field(name="nodeCount")
    seen: Sequence[str]
    examples: Sequence[str]


class RequestSummary(Struct, frozen=True, kw_only=True, rename=camel):
    """One request of one claim; ``request`` is ``main`` or ``main/sub``, ``count`` is None for all devices.

    ``fitting`` of all checked ``devices`` were not rejected. On ``nodes_short`` nodes fewer than ``count`` fit.
    """

    claim: str
    request: str
    class_name: str = field(name="deviceClass")
    count: int | None
    devices: int = field(name="deviceCount")
    fitting: int = field(name="fittingCount")
    nodes_short: int = field(name="shortNodeCount")
    reasons: Sequence[Reason]

    @property
    def count_text(self) -> str:
        return "all" if self.count is None else str(self.count)


class NearestMiss(Struct, frozen=True, kw_only=True, rename=camel):
    device: str
    node: str
    request: str
    faults: Sequence[str]
    fix: str


class NodeReason(Struct, frozen=True, kw_only=True, rename=camel):
    """Nodes that reject the pod for one reason. ``by_devices``: the reason concerns devices."""

    message: str
    nodes: int = field(name="nodeCount")
    by_devices: bool
    examples: Sequence[str]


class DeviceLine(Struct, frozen=True, kw_only=True, rename=camel):
    """One device of a node. ``code`` is the code of a reason, ``given`` or ``free``."""

    request: str
    device: str
    code: str
    message: str


class NodeDetail(Struct, frozen=True, kw_only=True, rename=camel):
    name: str = field(name="node")
    fits: bool
    message: str
    devices: Sequence[DeviceLine]
    allocation: Sequence[str]


class AddedNode(Struct, frozen=True, kw_only=True, rename=camel):
    """The answer for empty nodes with ``gpus``. ``nodes`` of them serve ``pods`` equal pods, of which one node serves
    ``pods_on_each``; null if the answer is ``notNeeded`` or ``unknown``."""

    answer: Literal["helps", "doesNotHelp", "notNeeded", "unknown"]
    sentence: str
    gpus: str = ""
    nodes: int | None = field(name="nodeCount", default=None)
    pods: int | None = field(name="podCount", default=None)
    pods_on_each: int | None = field(name="podCountPerNode", default=None)
    not_checked: Sequence[str] = ()


class Explanation(JsonDocument, frozen=True, kw_only=True):
    """An explanation. ``scheduler`` is the scheduler's last message in the pod's condition. The answer also holds for
    ``equal_pods``."""

    subject: str
    kind: str = field(name="subjectKind")
    namespace: str
    name: str
    verdict: Verdict
    causes: Sequence[Cause] = ()
    requests: Sequence[RequestSummary] = ()
    nearest_miss: NearestMiss | None = None
    nodes: Sequence[NodeReason] = ()
    fitting_nodes: Sequence[str] = ()
    node: NodeDetail | None = None
    scheduler: str = ""
    notes: Sequence[str] = ()
    equal_pods: Sequence[str] = ()
    added_node: AddedNode | None = None


class ExplanationList(JsonDocument, frozen=True, kw_only=True):
    items: Sequence[Explanation]


_MAX_REASONS: Final = 8
_MAX_REQUESTS: Final = 6
_MAX_NODES: Final = 6
_MAX_DEVICES: Final = 200


def render(report: Explanation, style: Style = plain) -> str:
    """Return the verdict, causes and fixes, with long lists cut and control characters replaced."""
    report = _on_one_line(report)
    first, *rest = wrapped(f"{report.subject} {report.verdict.sentence}", "  ")
    lines = [style(first, "good" if report.verdict.answer.is_good else "bad"), *rest]
    if report.equal_pods:
        lines += wrapped(f"  also: {listed(report.equal_pods)}", "    ")
    if report.fitting_nodes and report.verdict.answer is Answer.FITS:
        more = report.verdict.nodes_fit - len(report.fitting_nodes)
        shown = ", ".join(report.fitting_nodes) + (f" and {more} more" if more else "")
        lines += wrapped(f"  on {shown}", "    ")
    lines += _causes(report, style)
    lines += _requests(report, style)
    lines += _nodes(report, style)
    lines += _miss(report, style)
    if report.added_node is not None:
        lines += ["", style(f"With a node of {report.added_node.gpus}", "head")]
        lines += wrapped(f"  {report.added_node.sentence}", "    ")
        lines += not_checked(report.added_node.not_checked, style)
    if report.node is not None:
        lines += _detail(report.node, style)
    if report.scheduler:
        lines += ["", style("Scheduler message", "head"), *wrapped(f"  {report.scheduler}", "  ")]
    if report.notes:
        lines += ["", style("Notes", "head"), *(line for note in report.notes for line in wrapped(f"  {note}", "  "))]
    return "\n".join(lines) + "\n"


def not_checked(parts: Sequence[str], style: Style = plain) -> list[str]:
    """Return the lines about the unchecked parts of an added node; none without any."""
    return wrapped(f"  {style('not checked:', 'dim')} {'; '.join(parts)}", "    ") if parts else []


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
            f"{request.claim}, request {request.request}: {request.count_text} of class {request.class_name}", "head"
        )
        yield from _funnel(request, style)
    if len(report.requests) > _MAX_REQUESTS:
        yield f"  and {counted(len(report.requests) - _MAX_REQUESTS, 'more request')} (-o json shows all)"


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
    yield style("Rejected nodes", "head")
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
    # Texts of objects must not control the terminal.
    if isinstance(value, StrEnum):
        return value
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, tuple | list):
        return tuple(_on_one_line(item) for item in value)
    if isinstance(value, Struct):
        return replace(value, **{name: _on_one_line(getattr(value, name)) for name in value.__struct_fields__})
    return value
