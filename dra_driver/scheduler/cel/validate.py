"""Checks after the type checker: element types of literals, and constant arguments that always fail.

Follows cel-go cel/validator.go and ext/formatting.go (validators of durations, timestamps, patterns, homogeneous
literals and format strings), as Kubernetes configures them.
"""

from collections.abc import Callable
from typing import Any, Final

from dra_driver.scheduler.cel.lexer import SourceText
from dra_driver.scheduler.cel.libraries.convert import to_duration, to_timestamp
from dra_driver.scheduler.cel.libraries.format import parse_format
from dra_driver.scheduler.cel.libraries.strings import pattern
from dra_driver.scheduler.cel.syntax import Call, Expr, ListLiteral, Literal, MapLiteral, children
from dra_driver.scheduler.cel.types import Type
from dra_driver.scheduler.cel.values import EvalError

_CONSTANT_ARGUMENTS: Final[dict[str, Callable[[Any], Any]]] = {
    "duration": to_duration,
    "timestamp": to_timestamp,
    "matches": pattern,
}
_FORMATTED: Final = {
    "d": {"int", "uint"},
    "f": {"double", "string"},
    "e": {"double", "string"},
    "b": {"int", "uint", "bool"},
    "x": {"int", "uint", "string", "bytes"},
    "X": {"int", "uint", "string", "bytes"},
    "o": {"int", "uint"},
    "s": {
        "list", "map", "int", "uint", "double", "bool", "string", "timestamp", "bytes", "duration", "type", "null"
    },
}  # fmt: skip


def validate(source: SourceText, root: Expr) -> None:
    """Raises CelSyntaxError at the first invalid literal or constant argument."""
    _validate(source, root, formatting=False)


def _validate(source: SourceText, node: Expr, formatting: bool) -> None:
    if isinstance(node, Call):
        _constant_argument(source, node)
        if node.function == "format":
            formatting = True
            _format_call(source, node)
    elif isinstance(node, ListLiteral) and not formatting:
        _list(source, node)
    elif isinstance(node, MapLiteral) and not formatting:
        _map(source, node)
    for child in children(node):
        _validate(source, child, formatting)


def _constant_argument(source: SourceText, node: Call) -> None:
    check = _CONSTANT_ARGUMENTS.get(node.function)
    if check is None or not node.arguments or not isinstance(node.arguments[0], Literal):
        return
    argument = node.arguments[0]
    try:
        check(argument.value)
    except EvalError as error:
        raise source.error(argument.offset, f"invalid argument of {node.function}(): {error}") from error


def _value_type(source: SourceText, node: Expr, optional: bool) -> Type:
    term: Type = node.type
    if not optional:
        return term
    if not term.parameters:
        raise source.error(node.offset, "the type of an optional element must be known")
    return term.parameters[0]


def _list(source: SourceText, node: ListLiteral) -> None:
    first: Type | None = None
    for position, element in enumerate(node.elements):
        term = _value_type(source, element, position in node.optional)
        first = first or term
        _same(source, element, first, term)


def _map(source: SourceText, node: MapLiteral) -> None:
    key: Type | None = None
    value: Type | None = None
    for entry in node.entries:
        key = key or entry.key.type
        _same(source, entry.key, key, entry.key.type)
        term = _value_type(source, entry.value, entry.optional)
        value = value or term
        _same(source, entry.value, value, term)


def _same(source: SourceText, node: Expr, expected: Type | None, found: Type) -> None:
    if expected is not None and not expected.same(found, names=False):
        hint = (
            "; wrap an attribute in string() or int(), or all of them in dyn()"
            if "any" in {expected.kind, found.kind}
            else ""
        )
        raise source.error(node.offset, f"expected type {expected} like the elements before, found {found}{hint}")


def _format_call(source: SourceText, node: Call) -> None:
    text, arguments = node.target, node.arguments
    if not isinstance(text, Literal) or not isinstance(text.value, str):
        return
    if len(arguments) != 1 or not isinstance(arguments[0], ListLiteral):
        return
    elements = arguments[0].elements
    try:
        clauses = [clause for clause in parse_format(text.value) if clause.verb]
    except EvalError as error:
        raise source.error(text.offset, str(error)) from error
    if len(clauses) != len(elements):
        raise source.error(node.offset, f"the format has {len(clauses)} clauses, the list {len(elements)} arguments")
    for clause, element in zip(clauses, elements, strict=True):
        _formatted(source, clause.verb, element)


def _formatted(source: SourceText, verb: str, node: Expr) -> None:
    term: Type = node.type
    if term.kind != "dyn" and term.kind not in _FORMATTED[verb]:
        raise source.error(node.offset, f"%{verb} cannot format a value of type {term}")
    if verb == "s" and isinstance(node, ListLiteral | MapLiteral):
        for child in children(node):
            _formatted(source, "s", child)
