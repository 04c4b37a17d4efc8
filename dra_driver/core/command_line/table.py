"""Print tables in the layout of kubectl. A cell is never wrapped: on a terminal, cells and then columns that do not fit
are cut. The layout is the same with and without colour."""

import shutil
import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from msgspec import Struct

from dra_driver.core.text import printable

GAP: Final = "   "
_LEAST: Final = 8
"""Characters of a column that is cut; shorter columns stay."""
_HEADING: Final = "\x1b[1m"
_RESET: Final = "\x1b[0m"
T = TypeVar("T")


class TableColumn(Struct, Generic[T], frozen=True):
    """A column of rows of type T; a ``wide`` one is only part of ``-o wide``. A ``live`` one, such as an age, changes
    all the time: a watch does not report it."""

    heading: str
    cell: Callable[[T], str]
    wide: bool = False
    live: bool = False


def render(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Return one line per row below the headings, at most ``width`` cells of a terminal wide. Empty cells are
    ``<none>``; unprintable characters become ``?``."""
    lines = [[printable(cell) or "<none>" for cell in row] for row in (headings, *rows)]
    widths = [max(display_width(line[column]) for line in lines) for column in range(len(headings))]
    if width is not None:
        widths = _fitted(widths, width)
    return "\n".join(
        GAP.join(_padded(cell, room) for cell, room in zip(line, widths, strict=False)).rstrip() for line in lines
    )


def show(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, colour: bool = False, full: bool = False,
    heading: bool = True,
) -> None:  # fmt: skip
    """Print a table. Cut it to the width of a terminal, unless it is ``full`` or standard output is a pipe."""
    width = None if full or not sys.stdout.isatty() else shutil.get_terminal_size().columns
    first, *rest = render(headings, rows, width).split("\n")
    head = [f"{_HEADING}{first}{_RESET}" if colour else first] if heading else []
    print("\n".join([*head, *rest]))


def display_width(text: str) -> int:
    """Return the cells of a terminal that the text takes: none for a combining character, two for a wide one."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


def shortened(text: str, room: int) -> str:
    """Return the text with ``…`` in place of its middle if it needs more than ``room`` cells: ends of names differ."""
    if display_width(text) <= room:
        return text
    tail = max(0, room - 1) // 3
    end = ""
    for char in reversed(text):
        if display_width(char + end) > tail:
            break
        end = char + end
    while end and not _cells(end[0]):  # belongs to a character that was cut
        end = end[1:]
    start, free = "", room - 1 - display_width(end)
    for char in text:
        if display_width(start + char) > free:
            break
        start += char
    return f"{start}…{end}"


def _cells(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def _padded(cell: str, room: int) -> str:
    shown = shortened(cell, room)
    return shown + " " * (room - display_width(shown))


def _fitted(widths: Sequence[int], width: int) -> list[int]:
    """Return the widths cut to ``width``: the widest columns first, then whole columns from the right."""
    found = list(widths)
    while len(found) > 1 and sum(min(each, _LEAST) for each in found) + len(GAP) * (len(found) - 1) > width:
        found.pop()
    room = width - len(GAP) * (len(found) - 1)
    most = next((cap for cap in range(max(found), 1, -1) if sum(min(each, cap) for each in found) <= room), 1)
    return [min(each, most) for each in found]
