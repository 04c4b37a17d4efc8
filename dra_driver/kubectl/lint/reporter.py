"""Collects findings with their position, excerpt and caret, and applies comments that suppress them.

``# dra-lint: allow DRA018`` suppresses a rule on its line or the next, ``# dra-lint: allow-file DRA018`` in a file.
"""

import re
from collections import Counter
from typing import Final

from dra_driver.core.text import cut, printable
from dra_driver.kubectl.lint.finding import RANK, RULES, Finding, Severity
from dra_driver.kubectl.lint.manifest import ManifestText, Spot
from dra_driver.kubectl.lint.reading import YamlNode, line_and_column, line_at, offset_in_text

MAX_PER_FILE: Final = 200
_MAX_MESSAGE: Final = 600
_SHOWN_WIDTH: Final = 160
_ALLOW: Final = re.compile(
    r"^(?P<before>.*?)#\s*dra-lint:\s*allow(?P<file>-file)?\s+(?P<ids>DRA\d+(?:[\s,]+DRA\d+)*)", re.M
)


def text_of(name: str, text: str) -> ManifestText:
    """Returns the text with the rules that its comments suppress."""
    everywhere: set[str] = set()
    lines: dict[int, frozenset[str]] = {}
    line = counted = 0
    for found in _ALLOW.finditer(text):
        line, counted = line + text.count("\n", counted, found.start()), found.start()
        ids = frozenset(re.findall(r"DRA\d+", found["ids"]))
        if found["file"]:
            everywhere |= ids
            continue
        for covered in (line + 1, *(() if found["before"].strip() else (line + 2,))):
            lines[covered] = lines.get(covered, frozenset()) | ids
    return ManifestText(name, text, lines, frozenset(everywhere))


class Reporter:
    """Findings of one run. Not thread-safe."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.left_out = 0
        self._per_file: Counter[str] = Counter()
        self._seen: set[tuple[str, str, int, int, str]] = set()

    def add(
        self,
        rule: str,
        spot: Spot,
        message: str,
        *,
        hint: str = "",
        severity: Severity | None = None,
        offset: int | None = None,
        at: YamlNode | None = None,
    ) -> None:
        """Adds a finding at a value; ``offset`` is a character of it, ``at`` another node to point at (a key)."""
        node, text = at or spot.node, spot.manifest.text
        line, column = node.line, node.column
        if offset is None and node.style in {"|", ">"}:
            offset = 0  # point at the first character of a block, not at its indicator
        position = offset_in_text(text.text, node, offset) if offset is not None else None
        if position is not None:
            line, column = line_and_column(text.text, node, position)
        self.put(
            rule,
            text,
            message,
            line=line,
            column=column,
            position=node.start if position is None else position,
            about=spot.manifest.label,
            path=spot.path,
            hint=hint,
            severity=severity,
        )

    def put(
        self,
        rule: str,
        text: ManifestText,
        message: str,
        *,
        line: int = 0,
        column: int = 0,
        position: int | None = None,
        about: str = "",
        path: str = "",
        hint: str = "",
        severity: Severity | None = None,
    ) -> None:
        """Adds a finding at a position of a text, unless a comment suppresses it or it was added before."""
        key = (rule, text.name, line, column, message)
        if rule in text.allowed_in_file or rule in text.allowed.get(line, ()) or key in self._seen:
            return
        self._seen.add(key)
        self._per_file[text.name] += 1
        if self._per_file[text.name] > MAX_PER_FILE:
            self.left_out += 1
            return
        excerpt, caret = _excerpt(text.text, position)
        self.findings.append(
            Finding(
                rule=rule,
                severity=severity or RULES[rule].severity,
                message=printable(cut(message, _MAX_MESSAGE)),
                file=text.name,
                line=line,
                column=column,
                object=printable(about[:200]),
                path=printable(path[:300]),
                hint=printable(hint),
                excerpt=excerpt,
                caret=caret,
            )
        )

    def in_order(self) -> tuple[Finding, ...]:
        """Returns the findings by file in the order of reading, then by position."""
        order = {name: index for index, name in enumerate(self._per_file)}
        return tuple(sorted(self.findings, key=lambda f: (order[f.file], f.line, f.column, RANK[f.severity], f.rule)))


def _excerpt(text: str, position: int | None) -> tuple[str, int]:
    if position is None or not text:
        return "", 0
    line, column = line_at(text, min(position, len(text)))
    cut = max(0, column - _SHOWN_WIDTH // 2) if len(line) > _SHOWN_WIDTH else 0
    return printable(line[cut : cut + _SHOWN_WIDTH]), column - cut
