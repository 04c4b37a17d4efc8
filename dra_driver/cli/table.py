"""Columns of text for terminals and pipes, as kubectl prints them.

Owns widths and padding. Refuses to know what is in the cells.
"""

from collections.abc import Sequence

GAP = "   "


def render(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """One line per row under the headings; empty cells show as ``<none>``. Control characters do not get through."""
    lines = [[_cell(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _cell(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text) or "<none>"
