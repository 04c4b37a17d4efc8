"""Rules DRA012 to DRA015, DRA018, DRA019 and DRA031: expressions that fail, match no device, or misuse label gigabytes.

Expressions are evaluated by the scheduler's rules on devices of the catalog, of the cluster, and on one device of an
unknown driver.
"""

from collections.abc import Sequence
from typing import Final

from dra_driver.core.quantity import Quantity
from dra_driver.core.text import cut
from dra_driver.kubectl.lint.catalog_devices import KnownDevice, gate_hint
from dra_driver.kubectl.lint.expressions import (
    MatchResult,
    ParsedClause,
    ParsedSelector,
    evaluate_chain,
    nearest,
    values_seen,
)
from dra_driver.kubectl.lint.manifest import Spot
from dra_driver.kubectl.lint.reporter import Reporter
from dra_driver.kubectl.lint.scope import ClassInfo, Scope
from dra_driver.scheduler.cel import COST_LIMIT

OTHER_DRIVER_DEVICE: Final = KnownDevice(
    driver="other-driver.example.com", label="a device of another driver", wire={"name": "device-0"}
)
COSTLY: Final = 100_000
TOTAL_BUDGET: Final = 5_000_000
"""Cost units after which a run evaluates no more expressions; thousands of usual expressions cost less."""
MAX_RESULTS: Final = 32
"""Limit of devices per claim (resource/v1 AllocationResultsMaxSize)."""
TYPICAL_GPUS: Final = 8
"""GPUs of a common machine, used to estimate the devices of an unknown node."""
Misuses = Sequence[tuple[MatchResult, ParsedClause]]
"""Devices with the clause that compares their memory with the gigabytes of the product's name."""
_SCALES: Final = {"Gi": 2**30, "G": 10**9}


class MatchChecker:
    """Evaluates chains of selectors."""

    def __init__(self, reporter: Reporter, scope: Scope) -> None:
        self._reporter = reporter
        self._scope = scope
        self._spent = 0

    def device_class(self, spot: Spot, chain: Sequence[ParsedSelector]) -> None:
        if self._is_costly(chain):
            return
        if not self._has_driver_guard(chain, spot, subject="class"):
            return
        # A class for hardware that the cluster does not have yet is valid, so a match in the catalog suffices.
        self._devices(chain, self._scope.devices, of_cluster=False)

    def request(self, spot: Spot, chain: Sequence[ParsedSelector], of_class: ClassInfo | None) -> bool:
        """Checks a request's selectors on the devices that its class selects; False if they cannot be evaluated."""
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
        """Reports costly expressions; they are not evaluated on devices, because that would take too long."""
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
        """Whether the chain can be evaluated on devices of other drivers without an error."""
        result = evaluate_chain(chain, [OTHER_DRIVER_DEVICE])[0]
        driver = _driver_of(chain)
        if result.verdict == "fails" and result.selector is not None:
            message = (
                f"the expression fails on {result.device.label}: {_why(result)}; "
                "one failure stops the scheduling of the pod on all nodes"
            )
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
                hint = "put it first: the rest is then not evaluated for devices of other drivers"
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
        if not real or any("vfio" in item.reads.constants for item in chain):
            return
        subjects = _subjects(chain)
        if subjects and subjects.isdisjoint(result.device.driver for result in real):
            return  # the devices of this driver are not known
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
        message = (
            f"the expression fails on {'every known device' if every else shown.device.label}: {_why(shown)}; "
            "one failure stops the scheduling of the pod on all nodes"
        )
        hint = ""
        if shown.missing:
            hint = f"check it with has(...{shown.missing}) && or read it as .?{shown.missing}.orValue(...)"
            if shown.missing in {"profile", "parentUUID"}:
                hint = 'check the type first: device.attributes["gpu.nvidia.com"].type == "mig" &&'
        offset = next((r.offset for r in shown.selector.reads.references if r.name == shown.missing), None)
        self._reporter.add(
            "DRA015", shown.selector.spot, message, hint=hint, offset=offset,
            severity="error" if every else "warning",
        )  # fmt: skip

    def _report_no_match(self, results: Sequence[MatchResult], misuses: Misuses) -> None:
        best = nearest(results)
        if best is None or best.selector is None:
            return
        if misuses:
            self._report_label_gigabytes(misuses, nothing=True)
            return
        clause = best.failed[0]
        cluster = bool(self._scope.cluster_devices)
        where = "the catalog or the cluster" if cluster else "the catalog"
        seen, shown = values_seen(clause, best.device), " ".join(cut(clause.text, 120).split())
        message = (
            f"no device of {where} matches; the nearest is {best.device.label}, for which {shown} is false"
            f"{': ' + seen if seen else ''}"
        )
        self._reporter.add(
            "DRA018", best.selector.spot, message, offset=clause.offset,
            severity="error" if cluster else "warning",
        )  # fmt: skip

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
            self._report_label_gigabytes(misuses, nothing=False)

    def _report_label_gigabytes(self, misuses: Misuses, *, nothing: bool) -> None:
        result, clause = misuses[0]
        if result.selector is None:
            return
        memory = result.device.wire["capacity"]["memory"]["value"]
        names = sorted({misuse.device.label for misuse, _ in misuses})
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        message = (
            f"{'no device matches: ' if nothing else ''}{result.device.label} has {memory}, less than "
            f"{clause.quantities[0]}{more}: the gigabytes in a product name are not the memory of the device"
        )
        hint = f'compare with quantity("{memory}") or less, or select the profile or product by name'
        self._reporter.add(
            "DRA019", result.selector.spot, message, hint=hint, offset=clause.offset,
            severity="error" if nothing else "warning",
        )  # fmt: skip

    def _check_all_mode(self, spot: Spot, chain: Sequence[ParsedSelector]) -> None:
        """Reports that more than 32 matching devices of a node cannot be allocated to one claim."""
        where = spot.get("allocationMode") or spot
        matching = [
            a.device for a in evaluate_chain(chain, self._scope.devices) if a.verdict == "yes" and not a.device.bare
        ]
        per_node: dict[str, int] = {}
        per_model: dict[str, int] = {}
        for device in matching:
            for node, count in device.nodes.items():
                per_node[node] = per_node.get(node, 0) + count
            if device.model:
                per_model[device.model] = per_model.get(device.model, 0) + device.per_gpu * TYPICAL_GPUS
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


def _driver_of(chain: Sequence[ParsedSelector]) -> str:
    """Returns the driver that the expressions are about: the first domain that they read."""
    domains = [domain for item in chain for domain, _ in item.reads.domains if domain != "resource.kubernetes.io"]
    return domains[0] if domains else "gpu.nvidia.com"


def _subjects(chain: Sequence[ParsedSelector]) -> set[str]:
    """Returns the drivers that the chain names, directly or as a domain; empty if it names none."""
    named = {driver for item in chain for driver, _ in item.reads.drivers}
    return named or {domain for item in chain for domain, _ in item.reads.domains} - {"resource.kubernetes.io"}


def _label_gigabytes_misuses(results: Sequence[MatchResult]) -> list[tuple[MatchResult, ParsedClause]]:
    """Returns devices excluded only by a clause that requires the memory suggested by their product name."""
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
        try:
            wanted = Quantity.parse(clause.quantities[0]).as_int()
        except ValueError:
            continue
        labelled = {device.label_gigabytes * scale for scale in _SCALES.values()}
        if wanted in labelled and Quantity.parse(memory).as_int() < wanted:
            found.append((result, clause))
    return found
