"""Closures that count: evaluation with the exact cost of cel-go.

Owns the order of evaluation as it matters for cost: an operator evaluates its other operand even when one has failed, a
loop goes on with a failed accumulator, and every step is charged whether it failed or not. Where an expression cannot
reach the limit, fast.py runs instead. A cost is charged before its step where that is known to change nothing.
"""

from collections.abc import Callable
from typing import Any, Final

from dra_driver.cel import cost as c
from dra_driver.cel.access import check_key, find, lookup, unwrapped
from dra_driver.cel.equality import equal
from dra_driver.cel.eval_common import (
    UNSET,
    Failure,
    Step,
    build_list,
    build_map,
    build_message,
    frozen,
    iterated,
    started,
    stored,
    truth,
)
from dra_driver.cel.ir import (
    Chain,
    Choice,
    Constant,
    Equality,
    Invoke,
    Logic,
    Loop,
    MakeList,
    MakeMap,
    MakeMessage,
    Member,
    OrElse,
    Plan,
    Qualifier,
)
from dra_driver.cel.values import MISSING, NONE, AbortedError, EvalError, Optional, no_overload


class Meter:
    """The cost so far of one evaluation."""

    __slots__ = ("limit", "spent")

    def __init__(self, limit: int = c.LIMIT) -> None:
        self.spent = 0
        self.limit = limit

    def charge(self, amount: int) -> None:
        """Raises AbortedError beyond the limit."""
        self.spent += amount
        if self.spent > self.limit:
            raise AbortedError("operation cancelled: actual cost limit exceeded")


def metered(plan: Plan, accumulators: dict[int, Step]) -> Step:
    """The closure of a plan; environments hold a Meter at position 1. ``accumulators`` is filled in."""
    return _BUILDERS[type(plan)](plan, accumulators)


def _constant(plan: Constant, _accumulators: dict[int, Step]) -> Step:
    value = plan.value
    return lambda _env: value


# --- chains


def _chain(plan: Chain, accumulators: dict[int, Step]) -> Step:
    resolve = _resolver(plan, accumulators)
    if plan.test:

        def tested(env: Any) -> Any:
            value = resolve(env)
            return value.present if type(value) is Optional else value

        return tested

    def chained(env: Any) -> Any:
        env[1].charge(c.SELECT)
        return resolve(env)

    return chained


def _choice(plan: Choice, accumulators: dict[int, Step]) -> Step:
    resolve = _resolver(plan, accumulators)
    if not plan.test:
        return resolve

    def tested(env: Any) -> Any:
        # A presence test gives back the cost of a selection that a choice never had.
        env[1].charge(-c.SELECT)
        value = resolve(env)
        return value.present if type(value) is Optional else value

    return tested


def _resolver(plan: Plan, accumulators: dict[int, Step]) -> Step:
    """The value of a chain or choice without the cost of reading it."""
    if isinstance(plan, Choice):
        condition = metered(plan.condition, accumulators)
        yes, no = _resolver(plan.yes, accumulators), _resolver(plan.no, accumulators)

        def chosen(env: Any) -> Any:
            return yes(env) if truth(condition(env)) else no(env)

        return chosen
    assert isinstance(plan, Chain)  # noqa: S101  the planner makes nothing else here
    base = _variable(plan.slot, accumulators) if plan.base is None else metered(plan.base, accumulators)
    steps = [_qualifier(qualifier, accumulators) for qualifier in plan.qualifiers]

    def resolved(env: Any) -> Any:
        target = base(env)
        optional = type(target) is Optional
        if optional:
            if not target.present:
                return target
            target = unwrapped(target)
        for select, select_present, is_optional in steps:
            optional = optional or is_optional
            if optional:
                target = select_present(env, target)
                if target is MISSING:
                    return NONE
            else:
                target = select(env, target)
        return Optional(target) if optional else target

    return resolved


def _variable(slot: int, accumulators: dict[int, Step]) -> Step:
    def read(env: Any) -> Any:
        value = env[slot]
        if value is UNSET:
            value = env[slot] = started(accumulators[slot], env)
        if type(value) is Failure:
            raise value.error
        return value

    return read


def _qualifier(qualifier: Qualifier, accumulators: dict[int, Step]) -> tuple[Any, Any, bool]:
    """How one selection is made: for sure, and if present (MISSING otherwise)."""
    key_of = _key(qualifier, accumulators)

    def select(env: Any, target: Any) -> Any:
        env[1].charge(c.SELECT)
        return lookup(target, key_of(env))

    def select_present(env: Any, target: Any) -> Any:
        value = find(target, key_of(env))
        if value is not MISSING:
            env[1].charge(c.SELECT)
        return value

    def test(env: Any, target: Any) -> Any:
        env[1].charge(c.SELECT)
        return find(target, key_of(env)) is not MISSING

    return test if qualifier.test else select, select_present, qualifier.optional


def _key(qualifier: Qualifier, accumulators: dict[int, Step]) -> Step:
    if qualifier.constant:
        constant = qualifier.key
        return lambda _env: constant
    is_chain = isinstance(qualifier.key, Chain | Choice)
    evaluate = _resolver(qualifier.key, accumulators) if is_chain else metered(qualifier.key, accumulators)
    return lambda env: check_key(evaluate(env))


