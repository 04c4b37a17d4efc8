"""What a run of the rights on a real API server found, as rows for docs/rights.md and for `pytest -s`."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_driver.kube.rest import RestClient
from tests.fakes.rbac import Access, Grant, Rules
from tests.rights.request import Request, refusal

Plain = Callable[[str], str]
"""A text without names of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is printed, and written for docs/rights.md. ``used``: process -> rows; ``refused``: who -> rows."""

    version: str
    used: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    refused: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def table(self) -> str:
        lines = [f"Kubernetes {self.version}"]
        for process, rows in self.used.items():
            lines += ["", process, *(f"  {row['verb']:7} {row['resource']:45} {row['requests']}" for row in rows)]
        for who, refused in self.refused.items():
            lines += ["", f"refused to {who}", *(f"  {row['what']:50} {row['said'][:100]}" for row in refused)]
        return "\n".join(lines)

    def write(self, target: Path, values: Mapping[str, Any], part: str = "") -> None:
        """Replace the file's figures, or those of one ``part`` of it; the others stay."""
        stored: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {}
        switches = {f"{name}.{switch}": on for name, value in values.items() for switch, on in value.items()}
        own = {"version": self.version, "values": switches, "used": self.used, "refused": self.refused}
        target.write_text(json.dumps({**stored, part: own} if part else {**stored, **own}, indent=1) + "\n")

    def judge(
        self, process: str, rules: Rules, asked: Sequence[Access], plain: Plain, own: Rules | None = None
    ) -> None:
        """All that was asked is granted, and each right of ``own`` (default: all) was used."""
        grants = list((own or rules).grants())
        self.used[process] = [_row(grant, asked, plain) for grant in grants]
        assert [access for access in asked if not rules.allow(access)] == []
        unused = [grant for grant in grants if not any(grant.used_by(access) for access in asked)]
        assert unused == [], "these rights are granted, and the process never asked for them"

    def refuse_all(self, who: str, rest: RestClient, requests: Sequence[Request], plain: Plain) -> None:
        said = {request.what: refusal(rest, request) for request in requests}
        self.refused[who] = [{"what": what, "said": plain(text)} for what, text in said.items()]


def without_names(names: Mapping[str, str], suffix: str) -> Plain:
    def plain(text: str) -> str:
        for name, stands_for in {**names, f"-{suffix}": ""}.items():
            text = text.replace(name, stands_for)
        return text

    return plain


def accesses(requests: Sequence[tuple[str, str]]) -> list[Access]:
    return [access for request in requests if (access := Access.of_request(*request)) is not None]


def _row(grant: Grant, asked: Sequence[Access], plain: Plain) -> dict[str, Any]:
    names = f" named {', '.join(grant.names)}" if grant.names else ""
    resource = f"{grant.resource}.{grant.group}" if grant.group else grant.resource
    return {
        "verb": grant.verb,
        "resource": f"{resource}{names}",
        "where": plain(grant.namespace) or "all namespaces",
        "requests": sum(grant.used_by(access) for access in asked),
    }
