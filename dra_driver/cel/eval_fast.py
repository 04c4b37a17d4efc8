"""Closures that do not count: for expressions that cannot reach the cost limit (see bound.py).

Same results and errors as meter.py, without the meter: an operator that has failed does not evaluate its other operand.
The shapes that selectors are made of (a field of the device, an attribute compared with a constant, ``&&``) have
closures of their own, because they run for every device of every node.
"""

from collections.abc import Callable
from typing import Any, Final

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
from dra_driver.cel.values import MISSING, NONE, AbortedError, EvalError, Optional, no_overload, reset_work

_QUANTITIES: Final = frozenset({"quantity", "add", "sub"})


class Context:
    """What the closures of one expression share while they are built.

    ``initial`` holds the first values of accumulators by slot. ``asks_integers`` says that the expression asks whether
    quantities are integers; then each call of quantity() must make one of its own, because a comparison may change it.
    """

    __slots__ = ("asks_integers", "initial")

    def __init__(self, asks_integers: bool) -> None:
        self.asks_integers = asks_integers
        self.initial: dict[int, Step] = {}


def unmetered(plan: Plan, context: Context) -> Step:
    """The closure of a plan; ``context`` belongs to one expression."""
    return _BUILDERS[type(plan)](plan, context)


def _constant(plan: Constant, _context: Context) -> Step:
    value = plan.value
    return lambda _env: value


# --- chains


def _chain(plan: Chain, context: Context) -> Step:
    resolve = _resolver(plan, context)
    return _tested(resolve) if plan.test else resolve


def _choice(plan: Choice, context: Context) -> Step:
    resolve = _resolver(plan, context)
    return _tested(resolve) if plan.test else resolve


def _tested(resolve: Step) -> Step:
    def tested(env: Any) -> Any:
        value = resolve(env)
        return value.present if type(value) is Optional else value

    return tested


def _resolver(plan: Plan, context: Context) -> Step:
    if isinstance(plan, Choice):
        condition = unmetered(plan.condition, context)
        yes, no = _resolver(plan.yes, context), _resolver(plan.no, context)
        return lambda env: yes(env) if truth(condition(env)) else no(env)
    assert isinstance(plan, Chain)  # noqa: S101  the planner makes nothing else here
    direct = _direct(plan)
    if direct is not None:
        return direct
    base = _variable(plan.slot, context) if plan.base is None else unmetered(plan.base, context)
    if not plan.qualifiers and plan.base is not None and not isinstance(plan.base, OrElse | Invoke | Loop):
        return base
    steps = [_qualifier(qualifier, context) for qualifier in plan.qualifiers]

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


def _direct(plan: Chain) -> Step | None:
    """``device.field`` and ``device.attributes[domain].name`` with constant names."""
    names = [q.key for q in plan.qualifiers if q.constant and not q.optional and not q.test and type(q.key) is str]
    if plan.slot != 0 or plan.base is not None or len(names) != len(plan.qualifiers):
        return None
    if len(names) == 1:
        (field,) = names
        return lambda env: env[0].data[field]
    if len(names) != 3 or names[0] not in {"attributes", "capacity"}:
        return None
    field, domain, name = names

    def attribute(env: Any) -> Any:
        try:
            return env[0].data[field].data[domain].data[name]
        except KeyError:
            raise EvalError(f"no such key: {name}") from None

    return attribute


def _variable(slot: int, context: Context) -> Step:
    def read(env: Any) -> Any:
        value = env[slot]
        if value is UNSET:
            value = env[slot] = started(context.initial[slot], env)
        if type(value) is Failure:
            raise value.error
        return value

    return read


def _qualifier(qualifier: Qualifier, context: Context) -> tuple[Any, Any, bool]:
    key_of = _key(qualifier, context)

    def select(env: Any, target: Any) -> Any:
        return lookup(target, key_of(env))

    def select_present(env: Any, target: Any) -> Any:
        return find(target, key_of(env))

    def test(env: Any, target: Any) -> Any:
        return find(target, key_of(env)) is not MISSING

    return test if qualifier.test else select, select_present, qualifier.optional


def _key(qualifier: Qualifier, context: Context) -> Step:
    if qualifier.constant:
        constant = qualifier.key
        return lambda _env: constant
    is_chain = isinstance(qualifier.key, Chain | Choice)
    evaluate = _resolver(qualifier.key, context) if is_chain else unmetered(qualifier.key, context)
    return lambda env: check_key(evaluate(env))


# --- logic and calls


