"""Findings of lint and their report, as ``text``, ``json`` (a stable schema), ``github`` and ``sarif``.

``github`` are workflow commands, which other CI systems also read; ``sarif`` is OASIS SARIF 2.1.0.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.text import counted

# --- The rules of lint: identifier, name, severity and summary.
#
# Identifiers never change their meaning, because comments and pipelines refer to them. ``docs/lint.md`` explains each
# rule with an example and a fix.

Severity = Literal["error", "warning", "info"]
RANK: Final[Mapping[Severity, int]] = MappingProxyType({"error": 0, "warning": 1, "info": 2})


class LintRule(Struct, frozen=True):
    """One rule. ``severity`` is the default; a check may choose another when it has more information."""

    id: str
    name: str
    severity: Severity
    summary: str


_ALL: Final = (
    # Files and objects
    LintRule("DRA001", "unreadable", "error", "The file is not readable YAML or JSON."),
    LintRule("DRA002", "duplicate-key", "error", "A key occurs twice in one mapping; one of the values is lost."),
    LintRule("DRA003", "unknown-field", "error", "A field that the API does not have."),
    LintRule("DRA004", "invalid-value", "error", "A value that the API server refuses."),
    LintRule("DRA005", "deprecated-api", "warning", "An API version that newer clusters do not serve."),
    LintRule("DRA006", "duplicate-name", "error", "Two objects, requests or claims have the same name."),
    LintRule("DRA007", "too-many", "error", "More entries than the API allows."),
    # Expressions
    LintRule("DRA010", "cel-error", "error", "The expression does not compile."),
    LintRule("DRA011", "cel-too-long", "error", "The expression is longer than the API allows."),
    LintRule("DRA012", "cel-cost", "error", "Evaluating the expression is costly or exceeds the limit."),
    LintRule("DRA013", "missing-driver-guard", "error", "The expression fails on devices of other drivers."),
    LintRule("DRA014", "guard-not-first", "info", "The driver check is not the first condition."),
    LintRule("DRA015", "may-fail-at-run-time", "warning", "The expression fails on devices that lack an attribute."),
    LintRule("DRA016", "unknown-attribute", "error", "The driver publishes no such attribute or capacity."),
    LintRule("DRA017", "wrong-type", "error", "A comparison of values of different types is never true."),
    LintRule("DRA018", "no-device-matches", "warning", "No known device matches."),
    LintRule("DRA019", "label-gigabytes", "warning", "The gigabytes in a product name are not its memory."),
    LintRule("DRA020", "unknown-driver", "warning", "No driver with that name is known."),
    LintRule("DRA021", "invalid-constant", "error", "The constant is not a valid quantity or version."),
    LintRule("DRA022", "younger-function", "warning", "Not every supported version of Kubernetes has the function."),
    # Classes, claims and templates
    LintRule("DRA030", "unknown-class", "info", "The DeviceClass is not defined in the input."),
    LintRule("DRA031", "all-over-32", "warning", "More devices match allocationMode All than a claim can have."),
    LintRule("DRA032", "too-many-devices", "error", "The claim requests more than 32 devices."),
    LintRule(
        "DRA033", "unknown-request", "error", "A constraint or configuration names a request that does not exist."
    ),
    LintRule("DRA034", "attribute-without-domain", "error", "A constraint's attribute needs a domain."),
    LintRule("DRA035", "invalid-parameters", "error", "The driver refuses the opaque parameters."),
    LintRule(
        "DRA036", "parameters-unused", "warning", "The parameters are for a driver whose devices are not requested."
    ),
    LintRule("DRA037", "parameters-of-wrong-kind", "error", "The parameters are for another type of device."),
    LintRule("DRA038", "admin-access", "warning", "Admin access needs a label on the namespace."),
    # DRA039 reported that an early version of the driver did not apply sharing; the identifier is not reused.
    LintRule("DRA040", "sharing-with-admin-access", "warning", "Sharing parameters have no effect on admin access."),
    LintRule("DRA041", "capacity-not-given", "warning", "No known device provides the requested capacity."),
    LintRule(
        "DRA042", "share-takes-all-compute", "info", "A share that requests only memory takes all of the compute."
    ),
    LintRule("DRA043", "several-mps-shares", "error", "The driver refuses several shares in a claim under MPS."),
    LintRule("DRA044", "sharing-of-a-share", "error", "The sharing section of a share contradicts its policy."),
    # Pods
    LintRule(
        "DRA050", "missing-claim", "warning", "The claim or template that a pod names is not defined in the input."
    ),
    LintRule("DRA051", "unknown-pod-claim", "error", "A container uses a claim that its pod does not declare."),
    LintRule(
        "DRA052", "unknown-container-request", "error", "A container uses a request that the claim does not have."
    ),
    LintRule("DRA053", "unused-pod-claim", "warning", "No container uses a claim of the pod."),
    LintRule(
        "DRA054", "claim-and-extended-resource", "warning", "A pod requests devices by claim and by extended resource."
    ),
    # Policies
    LintRule("DRA060", "invalid-policy", "error", "Nodes refuse the GpuPolicy."),
)
RULES: Final = MappingProxyType({rule.id: rule for rule in _ALL})


SCHEMA_VERSION: Final = 1


class Finding(Struct, frozen=True, kw_only=True):
    """One violation of a rule. ``line`` and ``column`` count from 1; they are 0 without a position.

    ``object`` is ``Kind namespace/name``, ``path`` the field (``spec.devices.requests[0].exactly``), ``hint`` what to
    do; each may be empty. ``excerpt`` is the line of text, ``caret`` the column in it (from 0) to point at.
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

    def to_wire(self) -> dict[str, str | int]:
        fields = ("severity", "message", "hint", "file", "line", "column", "object", "path")
        return {"rule": self.rule, "name": RULES[self.rule].name, **{name: getattr(self, name) for name in fields}}


