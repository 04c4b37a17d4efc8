"""Evaluation with the exact cost of cel-go.

The order of evaluation matters for the cost: an operator evaluates its other operand even when one has failed, a loop
goes on with a failed accumulator, and every step is charged whether it failed or not. A cost is charged before its
step where the order changes nothing. `eval_fast` evaluates expressions that cannot reach the limit.
"""

from dra_driver.scheduler.cel import cost as c
from dra_driver.scheduler.cel.eval_common import Closure, ClosureBuilder, Env, Selection
from dra_driver.scheduler.cel.ir import Equality, Invoke, Qualifier
from dra_driver.scheduler.cel.operators import equal, find, lookup
from dra_driver.scheduler.cel.values import MISSING, AbortedError, EvalError


class Meter:
    """The cost so far of one evaluation."""

    __slots__ = ("limit", "spent")

    def __init__(self, limit: int = c.COST_LIMIT) -> None:
        self.spent = 0
        self.limit = limit

    def charge(self, amount: int) -> None:
        """Raises AbortedError beyond the limit."""
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
        def select(env: Env, target: object) -> object:
            env[1].charge(c.SELECT)
            return lookup(target, key_of(env))

        def select_present(env: Env, target: object) -> object:
            value = find(target, key_of(env))
            if value is not MISSING:
                env[1].charge(c.SELECT)
            return value

        def test(env: Env, target: object) -> object:
            env[1].charge(c.SELECT)
            return find(target, key_of(env)) is not MISSING

        return test if qualifier.test else select, select_present, qualifier.optional

    # --- operators and calls

    def _equality(self, node: Equality) -> Closure:
        operands = [self.build(node.left), self.build(node.right)]
        negated = node.negated

        def compared(env: Env) -> bool:
            values, failed = _arguments(env, operands)
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

    def _invoke(self, node: Invoke) -> Closure:
        arguments = [self.build(argument) for argument in node.arguments]
        cost, call = c.cost_of_call(node.function, node.overload), node.call
        needs_result, stops, lenient = cost in c.NEEDS_RESULT, node.stops, node.lenient

        def invoked(env: Env) -> object:
            values, failed = _leading(env, arguments) if stops else _arguments(env, arguments)
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


def _arguments(env: Env, closures: list[Closure]) -> tuple[list[object], EvalError | None]:
    """All values, with FAILED for those that failed, and the first error."""
    values, failed = [], None
    for closure in closures:
        try:
            values.append(closure(env))
        except EvalError as error:
            values.append(c.FAILED)
            failed = failed or error
    return values, failed


def _leading(env: Env, closures: list[Closure]) -> tuple[list[object], EvalError | None]:
    """Values up to the first that failed, FAILED in its place."""
    values: list[object] = []
    for closure in closures:
        try:
            values.append(closure(env))
        except EvalError as error:
            values.append(c.FAILED)
            return values, error
    return values, None
