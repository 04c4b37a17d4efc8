"""Rules for what expressions do to devices: fail on them, match none of them, or take a label's gigabytes for memory.

Owns DRA012 to DRA015, DRA018, DRA019 and DRA031. Expressions are run by the scheduler's own rules on devices of the
catalog, of the cluster, and on one of a driver that nobody knows.
"""

from collections.abc import Sequence
from typing import Final

from dra_driver.cel import DeviceView
from dra_driver.cel.cost import LIMIT
from dra_driver.lint.catalog_devices import KnownDevice
from dra_driver.lint.expressions import ParsedClause, ParsedSelector
from dra_driver.lint.manifest import Manifest
from dra_driver.lint.matching import MatchResult, evaluate_chain, nearest, values_seen
from dra_driver.lint.nodes import Spot
from dra_driver.lint.reporter import Reporter
from dra_driver.lint.scope import ClassInfo, Scope
from dra_driver.quantity import Quantity

OTHER_DRIVER_DEVICE: Final = KnownDevice(
    driver="other-driver.example.com",
    label="a device of another driver",
    wire={"name": "device-0"},
    view=DeviceView("other-driver.example.com", {"name": "device-0"}),
)
COSTLY: Final = 100_000
TOTAL_BUDGET: Final = 5_000_000
"""Cost units after which a run tries no more expressions; thousands of usual ones need less."""
MAX_RESULTS: Final = 32
"""Devices that one claim can hold (resource/v1 AllocationResultsMaxSize)."""
TYPICAL_GPUS: Final = 8
"""GPUs of a common machine, to judge what a node would publish that nobody has seen."""
Misuses = Sequence[tuple[MatchResult, ParsedClause]]
"""Devices with the clause that compares their memory with the gigabytes of the product's name."""
_SCALES: Final = {"Gi": 2**30, "G": 10**9}


