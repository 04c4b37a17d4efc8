"""Rules for ``capacity.requests``: amounts that no device gives, and shares that meet what they cannot be used with.

Owns DRA041 to DRA044. A request is tried on known devices by the scheduler's own check (``allocation.capacity``): of a
shared device it is what the claim takes, of any other a lower bound for what the device has (KEP-5075). What is
refused of shares and of parameters beside them is this driver's rule (``claims.planning.sharing_plan``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dra_driver.allocation.capacity import consumption, shortage
from dra_driver.allocation.events import CapacityShort
from dra_driver.config.device_config import MpsLimits
from dra_driver.config.parameters import GpuConfig, decode
from dra_driver.errors import AllocationError, InvalidParametersError
from dra_driver.lint.catalog_devices import DRIVER, LARGEST_MEMORY, OTHER_CAPACITIES, KnownDevice
from dra_driver.lint.expressions import ParsedSelector
from dra_driver.lint.manifest import Manifest
from dra_driver.lint.matching import evaluate_chain
from dra_driver.lint.nodes import Spot, plain
from dra_driver.lint.reporter import Reporter
from dra_driver.lint.rules import Severity
from dra_driver.lint.scope import ClassInfo, Scope, did_you_mean
from dra_driver.published.names import COMPUTE_PERCENT, MEMORY
from dra_driver.quantity import Quantity


class CapacityChecker:
    """Checks what requests ask of capacities. Remembers which devices serve each request of the claim at hand."""

    def __init__(self, reporter: Reporter, scope: Scope) -> None:
        self._reporter = reporter
        self._of_cluster = bool(scope.cluster_devices)
        self._devices_by_request: dict[int, list[KnownDevice]] = {}

    def request(
        self, manifest: Manifest, part: Spot, chain: Sequence[ParsedSelector], of_class: ClassInfo | None
    ) -> None:
        """DRA041 and DRA042 for one request or subrequest whose selectors are in order."""
        if of_class is None or not of_class.devices:
            return
        matching = [
            a.device for a in evaluate_chain(chain, of_class.devices) if a.verdict == "yes" and not a.device.bare
        ]
        spot = part.get("capacity", "requests")
        wanted = _amounts(spot) if spot is not None else {}
        suitable = [device for device in matching if _problem(device, wanted) is None]
        self._devices_by_request[id(part.node)] = suitable
        if spot is None or not wanted or not matching:
            return
        if not suitable:
            self._report_unavailable(manifest, spot, wanted, matching)
        elif MEMORY in wanted and COMPUTE_PERCENT not in wanted:
            self._report_full_compute(manifest, spot, wanted, suitable)

    def claim(self, manifest: Manifest, devices: Spot, parts: Sequence[tuple[str, Spot]]) -> None:
        """DRA043 and DRA044, after `request` has seen all ``parts`` (name of request or subrequest, what it asks)."""
        shares = [(name, part, found) for name, part in parts if (found := self._strategies_of(part))]
        self._check_several_shares(manifest, devices, shares)
        for config in devices.each("config"):
            named = {str(spot.node.value) for spot in config.each("requests")}
            of_config = [item for item in shares if not named or item[0] in named or item[0].partition("/")[0] in named]
            if of_config and config.string("opaque", "driver") == DRIVER:
                self._check_sharing_of_share(manifest, config, of_config)

    def _strategies_of(self, part: Spot) -> set[str]:
        """How the devices that serve a request are shared; empty when one that is not shared may serve it as well."""
        found = self._devices_by_request.get(id(part.node)) or []
        if part.flag("adminAccess") or not all(device.shared and device.driver == DRIVER for device in found):
            return set()
        return {str((device.wire["attributes"].get("sharingStrategy") or {}).get("string")) for device in found}

    # --- what is not given ---

    def _report_unavailable(
        self, manifest: Manifest, spot: Spot, wanted: Mapping[str, str], matching: Sequence[KnownDevice]
    ) -> None:
        problems = [(device, problem) for device in matching if (problem := _problem(device, wanted)) is not None]
        device, problem = max(problems, key=_closeness)
        where = spot.get(problem.capacity) or spot
        severity: Severity = "error" if self._of_cluster else "warning"
        own = (device.wire.get("capacity") or {}).get(problem.capacity) or {}
        hint = ""
        if problem.why == "undefined":
            text = f"no device that matches has a capacity {problem.capacity!r}, so none is given"
            known = {name for one in matching for name in one.wire.get("capacity") or {}} | OTHER_CAPACITIES
            severity = severity if problem.capacity in known else "error"
            hint = (
                did_you_mean(problem.capacity, known)
                or f"they have {', '.join(sorted(device.wire.get('capacity') or {}))}"
            )
        elif problem.why == "policy":
            span = (own.get("requestPolicy") or {}).get("validRange") or {}
            text = f"{device.label} gives out at most {span.get('max', own.get('value'))} of {problem.capacity}, "
            text += f"{wanted.get(problem.capacity, problem.wanted)} is asked for"
            severity = "error" if problem.capacity == COMPUTE_PERCENT else severity
            hint = "a claim that does not name it gets all of it"
        else:
            text = f"no device that matches has {problem.wanted} of {problem.capacity}; "
            text += f"the most is {own.get('value')}, of {device.label}"
        self._reporter.add("DRA041", manifest, where, text, hint=hint, severity=severity)

    def _report_full_compute(
        self, manifest: Manifest, spot: Spot, wanted: Mapping[str, str], suitable: Sequence[KnownDevice]
    ) -> None:
        whole = [device for device in suitable if device.shared and _takes_all(device, wanted)]
        known = [device for device in whole if device.nodes] if self._of_cluster else whole
        if not known:
            return
        text = (
            "of a shared GPU this takes all of the compute, unless its policy says otherwise: no claim fits beside it"
        )
        if any(not device.shared for device in suitable):
            text += "; a GPU that is not shared is given whole"
        hint = f"ask for {COMPUTE_PERCENT} as well, or write `# dra-lint: allow DRA042` if that is meant"
        self._reporter.add("DRA042", manifest, spot.get(MEMORY) or spot, text, hint=hint)

    # --- what shares cannot be used with ---

    def _check_several_shares(
        self, manifest: Manifest, devices: Spot, shares: Sequence[tuple[str, Spot, set[str]]]
    ) -> None:
        """Of alternatives one is chosen, so of each request the one with the fewest shares counts."""
        counts: dict[str, tuple[int, bool]] = {}
        for name, part, strategies in shares:
            if "MPS" not in strategies:
                continue
            found = (part.number("count") or 1, strategies == {"MPS"})
            request = name.partition("/")[0]
            counts[request] = min(counts.get(request, found), found)
        if sum(count for count, _ in counts.values()) < 2:
            return
        sure = all(only for _, only in counts.values())
        text = "the claim asks for several shares, " + (
            "which is refused under MPS" if sure else "which is refused where GPUs are shared by MPS"
        )
        hint = "a container talks to one MPS daemon: ask for one larger share, or for the others in other pods"
        spot = devices.get("requests") or devices
        self._reporter.add("DRA043", manifest, spot, text, hint=hint, severity="error" if sure else "warning")

    def _check_sharing_of_share(
        self, manifest: Manifest, config: Spot, shares: Sequence[tuple[str, Spot, set[str]]]
    ) -> None:
        parameters = config.get("opaque", "parameters")
        try:
            decoded = decode(plain(parameters.node)) if parameters is not None else None
        except (InvalidParametersError, ValueError):
            return  # said elsewhere
        sharing = decoded.sharing if isinstance(decoded, GpuConfig) else None
        if sharing is None or parameters is None:
            return
        strategies = set[str]().union(*(found for _, _, found in shares))
        strategy = str(sharing.strategy)
        severity: Severity = "error"
        if sharing.mps is not None and sharing.mps != MpsLimits():
            text = f"limits of a share are the {MEMORY} and {COMPUTE_PERCENT} that it asks for; others are refused"
        elif strategy not in strategies:
            text = f"a policy shares the GPU by {' or '.join(sorted(strategies))}; a share with {strategy} is refused"
        elif len(strategies) > 1:
            text, severity = (
                f"refused for a share of a GPU that a policy shares otherwise than by {strategy}",
                "warning",
            )
        else:
            return
        hint = "leave the sharing section out: how a GPU is shared by several claims is its policy's business"
        spot = parameters.get("sharing") or parameters
        self._reporter.add("DRA044", manifest, spot, text, hint=hint, severity=severity)


def _amounts(spot: Spot) -> dict[str, str]:
    """Those of the requested amounts that are quantities; what others are is said elsewhere."""
    found = {}
    for key, value in spot.pairs():
        try:
            Quantity.parse(value.node.text)
        except ValueError:
            continue
        found[key.text] = value.node.text
    return found


def _problem(device: KnownDevice, wanted: Mapping[str, str]) -> CapacityShort | None:
    """Why the empty device does not give it. What the catalog has no value for is taken for enough."""
    capacities = dict(device.wire.get("capacity") or {})
    if MEMORY in device.unsure:
        capacities[MEMORY] = {"value": LARGEST_MEMORY}
    sure = {name: value for name, value in wanted.items() if name == MEMORY or name not in device.unsure}
    try:
        return shortage(sure, capacities, None, None)
    except (AllocationError, ValueError):
        return None


def _takes_all(device: KnownDevice, wanted: Mapping[str, str]) -> bool:
    capacities: Mapping[str, Any] = device.wire.get("capacity") or {}
    if COMPUTE_PERCENT not in capacities:
        return False
    sure = {name: value for name, value in wanted.items() if name in capacities}
    taken = consumption(sure, {COMPUTE_PERCENT: capacities[COMPUTE_PERCENT]})[COMPUTE_PERCENT].quantity
    return bool(taken == Quantity.parse(capacities[COMPUTE_PERCENT]["value"]))


def _closeness(item: tuple[KnownDevice, CapacityShort]) -> tuple[int, int]:
    """A device that has too little is nearer than one that has none of it; of those, the one with most."""
    device, problem = item
    own = (device.wire.get("capacity") or {}).get(problem.capacity) or {}
    most = Quantity.parse(own["value"]).nano if "value" in own else 0
    return ("undefined", "short", "policy").index(problem.why), most
