"""Rules DRA010, DRA011, DRA016, DRA017 and DRA020 to DRA022: syntax, length, types and names in expressions.

Expressions are evaluated on devices in ``check_matches.py``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dra_driver.core.errors import CelSyntaxError
from dra_driver.core.quantity import Quantity
from dra_driver.core.semver import Semver
from dra_driver.kube.published import STANDARD_DOMAIN
from dra_driver.kubectl.lint.catalog_devices import DRIVER, OTHER_ATTRIBUTES, OTHER_CAPACITIES, KnownDevice
from dra_driver.kubectl.lint.expressions import Comparison, ParsedSelector, Reference, parse_selector
from dra_driver.kubectl.lint.finding import Severity
from dra_driver.kubectl.lint.manifest import Spot
from dra_driver.kubectl.lint.reporter import Reporter
from dra_driver.kubectl.lint.scope import Scope, did_you_mean
from dra_driver.scheduler.cel import FUNCTION_GATE, FUNCTION_SINCE, MAX_LENGTH

_TYPE_OF: Final[Mapping[type, str]] = {str: "string", int: "int", bool: "bool", float: "int"}
_SHOWN_TYPE: Final = {"string": "text", "int": "a number", "bool": "true or false", "version": "a version"}


class SelectorChecker:
    """Checks expressions against the known attributes and capacities."""

    def __init__(self, reporter: Reporter, scope: Scope) -> None:
        self._reporter = reporter
        self._tables = _tables(scope.devices)
        self._drivers = {device.driver for device in scope.devices}
        self._version = scope.known.version

    def chain(self, entries: Sequence[Spot]) -> tuple[list[ParsedSelector], bool]:
        """Returns the selectors that compile, and whether all of them compile without any error."""
        found, valid = [], True
        for entry in entries:
            spot = entry.get("cel", "expression")
            if spot is None or not isinstance(spot.node.value, str):
                valid = False
                continue
            parsed = self._compile(spot, spot.node.value)
            if parsed is None:
                valid = False
                continue
            found.append(parsed)
            before = len(self._reporter.findings)
            self._check_names(parsed)
            valid = valid and all(f.severity != "error" for f in self._reporter.findings[before:])
        return found, valid

    def attributes_of(self, domain: str) -> Mapping[str, str]:
        """Returns the attributes in a domain if all of them are known, otherwise an empty mapping."""
        return self._tables.get(("attributes", domain), {})

    def _compile(self, spot: Spot, text: str) -> ParsedSelector | None:
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > MAX_LENGTH:
            message = f"the expression has {size} bytes; at most {MAX_LENGTH} are allowed"
            self._reporter.add("DRA011", spot, message, hint="split it into several selectors")
            return None
        try:
            return parse_selector(spot, text)
        except CelSyntaxError as error:
            offset = _offset(text, error.line, error.column)
            hint = _hint(error.problem)
            self._reporter.add("DRA010", spot, error.problem, hint=hint, offset=offset)
        except RecursionError:
            self._reporter.add("DRA010", spot, "nested too deeply")
        return None

    def _check_names(self, item: ParsedSelector) -> None:
        for reference in item.reads.references:
            self._reference(item, reference)
        for comparison in item.reads.comparisons:
            self._comparison(item, comparison)
        for name, value, offset in item.reads.constructors:
            self._constant(item, name, value, offset)
        for name, offset in item.reads.younger:
            self._younger(item, name, offset)
        for domain, offset in item.reads.domains:
            known = {*self._drivers, STANDARD_DOMAIN}
            if domain not in known and (close := did_you_mean(domain, known)):
                message = f"no known driver publishes the domain {domain!r}; reading it returns an empty map"
                self._reporter.add("DRA020", item.spot, message, hint=close, offset=offset)
        for driver, offset in item.reads.drivers:
            if driver not in self._drivers and (close := did_you_mean(driver, self._drivers)):
                message = f"no known driver has the name {driver!r}"
                self._reporter.add("DRA020", item.spot, message, hint=close, offset=offset)

    def _reference(self, item: ParsedSelector, reference: Reference) -> None:
        known = self._tables.get((reference.table, reference.domain))
        if known is None or reference.name in known:
            return
        other = "capacity" if reference.table == "attributes" else "attributes"
        word = "attribute" if reference.table == "attributes" else "capacity"
        if reference.name in self._tables.get((other, reference.domain), {}):
            what = "a capacity" if other == "capacity" else "an attribute"
            hint = f'{reference.name} is {what}: device.{other}["{reference.domain}"].{reference.name}'
        else:
            hint = (
                did_you_mean(reference.name, known)
                or f"known names: {', '.join(sorted(set(known) - OTHER_ATTRIBUTES))}"
            )
        message = f"no device of {reference.domain} has {word} {reference.name!r}"
        message += "" if reference.tested else "; reading it fails, and the pod is not scheduled on any node"
        severity: Severity = "warning" if reference.tested else "error"
        self._reporter.add("DRA016", item.spot, message, hint=hint, offset=reference.offset, severity=severity)

    def _comparison(self, item: ParsedSelector, comparison: Comparison) -> None:
        reference = comparison.reference
        have = self._tables.get((reference.table, reference.domain), {}).get(reference.name)
        if reference.table != "attributes" or not have:
            return
        for constant in comparison.constants:
            want = _TYPE_OF.get(type(constant))
            if want is None or want == have:
                continue
            message = f"{reference.name} is {_SHOWN_TYPE[have]}, but is compared with {_SHOWN_TYPE[want]}: never true"
            if have == "version":
                message += ", or an error that stops scheduling"
                hint = f'write {reference.name}.compareTo(semver("1.2.3")) >= 0 or == semver("1.2.3")'
            else:
                hint = "put the value in quotes" if have == "string" else "write the value without quotes"
            self._reporter.add("DRA017", item.spot, message, hint=hint, offset=comparison.offset)
            return

    def _younger(self, item: ParsedSelector, name: str, offset: int) -> None:
        since, gate = FUNCTION_SINCE[name], FUNCTION_GATE[name]
        message = f"{name}() needs Kubernetes {since}, with feature gate {gate} of its API server on"
        is_old = self._version is not None and self._version < tuple(map(int, since.split(".")))
        if is_old and self._version is not None:
            message += f"; this cluster has {self._version[0]}.{self._version[1]} and refuses it"
        hint = "compare with == or in, which every version has"
        self._reporter.add(
            "DRA022", item.spot, message, hint=hint, offset=offset, severity="error" if is_old else "warning"
        )

    def _constant(self, item: ParsedSelector, name: str, value: str, offset: int) -> None:
        try:
            if name == "quantity":
                Quantity.parse(value)
            elif "isSemver(" not in item.text:  # a guard; semver(text, true), which normalizes, is not among these
                Semver.parse(value)
        except ValueError as error:
            hint = "write 80Gi, 500M or a plain number" if name == "quantity" else "write three numbers, such as 9.0.0"
            self._reporter.add("DRA021", item.spot, str(error), hint=hint, offset=offset)


def _tables(devices: Iterable[KnownDevice]) -> dict[tuple[str, str], dict[str, str]]:
    """Returns known names with their types by table and domain; the type is "" where only the name is known."""
    tables: dict[tuple[str, str], dict[str, str]] = {}
    drivers = set()
    for device in devices:
        drivers.add(device.driver)
        for table in ("attributes", "capacity"):
            for full, value in (device.wire.get(table) or {}).items():
                domain, slash, name = full.rpartition("/")
                kind = next(iter(value), "") if isinstance(value, Mapping) and table == "attributes" else ""
                tables.setdefault((table, domain if slash else device.driver), {})[name] = kind
    for name in OTHER_ATTRIBUTES:
        tables.setdefault(("attributes", DRIVER), {}).setdefault(name, "")
    for name in OTHER_CAPACITIES:
        tables.setdefault(("capacity", DRIVER), {}).setdefault(name, "")
    # Other drivers publish more names in the standard domain, so only the domains of drivers are complete.
    return {(table, domain): names for (table, domain), names in tables.items() if domain in drivers}


def _offset(text: str, line: int, column: int) -> int | None:
    """Returns the offset of the compiler's position; None when it reports no position."""
    if not line:
        return None
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    return start + column - 1


def _hint(problem: str) -> str:
    if "cannot be applied" not in problem:
        return ""
    if "kubernetes.Semver" in problem.partition(";")[0]:
        return 'versions support only ==: write .compareTo(semver("9.0.0")) >= 0 or .isGreaterThan(...)'
    if problem.startswith("compareTo"):
        return 'wrap the constant: compareTo(quantity("40Gi")) or compareTo(semver("9.0.0"))'
    if "kubernetes.Quantity" in problem.partition(";")[0]:
        return 'quantities support only ==: write .compareTo(quantity("40Gi")) >= 0 or .isGreaterThan(...)'
    return ""
