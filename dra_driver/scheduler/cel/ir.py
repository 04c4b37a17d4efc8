"""The intermediate representation of an expression: a tree of small nodes that `IrBuilder` makes of a checked syntax
tree, by constant folding and the choice of implementations. Follows cel-go interpreter/planner.go and decorators.go.
Folding makes some run-time errors errors of compilation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from dra_driver.scheduler.cel import syntax
from dra_driver.scheduler.cel.dispatch import implementation
from dra_driver.scheduler.cel.libraries.strings import pattern
from dra_driver.scheduler.cel.operators import Function, check_key, list_contains
from dra_driver.scheduler.cel.signatures import Overload
from dra_driver.scheduler.cel.types import Type
from dra_driver.scheduler.cel.values import LISTS, AbortedError, CelMap, EvalError, TypeValue, UInt

FIRST_SLOT: Final = 2  # slots of variables start here: an environment holds the device and the meter first


class Constant(NamedTuple):
    value: object


class Qualifier(NamedTuple):
    """One ``.name``, ``[key]`` or ``[?key]`` of a chain."""

    key: "IrNode"
    optional: bool
    test: bool = False


class Chain(Struct, eq=False):
    """A variable (``slot``) or another node (``base``), and the selections from it."""

    slot: int
    base: "IrNode | None"
    qualifiers: list[Qualifier] = []
    test: bool = False


class Choice(Struct, eq=False):
    """``condition ? yes : no``; qualifiers that follow apply to both."""

    condition: "IrNode"
    yes: "Chain | Choice"
    no: "Chain | Choice"
    test: bool = False


class Logic(NamedTuple):
    """``&&`` (``decides`` False) or ``||`` (True) over terms."""

    decides: bool
    terms: "tuple[IrNode, ...]"


class Equality(NamedTuple):
    negated: bool
    left: "IrNode"
    right: "IrNode"


class Invoke(NamedTuple):
    """A function call. ``stops``: evaluates no argument after a failed one. ``lenient``: accepts failed arguments."""

    function: str
    overload: str
    arguments: "tuple[IrNode, ...]"
    call: Function
    stops: bool
    lenient: bool


class Member(NamedTuple):
    """``item in [constants]``, which costs nothing."""

    item: "IrNode"
    contains: Callable[[object], bool]


class OrElse(NamedTuple):
    """``or`` and ``orValue`` (which ``unwraps``)."""

    first: "IrNode"
    second: "IrNode"
    unwraps: bool


class MakeList(NamedTuple):
    elements: "tuple[IrNode, ...]"
    optional: frozenset[int]


class MakeMap(NamedTuple):
    entries: "tuple[tuple[IrNode, IrNode, bool], ...]"


class MakeMessage(NamedTuple):
    name: str
    entries: "tuple[tuple[str, IrNode, bool], ...]"


class FoldLoop(NamedTuple):
    """A fold (comprehension). ``variables`` are slots; the first read of ``accumulator`` sets it from ``initial``."""

    over: "IrNode"
    variables: tuple[int, ...]
    accumulator: int
    initial: "IrNode"
    condition: "IrNode"
    step: "IrNode"
    result: "IrNode"


IrNode = (
    Constant
    | Chain
    | Choice
    | Logic
    | Equality
    | Invoke
    | Member
    | OrElse
    | MakeList
    | MakeMap
    | MakeMessage
    | FoldLoop
)


_CONVERSIONS: Final = frozenset(
    ["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"]
)
_PATTERNS: Final = frozenset({"matches", "find", "findAll"})
_PRIMITIVE: Final = frozenset({bool, float, int, str, UInt})


SELECTOR_SLOTS: Final[Mapping[str, int]] = {"device": 0}


class IrBuilder:
    """Builds the IR of one tree. Not reused. Afterwards ``slots`` is the size of an environment."""

    def __init__(self, source: syntax.SourceText, variables: Mapping[str, int] = SELECTOR_SLOTS) -> None:
        self._source = source
        self._scopes: list[dict[str, int]] = [dict(variables)]
        self.slots = max(FIRST_SLOT, 1 + max(variables.values(), default=0))

    def build(self, node: syntax.Expr) -> IrNode:
        """The IR of a node. Raises CelSyntaxError where the evaluation of a constant part fails."""
        made: IrNode = getattr(self, "_" + type(node).__name__.lower())(node)
        return made

    def _literal(self, node: syntax.Literal) -> IrNode:
        return Constant(node.value)

    def _named(self, variable: syntax.Variable) -> IrNode:
        if variable.type_value is not None:
            return Constant(TypeValue(variable.type_value))
        for scope in reversed(self._scopes):
            if variable.name in scope:
                return Chain(scope[variable.name], None)
        raise AssertionError(variable.name)

    def _ident(self, node: syntax.Ident) -> IrNode:
        assert node.variable is not None  # noqa: S101  set by the checker
        return self._named(node.variable)

    def _select(self, node: syntax.Select) -> IrNode:
        if node.variable is not None:
            return self._named(node.variable)
        chain = _chained(self.build(node.operand))
        chain.test = chain.test or node.test
        _qualify(chain, Qualifier(Constant(node.field), False, node.test))
        return chain

    # --- calls

    def _call(self, node: syntax.Call) -> IrNode:
        arguments = [self.build(node.target)] if node.target is not None else []
        arguments += [self.build(argument) for argument in node.arguments]
        special = _SPECIAL.get(node.function)
        if special is not None:
            return special(self, node, arguments)
        return self._invoke(node, arguments)

    def _logic(self, node: syntax.Call, arguments: list[IrNode]) -> IrNode:
        return Logic(node.function == "_||_", tuple(arguments))

    def _conditional(self, _node: syntax.Call, arguments: list[IrNode]) -> IrNode:
        # A side is resolved, not evaluated: ``has()`` there counts as its chain, as in cel-go.
        return Choice(arguments[0], _chained(arguments[1]), _chained(arguments[2]))

    def _equality(self, node: syntax.Call, arguments: list[IrNode]) -> IrNode:
        return Equality(node.function == "_!=_", arguments[0], arguments[1])

    def _index(self, node: syntax.Call, arguments: list[IrNode]) -> IrNode:
        chain, key = _chained(arguments[0]), arguments[1]
        if isinstance(key, Constant):
            try:
                check_key(key.value)
            except EvalError as error:
                raise self._source.error(node.offset, str(error)) from error
        _qualify(chain, Qualifier(key, node.function != "_[_]"))
        return chain

    def _or_else(self, node: syntax.Call, arguments: list[IrNode]) -> IrNode:
        return OrElse(arguments[0], arguments[1], node.function == "orValue")

    def _in(self, node: syntax.Call, arguments: list[IrNode]) -> IrNode:
        items = arguments[1]
        known = items.value if isinstance(items, Constant) else None
        if len(node.overloads) == 1 and node.overloads[0].id == "in_list" and isinstance(known, LISTS):
            if not len(known):
                return Constant(False)
            if all(type(item) in _PRIMITIVE for item in known):
                return Member(arguments[0], _membership(known))
        return self._invoke(node, arguments)

    def _invoke(self, node: syntax.Call, arguments: list[IrNode]) -> IrNode:
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
        if name in _CONVERSIONS and len(arguments) == 1 and isinstance(only := arguments[0], Constant):
            value = only.value
            return self._folded(node, lambda: call(value))
        return Invoke(name, overload, tuple(arguments), call, stops, name == "@not_strictly_false")

    def _folded(self, node: syntax.Expr, compute: Callable[[], object]) -> Constant:
        try:
            return Constant(compute())
        except (EvalError, AbortedError, TypeError, AttributeError, ValueError, KeyError, OverflowError) as error:
            raise self._source.error(node.offset, f"this constant expression fails: {error}") from error

    # --- literals and folds

    def _listliteral(self, node: syntax.ListLiteral) -> IrNode:
        elements = tuple(self.build(element) for element in node.elements)
        values = [element.value for element in elements if isinstance(element, Constant)]
        if not node.optional and len(values) == len(elements):
            return Constant(values)
        return MakeList(elements, node.optional)

    def _mapliteral(self, node: syntax.MapLiteral) -> IrNode:
        entries = tuple((self.build(e.key), self.build(e.value), e.optional) for e in node.entries)
        constant = [(k, v) for k, v, optional in entries if not optional]
        pairs = [(k.value, v.value) for k, v in constant if isinstance(k, Constant) and isinstance(v, Constant)]
        if len(pairs) == len(entries):
            return self._folded(node, lambda: CelMap.of(pairs))
        return MakeMap(entries)

    def _message(self, node: syntax.Message) -> IrNode:
        return MakeMessage(node.name, tuple((e.field, self.build(e.value), e.optional) for e in node.entries))

    def _fold(self, node: syntax.Fold) -> IrNode:
        over, initial = self.build(node.range), self.build(node.initial)
        accumulator = self._slot()
        variables = tuple(self._slot() for _ in node.variables)
        self._scopes.append({node.accumulator: accumulator})
        self._scopes.append(dict(zip(node.variables, variables, strict=True)))
        condition, step = self.build(node.condition), self.build(node.step)
        self._scopes.pop()
        result = self.build(node.result)
        self._scopes.pop()
        return FoldLoop(over, variables, accumulator, initial, condition, step, result)

    def _slot(self) -> int:
        self.slots += 1
        return self.slots - 1


def _chained(built: IrNode) -> Chain | Choice:
    return built if isinstance(built, Chain | Choice) else Chain(-1, built)


def _qualify(chain: Chain | Choice, qualifier: Qualifier) -> None:
    if isinstance(chain, Choice):
        _qualify(chain.yes, qualifier)
        _qualify(chain.no, qualifier)
    else:
        chain.qualifiers.append(qualifier)


def _takes_any_number(single: Overload | None, overloads: list[Overload]) -> bool:
    """Return whether the function takes any number of arguments and stops at an error, for a call with two."""
    if single is not None:
        return single.binding == "f"
    return all(overload.binding != "s" for overload in overloads)


def _is_sure(node: syntax.Expr, built: IrNode) -> bool:
    """Return whether the value certainly has the checker's type. Not one from a variable: optionals lose layers there
    at run time."""
    if not _is_concrete(node.type):
        return False
    if isinstance(built, Chain):
        return built.slot == 0 and built.base is None and not any(q.optional or q.test for q in built.qualifiers)
    if isinstance(built, Invoke):
        return isinstance(node, syntax.Call) and all(not overload.result.generic for overload in node.overloads)
    return isinstance(built, Constant | Equality | Logic | Member)


def _is_concrete(term: Type) -> bool:
    return term.kind not in {"dyn", "any", "param"} and all(map(_is_concrete, term.parameters))


def _membership(items: Sequence[object]) -> Callable[[object], bool]:
    texts = frozenset(item for item in items if type(item) is str)
    mixed = [item for item in items if type(item) is not str]

    def contains(item: object) -> bool:
        if type(item) is str:
            return item in texts
        CelMap({"": None}).find(item)  # raises for a value that cannot be a key
        return list_contains(mixed, item)

    return contains


_SPECIAL: Final[dict[str, Callable[[IrBuilder, syntax.Call, list[IrNode]], IrNode]]] = {
    "_&&_": IrBuilder._logic,
    "_||_": IrBuilder._logic,
    "_?_:_": IrBuilder._conditional,
    "_==_": IrBuilder._equality,
    "_!=_": IrBuilder._equality,
    "_[_]": IrBuilder._index,
    "_[?_]": IrBuilder._index,
    "_?._": IrBuilder._index,
    "or": IrBuilder._or_else,
    "orValue": IrBuilder._or_else,
    "@in": IrBuilder._in,
}
