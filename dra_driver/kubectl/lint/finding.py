"""Define lint rules, collect findings with position and excerpt, and format reports.

A report is ``text``, ``json`` (a stable schema), ``github`` (workflow commands) or ``sarif`` (OASIS SARIF 2.1.0).
``# dra-lint: allow DRA018`` suppresses a rule on its line or the next, ``# dra-lint: allow-file DRA018`` in a file."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.convert import convert
from dra_driver.core.document import JsonDocument, camel
from dra_driver.core.text import counted, cut, printable
from dra_driver.kubectl.lint.manifest import ManifestText, Spot
from dra_driver.kubectl.lint.reading import YamlNode, line_and_column, line_at, offset_in_text

Severity = Literal["error", "warning", "info"]
RANK: Final[Mapping[Severity, int]] = MappingProxyType({"error": 0, "warning": 1, "info": 2})


class LintRule(Struct, frozen=True):
    """A rule. ``severity`` is the default; checks with more information can change it."""

    id: str
    name: str
    severity: Severity
    summary: str


# Comments and pipelines refer to identifiers: their meaning never changes. docs/lint.md explains each rule.
_ALL: Final[tuple[tuple[str, str, Severity, str], ...]] = (
    # Files and objects
    ("DRA001", "unreadable", "error", "The file is not readable YAML or JSON."),
    ("DRA002", "duplicate-key", "error", "A key occurs twice in one mapping; one of the values is lost."),
    ("DRA003", "unknown-field", "error", "A field that the API does not have."),
    ("DRA004", "invalid-value", "error", "A value that the API server rejects."),
    ("DRA005", "deprecated-api", "warning", "An API version that newer clusters do not serve."),
    ("DRA006", "duplicate-name", "error", "Two objects, requests or claims have the same name."),
    ("DRA007", "too-many", "error", "More entries than the API allows."),
    # Expressions
    ("DRA010", "cel-error", "error", "The expression does not compile."),
    ("DRA011", "cel-too-long", "error", "The expression is longer than the API allows."),
    ("DRA012", "cel-cost", "error", "Evaluating the expression is costly or exceeds the limit."),
    ("DRA013", "missing-driver-guard", "error", "The expression fails on devices of other drivers."),
    ("DRA014", "guard-not-first", "info", "The driver check is not the first condition."),
    ("DRA015", "may-fail-at-run-time", "warning", "The expression fails on devices that lack an attribute."),
    ("DRA016", "unknown-attribute", "error", "The driver publishes no such attribute or capacity."),
    ("DRA017", "wrong-type", "error", "A comparison of values of different types is never true."),
    ("DRA018", "no-device-matches", "warning", "No known device matches."),
    ("DRA019", "label-gigabytes", "warning", "The gigabytes in a product name are not its memory."),
    ("DRA020", "unknown-driver", "warning", "Unknown driver name."),
    ("DRA021", "invalid-constant", "error", "The constant is not a valid quantity or version."),
    ("DRA022", "younger-function", "warning", "Not every supported version of Kubernetes has the function."),
    ("DRA023", "single-gpu", "info", "The expression selects one GPU, which no new node has."),
    # Classes, claims and templates
    ("DRA030", "unknown-class", "info", "The DeviceClass is not defined in the input."),
    ("DRA031", "all-over-32", "warning", "More devices match allocationMode All than a claim can have."),
    ("DRA032", "too-many-devices", "error", "The claim requests more than 32 devices."),
    ("DRA033", "unknown-request", "error", "A constraint or configuration names a request that does not exist."),
    ("DRA034", "attribute-without-domain", "error", "A constraint's attribute needs a domain."),
    ("DRA035", "invalid-parameters", "error", "The driver rejects the opaque parameters."),
    ("DRA036", "parameters-unused", "warning", "The parameters are for a driver whose devices are not requested."),
    ("DRA037", "parameters-of-wrong-kind", "error", "The parameters are for another type of device."),
    ("DRA038", "admin-access", "warning", "Admin access needs a label on the namespace."),
    # DRA039 reported that an early version of the driver did not apply sharing; the identifier is not reused.
    ("DRA040", "sharing-with-admin-access", "warning", "Sharing parameters have no effect on admin access."),
    ("DRA041", "capacity-not-given", "warning", "No known device provides the requested capacity."),
    ("DRA042", "share-takes-all-compute", "info", "A share that requests only memory takes all of the compute."),
    ("DRA043", "several-mps-shares", "error", "The driver rejects several shares in a claim under MPS."),
    ("DRA044", "sharing-of-a-share", "error", "The sharing section of a share contradicts its policy."),
    ("DRA045", "admin-access-counted", "warning", "The scheduler charges counters for admin access."),
    ("DRA046", "monitor-without-admin-access", "error", "Monitoring devices are for requests with adminAccess."),
    # Pods
    ("DRA050", "missing-claim", "warning", "The claim or template that a pod names is not defined in the input."),
    ("DRA051", "unknown-pod-claim", "error", "A container uses a claim that its pod does not declare."),
    ("DRA052", "unknown-container-request", "error", "A container uses a request that the claim does not have."),
    ("DRA053", "unused-pod-claim", "warning", "No container uses a claim of the pod."),
    ("DRA054", "claim-and-extended-resource", "warning", "A pod requests devices by claim and by extended resource."),
    ("DRA055", "several-shares", "warning", "A container requests shares of several GPUs."),
    ("DRA056", "cuda-requirement", "warning", "Not every node meets NVIDIA_REQUIRE_CUDA of a container."),
    ("DRA057", "compute-instance", "warning", "A container requests a part of a MIG partition."),
    ("DRA058", "rails-not-matched", "warning", "Pods that belong together can get different rails."),
    # Policies
    ("DRA060", "invalid-policy", "error", "Nodes reject the GpuPolicy."),
)
RULES: Final = MappingProxyType({row[0]: LintRule(*row) for row in _ALL})


class Finding(Struct, frozen=True, kw_only=True):
    """A violation of a rule. ``line`` and ``column`` count from 1; they are 0 without a position.

    ``object`` is ``Kind namespace/name``, ``path`` the field (``spec.devices.requests[0].exactly``), ``hint`` the
    action; each may be empty. ``excerpt`` is the line of text, ``caret`` the column in it (from 0).
    """

    rule: str
    severity: Severity
    message: str
    file: str
    line: int = 0
    column: int = 0
    object: str = ""
    path: str = ""
    hint: str = ""
    excerpt: str = ""
    caret: int = 0

    @property
    def rule_name(self) -> str:
        return RULES[self.rule].name


class LintReport(Struct, frozen=True, kw_only=True):
    """All findings, by file and position. ``left_out`` counts findings above the limit per file."""

    findings: Sequence[Finding] = ()
    files: int = 0
    objects: int = 0
    left_out: int = 0

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def failed(self) -> bool:
        return self.count("error") > 0

    def strict(self) -> "LintReport":
        raised = [replace(f, severity="error") if f.severity == "warning" else f for f in self.findings]
        return replace(self, findings=tuple(raised))


class LintFinding(Struct, frozen=True, kw_only=True, rename=camel):
    """A violation of ``rule``, whose name is ``rule_name``. ``line`` and ``column`` count from 1, 0 is unknown."""

    rule: str
    rule_name: str
    severity: Severity
    message: str
    hint: str = field(name="fix")
    file: str
    line: int
    column: int
    object: str
    path: str


class LintDocument(JsonDocument, frozen=True, kw_only=True, tag="LintReport"):
    """``omitted_count`` findings exceed the limit per file."""

    file_count: int
    object_count: int
    omitted_count: int
    error_count: int
    warning_count: int
    info_count: int
    items: Sequence[LintFinding]


def document_of(report: LintReport) -> LintDocument:
    return LintDocument(
        file_count=report.files,
        object_count=report.objects,
        omitted_count=report.left_out,
        error_count=report.count("error"),
        warning_count=report.count("warning"),
        info_count=report.count("info"),
        items=convert(report.findings, list[LintFinding], from_attributes=True),
    )


_COLOURS: Final = {"error": "31", "warning": "33", "info": "36"}
_LEVELS: Final = {"error": "error", "warning": "warning", "info": "note"}
_COMMANDS: Final = {"error": "error", "warning": "warning", "info": "notice"}


def as_text(report: LintReport, *, colour: bool = False) -> str:
    blocks = [
        "\n".join([_painted(file, "1", colour), *(line for finding in found for line in _lines(finding, colour))])
        for file, found in groupby(report.findings, lambda finding: finding.file)
    ]
    return "\n\n".join([*blocks, _summary(report)])


def as_github(report: LintReport) -> str:
    """Return one workflow command per finding, such as ``::error file=a.yaml,line=3,col=5,title=DRA010::...``."""
    return "\n".join(_command(finding) for finding in report.findings)


def as_sarif(report: LintReport, version: str) -> str:
    rules = [
        {"id": identifier, "name": name, "shortDescription": {"text": summary}}
        | {"defaultConfiguration": {"level": _LEVELS[severity]}}
        for identifier, name, severity, summary in _ALL
    ]
    driver = {"name": "kubectl-dra-lint", "version": version, "rules": rules}
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [_result(finding) for finding in report.findings]}],
    }
    return json.dumps(log, indent=2, ensure_ascii=False)


def _lines(finding: Finding, colour: bool) -> list[str]:
    place = f"{finding.line}:{finding.column}" if finding.line else "-"
    head = f"  {place:<8}{_painted(f'{finding.severity:<8}', _COLOURS[finding.severity], colour)}{finding.rule}  "
    about = f"  [{finding.object}]" if finding.object else ""
    lines = [f"{head}{finding.message}{about}"]
    if finding.excerpt:
        lines += [f"          | {finding.excerpt}", f"          | {' ' * finding.caret}^"]
    if finding.hint:
        lines.append(f"          = {finding.hint}")
    return lines


def _summary(report: LintReport) -> str:
    read = f"{counted(report.objects, 'object')} in {counted(report.files, 'file')}"
    if not report.findings:
        return f"{read}: no findings"
    parts = [counted(report.count("error"), "error"), counted(report.count("warning"), "warning")]
    if infos := report.count("info"):
        parts.append(counted(infos, "note"))
    more = f"; {report.left_out} more not shown" if report.left_out else ""
    return f"{read}: {', '.join(parts)}{more}"


def _painted(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


def _command(finding: Finding) -> str:
    place = f",line={finding.line},col={finding.column}" if finding.line else ""
    title = _property(f"{finding.rule} {RULES[finding.rule].name}")
    text = _data(finding.message + (f" ({finding.hint})" if finding.hint else ""))
    return f"::{_COMMANDS[finding.severity]} file={_property(finding.file)}{place},title={title}::{text}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _result(finding: Finding) -> dict[str, object]:
    location: dict[str, object] = {"artifactLocation": {"uri": finding.file}}
    if finding.line:
        location["region"] = {"startLine": finding.line, "startColumn": finding.column}
    text = finding.message + (f"\n{finding.hint}" if finding.hint else "")
    return {
        "ruleId": finding.rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": text},
        "locations": [{"physicalLocation": location}],
    }


MAX_PER_FILE: Final = 200
_MAX_MESSAGE: Final = 600
_SHOWN_WIDTH: Final = 160
_ALLOW: Final = re.compile(
    r"^(?P<before>.*?)#\s*dra-lint:\s*allow(?P<file>-file)?\s+(?P<ids>DRA\d+(?:[\s,]+DRA\d+)*)", re.M
)


def text_of(name: str, text: str) -> ManifestText:
    everywhere: set[str] = set()
    lines: dict[int, frozenset[str]] = {}
    line = counted = 0
    for found in _ALLOW.finditer(text):
        line, counted = line + text.count("\n", counted, found.start()), found.start()
        ids = frozenset(re.findall(r"DRA\d+", found["ids"]))
        if found["file"]:
            everywhere |= ids
            continue
        for covered in (line + 1, *(() if found["before"].strip() else (line + 2,))):
            lines[covered] = lines.get(covered, frozenset()) | ids
    return ManifestText(name, text, lines, frozenset(everywhere))


class Reporter:
    """Findings of one run. Not thread-safe."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.left_out = 0
        self._per_file: Counter[str] = Counter()
        self._seen: set[tuple[str, str, int, int, str]] = set()

    def add(
        self,
        rule: str,
        spot: Spot,
        message: str,
        *,
        hint: str = "",
        severity: Severity | None = None,
        offset: int | None = None,
        at: YamlNode | None = None,
    ) -> None:
        """Add a finding at a value; ``offset`` selects a character of it, ``at`` another node (a key)."""
        node, text = at or spot.node, spot.manifest.text
        line, column = node.line, node.column
        if offset is None and node.style in {"|", ">"}:
            offset = 0  # point at the first character of a block, not at its indicator
        position = offset_in_text(text.text, node, offset) if offset is not None else None
        if position is not None:
            line, column = line_and_column(text.text, node, position)
        self.put(
            rule,
            text,
            message,
            line=line,
            column=column,
            position=node.start if position is None else position,
            about=spot.manifest.label,
            path=spot.path,
            hint=hint,
            severity=severity,
        )

    def put(
        self,
        rule: str,
        text: ManifestText,
        message: str,
        *,
        line: int = 0,
        column: int = 0,
        position: int | None = None,
        about: str = "",
        path: str = "",
        hint: str = "",
        severity: Severity | None = None,
    ) -> None:
        """Add a finding at a position of a text, unless suppressed by a comment or already added."""
        key = (rule, text.name, line, column, message)
        if rule in text.allowed_in_file or rule in text.allowed.get(line, ()) or key in self._seen:
            return
        self._seen.add(key)
        self._per_file[text.name] += 1
        if self._per_file[text.name] > MAX_PER_FILE:
            self.left_out += 1
            return
        excerpt, caret = _excerpt(text.text, position)
        self.findings.append(
            Finding(
                rule=rule,
                severity=severity or RULES[rule].severity,
                message=printable(cut(message, _MAX_MESSAGE)),
                file=text.name,
                line=line,
                column=column,
                object=printable(about[:200]),
                path=printable(path[:300]),
                hint=printable(hint),
                excerpt=excerpt,
                caret=caret,
            )
        )

    def in_order(self) -> tuple[Finding, ...]:
        """Return the findings by file in the order of reading, then by position."""
        order = {name: index for index, name in enumerate(self._per_file)}
        return tuple(sorted(self.findings, key=lambda f: (order[f.file], f.line, f.column, RANK[f.severity], f.rule)))


def _excerpt(text: str, position: int | None) -> tuple[str, int]:
    if position is None or not text:
        return "", 0
    line, column = line_at(text, min(position, len(text)))
    cut = max(0, column - _SHOWN_WIDTH // 2) if len(line) > _SHOWN_WIDTH else 0
    return printable(line[cut : cut + _SHOWN_WIDTH]), column - cut
