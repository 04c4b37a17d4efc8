"""The syntax tree of an expression: the parser builds it, the checker annotates it, `ir_builder` reads it.

``offset`` is the position of the character that errors point at. The checker sets ``type``. Nodes belong to one
compilation and are not shared.
"""

from typing import Any


class Expr:
    """Base of all nodes. ``parenthesized`` distinguishes ``-(1).abs`` from ``-1.abs``."""

    type: Any

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.parenthesized = False
        self.type = None


class Literal(Expr):
    """A constant value; ``number`` is the text of a numeric token until its sign is known."""

    def __init__(self, offset: int, value: Any, number: tuple[str, str] | None = None) -> None:
        super().__init__(offset)
        self.value = value
        self.number = number


class Ident(Expr):
    """A name. ``variable`` is the Variable or type that the checker found."""

    def __init__(self, offset: int, name: str) -> None:
        super().__init__(offset)
        self.name = name
        self.variable: Any = None


class Select(Expr):
    """``operand.field``, or with ``test`` the ``has(operand.field)`` that a macro made."""

    def __init__(self, offset: int, operand: Expr, field: str, test: bool = False) -> None:
        super().__init__(offset)
        self.operand = operand
        self.field = field
        self.test = test
        self.variable: Any = None


class Call(Expr):
    """A function, method (``target``) or operator. ``overloads`` are the candidates that the checker left."""

    def __init__(self, offset: int, function: str, arguments: list[Expr], target: Expr | None = None) -> None:
        super().__init__(offset)
        self.function = function
        self.target = target
        self.arguments = arguments
        self.overloads: list[Any] = []


class ListLiteral(Expr):
    """``[a, ?b]``; ``optional`` holds the positions written with a question mark."""

    def __init__(self, offset: int, elements: list[Expr], optional: frozenset[int] = frozenset()) -> None:
        super().__init__(offset)
        self.elements = elements
        self.optional = optional


class MapEntry:
    """One entry of a map or message literal."""

    def __init__(self, offset: int, key: Any, value: Expr, optional: bool) -> None:
        self.offset = offset
        self.key = key
        self.value = value
        self.optional = optional


class MapLiteral(Expr):
    """``{k: v, ?k: v}``."""

    def __init__(self, offset: int, entries: list[MapEntry]) -> None:
        super().__init__(offset)
        self.entries = entries


class Message(Expr):
    """``google.protobuf.Int64Value{value: 1}``; keys of the entries are field names."""

    def __init__(self, offset: int, name: str, entries: list[MapEntry]) -> None:
        super().__init__(offset)
        self.name = name
        self.entries = entries


class Fold(Expr):
    """The expansion of a macro: an accumulator that is updated for each element of a range while a condition holds.

    ``variables`` are one or two names, or none for ``cel.bind``, whose range is empty.
    """

    def __init__(
        self,
        offset: int,
        over: Expr,
        variables: tuple[str, ...],
        accumulator: str,
        parts: tuple[Expr, Expr, Expr, Expr],
    ) -> None:
        super().__init__(offset)
        self.range = over
        self.variables = variables
        self.accumulator = accumulator
        self.initial, self.condition, self.step, self.result = parts


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
