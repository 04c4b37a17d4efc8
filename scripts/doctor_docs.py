"""Writes docs/internals/doctor-faults.md from the records in docs/internals/doctor.

The records come from a real cluster and from `python -m tests.doctor_faults`. The same records give the same bytes.
"""

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

LAB, DATA = Path("docs/internals/doctor/lab.json"), Path("docs/internals/doctor/last-run.json")
PAGE = Path("docs/internals/doctor-faults.md")
HEAD = """\
# Broken setups and the doctor's findings

`make gen` writes this page from the records of `python -m tests.doctor_faults --write`. Do not edit it. Each
setup has one fault; the page has the reason of the first finding of [`kubectl dra doctor`](../doctor.md) or
[`dra-driver doctor`](../doctor-on-a-node.md). `make test` asserts the finding of each setup, and that a healthy cluster
and a healthy node have only good findings. `tests/golden/messages.txt` has the sentences.
"""
_MOST = 60


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
    slowest = max(row["ms"] for each in ("cluster", "node") for row in run[each])
    parts = [HEAD, f"{run['about']} Each run of the last two tables took at most {slowest} ms.\n"]
    parts += [f"## On a real cluster: {len(lab['rows'])}\n", textwrap.fill(lab["about"], 118) + "\n"]
    parts += [table(["setup", "layer", "status", "finding", "s"], (_lab_row(row) for row in lab["rows"]))]
    for title, key in (("Cluster, from API objects", "cluster"), ("Node, from folders and sockets", "node")):
        parts += [f"## {title}: {len(run[key])}\n", *grouped(run[key])]
    return "\n".join(parts)


def grouped(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a paragraph for each layer and status with its setups, each with the finding's reason."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        head = f"**{row['layer']}, {row['status']}:**" if row["layer"] else "**no finding:**"
        groups.setdefault(head, []).append(f"{row['name']} ({row['reason']})" if row["reason"] else row["name"])
    for head, setups in groups.items():
        yield textwrap.fill(f"{head} {'; '.join(setups)}", 118, break_on_hyphens=False, break_long_words=False) + "\n"


def _lab_row(row: Mapping[str, Any]) -> list[str]:
    return [row["name"], f"`{row['layer']}`", row["status"], cell(row["seen"]), str(row["seconds"])]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """The text in a cell of a table."""
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= _MOST else f"{flat[: _MOST - 1]}…"
