"""The syntax tree of an expression: the parser builds it, the checker annotates it, `ir` reads it.

``offset`` is the position of the character that errors point at. The checker sets ``type``. Nodes belong to one
compilation and are not shared.
"""

from typing import NamedTuple

from msgspec import Struct

from dra_driver.scheduler.cel.signatures import Overload
from dra_driver.scheduler.cel.types import DYN, Type


class Variable(NamedTuple):
    """A name in scope. ``type_value`` is set for type names, which are constants."""

    name: str
    type: Type
    type_value: str | None = None


class _Annotations(Struct, eq=False, kw_only=True):
    parenthesized: bool = False
    type: Type = DYN


class Expr(_Annotations, eq=False):
    """Base of all nodes. ``parenthesized`` distinguishes ``-(1).abs`` from ``-1.abs``."""

    offset: int


class Literal(Expr, eq=False):
    """A constant value; ``number`` is the kind and text of a numeric token until its sign is known."""

    value: object
    number: tuple[str, str] | None = None


class Ident(Expr, eq=False):
    """A name. ``variable`` is what the checker found."""

    name: str
    variable: Variable | None = None


class Select(Expr, eq=False):
    """``operand.field``, or with ``test`` the ``has(operand.field)`` that a macro made.

    ``variable`` is set if the whole chain of names is a name.
    """

    operand: Expr
    field: str
    test: bool = False
    variable: Variable | None = None


class Call(Expr, eq=False):
    """A function, method (``target``) or operator. ``overloads`` are the candidates that the checker left."""

    function: str
    arguments: list[Expr]
    target: Expr | None = None
    overloads: list[Overload] = []


class ListLiteral(Expr, eq=False):
    """``[a, ?b]``; ``optional`` holds the positions written with a question mark."""

    elements: list[Expr]
    optional: frozenset[int] = frozenset()


class MapEntry(Struct, eq=False):
    offset: int
    key: Expr
    value: Expr
    optional: bool


class MapLiteral(Expr, eq=False):
    """``{k: v, ?k: v}``."""

    entries: list[MapEntry]


class FieldEntry(Struct, eq=False):
    offset: int
    field: str
    value: Expr
    optional: bool


class Message(Expr, eq=False):
    """``google.protobuf.Int64Value{value: 1}``."""

    name: str
    entries: list[FieldEntry]


class Fold(Expr, eq=False):
    """The expansion of a macro: an accumulator that is updated for each element of a range while a condition holds.

    ``variables`` are one or two names, or none for ``cel.bind``, whose range is empty.
    """

    range: Expr
    variables: tuple[str, ...]
    accumulator: str
    initial: Expr
    condition: Expr
    step: Expr
    result: Expr


def children(node: Expr) -> list[Expr]:
    """The direct children of a node, in the order of evaluation."""
    if isinstance(node, Select):
        return [node.operand]
    if isinstance(node, Call):
        return [node.target, *node.arguments] if node.target is not None else node.arguments
    if isinstance(node, ListLiteral):
        return node.elements
    if isinstance(node, MapLiteral):
        return [part for entry in node.entries for part in (entry.key, entry.value)]
    if isinstance(node, Message):
        return [entry.value for entry in node.entries]
    if isinstance(node, Fold):
        return [node.range, node.initial, node.condition, node.step, node.result]
    return []
