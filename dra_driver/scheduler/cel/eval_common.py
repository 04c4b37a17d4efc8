"""The common part of the fast and the metered evaluator: the walk over the IR, variables, selections, literals and
loops. `evaluators` adds how a selection, an operator and a call is evaluated and charged; results and errors are the
same."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from msgspec import Struct

from dra_driver.scheduler.cel import ir, wellknown
from dra_driver.scheduler.cel.cost import LIST, MAP, MESSAGE, SELECT
from dra_driver.scheduler.cel.operators import check_key, find, lookup, unwrapped
from dra_driver.scheduler.cel.values import (
    LISTS,
    MISSING,
    NONE,
    CelMap,
    EvalError,
    GrowingList,
    GrowingMap,
    Optional,
    encode_key,
    no_overload,
)

Env = list[Any]  # the environment of an evaluation: the device, the meter or None, then the slots of variables
Closure = Callable[[Env], object]  # evaluates one IR node
UNSET: Final = object()  # the value of an accumulator's slot before the first read


class Failure(Struct, eq=False):
    """The value of an accumulator's slot after a failed step; reading it raises the error."""

    error: EvalError


def truth(value: object) -> bool:
    if type(value) is not bool:
        raise no_overload()
    return value


def started(initial: Closure, env: Env) -> object:
    """The first value of an accumulator. An empty list or map becomes one that grows in place."""
    value = stored(initial, env)
    if isinstance(value, LISTS) and not len(value):
        return GrowingList()
    if isinstance(value, CelMap) and not len(value):
        return GrowingMap({})
    return value


def stored(step: Closure, env: Env) -> object:
    """The value of a step for a slot: the value, or a Failure."""
    try:
        return step(env)
    except EvalError as error:
        return Failure(error)


def frozen(value: object) -> object:
    """The result of a loop, which no longer grows in place."""
    if type(value) is GrowingList:
        return list(value)
    return CelMap(value.data) if type(value) is GrowingMap else value


def iterated(items: object, variables: int) -> Iterator[tuple[object, ...]]:
    """The values of the loop's variables at each step. Raises EvalError for a value without elements."""
    if isinstance(items, LISTS):
        return iter(enumerate(list(items) if type(items) is GrowingList else items)) if variables == 2 else zip(items)
    if isinstance(items, CelMap):
        return iter(items.items()) if variables == 2 else zip(items.keys())
    raise EvalError("expected a list or map to iterate over")


def given(value: object, optional: bool, what: str) -> object:
    """The value of an entry or element of a literal; MISSING for an optional without value."""
    if not optional:
        return value
    if type(value) is not Optional:
        raise EvalError(f"cannot initialize optional {what} from non-optional value")
    return value.value if value.present else MISSING


def build_list(steps: list[Closure], optional: frozenset[int]) -> Closure:
    if not optional:
        return lambda env: [step(env) for step in steps]

    def built(env: Env) -> list[object]:
        made = [given(step(env), position in optional, "list element") for position, step in enumerate(steps)]
        return [value for value in made if value is not MISSING]

    return built


def tested(resolve: Closure) -> Closure:
    """``has()``: an optional counts as whether it has a value."""

    def test(env: Env) -> object:
        value = resolve(env)
        return value.present if type(value) is Optional else value

    return test


def decided(terms: list[Closure], decides: bool) -> Callable[[Env], bool]:
    """``&&`` (``decides`` False) or ``||`` (True): every term in turn until one decides; an error only if none does."""

    def evaluated(env: Env) -> bool:
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


Selection = tuple[Callable[[Env, object], object], Callable[[Env, object], object], bool]
"""Application of a qualifier to (environment, target): value or EvalError; value or MISSING; whether it is optional."""


