"""Rules DRA010 to DRA023 and DRA031 for expressions: syntax, names, types, and the known devices that match.

Expressions are evaluated by the scheduler's rules on devices of the catalog, of the cluster, and on one device of an
unknown driver."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dra_driver.core.errors import CelSyntaxError
from dra_driver.core.model.mig import no_compute_instance
from dra_driver.core.quantity import Quantity, quantity_in
from dra_driver.core.semver import Semver
from dra_driver.core.text import cut
from dra_driver.kube.published import STANDARD_DOMAIN, names
from dra_driver.kubectl.lint.catalog_devices import DRIVER, OTHER_ATTRIBUTES, OTHER_CAPACITIES, KnownDevice, gate_hint
from dra_driver.kubectl.lint.expressions import (
    Comparison,
    MatchResult,
    ParsedClause,
    ParsedSelector,
    Reference,
    evaluate_chain,
    matching_devices,
    nearest,
    parse_selector,
    values_seen,
)
from dra_driver.kubectl.lint.finding import Reporter, Severity
from dra_driver.kubectl.lint.manifest import Spot
from dra_driver.kubectl.lint.scope import ClassInfo, Scope, did_you_mean
from dra_driver.scheduler.cel import COST_LIMIT, FUNCTION_GATE, FUNCTION_SINCE, MAX_LENGTH

_TYPE_OF: Final[Mapping[type, str]] = {str: "string", int: "int", bool: "bool", float: "int"}
_SHOWN_TYPE: Final = {"string": "text", "int": "a number", "bool": "true or false", "version": "a version"}


class SelectorChecker:
    def __init__(self, reporter: Reporter, scope: Scope) -> None:
        self._reporter = reporter
        self._tables = _tables(scope.devices)
        self._drivers = {device.driver for device in scope.devices}
        self._version = scope.known.version

    def chain(self, entries: Sequence[Spot]) -> tuple[list[ParsedSelector], bool]:
        """Return the selectors that compile, and whether all of them compile without any error."""
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
        """Return the attributes in a domain if their list is complete, otherwise an empty mapping."""
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
            self._reporter.add("DRA010", spot, error.problem, hint=_hint(error.problem), offset=offset)
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
            names = ", ".join(sorted(set(known) - OTHER_ATTRIBUTES))
            hint = did_you_mean(reference.name, known) or f"known names: {names}"
        message = f"no device of {reference.domain} has {word} {reference.name!r}"
        message += "" if reference.tested else "; reading it fails, and the pod is not scheduled on any node"
        severity: Severity = "warning" if reference.tested else "error"
        self._reporter.add("DRA016", item.spot, message, hint=hint, offset=reference.offset, severity=severity)

    def _comparison(self, item: ParsedSelector, comparison: Comparison) -> None:
        reference = comparison.reference
        have = self._tables.get((reference.table, reference.domain), {}).get(reference.name)
        if reference.table != "attributes" or not have:
            return
        if reference.name in ("uuid", "parentUUID") and comparison.function in ("_==_", "@in"):
            message = "a cluster autoscaler copies UUIDs, and adds nodes up to the group's maximum for a GPU in use"
            hint = "for a single node, use spec.nodeSelector of the pod (docs/autoscalers.md)"
            self._reporter.add("DRA023", item.spot, message, hint=hint, offset=comparison.offset)
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
        hint = "compare with == or in, which all versions support"
        severity: Severity = "error" if is_old else "warning"
        self._reporter.add("DRA022", item.spot, message, hint=hint, offset=offset, severity=severity)

    def _constant(self, item: ParsedSelector, name: str, value: str, offset: int) -> None:
        try:
            if name == "quantity":
                Quantity.parse(value)
            elif "isSemver(" not in item.text:  # a guard; excludes the normalizing semver(text, true)
                Semver.parse(value)
        except ValueError as error:
            hint = "write 80Gi, 500M or a plain number" if name == "quantity" else "write three numbers, such as 9.0.0"
            self._reporter.add("DRA021", item.spot, str(error), hint=hint, offset=offset)


def _tables(devices: Iterable[KnownDevice]) -> dict[tuple[str, str], dict[str, str]]:
    """Return known names with their types by table and domain; "" is an unknown type."""
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
    # Only domains of drivers are complete: other drivers publish more names in the standard domain.
    return {(table, domain): names for (table, domain), names in tables.items() if domain in drivers}


def _offset(text: str, line: int, column: int) -> int | None:
    """Return the offset of the compiler's position; None if it reports none."""
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


