"""Print text tables in the layout of kubectl, in colour on a terminal if the optional library rich is installed."""

from collections.abc import Sequence
from typing import Any

from dra_driver.core.text import printable

GAP = "   "


def render(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns one line per row below the headings. Empty cells are ``<none>``; unprintable characters become ``?``."""
    lines = [[_cell(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def show(headings: Sequence[str], rows: Sequence[Sequence[str]], *, colour: bool, title: str = "") -> None:
    """Prints a table: with rich if it is installed and ``colour`` is set, otherwise the text of `render`."""
    console = _console() if colour else None
    if console is None:
        print("\n".join([*([title] if title else []), render(headings, rows)]))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, header_style="bold cyan", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(cell), style="dim" if not cell else "") for cell in row))
    console.print(table)


def _console() -> Any:
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console()


def _cell(text: str) -> str:
    return printable(text) or "<none>"
