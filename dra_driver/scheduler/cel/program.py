"""Compile and evaluate one device selector as the scheduler does.

The result of a selector must be a bool. Limits: 10 KiB of text (CELSelectorExpressionMaxLength of k8s.io/api
resource/v1), nesting, and cost (CELSelectorExpressionMaxCost). ``device`` follows k8s.io/dynamic-resource-allocation
cel/compile.go: names without a domain are in the driver's; an unknown domain is an empty map, a missing name in a
domain an error.
"""

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from functools import lru_cache
from typing import Any, Final

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError
from dra_driver.core.semver import Semver
from dra_driver.scheduler.cel import types as t
from dra_driver.scheduler.cel.budget import COSTLY, current_budget
from dra_driver.scheduler.cel.check import Checker, validate
from dra_driver.scheduler.cel.cost import COST_LIMIT, ORDINARY, cost_bound
from dra_driver.scheduler.cel.eval_common import UNSET, Closure, Env
from dra_driver.scheduler.cel.evaluators import FastBuilder, Meter, MeteredBuilder
from dra_driver.scheduler.cel.ir import FIRST_SLOT, IrBuilder, IrNode
from dra_driver.scheduler.cel.libraries.convert import to_dyn
from dra_driver.scheduler.cel.libraries.kube import forget_promotions, of_capacity
from dra_driver.scheduler.cel.operators import Function
from dra_driver.scheduler.cel.parser import parse
from dra_driver.scheduler.cel.signatures import LACKS_NONE
from dra_driver.scheduler.cel.syntax import SourceText
from dra_driver.scheduler.cel.values import (
    AbortedError,
    DomainMap,
    EvalError,
    StringMap,
    reset_work,
    type_name,
    well_formed,
)

Wire = Mapping[str, Any]  # a device as an API server returns it, or a part of it


class DeviceView:
    """One device in the form that programs evaluate. Thread-safe. ``lists``: the gate DRAListTypeAttributes is on.
    ``problem`` is a sentence about an attribute that the scheduler cannot read; it fails every selector. ``ordinary``:
    texts and maps are within ``ORDINARY``."""

    __slots__ = ("env", "ordinary", "problem")

    def __init__(self, driver: str, device: Wire, *, lists: bool = False) -> None:
        """Raises ValueError on a malformed quantity or version."""
        self.problem = ""
        self.ordinary = len(driver) <= ORDINARY
        attributes = {
            name: self._attribute(name, value, lists) for name, value in (device.get("attributes") or {}).items()
        }
        capacity = {name: of_capacity(str(value["value"])) for name, value in (device.get("capacity") or {}).items()}
        self.ordinary = self.ordinary and max(len(attributes), len(capacity)) <= ORDINARY
        self.env: Env = [
            StringMap(
                {
                    "driver": driver,
                    "attributes": _by_domain(driver, attributes),
                    "capacity": _by_domain(driver, capacity),
                    "allowMultipleAllocations": bool(device.get("allowMultipleAllocations") or False),
                }
            )
        ]

    def _attribute(self, name: str, value: Wire, lists: bool) -> object:
        text = value.get("string")
        if text is not None:
            self.ordinary = self.ordinary and len(text) <= ORDINARY
            return well_formed(text)
        for kind in ("int", "bool"):
            if value.get(kind) is not None:
                return value[kind]
        if value.get("version") is not None:
            return Semver.parse(value["version"])
        if lists and (found := self._list(value)) is not None:
            return found
        self.problem = self.problem or f"attribute {name}: unsupported attribute value of type {'/'.join(value) or '-'}"
        return None

    def _list(self, value: Wire) -> list[object] | None:
        """Return None for a value other than a list of a type that the API has."""
        for kind, read in _LISTS.items():
            items = value.get(kind)
            if isinstance(items, list):
                texts = items if kind in {"strings", "versions"} else ()
                self.ordinary = (
                    self.ordinary and len(items) <= ORDINARY and all(len(text) <= ORDINARY for text in texts)
                )
                return [read(item) for item in items]
        return None


_LISTS: Final[Mapping[str, Function]] = {
    "ints": to_dyn,
    "bools": to_dyn,
    "strings": well_formed,
    "versions": Semver.parse,
}


def _by_domain(driver: str, values: Mapping[str, object]) -> DomainMap:
    domains: dict[object, object] = {}
    for name, value in values.items():
        domain, separator, identifier = name.partition("/")
        if not separator:
            domain, identifier = driver, name
        held = domains.get(domain)
        if not isinstance(held, StringMap):
            held = domains[domain] = StringMap({})
        held.data[identifier] = value
    return DomainMap(domains)


