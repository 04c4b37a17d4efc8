"""The findings as a report: verdict, exit status, JSON and back.

A report travels as JSON from a node to `kubectl dra doctor` and in a support bundle, so what is read back is checked.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError
from dra_driver.diagnose.doctor.finding import ORDER, FindingStatus, Layer, LayerFinding, first_broken

SCHEMA_VERSION: Final = 1
KIND: Final = "DoctorReport"
MAX_FINDINGS: Final = 10_000
"""More are no report of this program."""
_TEXTS: Final = ("check", "subject", "seen", "expected", "do")
_LONGEST: Final = 4000


class DoctorReport(Struct, frozen=True, kw_only=True):
    """``target`` is what was asked for: "cluster" or ``kind/name``. ``source`` says where the facts are from."""

    target: str
    findings: tuple[LayerFinding, ...]
    source: str = ""
    took_s: float = 0.0

    @property
    def first_broken(self) -> LayerFinding | None:
        """The failure of the lowest layer."""
        return first_broken(self.findings)

    @property
    def unknown(self) -> tuple[LayerFinding, ...]:
        """What could not be looked at."""
        return tuple(finding for finding in self.findings if finding.status is FindingStatus.UNKNOWN)

    @property
    def exit_status(self) -> int:
        """0: all is ok, or a warning. 1: a failure. 2: the API server does not answer, or not everything was seen."""
        if (first := self.first_broken) is not None:
            return 2 if first.layer is Layer.API_SERVER else 1
        return 2 if self.unknown or not self.findings else 0


def merged(target: str, reports: Sequence[DoctorReport]) -> DoctorReport:
    """One report with the findings of all, by layer; times are added."""
    findings = sorted((item for report in reports for item in report.findings), key=lambda item: ORDER[item.layer])
    sources = "; ".join(dict.fromkeys(report.source for report in reports if report.source))
    took_s = sum(report.took_s for report in reports)
    return DoctorReport(target=target, findings=tuple(findings), source=sources, took_s=took_s)


def to_wire(report: DoctorReport) -> dict[str, Any]:
    """The report as JSON values."""
    first = report.first_broken
    return {
        "schemaVersion": SCHEMA_VERSION,
        "kind": KIND,
        "target": report.target,
        "source": report.source,
        "tookSeconds": round(report.took_s, 3),
        "exitStatus": report.exit_status,
        "firstBroken": finding_to_wire(first) if first is not None else None,
        "findings": [finding_to_wire(finding) for finding in report.findings],
    }


def finding_to_wire(finding: LayerFinding) -> dict[str, str]:
    """One finding as JSON values."""
    texts = {name: getattr(finding, name) for name in _TEXTS}
    return {"layer": finding.layer.value, "status": finding.status.value, **texts}


def from_wire(document: object, where: str) -> DoctorReport:
    """The report in a document of any shape. Raises ConfigurationError; ``where`` begins its sentence."""
    if not isinstance(document, Mapping) or document.get("kind") != KIND:
        raise ConfigurationError(f"{where}: no {KIND}")
    version = document.get("schemaVersion")
    if version != SCHEMA_VERSION:
        raise ConfigurationError(
            f"{where}: a {KIND} of schemaVersion {str(version)[:20]}, this program reads {SCHEMA_VERSION}; use the "
            "version of the program that wrote it"
        )
    listed, took_s = document.get("findings"), document.get("tookSeconds")
    if not isinstance(listed, list) or len(listed) > MAX_FINDINGS:
        raise ConfigurationError(f"{where}: its findings are no list of at most {MAX_FINDINGS}")
    return DoctorReport(
        target=_text(document, "target", where),
        source=_text(document, "source", where),
        took_s=float(took_s) if isinstance(took_s, int | float) and 0 <= took_s < 1e6 else 0.0,
        findings=tuple(_finding(item, f"{where}: findings[{number}]") for number, item in enumerate(listed)),
    )


def _finding(item: object, where: str) -> LayerFinding:
    if not isinstance(item, Mapping):
        raise ConfigurationError(f"{where}: no object")
    try:
        layer, status = Layer(str(item.get("layer"))), FindingStatus(str(item.get("status")))
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from error
    return LayerFinding(layer=layer, status=status, **{name: _text(item, name, where) for name in _TEXTS})


def _text(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name, "")
    if not isinstance(value, str):
        raise ConfigurationError(f"{where}: {name} is no text")
    return value[:_LONGEST]
