"""From a checked tree to a plan: what is evaluated, in which order, with which implementation.

Owns constant folding (which makes some run-time errors errors of compilation) and the choice of implementations, after
cel-go interpreter/planner.go and decorators.go. A plan is a tree of small records that meter.py and fast.py
turn into closures.
"""

from collections.abc import Callable
from typing import Any, Final

from dra_driver.cel.access import check_key
from dra_driver.cel.dispatch import implementation
from dra_driver.cel.equality import list_contains
from dra_driver.cel.libraries.strings import pattern
from dra_driver.cel.source import Source
from dra_driver.cel.syntax import Call, Fold, Ident, ListLiteral, Literal, MapLiteral, Message, Node, Select
from dra_driver.cel.types import Type
from dra_driver.cel.values import AbortedError, CelMap, EvalError, TypeValue, UInt

_CONVERSIONS: Final = frozenset(
    ["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"]
)
_PATTERNS: Final = frozenset({"matches", "find", "findAll"})
_PRIMITIVE: Final = frozenset({bool, float, int, str, UInt})
FIRST_SLOT: Final = 2
"""Slots of variables start here: an environment holds the device and the meter first."""


class Plan:
    """Base of all steps."""

    __slots__ = ()


class Constant(Plan):
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Qualifier:
    """One ``.name``, ``[key]`` or ``[?key]`` of a chain. ``key`` is a Plan unless ``constant``."""

    __slots__ = ("constant", "key", "optional", "test")

    def __init__(self, key: Any, constant: bool, optional: bool, test: bool = False) -> None:
        self.key = key
        self.constant = constant
        self.optional = optional
        self.test = test


class Chain(Plan):
    """A variable (``slot``) or another plan (``base``) and what is selected from it."""

    __slots__ = ("base", "qualifiers", "slot", "test")

    def __init__(self, slot: int, base: Plan | None, test: bool = False) -> None:
        self.slot = slot
        self.base = base
        self.qualifiers: list[Qualifier] = []
        self.test = test


class Choice(Plan):
    """``condition ? yes : no``; qualifiers that follow apply to both."""

    __slots__ = ("condition", "no", "test", "yes")

    def __init__(self, condition: Plan, yes: "Chain | Choice", no: "Chain | Choice", test: bool = False) -> None:
        self.condition = condition
        self.yes = yes
        self.no = no
        self.test = test


class Logic(Plan):
    """``&&`` (``decides`` False) or ``||`` (True) over terms."""

    __slots__ = ("decides", "terms")

    def __init__(self, decides: bool, terms: tuple[Plan, ...]) -> None:
        self.decides = decides
        self.terms = terms


class Equality(Plan):
    __slots__ = ("left", "negated", "right")

    def __init__(self, negated: bool, left: Plan, right: Plan) -> None:
        self.negated = negated
        self.left = left
        self.right = right


