"""Analyze one CEL selector: attributes, clauses and constants.

In the syntax tree (`dra_driver.scheduler.cel.parser`), ``device.attributes["d"].name``, ``["name"]``, ``.?name``,
``has()`` and names bound by ``cel.bind`` are all references.
"""

import difflib
import re
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct, field

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError
from dra_driver.core.quantity import quantity_in
from dra_driver.kubectl.lint.catalog_devices import KnownDevice
from dra_driver.kubectl.lint.manifest import Spot
from dra_driver.scheduler.cel import FUNCTION_SINCE, Program, compile_selector, split_conjuncts
from dra_driver.scheduler.cel.parser import parse
from dra_driver.scheduler.cel.syntax import Call, Expr, Fold, Ident, ListLiteral, Select, SourceText, children
from dra_driver.scheduler.cel.syntax import Literal as Constant

Table = Literal["attributes", "capacity"]
COMPARISONS: Final = frozenset({"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in"})


class Reference(Struct, frozen=True):
    """A read of an attribute or capacity. ``tested``: a missing value does not cause an error."""

    table: Table
    domain: str
    name: str
    offset: int
    tested: bool

    def full_name(self, driver: str) -> str:
        """Return the name as a device of ``driver`` publishes it."""
        return self.name if self.domain == driver else f"{self.domain}/{self.name}"


class Comparison(Struct, frozen=True):
    """A comparison of a reference with constants. ``offset`` is the position of the first constant."""

    function: str
    reference: Reference
    constants: tuple[object, ...]
    offset: int


class ExpressionReads(Struct):
    """References and names in an expression, each with its offset.

    ``drivers`` are compared with ``device.driver``; ``constructors`` are calls of quantity() and semver() with a
    constant; ``younger`` are calls of functions that some versions of Kubernetes lack.
    """

    references: list[Reference] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    constructors: list[tuple[str, str, int]] = field(default_factory=list)
    domains: list[tuple[str, int]] = field(default_factory=list)
    drivers: list[tuple[str, int]] = field(default_factory=list)
    constants: set[str] = field(default_factory=set)
    younger: list[tuple[str, int]] = field(default_factory=list)

    @classmethod
    def of(cls, text: str) -> "ExpressionReads":
        """Raises CelSyntaxError."""
        found = cls()
        found.visit(parse(SourceText(text)), {})
        return found

    def visit(self, node: Expr, names: dict[str, Expr]) -> None:
        """``names`` maps names bound by ``cel.bind`` to their expressions."""
        if isinstance(node, Constant) and isinstance(node.value, str):
            self.constants.add(node.value)
        if (domain := _domain(node, names)) is not None:
            self.domains.append((domain[1], domain[2]))
        reference = _reference(node, names)
        if reference is not None:
            self.references.append(reference)
        if isinstance(node, Call):
            self._call(node, names)
        if isinstance(node, Fold) and not node.variables:
            self.visit(node.initial, names)
            self.visit(node.result, {**names, node.accumulator: node.initial})
            return
        for child in children(node):
            self.visit(child, names)

    def _call(self, node: Call, names: dict[str, Expr]) -> None:
        if node.function in FUNCTION_SINCE:
            self.younger.append((node.function, node.offset))
        argument = node.arguments[0] if node.arguments else None
        if node.function in {"quantity", "semver"} and len(node.arguments) == 1 and isinstance(argument, Constant):
            if isinstance(argument.value, str):
                self.constructors.append((node.function, argument.value, argument.offset))
        elif node.function in COMPARISONS and len(node.arguments) == 2:
            self._comparison(node, names)

    def _comparison(self, node: Call, names: dict[str, Expr]) -> None:
        left, right = node.arguments
        for one, other in ((left, right), (right, left)):
            reference = _reference(one, names)
            constants = _constants(other)
            if reference is not None and constants:
                where = other.elements[0].offset if isinstance(other, ListLiteral) else other.offset
                self.comparisons.append(Comparison(node.function, reference, constants, where))
            if node.function == "_==_" and _is_driver(one) and isinstance(other, Constant) and constants:
                self.drivers.append((str(constants[0]), other.offset))


class ParsedClause(Struct, frozen=True):
    """One operand of ``&&``, which can be evaluated separately."""

    text: str
    offset: int
    program: Program
    reads: ExpressionReads

    @property
    def quantities(self) -> list[str]:
        return [value for name, value, _ in self.reads.constructors if name == "quantity"]


