"""Writes docs/internals/doctor-faults.md from the records in docs/internals/doctor.

The records come from a real cluster and from `python -m tests.doctor_faults`. The same records give the same bytes.
"""

import json
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LAB, DATA = Path("docs/internals/doctor/lab.json"), Path("docs/internals/doctor/last-run.json")
PAGE = Path("docs/internals/doctor-faults.md")
HEAD = """\
# The doctor's broken set-ups

`make gen` writes this page from the records of `python -m tests.doctor_faults --write`. Do not edit it. Each row is a
setup with one fault, and the first finding of [`kubectl dra doctor`](../doctor.md) or
[`dra-driver doctor`](../doctor-on-a-node.md). `make test` asserts layer, status and words of each finding, and that a
healthy cluster and a healthy node have only good findings.
"""
_MOST = 120


def generate(source: Path, target: Path) -> None:
    """Write the page below ``target`` from the records below ``source``."""
    lab, run = (json.loads((source / path).read_text()) for path in (LAB, DATA))
    (target / PAGE).parent.mkdir(parents=True, exist_ok=True)
    (target / PAGE).write_text(page(lab, run))


def outputs(root: Path) -> list[Path]:
    """The page, if it exists below ``root``."""
    return [path for path in (root / PAGE,) if path.exists()]


def page(lab: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """The page with its tables."""
    parts = [HEAD, f"{run['about']}\n"]
    parts += [f"## On a real cluster: {len(lab['rows'])}\n", textwrap.fill(lab["about"], 118) + "\n"]
    parts += [table(lab["rows"], "seconds", "s")]
    parts += [f"## Cluster: {len(run['cluster'])}\n", "API objects, read through the same reader.\n"]
    parts += [table(run["cluster"], "ms", "ms")]
    parts += [f"## Node: {len(run['node'])}\n", "Folders and sockets of a node, as the readers see them.\n"]
    parts += [table(run["node"], "ms", "ms")]
    return "\n".join(parts)


def table(rows: Iterable[Mapping[str, Any]], took: str, unit: str) -> str:
    """The rows in Markdown; ``took`` is the field with how long one took."""
    lines = [f"| set-up | layer | status | says first | {unit} |", "|---|---|---|---|---|"]
    for row in rows:
        first = cell(f"{row['subject']}: {row['seen']}")
        lines.append(f"| {row['name']} | `{row['layer']}` | {row['status']} | {first} | {row[took]} |")
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """The text in a cell of a table."""
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= _MOST else f"{flat[: _MOST - 1]}…"
