"""Formats tables as kubectl prints them, from the columns that the API server sends."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.printers import printer_of

_GAP = "   "


def table(kind: ResourceKind, objects: Iterable[Obj], now: datetime) -> str:
    """The output of ``kubectl get`` for objects of one kind, without the columns of ``-o wide``."""
    shown = [column for column in printer_of(kind.kind) if not column.priority]
    head = [column.name.upper() for column in shown]
    rows = [[str(column.cell(obj, now)) for column in shown] for obj in objects]
    return columns([head, *rows])


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells in aligned columns."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = (_GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)