class ParsedSelector(Struct, frozen=True):
    """A selector that compiles."""

    spot: Spot
    text: str
    program: Program
    reads: ExpressionReads
    clauses: Sequence[ParsedClause]


def parse_selector(spot: Spot, text: str) -> ParsedSelector:
    """Raises CelSyntaxError when the expression does not compile."""
    return ParsedSelector(spot, text, compile_selector(text), ExpressionReads.of(text), _clauses(text))


def _clauses(text: str) -> list[ParsedClause]:
    found: list[ParsedClause] = []
    end = 0
    for part in split_conjuncts(text):
        start = text.index(part, end)
        end = start + len(part)
        try:
            found.append(ParsedClause(part, start, compile_selector(part), ExpressionReads.of(part)))
        except CelSyntaxError:
            return []  # an operand is invalid on its own: the whole expression is one clause
    return found


def _is_driver(node: Expr) -> bool:
    if not isinstance(node, Select) or node.field != "driver":
        return False
    return isinstance(node.operand, Ident) and node.operand.name == "device"


def _constants(node: Expr) -> tuple[object, ...]:
    """Return the constants; for an unparsed number, any number of its type."""
    nodes = node.elements if isinstance(node, ListLiteral) else [node]
    found = [item for item in nodes if isinstance(item, Constant)]
    if len(found) < len(nodes):
        return ()
    return tuple(item.value if item.number is None else 1.5 if "." in item.number[1] else 1 for item in found)


def _steps(node: Expr, names: dict[str, Expr]) -> tuple[Expr, str, int, bool] | None:
    """Return one level of access: operand, key, offset, and whether the key is optional."""
    node = _resolved(node, names)
    if isinstance(node, Select):
        return node.operand, node.field, node.offset, node.test
    if not isinstance(node, Call):
        return None
    if node.function in {"_[_]", "_[?_]", "_?._"} and isinstance(key := node.arguments[1], Constant):
        if isinstance(key.value, str):
            return node.arguments[0], key.value, key.offset, node.function != "_[_]"
    elif node.function == "@in" and isinstance(key := node.arguments[0], Constant) and isinstance(key.value, str):
        return node.arguments[1], key.value, key.offset, True
    return None


def _resolved(node: Expr, names: dict[str, Expr]) -> Expr:
    seen = 0
    while isinstance(node, Ident) and node.name in names and seen < len(names):
        node, seen = names[node.name], seen + 1
    return node


def _table(node: Expr, names: dict[str, Expr]) -> Table | None:
    step = _steps(node, names)
    if step is None or step[1] not in {"attributes", "capacity"}:
        return None
    base = _resolved(step[0], names)
    if not isinstance(base, Ident) or base.name != "device":
        return None
    return "attributes" if step[1] == "attributes" else "capacity"


def _domain(node: Expr, names: dict[str, Expr]) -> tuple[Table, str, int] | None:
    step = _steps(node, names)
    table = _table(step[0], names) if step is not None else None
    return None if step is None or table is None else (table, step[1], step[2])


def _reference(node: Expr, names: dict[str, Expr]) -> Reference | None:
    if isinstance(node, Ident):
        return None  # counted at the binding of the name
    step = _steps(node, names)
    domain = _domain(step[0], names) if step is not None else None
    if step is None or domain is None:
        return None
    optional = step[3] or _is_optional(step[0], names)
    return Reference(domain[0], domain[1], step[1], step[2], optional)


def _is_optional(node: Expr, names: dict[str, Expr]) -> bool:
    """Return whether an earlier access is optional, which makes later accesses optional."""
    while (step := _steps(node, names)) is not None:
        inner = _resolved(node, names)
        if isinstance(inner, Call) and inner.function in {"_?._", "_[?_]"}:
            return True
        node = step[0]
    return False


# --- Evaluation on known devices. On catalog devices, clauses with machine-specific values are true.

COST_BUDGET: Final = 1_000_000
"""Limit for one expression over all devices, about 2 s; in cost units, so that equal runs give equal results."""

_MISSING: Final = re.compile(r"no such key: (\S+)\Z")


