"""Requests that the API server must refuse, its answers, and the figures for docs/internals/rights.md."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_driver.core.errors import ForbiddenError, InvalidObjectError, KubernetesApiError
from dra_driver.kube.rest import RestClient
from tests.fakes.rbac import Access, Grant, Rules

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One request. ``what`` says in a few words what it would do; ``verb`` is HTTP's."""

    what: str
    verb: str
    path: str
    body: Obj | None = None
    query: Mapping[str, str] = field(default_factory=dict)

    def send(self, rest: RestClient) -> None:
        match self.verb:
            case "GET":
                rest.get(self.path, dict(self.query) or None)
            case "POST":
                rest.create(self.path, self.body or {})
            case "PUT":
                rest.update(self.path, self.body or {})
            case "PATCH":
                rest.merge_patch(self.path, self.body or {})
            case "DELETE":
                rest.delete(self.path)
            case other:
                raise ValueError(f"no such verb: {other}")


def refusal(rest: RestClient, request: Request) -> str:
    """The sentence of a refusal. Anything else fails: the request was done, or not for lack of rights.

    A refusal is a 403, or a 422 whose cause is that a field must not be changed with these rights: so the API server
    answers to writes of the status of claims (kubernetes/kubernetes pkg/registry/resource/resourceclaim).
    """
    try:
        request.send(rest)
    except ForbiddenError as error:
        return str(error).partition(" failed: 403 Forbidden: ")[2] or str(error)
    except InvalidObjectError as error:
        said = str(error).partition(" failed: 422 Invalid: ")[2]
        if ": Forbidden: " not in said:
            raise AssertionError(f"{request.what}: not forbidden: {error}") from error
        return said
    except KubernetesApiError as error:
        raise AssertionError(f"{request.what}: not forbidden: {error}") from error
    raise AssertionError(f"{request.what}: done")


Plain = Callable[[str], str]
"""A text without names of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures for docs/internals/rights.md. ``used``: rows by process; ``refused``: rows by account."""

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
