"""What the fast and the metered evaluator share: the walk over the IR, variables, selections, literals and loops.

`ClosureBuilder` turns an IR tree into nested closures. `eval_fast` and `eval_metered` override what differs between
them: how a selection, an operator and a call is evaluated and whether its cost is charged. Results and errors are the
same in both."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Final

from dra_driver.scheduler.cel import wellknown
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
from dra_driver.scheduler.cel.operators import check_key, unwrapped
from dra_driver.scheduler.cel.values import (
    LISTS,
    MAPS,
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