class MatchResult(Struct, frozen=True, kw_only=True):
    """Result of a chain on a device: ``selector`` is the first that is not true; ``failed`` are all false clauses."""

    device: KnownDevice
    verdict: Literal["yes", "no", "fails"]
    selector: ParsedSelector | None = None
    failed: tuple[ParsedClause, ...] = ()
    problem: str = ""

    @property
    def missing(self) -> str:
        """The missing attribute or capacity that fails the evaluation, if any."""
        found = _MISSING.search(self.problem)
        return found[1] if found else ""


def evaluate_chain(selectors: Sequence[ParsedSelector], devices: Sequence[KnownDevice]) -> list[MatchResult]:
    """Evaluate the chain on the devices; costly expressions on fewer devices, at least one."""
    if not devices:
        return []
    cost = max((item.program.cost(devices[0].view) for item in selectors), default=0)
    return [_evaluate_chain(selectors, device) for device in devices[: max(1, COST_BUDGET // max(1, cost))]]


def matching_devices(selectors: Sequence[ParsedSelector], devices: Sequence[KnownDevice]) -> list[KnownDevice]:
    return [result.device for result in evaluate_chain(selectors, devices) if result.verdict == "yes"]


def _evaluate_chain(selectors: Sequence[ParsedSelector], device: KnownDevice) -> MatchResult:
    failed: list[ParsedClause] = []
    first: ParsedSelector | None = None
    for item in selectors:
        try:
            good = item.program.evaluate(device.view)
        except CelEvaluationError as error:
            if first is not None:
                break  # the scheduler stops before this selector
            if not _is_unknown_in_catalog(str(error), device):
                return MatchResult(device=device, verdict="fails", selector=item, problem=str(error))
            good = False
        if good:
            continue
        wrong = [clause for clause in item.clauses if _is_false(clause, device)]
        if not wrong and (item.clauses or any(_varies(reference, device) for reference in item.reads.references)):
            continue  # false only because of machine-specific values
        first = first or item
        failed += wrong
    verdict: Literal["yes", "no"] = "yes" if first is None else "no"
    return MatchResult(device=device, verdict=verdict, selector=first, failed=tuple(failed))


def _is_false(clause: ParsedClause, device: KnownDevice) -> bool:
    if any(_varies(reference, device) for reference in clause.reads.references):
        return False
    for view in device.extremes or (device.view,):
        try:
            if clause.program.evaluate(view):
                return False
        except CelEvaluationError as error:
            if _is_unknown_in_catalog(str(error), device):
                return False
    return True


def _varies(reference: Reference, device: KnownDevice) -> bool:
    name = reference.full_name(device.driver)
    return name in device.varying or (name in device.unsure and not (device.extremes and name == "memory"))


def _is_unknown_in_catalog(problem: str, device: KnownDevice) -> bool:
    found = _MISSING.search(problem)
    return found is not None and found[1] in device.unsure


def nearest(results: Sequence[MatchResult]) -> MatchResult | None:
    """Return the nearest device that does not match: fewest false clauses, then the smallest gap."""
    candidates = [result for result in results if result.verdict == "no" and not result.device.bare and result.failed]
    return min(candidates, key=lambda result: (len(result.failed), _gap(result)), default=None)


def _gap(result: MatchResult) -> float:
    return sum(
        min((_distance(seen(each, result.device), clause) for each in clause.reads.references), default=1.0)
        for clause in result.failed
    )


def _distance(value: object, clause: ParsedClause) -> float:
    if value is None:
        return 1.0
    if clause.quantities:
        have, want = quantity_in(value), quantity_in(clause.quantities[0])
        if have is None or want is None:
            return 1.0
        most = max(abs(have.nano), abs(want.nano))
        return abs(have.nano - want.nano) / most if most else 0.0
    return 1.0 - difflib.SequenceMatcher(None, str(value), clause.text[-120:]).ratio() * 0.5


def seen(reference: Reference, device: KnownDevice) -> object:
    entry = (device.wire.get(reference.table) or {}).get(reference.full_name(device.driver))
    if not isinstance(entry, dict):
        return None
    return entry.get("value") if reference.table == "capacity" else next(iter(entry.values()), None)


def values_seen(clause: ParsedClause, device: KnownDevice) -> str:
    """Return ``memory is 4864Mi`` for each value that the clause reads."""
    shown = {
        reference.name: f"{reference.name} is {value}" if value is not None else f"it has no {reference.name}"
        for reference in clause.reads.references
        for value in (seen(reference, device),)
    }
    return ", ".join(list(shown.values())[:4])