MAX_LENGTH: Final = 10 * 1024  # longest expression in bytes (CELSelectorExpressionMaxLength)

_HEADROOM: Final = 0.9
FAILURES: Final = (
    EvalError,
    AbortedError,
    RecursionError,
    TypeError,
    AttributeError,
    ValueError,
    KeyError,
    OverflowError,
    MemoryError,
)


class Program:
    """A compiled expression. Thread-safe: evaluations share no state."""

    __slots__ = ("_costly", "_fast", "_ir", "_metered", "_slots", "_tracks", "expression")

    def __init__(self, expression: str, ir: IrNode, slots: int) -> None:
        self.expression = expression
        self._ir = ir
        self._slots = slots
        self._tracks = "isInteger" in expression or "asInteger" in expression
        most = cost_bound(ir)
        cheap = most is not None and most <= COST_LIMIT * _HEADROOM
        self._costly = most is None or most > COSTLY
        self._fast: Closure | None = FastBuilder(self._tracks).build(ir) if cheap else None
        self._metered: Closure | None = None

    def evaluate(self, device: DeviceView) -> bool:
        """Return whether the device is selected. Raises CelEvaluationError, which ends the pod's scheduling attempt,
        and SelectorBudgetError (`selector_budget`)."""
        if self._costly and (budget := current_budget()) is not None:
            with budget.spending(self.expression):
                return self._evaluate(device)
        return self._evaluate(device)

    def _evaluate(self, device: DeviceView) -> bool:
        fast = self._fast
        try:
            if fast is None or not device.ordinary or device.problem:
                result = self._counted(device, Meter())
            elif self._slots == FIRST_SLOT and not self._tracks:
                result = fast(device.env)
            else:
                self._prepare()
                result = fast([*device.env, None, *[UNSET] * (self._slots - FIRST_SLOT)])
        except FAILURES as error:
            raise self._failed(error) from error
        return self._answer(result)

    def cost(self, device: DeviceView) -> int:
        """The cost of an evaluation in units of the limit; of a failed evaluation the cost up to the failure. Raises
        SelectorBudgetError."""
        meter, budget = Meter(), current_budget() if self._costly else None
        with budget.spending(self.expression) if budget is not None else nullcontext(), suppress(*FAILURES):
            self._counted(device, meter)
        return meter.spent

    def _answer(self, result: object) -> bool:
        if result is True or result is False:
            return result
        raise self._failed(EvalError(f"the result is a {type_name(result)}, expected a bool"))

    def _counted(self, device: DeviceView, meter: Meter) -> object:
        if device.problem:
            raise EvalError(device.problem)
        if self._metered is None:
            # Two threads may build this at the same time; both results are equal.
            self._metered = MeteredBuilder().build(self._ir)
        self._prepare()
        return self._metered([*device.env, meter, *[UNSET] * (self._slots - FIRST_SLOT)])

    def _prepare(self) -> None:
        reset_work()
        if self._tracks:
            forget_promotions()

    def _failed(self, error: Exception) -> CelEvaluationError:
        message = str(error)
        if isinstance(error, RecursionError):
            message = "nested too deeply"
        elif not isinstance(error, EvalError | AbortedError):
            # A value of a type that the checker excluded, which cel-go's guards report as a missing overload.
            message = f"no such overload: {error}"
        return CelEvaluationError(f"CEL expression {_shown(self.expression)}: {message}")


@lru_cache(maxsize=1024)
def compile_selector(expression: str, lacks: frozenset[str] = LACKS_NONE) -> Program:
    """The program of an expression, cached by its text. ``lacks`` are functions that the version of Kubernetes does not
    have. Raises CelSyntaxError."""
    size = len(expression.encode("utf-8", "surrogatepass"))
    if size > MAX_LENGTH:
        raise CelSyntaxError(f"CEL expression of {size} bytes is too long: at most {MAX_LENGTH} are allowed")
    source = SourceText(well_formed(expression))
    try:
        tree = parse(source)
        Checker(source, lacks=lacks).run(tree)
        validate(source, tree)
        if tree.type not in (t.BOOL, t.ANY):
            raise source.error(0, f"a selector must be a bool or a bare attribute, this is a value of type {tree.type}")
        builder = IrBuilder(source)
        return Program(expression, builder.build(tree), builder.slots)
    except RecursionError as error:
        raise _too_deep(expression) from error


def _too_deep(expression: str) -> CelSyntaxError:
    return CelSyntaxError(f"CEL expression does not compile: nested too deeply: {_shown(expression)}")


def _shown(expression: str) -> str:
    flat = " ".join(expression.split())
    return repr(flat if len(flat) <= 200 else flat[:200] + "…")