def _logic(plan: Logic, context: Context) -> Step:
    terms = [unmetered(term, context) for term in plan.terms]
    decides = plan.decides

    def slowly(env: Any) -> bool:
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

    if len(terms) != 2:
        return slowly
    first, second = terms
    other = not decides

    def both(env: Any) -> bool:
        try:
            value = first(env)
            if value is decides:
                return decides is True
            if value is other:
                value = second(env)
                if value is decides or value is other:
                    return value is True
        except EvalError:
            pass
        # Something failed or is no bool; both sides are looked at again, which nothing can notice.
        return slowly(env)

    return both


def _equality(plan: Equality, context: Context) -> Step:
    left, right = unmetered(plan.left, context), unmetered(plan.right, context)
    if isinstance(plan.right, Constant) and type(plan.right.value) is str:
        return _equals_text(left, plan.right.value, plan.negated)
    if not plan.negated:
        return lambda env: equal(left(env), right(env))

    def differs(env: Any) -> bool:
        one, two = left(env), right(env)
        try:
            return not equal(one, two)
        except EvalError:
            return True

    return differs


def _equals_text(left: Step, text: str, negated: bool) -> Step:
    def same(env: Any) -> bool:
        value = left(env)
        return value == text if type(value) is str else equal(value, text)

    def differs(env: Any) -> bool:
        value = left(env)
        if type(value) is str:
            return bool(value != text)
        try:
            return not equal(value, text)
        except EvalError:
            return True

    return differs if negated else same


def _folded(plan: Plan, context: Context) -> Constant | Failure | None:
    """The value or error of a call whose arguments are all constant; None for other plans."""
    if isinstance(plan, Constant):
        return plan
    if not isinstance(plan, Invoke) or plan.lenient or (plan.function in _QUANTITIES and context.asks_integers):
        return None
    arguments = [_folded(argument, context) for argument in plan.arguments]
    values = [argument.value for argument in arguments if isinstance(argument, Constant)]
    if len(values) != len(arguments):
        return None
    reset_work()
    try:
        return Constant(plan.call(*values))
    except EvalError as error:
        return Failure(error)
    except (AbortedError, TypeError, AttributeError, ValueError, KeyError, OverflowError):
        return None


def _raised(failure: Failure) -> Step:
    def raised(_env: Any) -> Any:
        raise EvalError(*failure.error.args)

    return raised


def _invoke(plan: Invoke, context: Context) -> Step:
    folded = _folded(plan, context)
    if folded is not None:
        return _constant(folded, context) if isinstance(folded, Constant) else _raised(folded)
    steps = [unmetered(argument, context) for argument in plan.arguments]
    call = plan.call
    if plan.lenient:
        return _lenient(steps[0])
    if len(steps) == 1:
        (only,) = steps
        return lambda env: call(only(env))
    if len(steps) == 2:
        first, second = steps
        other = _folded(plan.arguments[1], context)
        if isinstance(other, Constant):
            constant = other.value
            return lambda env: call(first(env), constant)
        return lambda env: call(first(env), second(env))
    return lambda env: call(*[step(env) for step in steps])


def _lenient(step: Step) -> Step:
    def not_false(env: Any) -> bool:
        try:
            return step(env) is not False
        except EvalError:
            return True

    return not_false


def _member(plan: Member, context: Context) -> Step:
    item, contains = unmetered(plan.item, context), plan.contains
    return lambda env: contains(item(env))


def _or_else(plan: OrElse, context: Context) -> Step:
    first, second = unmetered(plan.first, context), unmetered(plan.second, context)
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


def _list(plan: MakeList, context: Context) -> Step:
    return build_list([unmetered(element, context) for element in plan.elements], plan.optional)


def _map(plan: MakeMap, context: Context) -> Step:
    steps = [(unmetered(k, context), unmetered(v, context), optional) for k, v, optional in plan.entries]
    return build_map(steps)


def _message(plan: MakeMessage, context: Context) -> Step:
    steps = [(name, unmetered(value, context), optional) for name, value, optional in plan.entries]
    return build_message(plan.name, steps)


def _loop(plan: Loop, context: Context) -> Step:
    over = unmetered(plan.over, context)
    context.initial[plan.accumulator] = unmetered(plan.initial, context)
    condition, step = unmetered(plan.condition, context), unmetered(plan.step, context)
    result = unmetered(plan.result, context)
    slots, accumulator = plan.variables, plan.accumulator
    always = isinstance(plan.condition, Constant)
    if not slots:

        def bound(env: Any) -> Any:
            env[accumulator] = UNSET
            return frozen(result(env))

        return bound

    def looped(env: Any) -> Any:
        items = over(env)
        env[accumulator] = UNSET
        for values in iterated(items, len(slots)):
            for slot, value in zip(slots, values, strict=True):
                env[slot] = value
            if not always and condition(env) is False:
                break
            env[accumulator] = stored(step, env)
        return frozen(result(env))

    return looped


_BUILDERS: Final[dict[type, Callable[[Any, Context], Step]]] = {
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
