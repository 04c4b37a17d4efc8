"""Finds the position in the file of a character of a scalar's value.

Quoting, escapes, folding and indentation change the text between file and value. Folding changes only white space, so
the n-th character of the value that is not white space is the n-th such character of the source, after quotes, escapes
and the header of a block are removed. If the characters do not agree, the result is None.
"""

import re
from typing import Final

from dra_driver.kubectl.lint.nodes import YamlNode

_SPACE: Final = frozenset(" \t\r\n\x85\u2028\u2029\xa0")
_ESCAPES: Final = {
    "0": "\0", "a": "\x07", "b": "\b", "t": "\t", "\t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b",
    " ": " ", '"': '"', "/": "/", "\\": "\\", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029",
}  # fmt: skip
_HEX: Final = {"x": 2, "u": 4, "U": 8}
_BREAK: Final = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")


def offset_in_text(text: str, node: YamlNode, offset: int) -> int | None:
    """Returns the offset in the file of character ``offset`` of the value; its end maps past the last character."""
    value = [(at, character) for at, character in enumerate(node.text) if character not in _SPACE]
    source = _characters(text, node)
    if not value or [character for _, character in value] != [character for _, character in source]:
        return None
    for (at, _), (place, _) in zip(value, source, strict=True):
        if at >= offset:
            return place
    return source[-1][0] + 1


def line_and_column(text: str, node: YamlNode, offset: int) -> tuple[int, int]:
    """Returns line and column (from 1) of an offset inside a node, with the line breaks of YAML."""
    line, start = node.line, node.start - node.column + 1
    for found in _BREAK.finditer(text, node.start, offset):
        line, start = line + 1, found.end()
    return line, offset - start + 1


def line_at(text: str, offset: int) -> tuple[str, int]:
    """Returns the line around an offset, and the offset in it."""
    starts = [found.end() for found in _BREAK.finditer(text, max(0, offset - 10_000), offset)]
    start = starts[-1] if starts else max(0, offset - 10_000) if offset > 10_000 else 0
    end = _BREAK.search(text, offset)
    return text[start : end.start() if end else len(text)], offset - start


def _characters(text: str, node: YamlNode) -> list[tuple[int, str]]:
    """Returns the characters of the source that are part of the value, without white space, with their offsets."""
    start, end = node.start, node.end
    if node.style == '"':
        return _double_quoted(text, start, end)
    if node.style == "'":
        return _single_quoted(text, start, end)
    if node.style in {"|", ">"}:
        header = _BREAK.search(text, start)
        start = header.end() if header else end
    else:
        start = _after_properties(text, start, node)
    return [(at, text[at]) for at in range(start, min(end, len(text))) if text[at] not in _SPACE]


def _after_properties(text: str, start: int, node: YamlNode) -> int:
    """Skips an anchor or tag before a plain scalar."""
    found = re.compile(r"(?:[&!]\S*\s+)*").match(text, start)
    return found.end() if found and node.text[:1] not in {"&", "!"} else start


def _single_quoted(text: str, start: int, end: int) -> list[tuple[int, str]]:
    found, at = [], text.find("'", start) + 1
    while at < end - 1:
        if text[at] not in _SPACE:
            found.append((at, text[at]))
        at += 2 if text[at] == "'" else 1
    return found


def _double_quoted(text: str, start: int, end: int) -> list[tuple[int, str]]:
    found, at = [], text.find('"', start) + 1
    while at < end - 1:
        character, width = text[at], 1
        if character == "\\":
            character, width = _escape(text, at)
        if character not in _SPACE:
            found.append((at, character))
        at += width
    return found


def _escape(text: str, at: int) -> tuple[str, int]:
    """Returns the character and its width in the source; white space for an escaped line break."""
    letter = text[at + 1 : at + 2]
    if letter in _HEX:
        digits = text[at + 2 : at + 2 + _HEX[letter]]
        try:
            return chr(int(digits, 16)), 2 + _HEX[letter]
        except (ValueError, OverflowError):
            return "\ufffd", 2
    return _ESCAPES.get(letter, " "), 2