class MatchChecker:
    """Runs chains of selectors."""

    def __init__(self, reporter: Reporter, scope: Scope) -> None:
        self._reporter = reporter
        self._scope = scope
        self._spent = 0

    def device_class(self, manifest: Manifest, chain: Sequence[ParsedSelector]) -> None:
        """Rules for the selectors of a DeviceClass."""
        if self._is_costly(manifest, chain):
            return
        if not self._has_driver_guard(manifest, chain, manifest.spot, subject="class"):
            return
        # A class for hardware that a cluster does not have yet is no mistake, so only the catalog has to have it.
        self._devices(manifest, chain, self._scope.devices, of_cluster=False)

    def request(
        self, manifest: Manifest, spot: Spot, chain: Sequence[ParsedSelector], of_class: ClassInfo | None
    ) -> bool:
        """Rules for a request's selectors, which see what the class lets through; False if they cannot be tried."""
        if self._is_costly(manifest, chain) or of_class is None or of_class.selectors is None:
            return False
        if chain and evaluate_chain([*of_class.selectors, *chain], [OTHER_DRIVER_DEVICE])[0].verdict == "fails":
            inherited = evaluate_chain(of_class.selectors, [OTHER_DRIVER_DEVICE])[0].verdict == "fails"
            if not inherited and not self._has_driver_guard(
                manifest, [*of_class.selectors, *chain], spot, subject="request"
            ):
                return True
        if self._scope.cluster_devices and not any(device.nodes for device in of_class.devices):
            where = spot.get("deviceClassName") or spot
            message = f"no device of the cluster is of DeviceClass {of_class.name}"
            self._reporter.add("DRA018", manifest, where, message)
        if chain and of_class.devices:
            self._devices(manifest, chain, of_class.devices)
        if spot.string("allocationMode") == "All":
            self._check_all_mode(manifest, spot, [*of_class.selectors, *chain])
        return True

    def _is_costly(self, manifest: Manifest, chain: Sequence[ParsedSelector]) -> bool:
        """Reports expressions that cost a lot; such are not tried on devices, lest this takes long as well."""
        costly = False
        sample = self._scope.devices[0] if self._scope.devices else OTHER_DRIVER_DEVICE
        for item in chain:
            if self._spent > TOTAL_BUDGET:
                return True
            cost = item.program.cost(sample.view)
            self._spent += cost
            costly = costly or cost >= COSTLY
            if cost >= LIMIT:
                message = f"evaluating it on {sample.label} costs more than the {LIMIT:,} units that are allowed"
                self._reporter.add("DRA012", manifest, item.spot, message, hint="look at fewer elements")
            elif cost >= COSTLY:
                message = f"evaluating it on one device costs {cost:,} units (a usual selector: 10)"
                hint = "the scheduler does this for every device on every node; simplify it"
                self._reporter.add("DRA012", manifest, item.spot, message, severity="warning", hint=hint)
        return costly

    def _has_driver_guard(
        self, manifest: Manifest, chain: Sequence[ParsedSelector], spot: Spot, *, subject: str
    ) -> bool:
        """Whether devices of other drivers are passed over in peace."""
        result = evaluate_chain(chain, [OTHER_DRIVER_DEVICE])[0]
        driver = _driver_of(chain)
        if result.verdict == "fails" and result.selector is not None:
            message = (
                f"the expression fails on {result.device.label}, as {_why(result)}; "
                "one such failure ends the scheduling of the pod on every node"
            )
            hint = f'begin with device.driver == "{driver}" &&'
            self._reporter.add("DRA013", manifest, result.selector.spot, message, hint=hint)
            return False
        if result.verdict == "yes" and subject == "class":
            message = "the class does not look at the driver, so it matches devices of every driver"
            hint = f'begin with device.driver == "{driver}" &&'
            where = chain[0].spot if chain else spot
            self._reporter.add("DRA013", manifest, where, message, hint=hint, severity="warning")
        elif subject == "class":
            self._check_guard_order(manifest, chain)
        return True

    def _check_guard_order(self, manifest: Manifest, chain: Sequence[ParsedSelector]) -> None:
        for item in chain:
            places = [at for at, clause in enumerate(item.clauses) if "device.driver" in clause.text]
            if places and places[0] > 0:
                offset = item.clauses[places[0]].offset
                message = "the driver is checked after other things"
                hint = "put it first: what follows is then not even looked at for other drivers' devices"
                self._reporter.add("DRA014", manifest, item.spot, message, hint=hint, offset=offset)

    def _devices(
        self,
        manifest: Manifest,
        chain: Sequence[ParsedSelector],
        devices: Sequence[KnownDevice],
        *,
        of_cluster: bool = True,
    ) -> None:
        results = evaluate_chain(chain, devices)
        failing = [result for result in results if result.verdict == "fails"]
        if failing:
            self._report_failure(manifest, failing, results)
            return
        real = [result for result in results if not result.device.bare]
        if not real or any("vfio" in item.constants for item in chain):
            return
        subjects = _subjects(chain)
        if subjects and subjects.isdisjoint(result.device.driver for result in real):
            return  # about a driver whose devices are not known
        misuses = _label_gigabytes_misuses(real)
        if any(result.verdict == "yes" for result in real):
            self._report_partial_match(manifest, real if of_cluster else [], misuses)
        else:
            self._report_no_match(manifest, real, misuses)

    def _report_failure(
        self, manifest: Manifest, failing: Sequence[MatchResult], results: Sequence[MatchResult]
    ) -> None:
        shown = next((result for result in failing if not result.device.bare), failing[0])
        if shown.selector is None:
            return
        every = len(failing) == len(results)
        message = (
            f"the expression fails on {'every known device' if every else shown.device.label}, as {_why(shown)}; "
            "one such failure ends the scheduling of the pod on every node"
        )
        hint = ""
        if shown.missing:
            hint = f"test for it with has(...{shown.missing}) && or read it as .?{shown.missing}.orValue(...)"
            if shown.missing in {"profile", "parentUUID"}:
                hint = 'check the type first: device.attributes["gpu.nvidia.com"].type == "mig" &&'
        offset = next((r.offset for r in shown.selector.references if r.name == shown.missing), None)
        self._reporter.add(
            "DRA015", manifest, shown.selector.spot, message, hint=hint, offset=offset,
            severity="error" if every else "warning",
        )  # fmt: skip

    def _report_no_match(self, manifest: Manifest, results: Sequence[MatchResult], misuses: Misuses) -> None:
        best = nearest(results)
        if best is None or best.selector is None:
            return
        if misuses:
            self._report_label_gigabytes(manifest, misuses, nothing=True)
            return
        clause = best.failed[0]
        cluster = bool(self._scope.cluster_devices)
        where = "the catalog or of the cluster" if cluster else "the catalog"
        shown = clause.text if len(clause.text) <= 120 else f"{clause.text[:119]}…"
        seen = values_seen(clause, best.device)
        message = (
            f"no device of {where} matches; nearest is {best.device.label}, for which {' '.join(shown.split())} "
            f"is false{': ' + seen if seen else ''}"
        )
        self._reporter.add(
            "DRA018", manifest, best.selector.spot, message, offset=clause.offset,
            severity="error" if cluster else "warning",
        )  # fmt: skip

    def _report_partial_match(self, manifest: Manifest, results: Sequence[MatchResult], misuses: Misuses) -> None:
        mine = [result for result in results if result.device.nodes]
        if mine and all(result.verdict != "yes" for result in mine):
            best = nearest(mine)
            matched = next(result.device.label for result in results if result.verdict == "yes")
            if best is not None and best.selector is not None:
                clause = best.failed[0]
                message = (
                    f"no device of the cluster matches (of the catalog: {matched}); nearest is {best.device.label}: "
                    f"{values_seen(clause, best.device) or clause.text}"
                )
                self._reporter.add("DRA018", manifest, best.selector.spot, message, offset=clause.offset)
        if misuses:
            self._report_label_gigabytes(manifest, misuses, nothing=False)

    def _report_label_gigabytes(self, manifest: Manifest, misuses: Misuses, *, nothing: bool) -> None:
        result, clause = misuses[0]
        if result.selector is None:
            return
        memory = result.device.wire["capacity"]["memory"]["value"]
        names = sorted({misuse.device.label for misuse, _ in misuses})
        more = f" (so have {len(names) - 1} more)" if len(names) > 1 else ""
        message = (
            f"{'no device matches: ' if nothing else ''}{result.device.label} has {memory}, less than "
            f"{clause.quantities[0]}{more}: gigabytes in a product's name are not its memory"
        )
        hint = f'compare with quantity("{memory}") or less, or ask for the profile or product by name'
        self._reporter.add(
            "DRA019", manifest, result.selector.spot, message, hint=hint, offset=clause.offset,
            severity="error" if nothing else "warning",
        )  # fmt: skip

    def _check_all_mode(self, manifest: Manifest, spot: Spot, chain: Sequence[ParsedSelector]) -> None:
        """Over 32 devices on a node that all match can never be allocated to one claim."""
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
        hint = "narrow it to whole GPUs, or ask for a count"
        node = max(per_node, key=lambda name: per_node[name], default="")
        model = max(per_model, key=lambda name: per_model[name], default="")
        if node and per_node[node] > MAX_RESULTS:
            message = f"{per_node[node]} devices of node {node} match; a claim can hold {MAX_RESULTS}"
            self._reporter.add("DRA031", manifest, where, message, hint=hint, severity="error")
        elif model and per_model[model] > MAX_RESULTS:
            message = (
                f"a machine with {TYPICAL_GPUS} x {model} that publishes every MIG placement has {per_model[model]} "
                f"devices that match; a claim can hold {MAX_RESULTS}, and more make the request fail everywhere"
            )
            self._reporter.add("DRA031", manifest, where, message, hint=hint)


