"""Evaluates selectors on known devices, and finds the nearest device.

On a catalog device, a clause that reads a value which differs between machines counts as true. Costly expressions are
evaluated on fewer devices; the limit is in cost units, so that equal runs give equal results.
"""

import difflib
import re
from collections.abc import Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from dra_driver.core.errors import CelEvaluationError
from dra_driver.core.quantity import Quantity
from dra_driver.kubectl.lint.catalog_devices import KnownDevice
from dra_driver.kubectl.lint.expressions import ParsedClause, ParsedSelector, Reference
from dra_driver.scheduler.cel import DeviceView

COST_BUDGET: Final = 1_000_000
"""Limit of cost units for one expression over all devices; at most about two seconds."""

_MISSING: Final = re.compile(r"no such key: (\S+)\Z")


class MatchResult(Struct, frozen=True, kw_only=True):
    """Result of a chain of selectors on a device.

    ``selector`` is the first one with the verdict ``no`` or ``fails``; ``failed`` are all false clauses.
    """

    device: KnownDevice
    verdict: Literal["yes", "no", "fails"]
    selector: ParsedSelector | None = None
    failed: tuple[ParsedClause, ...] = ()
    problem: str = ""

    @property
    def missing(self) -> str:
        """The name of the missing attribute or capacity, if that is why the evaluation fails."""
        found = _MISSING.search(self.problem)
        return found[1] if found else ""


def evaluate_chain(selectors: Sequence[ParsedSelector], devices: Sequence[KnownDevice]) -> list[MatchResult]:
    """Evaluates the chain on the devices; a selector is evaluated only if all earlier ones are true.

    Costly expressions are evaluated on fewer devices, but at least on one.
    """
    if not devices:
        return []
    cost = max((item.program.cost(devices[0].view) for item in selectors), default=0)
    return [_evaluate_chain(selectors, device) for device in devices[: max(1, COST_BUDGET // max(1, cost))]]


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
        if item.clauses and not wrong:
            continue  # only values that differ between machines made it false
        if not item.clauses and any(_varies(reference, device) for reference in item.references):
            continue
        first = first or item
        failed += wrong
    verdict: Literal["yes", "no"] = "yes" if first is None else "no"
    return MatchResult(device=device, verdict=verdict, selector=first, failed=tuple(failed))


def _is_false(clause: ParsedClause, device: KnownDevice) -> bool:
    if any(_varies(reference, device) for reference in clause.references):
        return False
    return all(_is_false_on(clause, device, view) for view in device.extremes or (device.view,))


def _is_false_on(clause: ParsedClause, device: KnownDevice, view: DeviceView) -> bool:
    try:
        return not clause.program.evaluate(view)
    except CelEvaluationError as error:
        return not _is_unknown_in_catalog(str(error), device)


def _varies(reference: Reference, device: KnownDevice) -> bool:
    name = reference.full_name(device.driver)
    return name in device.varying or (name in device.unsure and not (device.extremes and name == "memory"))


def _is_unknown_in_catalog(problem: str, device: KnownDevice) -> bool:
    found = _MISSING.search(problem)
    return found is not None and found[1] in device.unsure


def nearest(results: Sequence[MatchResult]) -> MatchResult | None:
    """Returns the nearest device that does not match: fewest false clauses, then the smallest gap."""
    candidates = [result for result in results if result.verdict == "no" and not result.device.bare and result.failed]
    return min(candidates, key=lambda result: (len(result.failed), _gap(result)), default=None)


def _gap(result: MatchResult) -> float:
    """Returns the distance of the values, 0 to 1 for each clause."""
    total = 0.0
    for clause in result.failed:
        gaps = [_distance(seen(reference, result.device), clause) for reference in clause.references]
        total += min(gaps, default=1.0)
    return total


def _distance(value: Any, clause: ParsedClause) -> float:
    if value is None:
        return 1.0
    if clause.quantities:
        try:
            have, want = Quantity.parse(str(value)), Quantity.parse(clause.quantities[0])
        except ValueError:
            return 1.0
        most = max(abs(have.nano), abs(want.nano))
        return abs(have.nano - want.nano) / most if most else 0.0
    return 1.0 - difflib.SequenceMatcher(None, str(value), clause.text[-120:]).ratio() * 0.5


def seen(reference: Reference, device: KnownDevice) -> Any:
    """Returns the device's value, None if it has none."""
    entry = (device.wire.get(reference.table) or {}).get(reference.full_name(device.driver))
    if not isinstance(entry, dict):
        return None
    return entry.get("value") if reference.table == "capacity" else next(iter(entry.values()), None)


def values_seen(clause: ParsedClause, device: KnownDevice) -> str:
    """Returns ``memory is 4864Mi`` for each value that the clause reads."""
    shown = {
        reference.name: f"{reference.name} is {value}" if value is not None else f"it has no {reference.name}"
        for reference in clause.references
        for value in (seen(reference, device),)
    }
    return ", ".join(list(shown.values())[:4])
