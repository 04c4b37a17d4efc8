"""Examines every broken set-up of cluster and node, prints what the doctor says first of each, and how long it took.

usage: python -m tests.doctor_faults [--write]

``--write`` writes docs/doctor-faults.md, with the runs on a real cluster from docs/doctor/lab.json. Times are of this
machine; those of a cluster are without a network.
"""

import argparse
import json
import platform
import re
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

from dra_driver.doctor.finding import LayerFinding
from tests.doctor_faults import ROWS
from tests.doctor_faults.row import examined, first_of
from tests.fakes.broken_node import BrokenNode
from tests.fakes.node_faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "doctor-faults.md"
LAB = ROOT / "docs" / "doctor" / "lab.json"
_FOLDER = re.compile(r"/dn\w{8}(?=/)")
HEAD = """\
# The doctor's broken set-ups

Written by `python -m tests.doctor_faults --write`; do not edit it. Each row is a set-up that is broken in one way, and
what [`kubectl dra doctor`](doctor.md) or [`dra-driver doctor`](doctor-on-a-node.md) says of it first. `make test` holds
layer, status and words of each; a healthy cluster and a healthy node have no finding but good ones.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Show what the doctor says of each broken set-up")
    parser.add_argument("--write", action="store_true", help="write docs/doctor-faults.md")
    arguments = parser.parse_args()
    cluster, node = list(of_cluster()), list(of_node())
    text = page(cluster, node)
    print(text)
    if arguments.write:
        PAGE.write_text(text)
    return 0


def page(cluster: list[str], node: list[str]) -> str:
    """The page with the tables."""
    head = "| set-up | layer | status | says first | ms |\n|---|---|---|---|---|"
    parts = [HEAD, f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}.\n"]
    if LAB.exists():
        found = json.loads(LAB.read_text())
        rows = [
            f"| {row['name']} | `{row['layer']}` | {row['status']} | {cell(row['subject'] + ': ' + row['seen'])} | "
            f"{row['seconds']} |"
            for row in found["rows"]
        ]
        heading = "| set-up | layer | status | says first | s |\n|---|---|---|---|---|"
        parts += [f"## On a real cluster: {len(rows)}\n", textwrap.fill(found["about"], 118) + "\n", heading, *rows, ""]
    parts += [f"## Cluster: {len(cluster)}\n", "API objects, read through the same reader.\n", head, *cluster, ""]
    parts += [f"## Node: {len(node)}\n", "Folders and sockets of a node, as the readers see them.\n", head, *node, ""]
    return "\n".join(parts)


def of_cluster() -> Iterator[str]:
    """A line for each broken cluster."""
    for row in ROWS:
        report = examined(row)
        yield line(row.name, first_of(report), report.took_s)


def of_node() -> Iterator[str]:
    """A line for each broken node."""
    for fault in FAULTS:
        yield _examined_node(fault)


def _examined_node(fault: Fault) -> str:
    folder = Path(tempfile.mkdtemp(prefix="dn"))
    node = BrokenNode(folder)
    try:
        fault.breaks(node)
        report = node.report()
    finally:
        node.close()
        shutil.rmtree(folder)
    return line(fault.breaks.__name__.replace("_", " "), report.first_broken, report.took_s)


def line(name: str, first: LayerFinding | None, took_s: float) -> str:
    """One row of a table."""
    if first is None:
        return f"| {name} | | | nothing | {took_s * 1000:.0f} |"
    said = cell(f"{first.subject}: {first.seen}")
    return f"| {name} | `{first.layer}` | {first.status} | {said} | {took_s * 1000:.0f} |"


def cell(text: str) -> str:
    """The text in a cell of a table, without the names of temporary folders."""
    flat = " ".join(text.split()).replace("|", "\\|").replace(tempfile.gettempdir(), "")
    flat = _FOLDER.sub("", flat)
    return flat if len(flat) <= 260 else f"{flat[:259]}…"


if __name__ == "__main__":
    sys.exit(main())
