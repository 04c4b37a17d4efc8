"""Search and pages of a list. Pure."""

from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from msgspec import Struct

MAX_QUERY: Final = 100


class Page(Struct, frozen=True, kw_only=True):
    """``rows`` of one page; ``number`` counts from 1. ``total`` rows match, of ``of`` in all."""

    rows: Sequence[Any]
    number: int
    pages: int
    total: int
    of: int
    first: int

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1 if self.rows else 0


def page_of(rows: Sequence[Any], number: str, size: int, *, of: int | None = None) -> Page:
    """The page; a number that is none is the first, one beyond the end the last."""
    pages = max(1, -(-len(rows) // size))
    wanted = int(number) if number.isascii() and number.isdigit() and len(number) < 7 else 1
    at = min(max(1, wanted), pages)
    start = (at - 1) * size
    shown = rows[start : start + size]
    total = len(rows)
    return Page(rows=shown, number=at, pages=pages, total=total, of=total if of is None else of, first=start + 1)


def matching(rows: Sequence[Any], query: str, texts: Callable[[Any], str]) -> list[Any]:
    """Rows whose texts contain every word of the query, without regard to case."""
    words = query[:MAX_QUERY].casefold().split()
    return [row for row in rows if all(word in texts(row).casefold() for word in words)] if words else list(rows)


def query_string(**fields: str | int) -> str:
    """``?q=a&page=2`` without empty fields; "" when all are."""
    given = {name: value for name, value in fields.items() if value}
    return f"?{urlencode(given)}" if given else ""
