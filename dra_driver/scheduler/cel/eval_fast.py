"""Evaluation without counting cost, for expressions that cannot reach the cost limit (see `cost_bound`).

An operator that has failed does not evaluate its other operand. Frequent shapes (a field of the device, an attribute
compared with a constant, ``&&`` of two) have closures of their own, because they run for every device of every node.
"""

from typing import Final

from dra_driver.scheduler.cel.eval_common import Closure, ClosureBuilder, Env, Failure, Selection, decided
from dra_driver.scheduler.cel.ir import Chain, Constant, Equality, Invoke, IrNode, Logic, Qualifier
from dra_driver.scheduler.cel.operators import equal, find, lookup
from dra_driver.scheduler.cel.values import MISSING, AbortedError, EvalError, reset_work

_QUANTITIES: Final = frozenset({"quantity", "add", "sub"})


class FastBuilder(ClosureBuilder):
    """Builds the uncounted closures of one expression.

    ``asks_integers`` says that the expression asks whether quantities are integers. Then each call of quantity()
    makes a value of its own, because a comparison may change it.
    """

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

    def _selection(self, qualifier: Qualifier, key_of: Closure) -> Selection:
        def select(env: Env, target: object) -> object:
            return lookup(target, key_of(env))

        def select_present(env: Env, target: object) -> object:
            return find(target, key_of(env))

        def test(env: Env, target: object) -> object:
            return find(target, key_of(env)) is not MISSING

        return test if qualifier.test else select, select_present, qualifier.optional

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
            # A term failed or is no bool: evaluate both again in the general way. Evaluation has no side effects.
            return slowly(env)

        return both

    def _equality(self, node: Equality) -> Closure:
        left, right = self.build(node.left), self.build(node.right)
        if isinstance(node.right, Constant) and type(node.right.value) is str:
            return _equals_text(left, node.right.value, node.negated)
        if not node.negated:
            return lambda env: equal(left(env), right(env))

        def differs(env: Env) -> bool:
            one, two = left(env), right(env)
            try:
                return not equal(one, two)
            except EvalError:
                return True

        return differs

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
        """The value or error of a call whose arguments are all constant; None for other nodes."""
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

    def differs(env: Env) -> bool:
        value = left(env)
        if type(value) is str:
            return bool(value != text)
        try:
            return not equal(value, text)
        except EvalError:
            return True

    return differs if negated else same


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