def _why(result: MatchResult) -> str:
    return f"it lacks {result.missing}" if result.missing else f"there is {result.problem.rpartition(': ')[2]!r}"


def _driver_of(chain: Sequence[ParsedSelector]) -> str:
    """The driver that the expressions are about, as far as can be told."""
    domains = [domain for item in chain for domain, _ in item.domains if domain != "resource.kubernetes.io"]
    return domains[0] if domains else "gpu.nvidia.com"


def _subjects(chain: Sequence[ParsedSelector]) -> set[str]:
    """Drivers that the chain names, as such or as a domain; none where it is about devices of any."""
    named = {driver for item in chain for driver, _ in item.drivers}
    return named or {domain for item in chain for domain, _ in item.domains} - {"resource.kubernetes.io"}


def _label_gigabytes_misuses(results: Sequence[MatchResult]) -> list[tuple[MatchResult, ParsedClause]]:
    """Devices that fail only because a clause wants the memory that their name promises."""
    found = []
    for result in results:
        device = result.device
        if len(result.failed) != 1 or device.label_gigabytes is None:
            continue
        clause = result.failed[0]
        memory = (device.wire["capacity"].get("memory") or {}).get("value")
        reads = any(r.table == "capacity" and r.name == "memory" for r in clause.references)
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
