"""The CEL engine for other questions than a selector's: expressions over named variables, and selectors whose cost is
always counted.

The variables of an `Expression` are of type dyn, as ``object`` of a ValidatingAdmissionPolicy is for kinds without a
schema; ``authorizer`` and Kubernetes list types do not compile here. Every evaluation is metered (PerCallLimit of
k8s.io/apiserver pkg/apis/cel).
"""

from collections.abc import Mapping, Sequence

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError
from dra_driver.scheduler.cel import DeviceView, Program
from dra_driver.scheduler.cel import types as t
from dra_driver.scheduler.cel.check import Checker, validate
from dra_driver.scheduler.cel.eval_common import UNSET
from dra_driver.scheduler.cel.evaluators import Meter, MeteredBuilder
from dra_driver.scheduler.cel.ir import FIRST_SLOT, IrBuilder
from dra_driver.scheduler.cel.libraries.kube import forget_promotions
from dra_driver.scheduler.cel.parser import parse
from dra_driver.scheduler.cel.program import FAILURES
from dra_driver.scheduler.cel.syntax import SourceText, Variable
from dra_driver.scheduler.cel.values import StringMap, reset_work, well_formed


class Expression:
    """A compiled expression. Thread-safe: evaluations share no state."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self._names = tuple(names)
        source = SourceText(well_formed(text))
        try:
            tree = parse(source)
            Checker(source, {name: Variable(name, t.DYN) for name in self._names}).run(tree)
            validate(source, tree)
            builder = IrBuilder(source, {name: FIRST_SLOT + at for at, name in enumerate(self._names)})
            self._run = MeteredBuilder().build(builder.build(tree))
        except RecursionError as error:
            raise CelSyntaxError("CEL expression does not compile: nested too deeply") from error
        self._slots = builder.slots

    def evaluate(self, values: Mapping[str, object]) -> object:
        """The value, in the form of `value_of`. Raises CelEvaluationError."""
        return self.evaluate_counting(values)[0]

    def evaluate_counting(self, values: Mapping[str, object]) -> tuple[object, int]:
        """Return the value and its cost, in units of the limit of one call. Raises CelEvaluationError."""
        reset_work()
        forget_promotions()
        meter = Meter()
        given = [values[name] for name in self._names]
        try:
            found = self._run([None, meter, *given, *[UNSET] * (self._slots - FIRST_SLOT - len(given))])
        except FAILURES as error:
            raise CelEvaluationError(f"CEL expression: {str(error) or type(error).__name__}") from error
        return found, meter.spent


def value_of(parsed: object) -> object:
    """Parsed JSON as CEL values. Integers beyond 64 bits are doubles, as Kubernetes reads them."""
    if isinstance(parsed, Mapping):
        return StringMap({well_formed(str(key)): value_of(value) for key, value in parsed.items()})
    if isinstance(parsed, list | tuple):
        return [value_of(item) for item in parsed]
    if isinstance(parsed, int) and not isinstance(parsed, bool) and not -(2**63) <= parsed < 2**63:
        return float(parsed)
    return well_formed(parsed) if isinstance(parsed, str) else parsed


def evaluate_counting(program: Program, device: DeviceView) -> bool:
    """The result of `Program.evaluate`, always metered."""
    try:
        return program._answer(program._counted(device, Meter()))
    except FAILURES as error:
        raise program._failed(error) from error
