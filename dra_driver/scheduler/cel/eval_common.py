"""What the fast and the metered evaluator share: the walk over the IR, variables, selections, literals and loops.

`ClosureBuilder` turns an IR tree into nested closures. `eval_fast` and `eval_metered` override what differs between
them: how a selection, an operator and a call is evaluated and whether its cost is charged. Results and errors are the
same in both.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from dra_driver.scheduler.cel.access import check_key, unwrapped
from dra_driver.scheduler.cel.closures import (
    UNSET,
    Closure,
    Failure,
    build_list,
    build_map,
    build_message,
    decided,
    frozen,
    iterated,
    started,
    stored,
    truth,
)
from dra_driver.scheduler.cel.cost import LIST, MAP, MESSAGE
from dra_driver.scheduler.cel.ir import (
    Chain,
    Choice,
    Constant,
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
from dra_driver.scheduler.cel.values import MISSING, NONE, Optional

Selection = tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any], bool]
"""How a qualifier is applied to (environment, target): the value or EvalError; the value or MISSING; is it optional."""


class ClosureBuilder(ABC):
    """Builds the closure of each IR node of one expression. Not reused.

    The method for a node class is ``_`` and the class name in lower case. ``initial`` holds the closures of the first
    values of accumulators, by slot.
    """

    def __init__(self) -> None:
        self.initial: dict[int, Closure] = {}

    def build(self, node: IrNode) -> Closure:
        """The closure of a node and of everything below it."""
        closure: Closure = getattr(self, "_" + type(node).__name__.lower())(node)
        return closure

    # --- what an evaluator overrides

    @abstractmethod
    def _selection(self, qualifier: Qualifier, key_of: Closure) -> Selection:
        """How a field or key of an operand is selected."""

    def _shortcut(self, _node: Chain) -> Closure | None:
        """A faster closure for a chain, None for the general one."""
        return None

    def _charged(self, _cost: int, closure: Closure) -> Closure:
        """The closure, preceded by the charge of a constant cost where costs are counted."""
        return closure

    # --- chains

    def _constant(self, node: Constant) -> Closure:
        value = node.value
        return lambda _env: value

    def _resolved(self, node: IrNode) -> Closure:
        """The closure of a chain or choice, without the cost of reading it."""
        if isinstance(node, Choice):
            return self._chosen(node)
        assert isinstance(node, Chain)  # noqa: S101  IrBuilder makes nothing else here
        direct = self._shortcut(node)
        if direct is not None:
            return direct
        base = self._variable(node.slot) if node.base is None else self.build(node.base)
        if not node.qualifiers and node.base is not None and not isinstance(node.base, OrElse | Invoke | FoldLoop):
            return base
        selections = [self._selection(qualifier, self._key(qualifier)) for qualifier in node.qualifiers]

        def resolved(env: Any) -> Any:
            target = base(env)
            optional = type(target) is Optional
            if optional:
                if not target.present:
                    return target
                target = unwrapped(target)
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

    def _chosen(self, node: Choice) -> Closure:
        condition = self.build(node.condition)
        yes, no = self._resolved(node.yes), self._resolved(node.no)
        return lambda env: yes(env) if truth(condition(env)) else no(env)

    def _variable(self, slot: int) -> Closure:
        initial = self.initial

        def read(env: Any) -> Any:
            value = env[slot]
            if value is UNSET:
                value = env[slot] = started(initial[slot], env)
            if type(value) is Failure:
                raise value.error
            return value

        return read

    def _key(self, qualifier: Qualifier) -> Closure:
        if qualifier.constant:
            constant = qualifier.key
            return lambda _env: constant
        is_chain = isinstance(qualifier.key, Chain | Choice)
        evaluate = self._resolved(qualifier.key) if is_chain else self.build(qualifier.key)
        return lambda env: check_key(evaluate(env))

    # --- operators

    def _logic(self, node: Logic) -> Closure:
        return decided([self.build(term) for term in node.terms], node.decides)

    def _member(self, node: Member) -> Closure:
        item, contains = self.build(node.item), node.contains
        return lambda env: contains(item(env))

    def _orelse(self, node: OrElse) -> Closure:
        first, second = self.build(node.first), self.build(node.second)
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

    def _makelist(self, node: MakeList) -> Closure:
        return self._charged(LIST, build_list([self.build(element) for element in node.elements], node.optional))

    def _makemap(self, node: MakeMap) -> Closure:
        parts = [(self.build(key), self.build(value), optional) for key, value, optional in node.entries]
        return self._charged(MAP, build_map(parts))

    def _makemessage(self, node: MakeMessage) -> Closure:
        parts = [(name, self.build(value), optional) for name, value, optional in node.entries]
        return self._charged(MESSAGE, build_message(node.name, parts))

    def _foldloop(self, node: FoldLoop) -> Closure:
        over = self.build(node.over)
        self.initial[node.accumulator] = self.build(node.initial)
        condition, step, result = self.build(node.condition), self.build(node.step), self.build(node.result)
        slots, accumulator = node.variables, node.accumulator
        endless = isinstance(node.condition, Constant)
        if not slots:  # cel.bind, whose range is the constant []

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
                if not endless and condition(env) is False:
                    break
                env[accumulator] = stored(step, env)
            return frozen(result(env))

        return looped
