"""Write docs/internals/rights.md from docs/internals/rights/last-run.json. tests/e2e/test_rights.py,
test_optional_rights.py and test_reader_rights.py write that file ($E2E_RIGHTS_FILE).

`make gen` writes it, `make check` compares. Pure: the same figures give the same bytes.
"""

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DATA = Path("docs/internals/rights/last-run.json")
PAGE = Path("docs/internals/rights.md")
MAX_COLUMNS = 120
MANY = 20
"""Requests of earlier tables from which a table counts them instead of listing them again."""
INTRODUCTION = """# Permissions: used and refused requests

This page is generated from `docs/internals/rights/last-run.json`. Do not edit it. `tests/e2e/test_rights.py` ran on
Kubernetes {version} with the chart's roles and admission policies. The processes used tokens that are bound to a pod,
and so to its Node, as the kubelet requests them. [security.md](../security.md) describes the consequences.

    export KUBECONFIG=... E2E_RIGHTS_FILE=docs/internals/rights/last-run.json
    .venv/bin/pytest tests/e2e/test_*rights.py -n 0 -s

Chart values that differ from the default:
{values}.
The MPS host has no token.

## Requests of each process

The API server allowed each request. The test fails for a refused request and for an unused permission.
"""
OPTIONAL = """## Optional components

`tests/e2e/test_optional_rights.py` repeated this on Kubernetes {version} with
{values}.
Two of the values add these permissions of the node process. The drainer is an administrator's account with the
chart's roles for `kubectl dra drain --evict` and `undrain`. The controller runs only
[usage evictions](../usage-limits.md). The API server checks the verb `associated-node:patch` for each write of a
claim's status. With it a node writes this driver's entries of claims that are allocated on the node.
"""
READERS = """## Components that only read

`tests/e2e/test_reader_rights.py` repeated this on Kubernetes {version} with
{values}.
The controller runs only the survey of [free capacity](../metrics.md). The user has the Role
`dra-driver-usage-reader` and runs [`kubectl dra usage`](../usage-cost.md). The exporter's pod did not run: the API
server admitted the request and could not reach the pod.
"""
PARTS = {"optional": OPTIONAL, "readers": READERS}
"""Sections by the name under which a test file writes its figures."""
REFUSED = """
## Refused requests

`node-a` is the Node of the token, `node-b` another node. `last-run.json` lists each request with the API server's
answer.
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
    seen: set[str] = set()
    parts += [
        refused(who, rows, seen) for each in (figures, *optional.values()) for who, rows in each["refused"].items()
    ]
    return "\n".join(parts)


def values(chart: Mapping[str, bool]) -> str:
    return ", ".join(f"`{name}={str(value).lower()}`" for name, value in sorted(chart.items())) or "none"


def used(process: str, rows: list[dict[str, Any]]) -> str:
    verbs: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        verbs.setdefault((row["resource"], row["where"]), []).append(f"{row['verb']} {row['requests']}")
    lines = [f"### The {process}", "", "| resource | where | verbs and requests |", "|---|---|---|"]
    lines += [f"| {resource} | {where} | {', '.join(each)} |" for (resource, where), each in verbs.items()]
    return "\n".join([*lines, ""])


def refused(who: str, rows: list[dict[str, str]], seen: set[str]) -> str:
    """Return the table of one account, which counts the requests in ``seen``, of earlier tables, if they are many."""
    tried: dict[str, list[str]] = {}
    for row in rows:
        tried.setdefault(by(row["said"]), []).append(row["what"])
    lines = [f"### Account: {who} ({len(rows)} requests)", "", "| refused by | requests |", "|---|---|"]
    for each, what in tried.items():
        known = [one for one in dict.fromkeys(what) if one in seen]
        listed = [one for one in dict.fromkeys(what) if one not in known or len(known) < MANY]
        above = [f"{len(known)} requests of the tables above"] if len(known) >= MANY else []
        lines.append(f"| {each} | {'; '.join(above + listed)} |")
    seen.update(row["what"] for row in rows)
    return "\n".join([*lines, ""])


def by(said: str) -> str:
    """Return the part of the API server that refused the request."""
    if "ValidatingAdmissionPolicy" in said:
        return "admission policy"
    return "RBAC" if "cannot" in said else "NodeRestriction"
