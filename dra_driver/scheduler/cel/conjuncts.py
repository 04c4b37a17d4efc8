"""Splits an expression at the ``&&`` of its top level. Each conjunct is a selector of its own.

Used to report which part of a selector rejected a device. ``a && (b && c)`` has three conjuncts; ``a && b || c`` and
``a ? b : c`` have one, because their operators bind less tightly.
"""

from typing import Final

from dra_driver.scheduler.cel.lexer import END, Token, tokens
from dra_driver.scheduler.cel.parser import parse, terminals
from dra_driver.scheduler.cel.source import SourceText

_OPEN: Final = frozenset("([{")
_CLOSE: Final = frozenset(")]}")
_DEEPEST: Final = 20
"""Levels of nested parentheses that are split."""


def split_conjuncts(expression: str) -> tuple[str, ...]:
    """The conjuncts in their order, at least one, with their original text. Raises CelSyntaxError on a syntax error."""
    source = SourceText(expression)
    parse(source)
    return tuple(_cut(expression, [token for token in tokens(source, terminals()) if token.kind != END], 0))


def _cut(text: str, found: list[Token], level: int) -> list[str]:
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in found:
        if token.text in _OPEN:
            depth += 1
        elif token.text in _CLOSE:
            depth -= 1
        if depth == 0 and token.text in ("||", "?"):
            return [_text(text, found)]
        if depth == 0 and token.text == "&&":
            parts.append([])
        else:
            parts[-1].append(token)
    if len(parts) == 1:
        inner = _inside(found) if level < _DEEPEST else []
        return _cut(text, inner, level + 1) if inner else [_text(text, found)]
    return [piece for part in parts for piece in _cut(text, part, level + 1)]


def _inside(found: list[Token]) -> list[Token]:
    """The tokens inside a pair of parentheses around the whole expression, none without such a pair."""
    if len(found) < 3 or found[0].text != "(" or found[-1].text != ")":
        return []
    depth = 0
    for token in found[:-1]:
        depth += (token.text in _OPEN) - (token.text in _CLOSE)
        if depth == 0:
            return []
    return found[1:-1]


def _text(text: str, found: list[Token]) -> str:
    return text[found[0].offset : found[-1].offset + len(found[-1].text)] if found else ""
