"""Expand macros, node for node as cel-go (parser/macro.go, cel/library.go, ext/bindings.go, ext/comprehensions.go,
ext/lists.go), because the cost of an expression is the cost of its expansion."""

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Final, TypeVar

from dra_driver.scheduler.cel import syntax

ACCUMULATOR: Final = "@result"
_MAX_COPIES: Final = 20_000
_SORT_INPUT: Final = "@__sortBy_input__"
N = TypeVar("N", syntax.Expr, syntax.MapEntry, syntax.FieldEntry)
_Expander = Callable[[syntax.SourceText, syntax.Call], syntax.Expr | None]


def expand(source: syntax.SourceText, call: syntax.Call) -> syntax.Expr:
    """Return the expansion of a macro call, and any other call unchanged. Raises CelSyntaxError on wrong arguments."""
    expander = _MACROS.get((call.function, len(call.arguments), call.target is not None))
    return call if expander is None else (expander(source, call) or call)


def _has(source: syntax.SourceText, call: syntax.Call) -> syntax.Expr:
    argument = call.arguments[0]
    if not isinstance(argument, syntax.Select):
        raise source.error(argument.offset, "has() needs a field selection such as has(device.attributes['d'].name)")
    return syntax.Select(argument.offset, argument.operand, argument.field, test=True)


def _variable(source: syntax.SourceText, node: syntax.Expr) -> str:
    if not isinstance(node, syntax.Ident):
        raise source.error(node.offset, "expected a plain name for the variable")
    if node.name in {ACCUMULATOR, "__result__"}:
        raise source.error(node.offset, f"{node.name} cannot be the name of a variable here")
    return node.name


def _variables(source: syntax.SourceText, call: syntax.Call, count: int) -> tuple[str, ...]:
    names = tuple(_variable(source, node) for node in call.arguments[:count])
    if count == 2 and names[0] == names[1]:
        raise source.error(call.arguments[1].offset, f"both variables are named {names[0]}")
    return names


def _accumulator(at: syntax.Expr) -> syntax.Ident:
    return syntax.Ident(at.offset, ACCUMULATOR)


def _fold(call: syntax.Call, names: tuple[str, ...], *parts: syntax.Expr) -> syntax.Expr:
    """``parts`` are the initial value, the condition, the step and the result."""
    assert call.target is not None  # noqa: S101  macros of this kind are registered as methods
    return syntax.Fold(call.offset, call.target, names, ACCUMULATOR, *parts)


def _all(source: syntax.SourceText, call: syntax.Call, count: int, exists: bool = False) -> syntax.Expr:
    """``all``, or with ``exists`` that macro."""
    at, names = call, _variables(source, call, count)
    going = syntax.Call(at.offset, "!_", [_accumulator(at)]) if exists else _accumulator(at)
    condition = syntax.Call(at.offset, "@not_strictly_false", [going])
    step = syntax.Call(at.offset, "_||_" if exists else "_&&_", [_accumulator(at), call.arguments[count]])
    return _fold(call, names, syntax.Literal(at.offset, not exists), condition, step, _accumulator(at))


def _exists_one(source: syntax.SourceText, call: syntax.Call, count: int) -> syntax.Expr:
    at, names = call, _variables(source, call, count)
    more = syntax.Call(at.offset, "_+_", [_accumulator(at), syntax.Literal(at.offset, 1)])
    step = syntax.Call(at.offset, "_?_:_", [call.arguments[count], more, _accumulator(at)])
    result = syntax.Call(at.offset, "_==_", [_accumulator(at), syntax.Literal(at.offset, 1)])
    return _fold(call, names, syntax.Literal(at.offset, 0), syntax.Literal(at.offset, True), step, result)


def _collect(
    call: syntax.Call, names: tuple[str, ...], test: syntax.Expr | None, step: syntax.Expr, initial: syntax.Expr
) -> syntax.Expr:
    if test is not None:
        step = syntax.Call(call.offset, "_?_:_", [test, step, _accumulator(call)])
    return _fold(call, names, initial, syntax.Literal(call.offset, True), step, _accumulator(call))


def _list_of(source: syntax.SourceText, call: syntax.Call, count: int) -> syntax.Expr:
    names = _variables(source, call, count)
    *test, value = call.arguments[count:]
    step = syntax.Call(call.offset, "_+_", [_accumulator(call), syntax.ListLiteral(value.offset, [value])])
    return _collect(call, names, test[0] if test else None, step, syntax.ListLiteral(call.offset, []))


def _filter(source: syntax.SourceText, call: syntax.Call) -> syntax.Expr:
    names = _variables(source, call, 1)
    element = syntax.Ident(call.arguments[0].offset, names[0])
    step = syntax.Call(call.offset, "_+_", [_accumulator(call), syntax.ListLiteral(call.offset, [element])])
    return _collect(call, names, call.arguments[1], step, syntax.ListLiteral(call.offset, []))