# --- logic and calls


def _logic(plan: Logic, accumulators: dict[int, Step]) -> Step:
    terms = [metered(term, accumulators) for term in plan.terms]
    decides = plan.decides

    def decided(env: Any) -> bool:
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

    return decided


def _arguments(env: Any, steps: list[Step]) -> tuple[list[Any], EvalError | None]:
    """All values, with FAILED for those that failed, and the first error."""
    values, failed = [], None
    for step in steps:
        try:
            values.append(step(env))
        except EvalError as error:
            values.append(c.FAILED)
            failed = failed or error
    return values, failed


def _equality(plan: Equality, accumulators: dict[int, Step]) -> Step:
    steps = [metered(plan.left, accumulators), metered(plan.right, accumulators)]
    negated = plan.negated

    def compared(env: Any) -> bool:
        values, failed = _arguments(env, steps)
        env[1].charge(c.cost_of_equality(values[0], values[1], negated))
        if failed is not None:
            raise failed
        if not negated:
            return equal(values[0], values[1])
        try:
            return not equal(values[0], values[1])
        except EvalError:
            return True

    return compared


def _invoke(plan: Invoke, accumulators: dict[int, Step]) -> Step:
    steps = [metered(argument, accumulators) for argument in plan.arguments]
    cost, call = c.cost_of_call(plan.function, plan.overload), plan.call
    needs_result, stops, lenient = cost in c.NEEDS_RESULT, plan.stops, plan.lenient

    def invoked(env: Any) -> Any:
        values, failed = _leading(env, steps) if stops else _arguments(env, steps)
        if failed is not None and not lenient:
            if len(values) == len(steps):
                env[1].charge(cost(values, c.FAILED))
            raise failed
        if not needs_result:
            env[1].charge(cost(values, None))
        try:
            result = call(*values)
        except EvalError:
            if needs_result:
                env[1].charge(cost(values, c.FAILED))
            raise
        if needs_result:
            env[1].charge(cost(values, result))
        return result

    return invoked


def _leading(env: Any, steps: list[Step]) -> tuple[list[Any], EvalError | None]:
    """Values up to the first that failed, FAILED in its place."""
    values: list[Any] = []
    for step in steps:
        try:
            values.append(step(env))
        except EvalError as error:
            values.append(c.FAILED)
            return values, error
    return values, None


def _member(plan: Member, accumulators: dict[int, Step]) -> Step:
    item, contains = metered(plan.item, accumulators), plan.contains
    return lambda env: contains(item(env))


def _or_else(plan: OrElse, accumulators: dict[int, Step]) -> Step:
    first, second = metered(plan.first, accumulators), metered(plan.second, accumulators)
    unwraps = plan.unwraps

    def either(env: Any) -> Any:
        value = first(env)
        if type(value) is not Optional:
            return value
        if value.present:
            return value.value if unwraps else value
        return second(env)

    return either


# --- literals and loops


def _list(plan: MakeList, accumulators: dict[int, Step]) -> Step:
    steps = [metered(element, accumulators) for element in plan.elements]
    build = build_list(steps, plan.optional)

    def made(env: Any) -> Any:
        env[1].charge(c.LIST)
        return build(env)

    return made


def _map(plan: MakeMap, accumulators: dict[int, Step]) -> Step:
    steps = [(metered(k, accumulators), metered(v, accumulators), optional) for k, v, optional in plan.entries]
    build = build_map(steps)

    def made(env: Any) -> Any:
        env[1].charge(c.MAP)
        return build(env)

    return made


def _message(plan: MakeMessage, accumulators: dict[int, Step]) -> Step:
    steps = [(name, metered(value, accumulators), optional) for name, value, optional in plan.entries]
    build = build_message(plan.name, steps)

    def made(env: Any) -> Any:
        env[1].charge(c.MESSAGE)
        return build(env)

    return made


def _loop(plan: Loop, accumulators: dict[int, Step]) -> Step:
    over = metered(plan.over, accumulators)
    accumulators[plan.accumulator] = metered(plan.initial, accumulators)
    condition, step = metered(plan.condition, accumulators), metered(plan.step, accumulators)
    result = metered(plan.result, accumulators)
    slots, accumulator = plan.variables, plan.accumulator

    def looped(env: Any) -> Any:
        items = over(env)
        env[accumulator] = UNSET
        for values in iterated(items, len(slots)):
            for slot, value in zip(slots, values, strict=True):
                env[slot] = value
            if _is_false(condition, env):
                break
            env[accumulator] = stored(step, env)
        return frozen(result(env))

    return looped


def _is_false(condition: Step, env: Any) -> bool:
    """Whether the loop ends; a condition that failed does not end it."""
    try:
        return condition(env) is False
    except EvalError:
        return False


_BUILDERS: Final[dict[type, Callable[[Any, dict[int, Step]], Step]]] = {
    Constant: _constant,
    Chain: _chain,
    Choice: _choice,
    Logic: _logic,
    Equality: _equality,
    Invoke: _invoke,
    Member: _member,
    OrElse: _or_else,
    MakeList: _list,
    MakeMap: _map,
    MakeMessage: _message,
    Loop: _loop,
}