class LintReport(Struct, frozen=True, kw_only=True):
    """All findings, by file and position. ``left_out`` counts those above the limit per file."""

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

    def to_wire(self) -> dict[str, object]:
        """Returns the document of ``-o json``; fields may be added, but are never renamed or removed."""
        summary: dict[str, int] = {"files": self.files, "objects": self.objects, "leftOut": self.left_out}
        return {
            "schemaVersion": SCHEMA_VERSION,
            "summary": summary | {severity: self.count(severity) for severity in RANK},
            "findings": [finding.to_wire() for finding in self.findings],
        }


_COLOURS: Final = {"error": "31", "warning": "33", "info": "36"}
_LEVELS: Final = {"error": "error", "warning": "warning", "info": "note"}
_COMMANDS: Final = {"error": "error", "warning": "warning", "info": "notice"}


def as_text(report: LintReport, *, colour: bool = False) -> str:
    """Lists findings by file with the line and a caret, and a summary."""
    blocks = [
        "\n".join([_painted(file, "1", colour), *(line for finding in found for line in _lines(finding, colour))])
        for file, found in groupby(report.findings, lambda finding: finding.file)
    ]
    return "\n\n".join([*blocks, _summary(report)])


def as_json(report: LintReport) -> str:
    return json.dumps(report.to_wire(), indent=2, ensure_ascii=False)


def as_github(report: LintReport) -> str:
    """Returns one workflow command per finding, such as ``::error file=a.yaml,line=3,col=5,title=DRA010::...``."""
    return "\n".join(_command(finding) for finding in report.findings)


def as_sarif(report: LintReport, version: str) -> str:
    rules = [
        {
            "id": rule.id,
            "name": rule.name,
            "shortDescription": {"text": rule.summary},
            "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        }
        for rule in RULES.values()
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
        parts.append(counted(infos, "remark"))
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
