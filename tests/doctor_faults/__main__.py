"""Run doctor on every broken setup of cluster and node. Print the first finding of each, and the duration.

usage: python -m tests.doctor_faults [--write]

``--write`` records them in docs/internals/doctor/last-run.json, the source of docs/internals/doctor-faults.md.
Durations are those of this machine; cluster setups use no network.
"""

import argparse
import json
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dra_driver.core.finding import Finding
from tests.doctor_faults import ROWS
from tests.doctor_faults.cluster import examined, first_of
from tests.fakes.broken_node import BrokenNode
from tests.fakes.node_faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs" / "internals" / "doctor" / "last-run.json"
_FOLDER = re.compile(r"/dn\w{8}(?=/)")


def main() -> int:
    parser = argparse.ArgumentParser(description="Show the doctor's first finding of each broken setup")
    parser.add_argument(
        "--write", action="store_true", help="write docs/internals/doctor/last-run.json; then run make gen"
    )
    arguments = parser.parse_args()
    about = f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}."
    cluster, node = list(of_cluster()), list(map(_examined_node, FAULTS))
    found = {"about": about, "cluster": cluster, "node": node}
    for row in (*cluster, *node):
        print(f"{row['name']}: {row['layer']} {row['status']} {row['ms']} ms: {row['subject']}: {row['seen']}")
    if arguments.write:
        DATA.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def of_cluster() -> Iterator[dict[str, Any]]:
    for row in ROWS:
        report = examined(row)
        yield said(row.name, first_of(report), report.took_s)


def name_of(fault: Fault) -> str:
    """What the page calls a broken node."""
    return fault.breaks.__name__.replace("_", " ")


def _examined_node(fault: Fault) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="dn"))
    node = BrokenNode(folder)
    try:
        fault.breaks(node)
        report = node.report()
    finally:
        node.close()
        shutil.rmtree(folder)
    return said(name_of(fault), report.first_broken, report.took_s)


def said(name: str, first: Finding | None, took_s: float) -> dict[str, Any]:
    """One row of a table, without the names of temporary folders."""
    ms = round(took_s * 1000)
    if first is None:
        return {"name": name, "layer": "", "status": "", "reason": "", "subject": "", "seen": "no finding", "ms": ms}
    subject, seen = (without_folders(text) for text in (first.object, first.seen))
    found = {"layer": first.layer, "status": first.status, "reason": first.reason, "subject": subject, "seen": seen}
    return {"name": name, **found, "ms": ms}


def without_folders(text: str) -> str:
    return _FOLDER.sub("", text.replace(tempfile.gettempdir(), ""))


if __name__ == "__main__":
    sys.exit(main())