class Invoke(Plan):
    """A function call. ``stops`` at the first failed argument; ``lenient`` takes failed arguments."""

    __slots__ = ("arguments", "call", "function", "lenient", "overload", "stops")

    def __init__(
        self,
        function: str,
        overload: str,
        arguments: tuple[Plan, ...],
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


class Member(Plan):
    """``item in [constants]``, which costs nothing."""

    __slots__ = ("contains", "item")

    def __init__(self, item: Plan, contains: Callable[[Any], bool]) -> None:
        self.item = item
        self.contains = contains


class OrElse(Plan):
    """``or`` and ``orValue`` (which ``unwraps``)."""

    __slots__ = ("first", "second", "unwraps")

    def __init__(self, first: Plan, second: Plan, unwraps: bool) -> None:
        self.first = first
        self.second = second
        self.unwraps = unwraps


class MakeList(Plan):
    __slots__ = ("elements", "optional")

    def __init__(self, elements: tuple[Plan, ...], optional: frozenset[int]) -> None:
        self.elements = elements
        self.optional = optional


class MakeMap(Plan):
    __slots__ = ("entries",)

    def __init__(self, entries: tuple[tuple[Plan, Plan, bool], ...]) -> None:
        self.entries = entries


class MakeMessage(Plan):
    __slots__ = ("entries", "name")

    def __init__(self, name: str, entries: tuple[tuple[str, Plan, bool], ...]) -> None:
        self.name = name
        self.entries = entries


class Loop(Plan):
    """A fold. ``variables`` are slots; the accumulator's slot is set lazily from ``initial``."""

    __slots__ = ("accumulator", "condition", "initial", "over", "result", "step", "variables")

    def __init__(
        self,
        *,
        over: Plan,
        variables: tuple[int, ...],
        accumulator: int,
        initial: Plan,
        condition: Plan,
        step: Plan,
        result: Plan,
    ) -> None:
        self.over = over
        self.variables = variables
        self.accumulator = accumulator
        self.initial = initial
        self.condition = condition
        self.step = step
        self.result = result


class Planner:
    """Plans one tree; not reused. ``slots`` is the size of an environment afterwards."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._scopes: list[dict[str, int]] = [{"device": 0}]
        self.accumulators: set[int] = set()
        self.slots = FIRST_SLOT

    def plan(self, node: Node) -> Plan:
        """The plan of a node. Raises CelSyntaxError where a constant part cannot be evaluated."""
        made: Plan = getattr(self, "_" + type(node).__name__.lower())(node)
        return made

    def _literal(self, node: Literal) -> Plan:
        return Constant(node.value)

    def _named(self, variable: Any) -> Plan:
        if variable.type_value is not None:
            return Constant(TypeValue(variable.type_value))
        for scope in reversed(self._scopes):
            if variable.name in scope:
                return Chain(scope[variable.name], None)
        raise AssertionError(variable.name)

    def _ident(self, node: Ident) -> Plan:
        return self._named(node.variable)

    def _select(self, node: Select) -> Plan:
        if node.variable is not None:
            return self._named(node.variable)
        chain = self._chained(self.plan(node.operand))
        chain.test = chain.test or node.test
        _qualify(chain, Qualifier(node.field, True, False, node.test))
        return chain

    def _chained(self, plan: Plan) -> Chain | Choice:
        return plan if isinstance(plan, Chain | Choice) else Chain(-1, plan)

    # --- calls

    def _call(self, node: Call) -> Plan:
        arguments = [self.plan(node.target)] if node.target is not None else []
        arguments += [self.plan(argument) for argument in node.arguments]
        special = _SPECIAL.get(node.function)
        if special is not None:
            return special(self, node, arguments)
        return self._invoke(node, arguments)

    def _logic(self, node: Call, arguments: list[Plan]) -> Plan:
        return Logic(node.function == "_||_", tuple(arguments))

    def _conditional(self, _node: Call, arguments: list[Plan]) -> Plan:
        return Choice(arguments[0], self._side(arguments[1]), self._side(arguments[2]))

    def _side(self, plan: Plan) -> Chain | Choice:
        """A side of ``?:`` is resolved rather than evaluated, so that ``has()`` there is only its chain."""
        return plan if isinstance(plan, Chain | Choice) else Chain(-1, plan)

    def _equality(self, node: Call, arguments: list[Plan]) -> Plan:
        return Equality(node.function == "_!=_", arguments[0], arguments[1])

    def _index(self, node: Call, arguments: list[Plan]) -> Plan:
        chain, key = self._chained(arguments[0]), arguments[1]
        optional = node.function != "_[_]"
        if isinstance(key, Constant):
            try:
                check_key(key.value)
            except EvalError as error:
                raise self._source.error(node.offset, str(error)) from error
            _qualify(chain, Qualifier(key.value, True, optional))
        else:
            _qualify(chain, Qualifier(key, False, optional))
        return chain

    def _or_else(self, node: Call, arguments: list[Plan]) -> Plan:
        return OrElse(arguments[0], arguments[1], node.function == "orValue")

    def _in(self, node: Call, arguments: list[Plan]) -> Plan:
        items = arguments[1]
        if len(node.overloads) == 1 and node.overloads[0].id == "in_list" and isinstance(items, Constant):
            if not len(items.value):
                return Constant(False)
            if all(type(item) in _PRIMITIVE for item in items.value):
                return Member(arguments[0], _membership(items.value))
        return self._invoke(node, arguments)

    def _invoke(self, node: Call, arguments: list[Plan]) -> Plan:
        overloads = [o for o in node.overloads if o.method == (node.target is not None)]
        name, single = node.function, overloads[0] if len(overloads) == 1 else None
        nodes = [node.target, *node.arguments] if node.target is not None else node.arguments
        call = implementation(name, overloads, known=all(map(_is_sure, nodes, arguments)))
        overload = single.id if single is not None else ""
        stops = len(arguments) > 2 or (len(arguments) == 2 and _takes_any_number(single, overloads))
        constant = arguments[1].value if len(arguments) > 1 and isinstance(arguments[1], Constant) else None
        if name in _PATTERNS and isinstance(constant, str):
            self._folded(node, lambda: pattern(constant))
            stops = True
        if name in _CONVERSIONS and len(arguments) == 1 and isinstance(arguments[0], Constant):
            return self._folded(node, lambda: call(arguments[0].value))  # type: ignore[attr-defined]
        lenient = name == "@not_strictly_false"
        return Invoke(name, overload, tuple(arguments), call, stops=stops, lenient=lenient)

    def _folded(self, node: Node, compute: Callable[[], Any]) -> Constant:
        try:
            return Constant(compute())
        except (EvalError, AbortedError, TypeError, AttributeError, ValueError, KeyError, OverflowError) as error:
            raise self._source.error(node.offset, f"this can never be evaluated: {error}") from error

    # --- literals and folds

    def _listliteral(self, node: ListLiteral) -> Plan:
        elements = tuple(self.plan(element) for element in node.elements)
        if not node.optional and all(isinstance(element, Constant) for element in elements):
            return Constant([element.value for element in elements])  # type: ignore[attr-defined]
        return MakeList(elements, node.optional)

    def _mapliteral(self, node: MapLiteral) -> Plan:
        entries = tuple((self.plan(e.key), self.plan(e.value), e.optional) for e in node.entries)
        if all(isinstance(k, Constant) and isinstance(v, Constant) and not optional for k, v, optional in entries):
            pairs = [(key.value, value.value) for key, value, _ in entries]  # type: ignore[attr-defined]
            return self._folded(node, lambda: CelMap.of(pairs))
        return MakeMap(entries)

    def _message(self, node: Message) -> Plan:
        return MakeMessage(node.name, tuple((e.key, self.plan(e.value), e.optional) for e in node.entries))

    def _fold(self, node: Fold) -> Plan:
        over, initial = self.plan(node.range), self.plan(node.initial)
        accumulator = self._slot()
        self.accumulators.add(accumulator)
        variables = tuple(self._slot() for _ in node.variables)
        self._scopes.append({node.accumulator: accumulator})
        self._scopes.append(dict(zip(node.variables, variables, strict=True)))
        condition, step = self.plan(node.condition), self.plan(node.step)
        self._scopes.pop()
        result = self.plan(node.result)
        self._scopes.pop()
        return Loop(
            over=over,
            variables=variables,
            accumulator=accumulator,
            initial=initial,
            condition=condition,
            step=step,
            result=result,
        )

    def _slot(self) -> int:
        self.slots += 1
        return self.slots - 1


def _qualify(chain: Chain | Choice, qualifier: Qualifier) -> None:
    if isinstance(chain, Choice):
        _qualify(chain.yes, qualifier)
        _qualify(chain.no, qualifier)
    else:
        chain.qualifiers.append(qualifier)


def _takes_any_number(single: Any, overloads: list[Any]) -> bool:
    """Whether the two arguments of a call go to a function of any number of arguments, which stops at an error."""
    if single is not None:
        return bool(single.binding == "f")
    return all(overload.binding != "s" for overload in overloads)


def _is_sure(node: Node, plan: Plan) -> bool:
    """Whether the value is sure to be of the type that the checker saw.

    Optionals that pass through variables lose layers at run time, so whatever may have come through one is not.
    """
    if not _is_concrete(node.type):
        return False
    if isinstance(plan, Chain):
        return plan.slot == 0 and plan.base is None and not any(q.optional or q.test for q in plan.qualifiers)
    if isinstance(plan, Invoke):
        return isinstance(node, Call) and all(not overload.result.generic for overload in node.overloads)
    return isinstance(plan, Constant | Equality | Logic | Member)


def _is_concrete(term: Type) -> bool:
    return term.kind not in {"dyn", "any", "param"} and all(map(_is_concrete, term.parameters))


def _membership(items: list[Any]) -> Callable[[Any], bool]:
    texts = frozenset(item for item in items if type(item) is str)
    mixed = [item for item in items if type(item) is not str]

    def contains(item: Any) -> bool:
        if type(item) is str:
            return item in texts
        CelMap({"": None}).find(item)  # aborts for what cannot be a key
        return list_contains(mixed, item)

    return contains


_SPECIAL: Final[dict[str, Callable[[Planner, Call, list[Plan]], Plan]]] = {
    "_&&_": Planner._logic,
    "_||_": Planner._logic,
    "_?_:_": Planner._conditional,
    "_==_": Planner._equality,
    "_!=_": Planner._equality,
    "_[_]": Planner._index,
    "_[?_]": Planner._index,
    "_?._": Planner._index,
    "or": Planner._or_else,
    "orValue": Planner._or_else,
    "@in": Planner._in,
}
