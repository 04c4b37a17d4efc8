"""Makes docs/internals/rights.md from docs/internals/rights/last-run.json, which tests/e2e/test_rights.py, test_optional_rights.py and
test_reader_rights.py write ($E2E_RIGHTS_FILE).

`make gen` writes it, `make check` compares. Pure: the same figures give the same bytes.
"""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DATA = Path("docs/internals/rights/last-run.json")
PAGE = Path("docs/internals/rights.md")
MAX_SAID = 150
MAX_COLUMNS = 120
INTRODUCTION = """# Rights: what is used, and what is refused

This page is generated from `docs/internals/rights/last-run.json`. Do not edit it. `tests/e2e/test_rights.py` ran on
Kubernetes {version} with the chart's roles and admission policies. The processes used tokens that are bound to a pod,
and so to its Node, as the kubelet requests them. [security.md](../security.md) describes the consequences.

    E2E_RIGHTS_FILE=docs/internals/rights/last-run.json KUBECONFIG=... .venv/bin/pytest tests/e2e/test_*rights.py -n 0 -s

Of the chart's values these were not the default:
{values}.
The MPS host has no token at all.

## What each process asked, right by right

Each request was allowed, and each right was used; the test fails where one is not.
"""
OPTIONAL = """## Parts that are off as delivered

`tests/e2e/test_optional_rights.py` did the same on Kubernetes {version} with
{values}.
Of the node process these are the rights that two of the switches add; the drainer is an administrator's account with
the chart's roles, for `kubectl dra drain --evict` and `undrain`; the controller has no other part than
[eviction because of use](../usage-limits.md). The verb `associated-node:patch` is asked for by the
API server itself, in each write of a claim's status: with it a node writes this driver's entries of claims that are
allocated on it.
"""
READERS = """## Parts that only read

`tests/e2e/test_reader_rights.py` did the same on Kubernetes {version} with
{values}.
The controller has no other part than the survey of [free capacity](../metrics.md). The user has the Role
`dra-driver-usage-reader` and runs [`kubectl dra usage`](../usage-cost.md). The exporter's pod did not run: the API
server admitted the request and could not reach the pod.
"""
PARTS = {"optional": OPTIONAL, "readers": READERS}
"""Sections by the name under which a test file writes its figures."""
REFUSED = """
## What was refused

In the answers `node-a` is the Node of the token, `node-b` another one.
"""


def generate(source: Path, target: Path) -> None:
    """Write the page below ``target`` from the figures below ``source``."""
    (target / PAGE).parent.mkdir(parents=True, exist_ok=True)
    (target / PAGE).write_text(page(json.loads((source / DATA).read_text())))


def outputs(root: Path) -> list[Path]:
    """The generated files that exist below ``root``."""
    return [root / PAGE] if (root / PAGE).exists() else []


def page(figures: Mapping[str, Any]) -> str:
    parts = [INTRODUCTION.format(version=figures["version"].lstrip("v"), values=values(figures["values"]))]
    parts += [used(process, rows) for process, rows in figures["used"].items()]
    optional = {name: figures[name] for name in PARTS if name in figures}
    for name, part in optional.items():
        more = textwrap.fill(values(part["values"]), MAX_COLUMNS - 1, break_on_hyphens=False)
        parts.append(PARTS[name].format(values=more, version=part["version"].lstrip("v")))
        parts += [used(process, rows) for process, rows in part["used"].items()]
    parts.append(REFUSED)
    parts += [refused(who, rows) for each in (figures, *optional.values()) for who, rows in each["refused"].items()]
    return "\n".join(parts)


def values(chart: Mapping[str, bool]) -> str:
    return ", ".join(f"`{name}={str(value).lower()}`" for name, value in sorted(chart.items())) or "none"


def used(process: str, rows: list[dict[str, Any]]) -> str:
    lines = [f"### The {process}", "", "| verb | resource | where | requests |", "|---|---|---|---|"]
    lines += [f"| {row['verb']} | {row['resource']} | {row['where']} | {row['requests']} |" for row in rows]
    return "\n".join([*lines, ""])


def refused(who: str, rows: list[dict[str, str]]) -> str:
    lines = [f"### To {who}: {len(rows)}", "", "| tried | by | answer |", "|---|---|---|"]
    lines += [f"| {row['what']} | {by(row['said'])} | {short(row['said'])} |" for row in rows]
    return "\n".join([*lines, ""])


def by(said: str) -> str:
    """Which part of the API server refused it."""
    if "ValidatingAdmissionPolicy" in said:
        return "admission policy"
    return "RBAC" if "cannot" in said else "NodeRestriction"


def short(said: str) -> str:
    """The reason without what the table says already."""
    said = said.partition("; check the ClusterRole")[0]
    said = re.sub(r"^.* denied request: ", "", said)
    said = re.sub(r'^.*User "[^"]*" cannot', "cannot", said)
    said = re.sub(r"^.* is forbidden: ", "", said).partition(", status.")[0]  # what else is wrong with a status
    text = next(iter(lines_of(said)), "").replace("|", "\\|")
    return text if len(text) <= MAX_SAID else text[:MAX_SAID].rsplit(" ", 1)[0] + " …"


def lines_of(text: str) -> Iterator[str]:
    yield from (line.strip() for line in text.splitlines() if line.strip())
