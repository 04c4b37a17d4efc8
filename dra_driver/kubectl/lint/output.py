"""Formats reports as ``text``, ``json`` (the stable schema of ``finding.py``), ``github`` and ``sarif``.

``github`` are workflow commands, which other CI systems also read; ``sarif`` is OASIS SARIF 2.1.0.
"""

import json
from typing import Any, Final

from dra_driver.core.text import counted
from dra_driver.kubectl.lint.finding import Finding, LintReport
from dra_driver.kubectl.lint.rules import RULES

_COLOURS: Final = {"error": "31", "warning": "33", "info": "36"}
_LEVELS: Final = {"error": "error", "warning": "warning", "info": "note"}
_COMMANDS: Final = {"error": "error", "warning": "warning", "info": "notice"}


def as_text(report: LintReport, *, colour: bool = False) -> str:
    """Lists findings by file with the line and a caret, and a summary."""
    lines: list[str] = []
    file = None
    for finding in report.findings:
        if finding.file != file:
            lines += [*([""] if lines else []), _painted(finding.file, "1", colour)]
            file = finding.file
        lines += _lines(finding, colour)
    return "\n".join([*lines, *([""] if lines else []), _summary(report)])


def as_json(report: LintReport) -> str:
    return json.dumps(report.to_wire(), indent=2, ensure_ascii=False)


def as_github(report: LintReport) -> str:
    """Returns one workflow command per finding, such as ``::error file=a.yaml,line=3,col=5,title=DRA010::...``."""
    return "\n".join(_command(finding) for finding in report.findings)


def as_sarif(report: LintReport, version: str) -> str:
    """Returns a SARIF log with one run."""
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
    title = f"{finding.rule} {RULES[finding.rule].name}"
    text = finding.message + (f" ({finding.hint})" if finding.hint else "")
    return (
        f"::{_COMMANDS[finding.severity]} file={_property(finding.file)}{place},title={_property(title)}::{_data(text)}"
    )


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _result(finding: Finding) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": {"uri": finding.file}}
    if finding.line:
        location["region"] = {"startLine": finding.line, "startColumn": finding.column}
    text = finding.message + (f"\n{finding.hint}" if finding.hint else "")
    return {
        "ruleId": finding.rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": text},
        "locations": [{"physicalLocation": location}],
    }
