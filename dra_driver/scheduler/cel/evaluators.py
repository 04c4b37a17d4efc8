"""The two evaluators: `FastBuilder` without counting cost, for expressions that cannot reach the cost limit
(`cost_bound`), and `MeteredBuilder` with the exact cost of cel-go.

The fast one stops an operator at a failed operand and has special closures for frequent shapes, which run for every
device of every node. The metered one continues as cel-go does: an operator evaluates its other operand, a loop
continues with a failed accumulator, and every step is charged.
"""

from typing import Final

from msgspec import Struct

from dra_driver.scheduler.cel import cost as c
from dra_driver.scheduler.cel.eval_common import Closure, ClosureBuilder, Env, Failure, Selection, decided
from dra_driver.scheduler.cel.ir import Chain, Constant, Equality, Invoke, IrNode, Logic, Qualifier
from dra_driver.scheduler.cel.operators import differs, equal
from dra_driver.scheduler.cel.values import MISSING, AbortedError, EvalError, reset_work

_QUANTITIES: Final = frozenset({"quantity", "add", "sub"})


class FastBuilder(ClosureBuilder):
    """Builds the uncounted closures of one expression. ``asks_integers``: the expression asks whether quantities are
    integers, so each call of quantity() makes a new value, which a comparison may change."""

    def __init__(self, asks_integers: bool) -> None:
        super().__init__()
        self._asks_integers = asks_integers

    # --- chains

    def _shortcut(self, node: Chain) -> Closure | None:
        """``device.field`` and ``device.attributes[domain].name`` with constant names."""
        keys = [q.key.value for q in node.qualifiers if isinstance(q.key, Constant) and not (q.optional or q.test)]
        names = [key for key in keys if isinstance(key, str)]
        if node.slot != 0 or node.base is not None or len(names) != len(node.qualifiers):
            return None
        if len(names) == 1:
            (field,) = names
            return lambda env: env[0].data[field]
        if len(names) != 3 or names[0] not in {"attributes", "capacity"}:
            return None
        field, domain, name = names

        def attribute(env: Env) -> object:
            try:
                return env[0].data[field].data[domain].data[name]
            except KeyError:
                raise EvalError(f"no such key: {name}") from None

        return attribute

    # --- operators and calls

    def _logic(self, node: Logic) -> Closure:
        terms = [self.build(term) for term in node.terms]
        decides = node.decides
        slowly = decided(terms, decides)
        if len(terms) != 2:
            return slowly
        first, second = terms
        other = not decides

        def both(env: Env) -> bool:
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
            # A term failed or is not a bool: evaluate both again in the general way. Evaluation has no side effects.
            return slowly(env)

        return both

    def _equality(self, node: Equality) -> Closure:
        left, right = self.build(node.left), self.build(node.right)
        if isinstance(node.right, Constant) and type(node.right.value) is str:
            return _equals_text(left, node.right.value, node.negated)
        compare = differs if node.negated else equal
        return lambda env: compare(left(env), right(env))

    def _invoke(self, node: Invoke) -> Closure:
        folded = self._folded(node)
        if folded is not None:
            return self._constant(folded) if isinstance(folded, Constant) else _raised(folded)
        arguments = [self.build(argument) for argument in node.arguments]
        call = node.call
        if node.lenient:
            return _not_false(arguments[0])
        if len(arguments) == 1:
            (only,) = arguments
            return lambda env: call(only(env))
        if len(arguments) == 2:
            first, second = arguments
            other = self._folded(node.arguments[1])
            if isinstance(other, Constant):
                constant = other.value
                return lambda env: call(first(env), constant)
            return lambda env: call(first(env), second(env))
        return lambda env: call(*[argument(env) for argument in arguments])

    def _folded(self, node: IrNode) -> Constant | Failure | None:
        if isinstance(node, Constant):
            return node
        if not isinstance(node, Invoke) or node.lenient or (node.function in _QUANTITIES and self._asks_integers):
            return None
        arguments = [self._folded(argument) for argument in node.arguments]
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


def _equals_text(left: Closure, text: str, negated: bool) -> Closure:
    def same(env: Env) -> bool:
        value = left(env)
        return value == text if type(value) is str else equal(value, text)

    def other(env: Env) -> bool:
        value = left(env)
        return value != text if type(value) is str else differs(value, text)

    return other if negated else same


def _raised(failure: Failure) -> Closure:
    def raised(_env: Env) -> object:
        raise EvalError(*failure.error.args)

    return raised


def _not_false(argument: Closure) -> Closure:
    def not_false(env: Env) -> bool:
        try:
            return argument(env) is not False
        except EvalError:
            return True

    return not_false


class Meter(Struct, eq=False):
    """The cost so far of one evaluation."""

    spent: int = 0
    limit: int = c.COST_LIMIT

    def charge(self, amount: int) -> None:
        self.spent += amount
        if self.spent > self.limit:
            raise AbortedError("operation cancelled: actual cost limit exceeded")


class MeteredBuilder(ClosureBuilder):
    """Builds the counting closures of one expression. Environments hold a Meter at position 1."""

    def _charged(self, cost: int, closure: Closure) -> Closure:
        def charged(env: Env) -> object:
            env[1].charge(cost)
            return closure(env)

        return charged

    # --- chains

    def _selection(self, qualifier: Qualifier, key_of: Closure) -> Selection:
        select, select_present, optional = super()._selection(qualifier, key_of)

        def charged(env: Env, target: object) -> object:
            env[1].charge(c.SELECT)
            return select(env, target)

        def charged_if_present(env: Env, target: object) -> object:
            value = select_present(env, target)
            if value is not MISSING:
                env[1].charge(c.SELECT)
            return value

        return charged, charged_if_present, optional

    # --- operators and calls

    def _equality(self, node: Equality) -> Closure:
        operands = [self.build(node.left), self.build(node.right)]
        negated, compare = node.negated, differs if node.negated else equal

        def compared(env: Env) -> bool:
            values, failed = _arguments(env, operands)
            env[1].charge(c.cost_of_equality(values[0], values[1], negated))
            if failed is not None:
                raise failed
            return compare(values[0], values[1])

        return compared

    def _invoke(self, node: Invoke) -> Closure:
        arguments = [self.build(argument) for argument in node.arguments]
        cost, call = c.cost_of_call(node.function, node.overload), node.call
        needs_result, stops, lenient = cost in c.NEEDS_RESULT, node.stops, node.lenient

        def invoked(env: Env) -> object:
            values, failed = _arguments(env, arguments, stops)
            if failed is not None and not lenient:
                if len(values) == len(arguments):
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


def _arguments(env: Env, closures: list[Closure], stops: bool = False) -> tuple[list[object], EvalError | None]:
    values, failed = [], None
    for closure in closures:
        try:
            values.append(closure(env))
        except EvalError as error:
            values.append(c.FAILED)
            failed = failed or error
            if stops:
                break
    return values, failed
