"""Compiles and evaluates any expression over named variables, such as those of a ValidatingAdmissionPolicy.

Variables are of type dyn, as ``object`` is to an API server for kinds without a schema. The environment is that of
device selectors (``signatures``) without ``device``; an expression that needs more (``authorizer``, a Kubernetes list
type) does not compile here. Every evaluation is metered: the limit of one call is the same for both
(k8s.io/apiserver pkg/apis/cel PerCallLimit, resource/v1 CELSelectorExpressionMaxCost).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dra_driver.core.errors import CelEvaluationError
from dra_driver.scheduler.cel import types as t
from dra_driver.scheduler.cel.check import Checker, Variable
from dra_driver.scheduler.cel.closures import UNSET
from dra_driver.scheduler.cel.eval_metered import Meter, MeteredBuilder
from dra_driver.scheduler.cel.ir import FIRST_SLOT
from dra_driver.scheduler.cel.ir_builder import IrBuilder
from dra_driver.scheduler.cel.libraries.kube import forget_promotions
from dra_driver.scheduler.cel.parser import parse
from dra_driver.scheduler.cel.program import FAILURES
from dra_driver.scheduler.cel.source import SourceText
from dra_driver.scheduler.cel.validate import validate
from dra_driver.scheduler.cel.values import StringMap, well_formed
from dra_driver.scheduler.cel.work_limits import reset_work


class Expression:
    """A compiled expression. Thread-safe: evaluations share no state."""

    __slots__ = ("_names", "_run", "_slots", "text")

    def __init__(self, text: str, names: Sequence[str]) -> None:
        """Raises CelSyntaxError."""
        self.text = text
        self._names = tuple(names)
        source = SourceText(well_formed(text))
        tree = parse(source)
        Checker(source, {name: Variable(name, t.DYN) for name in self._names}).run(tree)
        validate(source, tree)
        builder = IrBuilder(source, {name: FIRST_SLOT + at for at, name in enumerate(self._names)})
        self._run = MeteredBuilder().build(builder.build(tree))
        self._slots = builder.slots

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The value, in the form of `value_of`. Raises CelEvaluationError."""
        return self.evaluate_counting(values)[0]

    def evaluate_counting(self, values: Mapping[str, Any]) -> tuple[Any, int]:
        """The value and what it cost, in units of the limit of one call. Raises CelEvaluationError."""
        reset_work()
        forget_promotions()
        meter = Meter()
        given = [values[name] for name in self._names]
        try:
            found = self._run([None, meter, *given, *[UNSET] * (self._slots - FIRST_SLOT - len(given))])
        except FAILURES as error:
            raise CelEvaluationError(f"CEL expression: {str(error) or type(error).__name__}") from error
        return found, meter.spent


def value_of(parsed: Any) -> Any:
    """Parsed JSON as CEL values. Integers beyond 64 bits are doubles, as Kubernetes reads them."""
    if isinstance(parsed, Mapping):
        return StringMap({well_formed(str(key)): value_of(value) for key, value in parsed.items()})
    if isinstance(parsed, list | tuple):
        return [value_of(item) for item in parsed]
    if isinstance(parsed, int) and not isinstance(parsed, bool) and not -(2**63) <= parsed < 2**63:
        return float(parsed)
    return well_formed(parsed) if isinstance(parsed, str) else parsed
