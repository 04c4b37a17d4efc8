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
        self.initial: dict[int, Closure] = {}


def build_fast(node: IrNode, context: Context) -> Closure:
    """The closure of a plan; ``context`` belongs to one expression."""
    return _BUILDERS[type(node)](node, context)


def _constant(node: Constant, _context: Context) -> Closure:
    value = node.value
    return lambda _env: value


# --- chains


def _chain(node: Chain, context: Context) -> Closure:
    resolve = _resolver(node, context)
    return _tested(resolve) if node.test else resolve


def _choice(node: Choice, context: Context) -> Closure:
    resolve = _resolver(node, context)
    return _tested(resolve) if node.test else resolve


def _tested(resolve: Closure) -> Closure:
    def tested(env: Any) -> Any:
        value = resolve(env)
        return value.present if type(value) is Optional else value

    return tested


def _resolver(node: IrNode, context: Context) -> Closure:
    if isinstance(node, Choice):
        condition = build_fast(node.condition, context)
        yes, no = _resolver(node.yes, context), _resolver(node.no, context)
        return lambda env: yes(env) if truth(condition(env)) else no(env)
    assert isinstance(node, Chain)  # noqa: S101  the planner makes nothing else here
    direct = _direct(node)
    if direct is not None:
        return direct
    base = _variable(node.slot, context) if node.base is None else build_fast(node.base, context)
    if not node.qualifiers and node.base is not None and not isinstance(node.base, OrElse | Invoke | FoldLoop):
        return base
    steps = [_qualifier(qualifier, context) for qualifier in node.qualifiers]

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


def _direct(node: Chain) -> Closure | None:
    """``device.field`` and ``device.attributes[domain].name`` with constant names."""
    names = [q.key for q in node.qualifiers if q.constant and not q.optional and not q.test and type(q.key) is str]
    if node.slot != 0 or node.base is not None or len(names) != len(node.qualifiers):
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


def _variable(slot: int, context: Context) -> Closure:
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


def _key(qualifier: Qualifier, context: Context) -> Closure:
    if qualifier.constant:
        constant = qualifier.key
        return lambda _env: constant
    is_chain = isinstance(qualifier.key, Chain | Choice)
    evaluate = _resolver(qualifier.key, context) if is_chain else build_fast(qualifier.key, context)
    return lambda env: check_key(evaluate(env))


# --- logic and calls


def _logic(node: Logic, context: Context) -> Closure:
    terms = [build_fast(term, context) for term in node.terms]
    decides = node.decides

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


def _equality(node: Equality, context: Context) -> Closure:
    left, right = build_fast(node.left, context), build_fast(node.right, context)
    if isinstance(node.right, Constant) and type(node.right.value) is str:
        return _equals_text(left, node.right.value, node.negated)
    if not node.negated:
        return lambda env: equal(left(env), right(env))

    def differs(env: Any) -> bool:
        one, two = left(env), right(env)
        try:
            return not equal(one, two)
        except EvalError:
            return True

    return differs


def _equals_text(left: Closure, text: str, negated: bool) -> Closure:
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


def _folded(node: IrNode, context: Context) -> Constant | Failure | None:
    """The value or error of a call whose arguments are all constant; None for other plans."""
    if isinstance(node, Constant):
        return node
    if not isinstance(node, Invoke) or node.lenient or (node.function in _QUANTITIES and context.asks_integers):
        return None
    arguments = [_folded(argument, context) for argument in node.arguments]
    values = [argument.value for argument in arguments if isinstance(argument, Constant)]
    if len(values) != len(arguments):
        return None
    reset_work()
    try:
        return Constant(node.call(*values))
    except EvalError as error:
        return Failure(error)
    except (AbortedError, TypeError, AttributeError, ValueError, KeyError, OverflowError):
        return None


def _raised(failure: Failure) -> Closure:
    def raised(_env: Any) -> Any:
        raise EvalError(*failure.error.args)

    return raised


def _invoke(node: Invoke, context: Context) -> Closure:
    folded = _folded(node, context)
    if folded is not None:
        return _constant(folded, context) if isinstance(folded, Constant) else _raised(folded)
    steps = [build_fast(argument, context) for argument in node.arguments]
    call = node.call
    if node.lenient:
        return _lenient(steps[0])
    if len(steps) == 1:
        (only,) = steps
        return lambda env: call(only(env))
    if len(steps) == 2:
        first, second = steps
        other = _folded(node.arguments[1], context)
        if isinstance(other, Constant):
            constant = other.value
            return lambda env: call(first(env), constant)
        return lambda env: call(first(env), second(env))
    return lambda env: call(*[step(env) for step in steps])


def _lenient(step: Closure) -> Closure:
    def not_false(env: Any) -> bool:
        try:
            return step(env) is not False
        except EvalError:
            return True

    return not_false


def _member(node: Member, context: Context) -> Closure:
    item, contains = build_fast(node.item, context), node.contains
    return lambda env: contains(item(env))


def _or_else(node: OrElse, context: Context) -> Closure:
    first, second = build_fast(node.first, context), build_fast(node.second, context)
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


def _list(node: MakeList, context: Context) -> Closure:
    return build_list([build_fast(element, context) for element in node.elements], node.optional)


def _map(node: MakeMap, context: Context) -> Closure:
    steps = [(build_fast(k, context), build_fast(v, context), optional) for k, v, optional in node.entries]
    return build_map(steps)


def _message(node: MakeMessage, context: Context) -> Closure:
    steps = [(name, build_fast(value, context), optional) for name, value, optional in node.entries]
    return build_message(node.name, steps)


def _loop(node: FoldLoop, context: Context) -> Closure:
    over = build_fast(node.over, context)
    context.initial[node.accumulator] = build_fast(node.initial, context)
    condition, step = build_fast(node.condition, context), build_fast(node.step, context)
    result = build_fast(node.result, context)
    slots, accumulator = node.variables, node.accumulator
    always = isinstance(node.condition, Constant)
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


_BUILDERS: Final[dict[type, Callable[[Any, Context], Closure]]] = {
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
