"""Findings of lint, and the report that contains them, with the stable schema of ``-o json``."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.kubectl.lint.rules import RANK, RULES, Severity

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

    def to_wire(self) -> dict[str, Any]:
        """Returns the entry of ``-o json``."""
        return {
            "rule": self.rule,
            "name": RULES[self.rule].name,
            "severity": self.severity,
            "message": self.message,
            "hint": self.hint,
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "object": self.object,
            "path": self.path,
        }


class LintReport(Struct, frozen=True, kw_only=True):
    """All findings, by file and position. ``left_out`` counts those above the limit per file."""

    findings: Sequence[Finding] = ()
    files: int = 0
    objects: int = 0
    left_out: int = 0

    def count(self, severity: Severity) -> int:
        """Returns the number of findings with a severity."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def failed(self) -> bool:
        """Whether any finding is an error, which decides the exit status."""
        return any(finding.severity == "error" for finding in self.findings)

    def strict(self) -> "LintReport":
        """Returns the report with warnings as errors."""
        raised = [replace(f, severity="error") if f.severity == "warning" else f for f in self.findings]
        return replace(self, findings=tuple(raised))

    def to_wire(self) -> dict[str, Any]:
        """Returns the document of ``-o json``; fields may be added, but are never renamed or removed."""
        counts = {severity: sum(f.severity == severity for f in self.findings) for severity in RANK}
        return {
            "schemaVersion": SCHEMA_VERSION,
            "summary": {"files": self.files, "objects": self.objects, "leftOut": self.left_out, **counts},
            "findings": [finding.to_wire() for finding in self.findings],
        }
