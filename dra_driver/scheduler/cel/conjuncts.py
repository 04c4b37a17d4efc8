"""The attributes that an expression reads, and its conjuncts.

Any use of the device other than a constant name of a constant domain counts as reading everything. Conjuncts are the
parts between the ``&&`` of the top level, to report which one rejected a device: ``a && (b && c)`` has three; ``a && b
|| c`` and ``a ? b : c`` have one.
"""

from functools import lru_cache
from typing import Final

from msgspec import Struct, field

from dra_driver.scheduler.cel.parser import parse
from dra_driver.scheduler.cel.syntax import END, Call, Expr, Ident, Literal, Select, SourceText, Token, children, tokens

_MAPS = ("attributes", "capacity")
Names = set[tuple[str, str]]


class AttributeRefs(Struct):
    """Names as (domain, identifier), without ``device.driver`` and ``device.allowMultipleAllocations``. ``everything``:
    the expression may read more than these."""

    attributes: Names = field(default_factory=set)
    capacity: Names = field(default_factory=set)
    everything: bool = False


@lru_cache(maxsize=1024)
def find_attribute_refs(expression: str) -> AttributeRefs:
    """Return the attributes that the expression reads. The result is shared: do not change it."""
    found = AttributeRefs()
    pending: list[Expr] = [parse(SourceText(expression))]
    while pending:
        node = pending.pop()
        if not _note(node, found):
            pending += children(node)
    return found


def _note(node: Expr, found: AttributeRefs) -> bool:
    """Record the attributes that the node reads. Return True if its children need no visit."""
    if isinstance(node, Ident):
        found.everything = found.everything or node.name.lstrip(".") == "device"
        return True
    if _is_field(node, "driver") or _is_field(node, "allowMultipleAllocations"):
        return True
    inner = _step(node)
    outer = _step(inner[0]) if inner is not None else None
    if inner is None or outer is None or (isinstance(inner[0], Select) and inner[0].test):
        return False
    for kind in _MAPS:
        if _is_field(outer[0], kind):
            getattr(found, kind).add((outer[1], inner[1]))
            return True
    return False


def _is_field(node: Expr, name: str) -> bool:
    return (
        isinstance(node, Select)
        and node.field == name
        and isinstance(node.operand, Ident)
        and node.operand.name.lstrip(".") == "device"
    )


def _step(node: Expr) -> tuple[Expr, str] | None:
    """The operand and constant key of ``operand.key``, ``operand["key"]`` or their optional forms."""
    if isinstance(node, Select):
        return node.operand, node.field
    if isinstance(node, Call) and node.function in ("_[_]", "_[?_]", "_?._") and node.target is None:
        operand, key = node.arguments
        if isinstance(key, Literal) and isinstance(key.value, str):
            return operand, key.value
    return None


_OPEN: Final = frozenset("([{")
_CLOSE: Final = frozenset(")]}")
_DEEPEST: Final = 20  # levels of nested parentheses that are split


def split_conjuncts(expression: str) -> tuple[str, ...]:
    """The conjuncts in their order, at least one, with their original text. Raises CelSyntaxError on a syntax error."""
    source = SourceText(expression)
    parse(source)
    return tuple(_cut(expression, [token for token in tokens(source) if token.kind != END], 0))


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