class ClosureBuilder:
    """Builds the closure of each IR node of one expression; not reused. The method for a node class is ``_`` and the
    class name in lower case. ``initial`` holds the closures of the first values of accumulators, by slot."""

    def __init__(self) -> None:
        self.initial: dict[int, Closure] = {}

    def build(self, node: ir.IrNode) -> Closure:
        closure: Closure = getattr(self, "_" + type(node).__name__.lower())(node)
        return closure

    # --- overridden by evaluators

    def _selection(self, qualifier: ir.Qualifier, key_of: Closure) -> Selection:

        def select(env: Env, target: object) -> object:
            return lookup(target, key_of(env))

        def select_present(env: Env, target: object) -> object:
            return find(target, key_of(env))

        def test(env: Env, target: object) -> object:
            return find(target, key_of(env)) is not MISSING

        return test if qualifier.test else select, select_present, qualifier.optional

    def _shortcut(self, _node: ir.Chain) -> Closure | None:
        """A faster closure for a chain, None for the general one."""
        return None

    def _charged(self, _cost: int, closure: Closure) -> Closure:
        """The closure, preceded by the charge of a constant cost where costs are counted."""
        return closure

    # --- chains

    def _chain(self, node: ir.Chain) -> Closure:
        resolve = self._resolved(node)
        return tested(resolve) if node.test else self._charged(SELECT, resolve)

    def _choice(self, node: ir.Choice) -> Closure:
        resolve = self._resolved(node)
        # cel-go refunds one selection after a presence test; on a choice no selection was charged before.
        return self._charged(-SELECT, tested(resolve)) if node.test else resolve

    def _constant(self, node: ir.Constant) -> Closure:
        value = node.value
        return lambda _env: value

    def _resolved(self, node: ir.IrNode) -> Closure:
        if isinstance(node, ir.Choice):
            return self._chosen(node)
        assert isinstance(node, ir.Chain)  # noqa: S101  IrBuilder makes nothing else here
        direct = self._shortcut(node)
        if direct is not None:
            return direct
        base = self._variable(node.slot) if node.base is None else self.build(node.base)
        if (
            not node.qualifiers
            and node.base is not None
            and not isinstance(node.base, ir.OrElse | ir.Invoke | ir.FoldLoop)
        ):
            return base
        selections = [self._selection(qualifier, self._key(qualifier)) for qualifier in node.qualifiers]

        def resolved(env: Env) -> object:
            target = base(env)
            optional = False
            if type(target) is Optional:
                if not target.present:
                    return target
                optional, target = True, unwrapped(target)
            for select, select_present, is_optional in selections:
                optional = optional or is_optional
                if optional:
                    target = select_present(env, target)
                    if target is MISSING:
                        return NONE
                else:
                    target = select(env, target)
            return Optional(target) if optional else target

        return resolved

    def _chosen(self, node: ir.Choice) -> Closure:
        condition = self.build(node.condition)
        yes, no = self._resolved(node.yes), self._resolved(node.no)
        return lambda env: yes(env) if truth(condition(env)) else no(env)

    def _variable(self, slot: int) -> Closure:
        initial = self.initial

        def read(env: Env) -> object:
            value = env[slot]
            if value is UNSET:
                value = env[slot] = started(initial[slot], env)
            if type(value) is Failure:
                raise value.error
            return value

        return read

    def _key(self, qualifier: ir.Qualifier) -> Closure:
        key = qualifier.key
        if isinstance(key, ir.Constant):
            return self._constant(key)
        evaluate = self._resolved(key) if isinstance(key, ir.Chain | ir.Choice) else self.build(key)
        return lambda env: check_key(evaluate(env))

    # --- operators

    def _logic(self, node: ir.Logic) -> Closure:
        return decided([self.build(term) for term in node.terms], node.decides)

    def _member(self, node: ir.Member) -> Closure:
        item, contains = self.build(node.item), node.contains
        return lambda env: contains(item(env))

    def _orelse(self, node: ir.OrElse) -> Closure:
        first, second = self.build(node.first), self.build(node.second)
        unwraps = node.unwraps

        def either(env: Env) -> object:
            value = first(env)
            if type(value) is not Optional:
                return value
            if value.present:
                return value.value if unwraps else value
            return second(env)

        return either

    # --- literals and loops

    def _makelist(self, node: ir.MakeList) -> Closure:
        return self._charged(LIST, build_list([self.build(element) for element in node.elements], node.optional))

    def _makemap(self, node: ir.MakeMap) -> Closure:
        return self._charged(MAP, self._entries(node.entries, CelMap))

    def _makemessage(self, node: ir.MakeMessage) -> Closure:
        fields = [(ir.Constant(name), value, optional) for name, value, optional in node.entries]
        return self._charged(MESSAGE, self._entries(fields, partial(wellknown.make, node.name)))

    def _entries(
        self, entries: Iterable[tuple[ir.IrNode, ir.IrNode, bool]], make: Callable[[dict[Any, object]], object]
    ) -> Closure:
        steps = [(self.build(key), self.build(value), optional) for key, value, optional in entries]

        def built(env: Env) -> object:
            data: dict[object, object] = {}
            for key_step, value_step, optional in steps:
                key, value = key_step(env), given(value_step(env), optional, "entry")
                if value is MISSING:
                    data.pop(encode_key(key), None)
                else:
                    data[encode_key(key)] = value
            return make(data)

        return built

    def _foldloop(self, node: ir.FoldLoop) -> Closure:
        over = self.build(node.over)
        self.initial[node.accumulator] = self.build(node.initial)
        condition, step, result = self.build(node.condition), self.build(node.step), self.build(node.result)
        slots, accumulator = node.variables, node.accumulator
        endless = isinstance(node.condition, ir.Constant)
        if not slots:  # cel.bind, whose range is the constant []

            def bound(env: Env) -> object:
                env[accumulator] = UNSET
                return frozen(result(env))

            return bound

        def looped(env: Env) -> object:
            items = over(env)
            env[accumulator] = UNSET
            for values in iterated(items, len(slots)):
                for slot, value in zip(slots, values, strict=True):
                    env[slot] = value
                if not endless and condition(env) is False:
                    break
                env[accumulator] = stored(step, env)
            return frozen(result(env))

        return looped
