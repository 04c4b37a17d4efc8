"""Holds pages to what commands print. A page shows output below ``$ COMMAND``, in an indented block or a console fence;
the test that makes the output calls `holds`. With WRITE_SHOWN=1 the tests write the pages in place of comparing."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def pages() -> list[str]:
    return ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]


def shown(page: str) -> dict[str, str]:
    """The output by its command; of one without output it is empty."""
    return {command: text for command, text, _, _ in _blocks((ROOT / page).read_text().split("\n"))}


def holds(page: str, command: str, printed: str, masked: str = "") -> None:
    """The page shows ``printed`` below the command; what the pattern ``masked`` matches may differ."""
    path = ROOT / page
    printed = printed.strip("\n")
    lines = path.read_text().split("\n")
    found = [(text, start, end) for each, text, start, end in _blocks(lines) if each == command]
    assert found, f"{page} does not show {command!r}"
    for text, start, end in reversed(found):
        if _masked(text, masked) == _masked(printed, masked):
            continue
        if os.environ.get("WRITE_SHOWN"):
            indent = "    " if lines[start - 1].startswith("    ") else ""
            lines[start:end] = [f"{indent}{line}".rstrip() for line in printed.split("\n")]
            path.write_text("\n".join(lines))
        else:
            assert text == printed, f"{page} shows another output of {command!r}: WRITE_SHOWN=1 renews it"


def _masked(text: str, pattern: str) -> str:
    plain = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(pattern, "*", plain) if pattern else plain


def _blocks(lines: list[str]) -> Iterator[tuple[str, str, int, int]]:
    """Command, output, and the output's first line and the one after its last."""
    fence, command, start = False, "", 0
    for number, line in enumerate([*lines, "end"]):
        if line.startswith("```"):
            fence = line == "```console"
        indent = "" if fence else "    "
        inside = line.startswith(indent) or not line.strip()
        begins = inside and line.removeprefix(indent).startswith("$ ")
        if command and (begins or not inside or line.startswith("```")):
            end = number
            while end > start and not lines[end - 1].strip():
                end -= 1
            was = "" if lines[start - 1].startswith("$ ") else "    "
            yield command, "\n".join(each.removeprefix(was) for each in lines[start:end]), start, end
            command = ""
        if begins:
            command, start = line.removeprefix(indent).removeprefix("$ ").strip(), number + 1
