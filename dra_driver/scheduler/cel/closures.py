"""Closures and values that both evaluators use: accumulators of loops, literals, ``&&`` and ``||``, ``has()``."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from dra_driver.scheduler.cel import wellknown
from dra_driver.scheduler.cel.values import (
    LISTS,
    MAPS,
    CelMap,
    EvalError,
    GrowingList,
    GrowingMap,
    Optional,
    encode_key,
    no_overload,
)

Closure = Callable[[Any], Any]
"""Evaluates one IR node in an environment, a list: the device, the meter or None, then the slots of variables."""
UNSET: Final = object()
"""The value of an accumulator's slot before the first read."""


class Failure:
    """The value of an accumulator's slot after a failed step; reading it raises the error."""

    __slots__ = ("error",)

    def __init__(self, error: EvalError) -> None:
        self.error = error


def truth(value: Any) -> bool:
    """The condition of ``?:``. Raises EvalError if it is not a bool."""
    if type(value) is not bool:
        raise no_overload()
    return value


def started(initial: Closure, env: Any) -> Any:
    """The first value of an accumulator. An empty list or map becomes one that grows in place."""
    value = stored(initial, env)
    if type(value) in LISTS and not len(value):
        return GrowingList()
    if type(value) in MAPS and not len(value):
        return GrowingMap({})
    return value


def stored(step: Closure, env: Any) -> Any:
    """The value of a step for a slot: the value, or a Failure."""
    try:
        return step(env)
    except EvalError as error:
        return Failure(error)


def frozen(value: Any) -> Any:
    """The result of a loop, which no longer grows in place."""
    if type(value) is GrowingList:
        return list(value)
    return CelMap(value.data) if type(value) is GrowingMap else value


def iterated(items: Any, variables: int) -> Iterator[tuple[Any, ...]]:
    """The values of the loop's variables at each step. Raises EvalError for a value without elements."""
    if type(items) in LISTS:
        return iter(enumerate(list(items) if type(items) is GrowingList else items)) if variables == 2 else zip(items)
    if type(items) in MAPS:
        return iter(items.items()) if variables == 2 else zip(items.keys())
    raise EvalError("expected a list or map to iterate over")


def _optional_of(value: Any, what: str) -> Optional:
    if type(value) is not Optional:
        raise EvalError(f"cannot initialize optional {what} from non-optional value")
    return value


def build_list(steps: list[Closure], optional: frozenset[int]) -> Closure:
    if not optional:
        return lambda env: [step(env) for step in steps]

    def built(env: Any) -> list[Any]:
        made = []
        for position, step in enumerate(steps):
            value = step(env)
            if position in optional:
                given = _optional_of(value, "list element")
                if not given.present:
                    continue
                value = given.value
            made.append(value)
        return made

    return built


def build_map(steps: list[tuple[Closure, Closure, bool]]) -> Closure:
    def built(env: Any) -> CelMap:
        data: dict[Any, Any] = {}
        for key_step, value_step, optional in steps:
            key, value = key_step(env), value_step(env)
            if optional:
                given = _optional_of(value, "entry")
                if not given.present:
                    data.pop(encode_key(key), None)
                    continue
                value = given.value
            data[encode_key(key)] = value
        return CelMap(data)

    return built


def build_message(name: str, steps: list[tuple[str, Closure, bool]]) -> Closure:
    def built(env: Any) -> Any:
        fields: dict[str, Any] = {}
        for field, step, optional in steps:
            value = step(env)
            if optional:
                given = _optional_of(value, "entry")
                if not given.present:
                    fields.pop(field, None)
                    continue
                value = given.value
            fields[field] = value
        return wellknown.make(name, fields)

    return built


def tested(resolve: Closure) -> Closure:
    """``has()``: an optional counts as whether it has a value."""

    def test(env: Any) -> Any:
        value = resolve(env)
        return value.present if type(value) is Optional else value

    return test


def decided(terms: list[Closure], decides: bool) -> Callable[[Any], bool]:
    """``&&`` (``decides`` False) or ``||`` (True): every term in turn until one decides; an error only if none does."""

    def evaluated(env: Any) -> bool:
        failed: EvalError | None = None
        for term in terms:
            try:
                value = term(env)
            except EvalError as error:
                failed = failed or error
                continue
            if value is decides:
                return decides is True
            if type(value) is not bool:
                failed = failed or no_overload()
        if failed is not None:
            raise failed
        return not decides

    return evaluated