def _map_of(source: syntax.SourceText, call: syntax.Call, with_key: bool) -> syntax.Expr:
    """``transformMap`` keeps the keys, ``transformMapEntry`` takes entries."""
    names = _variables(source, call, 2)
    *test, value = call.arguments[2:]
    key = [syntax.Ident(call.offset, names[0])] if with_key else []
    step = syntax.Call(call.offset, "cel.@mapInsert", [_accumulator(call), *key, value])
    return _collect(call, names, test[0] if test else None, step, syntax.MapLiteral(call.offset, []))


def _let(at: syntax.Expr, name: str, value: syntax.Expr, body: syntax.Expr) -> syntax.Expr:
    unchanged = syntax.Ident(at.offset, name)
    return syntax.Fold(
        at.offset, syntax.ListLiteral(at.offset, []), (), name, value, syntax.Literal(at.offset, False), unchanged, body
    )


def _bind(source: syntax.SourceText, call: syntax.Call) -> syntax.Expr | None:
    if not isinstance(call.target, syntax.Ident) or call.target.name != "cel":
        return None
    name, value, body = call.arguments
    if not isinstance(name, syntax.Ident):
        raise source.error(name.offset, "the first argument of cel.bind() must be a plain name")
    return _let(call, name.name, value, body)


def _copied(source: syntax.SourceText, node: N) -> N:
    """A copy of the tree. Macros that copy double their target, so the number of copied nodes is limited."""
    source.copied += isinstance(node, syntax.Expr)
    if source.copied > _MAX_COPIES:
        raise source.error(node.offset, "macros make this expression too large")
    twin = copy(node)
    for name in node.__struct_fields__:
        part = getattr(node, name)
        if isinstance(part, syntax.Expr):
            setattr(twin, name, _copied(source, part))
        elif isinstance(part, list):
            setattr(twin, name, [_copied(source, item) for item in part])
    return twin


def _opt_map(source: syntax.SourceText, call: syntax.Call, flat: bool) -> syntax.Expr:
    assert call.target is not None  # noqa: S101  registered as methods
    name, body = call.arguments
    if not isinstance(name, syntax.Ident):
        raise source.error(name.offset, f"the first argument of {call.function}() must be a plain name")
    at = call.offset
    result = _let(call, name.name, syntax.Call(at, "value", [], _copied(source, call.target)), body)
    if not flat:
        result = syntax.Call(at, "optional.of", [result])
    return syntax.Call(
        at, "_?_:_", [syntax.Call(at, "hasValue", [], call.target), result, syntax.Call(at, "optional.none", [])]
    )


def _sort_by(source: syntax.SourceText, call: syntax.Call) -> syntax.Expr:
    if not isinstance(call.target, syntax.ListLiteral | syntax.Select | syntax.Ident | syntax.Fold | syntax.Call):
        raise source.error(call.offset, "sortBy() sorts a list, a name, a call or a selection")
    keys = _list_of(source, syntax.Call(call.offset, "map", call.arguments, syntax.Ident(call.offset, _SORT_INPUT)), 1)
    ordered = syntax.Call(call.offset, "@sortByAssociatedKeys", [keys], syntax.Ident(call.offset, _SORT_INPUT))
    return _let(call, _SORT_INPUT, call.target, ordered)


_MACROS: Final[dict[tuple[str, int, bool], _Expander]] = {
    ("has", 1, False): _has,
    ("all", 2, True): partial(_all, count=1),
    ("all", 3, True): partial(_all, count=2),
    ("exists", 2, True): partial(_all, count=1, exists=True),
    ("exists", 3, True): partial(_all, count=2, exists=True),
    ("exists_one", 2, True): partial(_exists_one, count=1),
    ("exists_one", 3, True): partial(_exists_one, count=2),
    ("existsOne", 3, True): partial(_exists_one, count=2),
    ("map", 2, True): partial(_list_of, count=1),
    ("map", 3, True): partial(_list_of, count=1),
    ("filter", 2, True): _filter,
    ("transformList", 3, True): partial(_list_of, count=2),
    ("transformList", 4, True): partial(_list_of, count=2),
    ("transformMap", 3, True): partial(_map_of, with_key=True),
    ("transformMap", 4, True): partial(_map_of, with_key=True),
    ("transformMapEntry", 3, True): partial(_map_of, with_key=False),
    ("transformMapEntry", 4, True): partial(_map_of, with_key=False),
    ("optMap", 2, True): partial(_opt_map, flat=False),
    ("optFlatMap", 2, True): partial(_opt_map, flat=True),
    ("sortBy", 2, True): _sort_by,
    ("bind", 3, True): _bind,
}
