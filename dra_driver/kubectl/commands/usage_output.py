"""Cells of the tables about use, and the same rows as CSV, in which no cell is taken for a formula."""

import csv
import io
from collections.abc import Sequence
from typing import Any, Final

from dra_driver.core.text import UNKNOWN, printable

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def percent(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{100 * ratio:.0f}%"


def energy(joules: float | None, *, estimated: bool = False) -> str:
    """``1.25 kWh``; ``~`` marks an estimate."""
    if joules is None:
        return UNKNOWN
    mark = "~" if estimated else ""
    return f"{mark}{joules / 3.6e6:.2f} kWh" if joules >= 3.6e5 else f"{mark}{joules / 3600:.1f} Wh"


def number(value: Any) -> str:
    return UNKNOWN if value is None else str(value)


def print_csv(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Plain values, with an empty cell for what is not known. Names begin with no sign that a spreadsheet computes."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows([[_cell(cell) for cell in row] for row in rows])
    print(out.getvalue(), end="")


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, str):
        return value
    line = printable(value)
    return f"'{line}" if line.startswith(_FORMULA) else line
