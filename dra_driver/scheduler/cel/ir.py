"""The intermediate representation of an expression: what is evaluated, in which order, with which implementation.

A tree of small nodes that `ir_builder` makes of a checked syntax tree and the evaluators turn into closures.
"""

from collections.abc import Callable
from typing import Any, Final

FIRST_SLOT: Final = 2
"""Slots of variables start here: an environment holds the device and the meter first."""


class IrNode:
    """Base of all nodes."""

    __slots__ = ()


class Constant(IrNode):
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Qualifier:
    """One ``.name``, ``[key]`` or ``[?key]`` of a chain. ``key`` is an IrNode unless ``constant``."""

    __slots__ = ("constant", "key", "optional", "test")

    def __init__(self, key: Any, constant: bool, optional: bool, test: bool = False) -> None:
        self.key = key
        self.constant = constant
        self.optional = optional
        self.test = test


class Chain(IrNode):
    """A variable (``slot``) or another node (``base``), and the selections from it."""

    __slots__ = ("base", "qualifiers", "slot", "test")

    def __init__(self, slot: int, base: IrNode | None, test: bool = False) -> None:
        self.slot = slot
        self.base = base
        self.qualifiers: list[Qualifier] = []
        self.test = test


class Choice(IrNode):
    """``condition ? yes : no``; qualifiers that follow apply to both."""

    __slots__ = ("condition", "no", "test", "yes")

    def __init__(self, condition: IrNode, yes: "Chain | Choice", no: "Chain | Choice", test: bool = False) -> None:
        self.condition = condition
        self.yes = yes
        self.no = no
        self.test = test


class Logic(IrNode):
    """``&&`` (``decides`` False) or ``||`` (True) over terms."""

    __slots__ = ("decides", "terms")

    def __init__(self, decides: bool, terms: tuple[IrNode, ...]) -> None:
        self.decides = decides
        self.terms = terms


class Equality(IrNode):
    __slots__ = ("left", "negated", "right")

    def __init__(self, negated: bool, left: IrNode, right: IrNode) -> None:
        self.negated = negated
        self.left = left
        self.right = right


class Invoke(IrNode):
    """A function call. ``stops``: evaluates no argument after a failed one. ``lenient``: accepts failed arguments."""

    __slots__ = ("arguments", "call", "function", "lenient", "overload", "stops")

    def __init__(
        self,
        function: str,
        overload: str,
        arguments: tuple[IrNode, ...],
        call: Callable[..., Any],
        *,
        stops: bool = False,
        lenient: bool = False,
    ) -> None:
        self.function = function
        self.overload = overload
        self.arguments = arguments
        self.call = call
        self.stops = stops
        self.lenient = lenient


class Member(IrNode):
    """``item in [constants]``, which costs nothing."""

    __slots__ = ("contains", "item")

    def __init__(self, item: IrNode, contains: Callable[[Any], bool]) -> None:
        self.item = item
        self.contains = contains


class OrElse(IrNode):
    """``or`` and ``orValue`` (which ``unwraps``)."""

    __slots__ = ("first", "second", "unwraps")

    def __init__(self, first: IrNode, second: IrNode, unwraps: bool) -> None:
        self.first = first
        self.second = second
        self.unwraps = unwraps


class MakeList(IrNode):
    __slots__ = ("elements", "optional")

    def __init__(self, elements: tuple[IrNode, ...], optional: frozenset[int]) -> None:
        self.elements = elements
        self.optional = optional


class MakeMap(IrNode):
    __slots__ = ("entries",)

    def __init__(self, entries: tuple[tuple[IrNode, IrNode, bool], ...]) -> None:
        self.entries = entries


class MakeMessage(IrNode):
    __slots__ = ("entries", "name")

    def __init__(self, name: str, entries: tuple[tuple[str, IrNode, bool], ...]) -> None:
        self.name = name
        self.entries = entries


class FoldLoop(IrNode):
    """A fold (comprehension). ``variables`` are slots; the first read of ``accumulator`` sets it from ``initial``."""

    __slots__ = ("accumulator", "condition", "initial", "over", "result", "step", "variables")

    def __init__(
        self,
        *,
        over: IrNode,
        variables: tuple[int, ...],
        accumulator: int,
        initial: IrNode,
        condition: IrNode,
        step: IrNode,
        result: IrNode,
    ) -> None:
        self.over = over
        self.variables = variables
        self.accumulator = accumulator
        self.initial = initial
        self.condition = condition
        self.step = step
        self.result = result