OTHER_DRIVER_DEVICE: Final = KnownDevice(
    driver="other-driver.example.com", label="a device of another driver", wire={"name": "device-0"}
)
COSTLY: Final = 100_000
TOTAL_BUDGET: Final = 5_000_000
"""Maximum cost units of a run, enough for thousands of usual expressions."""
MAX_RESULTS: Final = 32
"""Limit of devices per claim (resource/v1 AllocationResultsMaxSize)."""
TYPICAL_GPUS: Final = 8
"""GPUs of a typical machine, to estimate the devices of an unknown node."""
Misuses = Sequence[tuple[MatchResult, ParsedClause]]
"""Devices with the clause that compares their memory with the gigabytes in the product name."""
_SCALES: Final = (2**30, 10**9)
_STOPS: Final = "; one failure stops the scheduling of the pod on all nodes"


class MatchChecker:
    def __init__(self, reporter: Reporter, scope: Scope) -> None:
        self._reporter = reporter
        self._scope = scope
        self._spent = 0

    def device_class(self, spot: Spot, chain: Sequence[ParsedSelector]) -> None:
        if self._is_costly(chain) or not self._has_driver_guard(chain, spot, subject="class"):
            return
        # A match in the catalog suffices: the cluster can get the hardware later.
        self._devices(chain, self._scope.devices, of_cluster=False)

    def request(self, spot: Spot, chain: Sequence[ParsedSelector], of_class: ClassInfo | None) -> bool:
        """Check a request's selectors on the devices of its class; False if they cannot be evaluated."""
        if self._is_costly(chain) or of_class is None or of_class.selectors is None:
            return False
        if chain and evaluate_chain([*of_class.selectors, *chain], [OTHER_DRIVER_DEVICE])[0].verdict == "fails":
            inherited = evaluate_chain(of_class.selectors, [OTHER_DRIVER_DEVICE])[0].verdict == "fails"
            both = [*of_class.selectors, *chain]
            if not inherited and not self._has_driver_guard(both, spot, subject="request"):
                return True
        if self._scope.cluster_devices and not any(device.nodes for device in of_class.devices):
            where = spot.get("deviceClassName") or spot
            message = f"no device of the cluster matches DeviceClass {of_class.name}"
            hint = gate_hint(of_class.devices, self._scope.cluster_devices)
            self._reporter.add("DRA018", where, message, hint=hint)
        if chain and of_class.devices:
            self._devices(chain, of_class.devices)
        if spot.string("allocationMode") == "All":
            self._check_all_mode(spot, [*of_class.selectors, *chain])
        return True

    def _is_costly(self, chain: Sequence[ParsedSelector]) -> bool:
        costly = False
        sample = self._scope.devices[0] if self._scope.devices else OTHER_DRIVER_DEVICE
        for item in chain:
            if self._spent > TOTAL_BUDGET:
                return True
            cost = item.program.cost(sample.view)
            self._spent += cost
            costly = costly or cost >= COSTLY
            if cost >= COST_LIMIT:
                message = f"evaluating it on {sample.label} costs more than the limit of {COST_LIMIT:,} units"
                self._reporter.add("DRA012", item.spot, message, hint="process fewer elements")
            elif cost >= COSTLY:
                message = f"evaluating it on one device costs {cost:,} units (a usual selector costs 10)"
                hint = "simplify it: the scheduler evaluates it for every device on every node"
                self._reporter.add("DRA012", item.spot, message, severity="warning", hint=hint)
        return costly

    def _has_driver_guard(self, chain: Sequence[ParsedSelector], spot: Spot, *, subject: str) -> bool:
        result = evaluate_chain(chain, [OTHER_DRIVER_DEVICE])[0]
        domains = [domain for item in chain for domain, _ in item.reads.domains if domain != STANDARD_DOMAIN]
        driver = domains[0] if domains else DRIVER
        if result.verdict == "fails" and result.selector is not None:
            message = f"the expression fails on {result.device.label}: {_why(result)}{_STOPS}"
            hint = f'begin with device.driver == "{driver}" &&'
            self._reporter.add("DRA013", result.selector.spot, message, hint=hint)
            return False
        if result.verdict == "yes" and subject == "class":
            message = "the class does not check the driver, so it matches devices of every driver"
            hint = f'begin with device.driver == "{driver}" &&'
            where = chain[0].spot if chain else spot
            self._reporter.add("DRA013", where, message, hint=hint, severity="warning")
        elif subject == "class":
            self._check_guard_order(chain)
        return True

    def _check_guard_order(self, chain: Sequence[ParsedSelector]) -> None:
        for item in chain:
            places = [at for at, clause in enumerate(item.clauses) if "device.driver" in clause.text]
            if places and places[0] > 0:
                offset = item.clauses[places[0]].offset
                message = "the driver check is not the first condition"
                hint = "put it first: it then excludes other drivers before the next condition"
                self._reporter.add("DRA014", item.spot, message, hint=hint, offset=offset)

    def _devices(
        self, chain: Sequence[ParsedSelector], devices: Sequence[KnownDevice], *, of_cluster: bool = True
    ) -> None:
        results = evaluate_chain(chain, devices)
        failing = [result for result in results if result.verdict == "fails"]
        if failing:
            self._report_failure(failing, results)
            return
        real = [result for result in results if not result.device.bare]
        if not real or any(item.reads.constants & {"vfio", names.TYPE_MONITOR} for item in chain):
            return
        named = {driver for item in chain for driver, _ in item.reads.drivers}
        subjects = named or {domain for item in chain for domain, _ in item.reads.domains} - {STANDARD_DOMAIN}
        if subjects and subjects.isdisjoint(result.device.driver for result in real):
            return  # no known devices of this driver
        misuses = _label_gigabytes_misuses(real)
        if any(result.verdict == "yes" for result in real):
            self._report_partial_match(real if of_cluster else [], misuses)
        else:
            self._report_no_match(real, misuses)

    def _report_failure(self, failing: Sequence[MatchResult], results: Sequence[MatchResult]) -> None:
        shown = next((result for result in failing if not result.device.bare), failing[0])
        if shown.selector is None:
            return
        every = len(failing) == len(results)
        where = "every known device" if every else shown.device.label
        message = f"the expression fails on {where}: {_why(shown)}{_STOPS}"
        hint = ""
        if shown.missing:
            hint = f"check it with has(...{shown.missing}) && or read it as .?{shown.missing}.orValue(...)"
            if shown.missing in {"profile", "parentUUID"}:
                hint = 'check the type first: device.attributes["gpu.nvidia.com"].type == "mig" &&'
        offset = next((r.offset for r in shown.selector.reads.references if r.name == shown.missing), None)
        severity: Severity = "error" if every else "warning"
        self._reporter.add("DRA015", shown.selector.spot, message, hint=hint, offset=offset, severity=severity)

    def _report_no_match(self, results: Sequence[MatchResult], misuses: Misuses) -> None:
        best = nearest(results)
        if best is None or best.selector is None:
            return
        if misuses:
            self._report_label_gigabytes(misuses, unmatched=True)
            return
        clause = best.failed[0]
        cluster = bool(self._scope.cluster_devices)
        where = "the catalog or the cluster" if cluster else "the catalog"
        seen, shown = values_seen(clause, best.device), " ".join(cut(clause.text, 120).split())
        message = (
            f"no device of {where} matches; the nearest is {best.device.label}, for which {shown} is false"
            f"{': ' + seen if seen else ''}"
        )
        severity: Severity = "error" if cluster else "warning"
        hint = no_compute_instance(clause.text) or ""
        self._reporter.add("DRA018", best.selector.spot, message, hint=hint, offset=clause.offset, severity=severity)

    def _report_partial_match(self, results: Sequence[MatchResult], misuses: Misuses) -> None:
        mine = [result for result in results if result.device.nodes]
        if mine and all(result.verdict != "yes" for result in mine):
            best = nearest(mine)
            matched = next(result.device.label for result in results if result.verdict == "yes")
            if best is not None and best.selector is not None:
                clause = best.failed[0]
                message = (
                    f"no device of the cluster matches (in the catalog: {matched}); nearest is {best.device.label}: "
                    f"{values_seen(clause, best.device) or clause.text}"
                )
                self._reporter.add("DRA018", best.selector.spot, message, offset=clause.offset)
        if misuses:
            self._report_label_gigabytes(misuses, unmatched=False)

    def _report_label_gigabytes(self, misuses: Misuses, *, unmatched: bool) -> None:
        result, clause = misuses[0]
        if result.selector is None:
            return
        memory = result.device.wire["capacity"]["memory"]["value"]
        names = sorted({misuse.device.label for misuse, _ in misuses})
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        message = (
            f"{'no device matches: ' if unmatched else ''}{result.device.label} has {memory}, less than "
            f"{clause.quantities[0]}{more}: the gigabytes in a product name are not the memory of the device"
        )
        hint = f'compare with quantity("{memory}") or less, or select the profile or product by name'
        severity: Severity = "error" if unmatched else "warning"
        self._reporter.add("DRA019", result.selector.spot, message, hint=hint, offset=clause.offset, severity=severity)

    def _check_all_mode(self, spot: Spot, chain: Sequence[ParsedSelector]) -> None:
        where = spot.get("allocationMode") or spot
        per_node, per_model = Counter[str](), Counter[str]()
        for device in matching_devices(chain, self._scope.devices):
            if not device.bare:
                per_node.update(device.nodes)
                per_model[device.model] += device.per_gpu * TYPICAL_GPUS if device.model else 0
        hint = "select whole GPUs only, or request a count"
        node = max(per_node, key=lambda name: per_node[name], default="")
        model = max(per_model, key=lambda name: per_model[name], default="")
        if node and per_node[node] > MAX_RESULTS:
            message = f"{per_node[node]} devices of node {node} match; a claim can have at most {MAX_RESULTS}"
            self._reporter.add("DRA031", where, message, hint=hint, severity="error")
        elif model and per_model[model] > MAX_RESULTS:
            message = (
                f"a machine with {TYPICAL_GPUS} x {model} that publishes every MIG placement has {per_model[model]} "
                f"matching devices; a claim can have at most {MAX_RESULTS}, and more make the request fail"
            )
            self._reporter.add("DRA031", where, message, hint=hint)


def _why(result: MatchResult) -> str:
    return f"it has no {result.missing}" if result.missing else result.problem.rpartition(": ")[2]


def _label_gigabytes_misuses(results: Sequence[MatchResult]) -> list[tuple[MatchResult, ParsedClause]]:
    found = []
    for result in results:
        device = result.device
        if len(result.failed) != 1 or device.label_gigabytes is None:
            continue
        clause = result.failed[0]
        memory = (device.wire["capacity"].get("memory") or {}).get("value")
        reads = any(r.table == "capacity" and r.name == "memory" for r in clause.reads.references)
        if memory is None or not reads or len(clause.quantities) != 1:
            continue
        wanted = quantity_in(clause.quantities[0])
        labelled = {device.label_gigabytes * scale for scale in _SCALES}
        if wanted is not None and wanted.as_int() in labelled and Quantity.parse(memory).as_int() < wanted.as_int():
            found.append((result, clause))
    return found
