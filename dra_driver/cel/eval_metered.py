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
    Closure,
    Failure,
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
    FoldLoop,
    Invoke,
    IrNode,
    Logic,
    MakeList,
    MakeMap,
    MakeMessage,
    Member,
    OrElse,
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


def build_metered(node: IrNode, accumulators: dict[int, Closure]) -> Closure:
    """The closure of a plan; environments hold a Meter at position 1. ``accumulators`` is filled in."""
    return _BUILDERS[type(node)](node, accumulators)


def _constant(node: Constant, _accumulators: dict[int, Closure]) -> Closure:
    value = node.value
    return lambda _env: value


# --- chains


def _chain(node: Chain, accumulators: dict[int, Closure]) -> Closure:
    resolve = _resolver(node, accumulators)
    if node.test:

        def tested(env: Any) -> Any:
            value = resolve(env)
            return value.present if type(value) is Optional else value

        return tested

    def chained(env: Any) -> Any:
        env[1].charge(c.SELECT)
        return resolve(env)

    return chained


def _choice(node: Choice, accumulators: dict[int, Closure]) -> Closure:
    resolve = _resolver(node, accumulators)
    if not node.test:
        return resolve

    def tested(env: Any) -> Any:
        # A presence test gives back the cost of a selection that a choice never had.
        env[1].charge(-c.SELECT)
        value = resolve(env)
        return value.present if type(value) is Optional else value

    return tested


def _resolver(node: IrNode, accumulators: dict[int, Closure]) -> Closure:
    """The value of a chain or choice without the cost of reading it."""
    if isinstance(node, Choice):
        condition = build_metered(node.condition, accumulators)
        yes, no = _resolver(node.yes, accumulators), _resolver(node.no, accumulators)

        def chosen(env: Any) -> Any:
            return yes(env) if truth(condition(env)) else no(env)

        return chosen
    assert isinstance(node, Chain)  # noqa: S101  the planner makes nothing else here
    base = _variable(node.slot, accumulators) if node.base is None else build_metered(node.base, accumulators)
    steps = [_qualifier(qualifier, accumulators) for qualifier in node.qualifiers]

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


def _variable(slot: int, accumulators: dict[int, Closure]) -> Closure:
    def read(env: Any) -> Any:
        value = env[slot]
        if value is UNSET:
            value = env[slot] = started(accumulators[slot], env)
        if type(value) is Failure:
            raise value.error
        return value

    return read


def _qualifier(qualifier: Qualifier, accumulators: dict[int, Closure]) -> tuple[Any, Any, bool]:
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


def _key(qualifier: Qualifier, accumulators: dict[int, Closure]) -> Closure:
    if qualifier.constant:
        constant = qualifier.key
        return lambda _env: constant
    is_chain = isinstance(qualifier.key, Chain | Choice)
    evaluate = _resolver(qualifier.key, accumulators) if is_chain else build_metered(qualifier.key, accumulators)
    return lambda env: check_key(evaluate(env))


# --- logic and calls


def _logic(node: Logic, accumulators: dict[int, Closure]) -> Closure:
    terms = [build_metered(term, accumulators) for term in node.terms]
    decides = node.decides

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


def _arguments(env: Any, steps: list[Closure]) -> tuple[list[Any], EvalError | None]:
    """All values, with FAILED for those that failed, and the first error."""
    values, failed = [], None
    for step in steps:
        try:
            values.append(step(env))
        except EvalError as error:
            values.append(c.FAILED)
            failed = failed or error
    return values, failed


def _equality(node: Equality, accumulators: dict[int, Closure]) -> Closure:
    steps = [build_metered(node.left, accumulators), build_metered(node.right, accumulators)]
    negated = node.negated

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


def _invoke(node: Invoke, accumulators: dict[int, Closure]) -> Closure:
    steps = [build_metered(argument, accumulators) for argument in node.arguments]
    cost, call = c.cost_of_call(node.function, node.overload), node.call
    needs_result, stops, lenient = cost in c.NEEDS_RESULT, node.stops, node.lenient

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


def _leading(env: Any, steps: list[Closure]) -> tuple[list[Any], EvalError | None]:
    """Values up to the first that failed, FAILED in its place."""
    values: list[Any] = []
    for step in steps:
        try:
            values.append(step(env))
        except EvalError as error:
            values.append(c.FAILED)
            return values, error
    return values, None


def _member(node: Member, accumulators: dict[int, Closure]) -> Closure:
    item, contains = build_metered(node.item, accumulators), node.contains
    return lambda env: contains(item(env))


def _or_else(node: OrElse, accumulators: dict[int, Closure]) -> Closure:
    first, second = build_metered(node.first, accumulators), build_metered(node.second, accumulators)
    unwraps = node.unwraps

    def either(env: Any) -> Any:
        value = first(env)
        if type(value) is not Optional:
            return value
        if value.present:
            return value.value if unwraps else value
        return second(env)

    return either


# --- literals and loops


def _list(node: MakeList, accumulators: dict[int, Closure]) -> Closure:
    steps = [build_metered(element, accumulators) for element in node.elements]
    build = build_list(steps, node.optional)

    def made(env: Any) -> Any:
        env[1].charge(c.LIST)
        return build(env)

    return made


def _map(node: MakeMap, accumulators: dict[int, Closure]) -> Closure:
    steps = [
        (build_metered(k, accumulators), build_metered(v, accumulators), optional) for k, v, optional in node.entries
    ]
    build = build_map(steps)

    def made(env: Any) -> Any:
        env[1].charge(c.MAP)
        return build(env)

    return made


def _message(node: MakeMessage, accumulators: dict[int, Closure]) -> Closure:
    steps = [(name, build_metered(value, accumulators), optional) for name, value, optional in node.entries]
    build = build_message(node.name, steps)

    def made(env: Any) -> Any:
        env[1].charge(c.MESSAGE)
        return build(env)

    return made


def _loop(node: FoldLoop, accumulators: dict[int, Closure]) -> Closure:
    over = build_metered(node.over, accumulators)
    accumulators[node.accumulator] = build_metered(node.initial, accumulators)
    condition, step = build_metered(node.condition, accumulators), build_metered(node.step, accumulators)
    result = build_metered(node.result, accumulators)
    slots, accumulator = node.variables, node.accumulator

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


def _is_false(condition: Closure, env: Any) -> bool:
    """Whether the loop ends; a condition that failed does not end it."""
    try:
        return condition(env) is False
    except EvalError:
        return False


_BUILDERS: Final[dict[type, Callable[[Any, dict[int, Closure]], Closure]]] = {
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
    FoldLoop: _loop,
}
