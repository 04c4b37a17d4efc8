"""Writes the table of XIDs in docs/health.md from dra_driver/node/health/xids.py.

`make gen` writes the page, `make check` compares.
"""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from dra_driver.node.health.xids import ROWS, XidRecovery, xid

PAGE = Path("docs/health.md")
BEGIN, END = "<!-- generated: XIDs -->", "<!-- end of generated text -->"
_NEEDS = {
    XidRecovery.NONE: "no action",
    XidRecovery.RESTART_APP: "restart of the program",
    XidRecovery.GPU_RESET: "GPU reset",
    XidRecovery.NODE_REBOOT: "reboot",
    XidRecovery.CONTACT_SUPPORT: "reset or reboot; NVIDIA's support",
}


def generate(source: Path, target: Path) -> None:
    """Write the page below ``target``: that of ``source`` with a new table."""
    head, _, rest = (source / PAGE).read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    (target / PAGE).parent.mkdir(parents=True, exist_ok=True)
    (target / PAGE).write_text(f"{head}{BEGIN}\n\n{table()}\n{END}{tail}")


def outputs(root: Path) -> list[Path]:
    """The page, if it exists below ``root``."""
    return [path for path in (root / PAGE,) if path.exists()]


def table() -> str:
    """All XIDs in Markdown. XIDs that differ only in the number of an engine share a row."""
    rows: dict[tuple[str, ...], list[int]] = {}
    for number, meaning, _, since, sources in ROWS:
        known = xid(number)
        does = "**taints**" if known.taints else "counted"
        reports = f"since {since}" if since else ""
        row = (re.sub(r"\d+ raised", "N raised", meaning), does, _NEEDS[known.recovery], reports, ", ".join(sources))
        rows.setdefault(row, []).append(number)
    lines = ["| XID | meaning | does | needs | driver reports | sources |", "|---|---|---|---|---|---|"]
    lines += [f"| {_ranges(numbers)} | {' | '.join(row)} |" for row, numbers in rows.items()]
    return "\n".join(lines) + "\n"


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in ascending order, with three or more in a row as a range: 39-41, 70, 71."""
    parts: list[str] = []
    for _, group in itertools.groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        run = [number for _, number in group]
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
    return ", ".join(parts)
