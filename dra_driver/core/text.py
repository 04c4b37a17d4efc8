"""Text for people: on one line, printable, short enough, wrapped, counted, with units. Names, messages and annotations
can be hostile, so each goes through `printable` or `one_line` before it reaches a terminal or an event."""

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

UNKNOWN: Final = "?"
WIDTH: Final = 118
_COLOUR: Final = re.compile(r"(\x1b\[[0-9;]*m)")
_SPANS: Final = (("d", 86_400), ("h", 3600), ("m", 60))


def printable(text: str) -> str:
    """The text on one line: line ends and tabs become spaces, other unprintable characters ``?``. Columns stay."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char in "\t\n\r" else "?" for char in text)


def one_line(text: str, longest: int | None = None) -> str:
    """As `printable`, with one space for each run of white space, cut to ``longest`` characters."""
    line = printable(" ".join(text.split()))
    return line if longest is None else cut(line, longest)


def cut(text: str, longest: int) -> str:
    """The text with at most ``longest`` characters; ``…`` stands for the rest."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def quoted(value: object, longest: int = 80) -> str:
    return cut(repr(value), longest)


def wrapped(text: str, indent: str = "", width: int = WIDTH) -> list[str]:
    """Wrap the text. The first line keeps its indentation, later lines get ``indent``. Long words are broken; colours
    take no room."""
    lead = text[: len(text) - len(text.lstrip())]
    return folded(lead + " ".join(text.split()), indent, width)


def folded(text: str, indent: str, width: int) -> list[str]:
    """Wrap one line as `wrapped`, and keep its runs of spaces."""
    plain, codes = "", dict[int, str]()
    for part in _COLOUR.split(text):
        if part.startswith("\x1b"):
            codes[len(plain)] = codes.get(len(plain), "") + part
        else:
            plain += part
    lines = textwrap.wrap(plain, width, subsequent_indent=indent, break_on_hyphens=False, replace_whitespace=False) or [
        ""
    ]
    return list(_coloured(lines, plain, codes, len(indent))) if codes else lines


def _coloured(lines: Iterable[str], plain: str, codes: dict[int, str], indent: int) -> Iterator[str]:
    """Yield the lines with the colour codes at their positions in the text that was wrapped."""
    at = 0
    for number, line in enumerate(lines):
        start = indent if number else 0
        built = line[:start]
        for char in line[start:]:
            while plain[at] != char:  # a space that wrapping drops
                at += 1
            built += codes.pop(at, "") + char
            at += 1
        yield built + codes.pop(at, "")


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def listed(names: Iterable[str], most: int = 3) -> str:
    """``a, b and 4 more``; each name once."""
    unique = list(dict.fromkeys(names))
    text = ", ".join(unique[:most])
    return f"{text} and {len(unique) - most} more" if len(unique) > most else text


def gib(count: float | None) -> str:
    """Bytes as ``10.0 GiB``, ``0.0 GiB``, ``<0.1 GiB``; ``?`` for None. Quantities of objects may have a thousand
    digits."""
    if count is None:
        return UNKNOWN
    if abs(count) >= 2**60:
        return "over 1 EiB"
    return "<0.1 GiB" if 0 < count < 2**30 / 20 else f"{count / 2**30:.1f} GiB"


def span(seconds: float | None) -> str:
    """A duration in one unit, as kubectl shows ages: ``45s``, ``119s``, ``12m``, ``3h``, ``5d``; ``?`` for None."""
    if seconds is None:
        return UNKNOWN
    unit, size = next(((unit, size) for unit, size in _SPANS if seconds >= 2 * size), ("s", 1))
    return f"{int(seconds // size)}{unit}"
