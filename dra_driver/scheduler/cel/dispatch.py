"""Select the implementation of a call from the checker's overloads and the types of the arguments. Follows the run-time
guards of cel-go common/decls/decls.go: of lists and maps only the first element is checked."""

from collections.abc import Callable
from itertools import islice
from operator import call
from typing import Final

from dra_driver.scheduler.cel import operators as ops
from dra_driver.scheduler.cel.libraries import convert, kube, lists, net, strings
from dra_driver.scheduler.cel.libraries.format import format_string
from dra_driver.scheduler.cel.operators import Function
from dra_driver.scheduler.cel.signatures import Overload
from dra_driver.scheduler.cel.types import Type
from dra_driver.scheduler.cel.values import LISTS, CelMap, no_overload, type_name

_RUNTIME: Final = {
    "duration": "google.protobuf.Duration",
    "timestamp": "google.protobuf.Timestamp",
    "null": "null_type",
}
_UNGUARDED: Final = frozenset({"flatten", "@not_strictly_false"})


_FUNCTIONS: Final[dict[str, Function]] = {
    **ops.FUNCTIONS,
    **convert.FUNCTIONS,
    **strings.FUNCTIONS,
    "format": format_string,
    **lists.FUNCTIONS,
    **kube.FUNCTIONS,
    **net.FUNCTIONS,
}


def implementation(name: str, overloads: list[Overload], known: bool) -> Function:
    """The function to call with the evaluated arguments. ``known``: their types are certain, no guard is needed."""
    function = _FUNCTIONS[name]
    if len(overloads) == 1 and (known or name in _UNGUARDED):
        return lists.OVERLOADS.get(overloads[0].id, function)
    # Only functions of one implementation have overloads without guards.
    if any(overload.binding == "s" for overload in overloads):
        return function
    return _guarded(name, overloads, function)


def _guarded(name: str, overloads: list[Overload], function: Function) -> Function:
    choices = [
        ([_test_of(argument) for argument in overload.arguments], lists.OVERLOADS.get(overload.id, function))
        for overload in overloads
    ]

    def guarded(*values: object) -> object:
        for tests, target in choices:
            if len(tests) == len(values) and all(map(call, tests, values)):
                return target(*values)
        raise no_overload(f"{name}({', '.join(map(type_name, values))})")

    return guarded


def _test_of(term: Type) -> Callable[[object], bool]:
    if term.kind in {"dyn", "any", "param"}:
        return lambda _value: True
    wanted = _RUNTIME.get(term.name, term.name)
    if term.kind == "list":
        element = _test_of(term.parameters[0])
        return lambda value: isinstance(value, LISTS) and all(map(element, value[:1]))
    if term.kind == "map":
        key, item = map(_test_of, term.parameters)
        return lambda value: isinstance(value, CelMap) and all(key(k) and item(v) for k, v in islice(value.items(), 1))
    return lambda value: type_name(value) == wanted
