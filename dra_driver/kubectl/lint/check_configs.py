"""Rules DRA035 to DRA037 and DRA040 to DRA044 for parameters and capacities of requests, DRA060 for GpuPolicy objects.

Parameters and policies are decoded by the driver's own code. Capacities are tried on known devices with the scheduler's
check: for a shared device the amount is consumed, for another it is a lower bound (KEP-5075)."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dra_driver.config.parameters import API_VERSION, GpuConfig, MpsLimits, decode
from dra_driver.config.policy import API_VERSION as POLICY_API
from dra_driver.config.policy import KIND, policy_problems
from dra_driver.config.schema import Step, path_text
from dra_driver.core.errors import AllocationError, InvalidParametersError
from dra_driver.core.quantity import Quantity, quantity_in
from dra_driver.kube.devices import attribute_text
from dra_driver.kube.published import COMPUTE_PERCENT, MEMORY, names
from dra_driver.kube.published.names import SHARING_STRATEGY
from dra_driver.kubectl.lint.catalog_devices import DRIVER, LARGEST_MEMORY, OTHER_CAPACITIES, KnownDevice
from dra_driver.kubectl.lint.expressions import ParsedSelector, matching_devices
from dra_driver.kubectl.lint.finding import Reporter, Severity
from dra_driver.kubectl.lint.manifest import Manifest, Spot
from dra_driver.kubectl.lint.reading import plain
from dra_driver.kubectl.lint.scope import ClassInfo, Scope, did_you_mean
from dra_driver.scheduler.allocation import CapacityShort, consumption, shortage

MAX_BYTES: Final = 10 * 1024
_TYPE_OF_KIND: Final = {"GpuConfig": "gpu", "MigDeviceConfig": "mig"}
_SPELLING: Final = "check spelling and indentation; names are case-sensitive"
_PATH: Final = re.compile(r"([A-Za-z][\w.-]*): ")


class ConfigChecker:
    def __init__(self, reporter: Reporter, scope: Scope) -> None:
        self._reporter = reporter
        self._scope = scope

    def of_class(self, spec: Spot) -> None:
        classes = [found for found in [self._scope.class_info(spec.manifest.name)] if found is not None]
        for config in spec.each("config"):
            self._config(config, classes, named=False)

    def of_claim(self, devices: Spot) -> None:
        for config in devices.each("config"):
            named = {str(spot.node.value) for spot in config.each("requests")}
            parts = [part for name, part in parts_of(devices) if not named or named & {name, request_of(name)}]
            sharing = config.get("opaque", "parameters", "sharing")
            is_ours = config.string("opaque", "driver") == DRIVER
            if sharing is not None and is_ours and parts and all(part.flag("adminAccess") for part in parts):
                message = "all requests of this configuration have admin access, "
                message += "which does not change the sharing of a device"
                self._reporter.add("DRA040", sharing, message, hint="remove the section")
            found = [self._scope.class_info(part.string("deviceClassName")) for part in parts]
            known = [info for info in found if info is not None]
            self._config(config, known if len(known) == len(found) else [], named=bool(named))

    def _config(self, config: Spot, classes: list[ClassInfo], *, named: bool) -> None:
        driver, where = config.string("opaque", "driver"), config.get("opaque", "driver")
        parameters = config.get("opaque", "parameters")
        drivers = {driver for info in classes for driver in info.drivers}
        if where is not None and classes and drivers and driver not in drivers:
            message = f"parameters for driver {driver!r}, but the devices belong to {' or '.join(sorted(drivers))}"
            hint = "no driver reads these parameters; correct the driver name"
            self._reporter.add("DRA036", where, message, hint=hint)
        if parameters is not None and driver == DRIVER:
            self._driver_parameters(parameters, classes, named=named)
        elif parameters is not None:
            self._other_parameters(parameters)

    def _driver_parameters(self, parameters: Spot, classes: list[ClassInfo], *, named: bool) -> None:
        try:
            decoded = decode(plain(parameters.node))
        except InvalidParametersError as error:
            for path, problem in _problems(str(error)):
                spot = _nearest(parameters, path.split("."))
                text = f"{path}: {problem}" if path else problem
                hint = _SPELLING if "unknown field" in problem else ""
                hint = f"write apiVersion: {API_VERSION}" if path == "apiVersion" else hint
                self._reporter.add("DRA035", spot, text, hint=hint)
            return
        except ValueError as error:
            self._reporter.add("DRA035", parameters, f"the parameters {error}")
            return
        wanted = _TYPE_OF_KIND[decoded.kind]
        devices = [device for info in classes for device in info.devices if device.driver == DRIVER]
        types = {attribute_text(device.wire.get("attributes"), DRIVER, names.TYPE) for device in devices}
        if types and wanted not in types:
            other = next((kind for kind, name in _TYPE_OF_KIND.items() if name in types), "another kind")
            message = (
                f"{decoded.kind} is for devices of type {wanted}, the devices here are {' or '.join(sorted(types))}"
            )
            end = "preparing the claim fails" if named else "it has no effect"
            self._reporter.add(
                "DRA037", parameters.get("kind") or parameters, f"{message}; {end}", hint=f"use kind {other}",
                severity="error" if named else "warning",
            )  # fmt: skip

    def _other_parameters(self, parameters: Spot) -> None:
        if parameters.node.kind != "map":
            message = f"expected an object, got {parameters.node.description}"
            self._reporter.add("DRA035", parameters, message)
            return
        try:
            size = len(json.dumps(plain(parameters.node), separators=(",", ":"), default=str).encode())
        except ValueError as error:
            self._reporter.add("DRA035", parameters, f"the parameters {error}")
            return
        if size > MAX_BYTES:
            message = f"the parameters have {size} bytes, at most {MAX_BYTES} are allowed"
            self._reporter.add("DRA035", parameters, message)


def exact_part(request: Spot) -> Spot | None:
    """Return the content of a request: below ``exactly``, or (v1beta1) in the request itself."""
    if request.manifest.version == "v1beta1":
        return request if request.get("deviceClassName") is not None else None
    return request.get("exactly")


def request_of(name: str) -> str:
    return name.partition("/")[0]


def parts_of(devices: Spot) -> list[tuple[str, Spot]]:
    """Return the content of each request and subrequest with its name, ``request`` or ``request/subrequest``."""
    found = []
    for request in devices.each("requests"):
        name = request.string("name")
        for sub in request.each("firstAvailable"):
            found.append((f"{name}/{sub.string('name')}", sub))
        exactly = exact_part(request)
        if exactly is not None and exactly.get("deviceClassName") is not None:
            found.append((name, exactly))
    return found


def _problems(text: str) -> list[tuple[str, str]]:
    """Split a decoding error, such as ``GpuConfig: sharing.strategy: expected ...; ...``, into paths and problems."""
    text = re.sub(r"^(GpuConfig|MigDeviceConfig): ", "", text)
    found = []
    for part in re.split(r"; (?=[A-Za-z][\w.-]*: )", text):
        match = _PATH.match(part)
        found.append((match[1], part[match.end() :]) if match else ("", part))
    return found


_GROUP: Final = POLICY_API.partition("/")[0]


def check_policy(manifest: Manifest, reporter: Reporter) -> None:
    """Report every invalid field of a GpuPolicy. Conflicts of two policies depend on the GPUs: not found here."""
    if manifest.group != _GROUP or manifest.kind != KIND:
        return
    try:
        written = plain(manifest.spot.node)
    except ValueError as error:
        reporter.add("DRA060", manifest.spot, f"the policy {error}")
        return
    for problem in policy_problems(written):
        text = f"{path_text(problem.path)}: {problem.text}" if problem.path else problem.text
        hint = _SPELLING if problem.text == "unknown field" else ""
        reporter.add("DRA060", _nearest(manifest.spot, problem.path), text, hint=hint)


def _nearest(spot: Spot, path: Sequence[Step]) -> Spot:
    for step in path:
        below = [value for key, value in spot.pairs() if key.text == step]
        found = spot.each()[step : step + 1] if isinstance(step, int) else below[-1:]
        if not found:
            break
        spot = found[0]
    return spot


class CapacityChecker:
    """Check capacities, and keep the devices that can serve each request of the current claim."""

    def __init__(self, reporter: Reporter, scope: Scope) -> None:
        self._reporter = reporter
        self._of_cluster = bool(scope.cluster_devices)
        self._devices_by_request: dict[int, list[KnownDevice]] = {}

    def request(self, part: Spot, chain: Sequence[ParsedSelector], of_class: ClassInfo | None) -> None:
        """Check DRA041 and DRA042 for one request or subrequest whose selectors are valid."""
        if of_class is None or not of_class.devices:
            return
        matching = [device for device in matching_devices(chain, of_class.devices) if not device.bare]
        spot = part.get("capacity", "requests")
        wanted = _amounts(spot) if spot is not None else {}
        suitable = [device for device in matching if _problem(device, wanted) is None]
        self._devices_by_request[id(part.node)] = suitable
        if spot is None or not wanted or not matching:
            return
        if not suitable:
            self._report_unavailable(spot, wanted, matching)
        elif MEMORY in wanted and COMPUTE_PERCENT not in wanted:
            self._report_full_compute(spot, wanted, suitable)

    def claim(self, devices: Spot, parts: Sequence[tuple[str, Spot]]) -> None:
        """Check DRA043 and DRA044, after `request` was called for all ``parts`` (name and content of each request)."""
        shares = [(name, part, found) for name, part in parts if (found := self._strategies_of(part))]
        self._check_several_shares(devices, shares)
        for config in devices.each("config"):
            named = {str(spot.node.value) for spot in config.each("requests")}
            of_config = [item for item in shares if not named or named & {item[0], request_of(item[0])}]
            if of_config and config.string("opaque", "driver") == DRIVER:
                self._check_sharing_of_share(config, of_config)

    def _strategies_of(self, part: Spot) -> set[str]:
        """Return the sharing strategies of the devices for a request; empty if an exclusive device can serve it."""
        found = self._devices_by_request.get(id(part.node)) or []
        if part.flag("adminAccess") or not all(device.shared and device.driver == DRIVER for device in found):
            return set()
        return {attribute_text(device.wire["attributes"], DRIVER, SHARING_STRATEGY) for device in found}

    # --- capacities that no device provides ---

    def _report_unavailable(self, spot: Spot, wanted: Mapping[str, str], matching: Sequence[KnownDevice]) -> None:
        problems = [(device, problem) for device in matching if (problem := _problem(device, wanted)) is not None]
        device, problem = max(problems, key=_closeness)
        where = spot.get(problem.capacity) or spot
        severity: Severity = "error" if self._of_cluster else "warning"
        own = (device.wire.get("capacity") or {}).get(problem.capacity) or {}
        hint = ""
        if problem.why == "undefined":
            text = f"no matching device has a capacity {problem.capacity!r}"
            known = {name for one in matching for name in one.wire.get("capacity") or {}} | OTHER_CAPACITIES
            severity = severity if problem.capacity in known else "error"
            names = ", ".join(sorted(device.wire.get("capacity") or {}))
            hint = did_you_mean(problem.capacity, known) or f"known capacities: {names}"
        elif problem.why == "policy":
            span = (own.get("requestPolicy") or {}).get("validRange") or {}
            text = f"{device.label} provides at most {span.get('max', own.get('value'))} of {problem.capacity}, "
            text += f"{wanted.get(problem.capacity, problem.wanted)} is requested"
            severity = "error" if problem.capacity == COMPUTE_PERCENT else severity
            hint = "a claim that does not request it gets all of it"
        else:
            text = f"no matching device has {problem.wanted} of {problem.capacity}; "
            text += f"the largest is {device.label} with {own.get('value')}"
        self._reporter.add("DRA041", where, text, hint=hint, severity=severity)

    def _report_full_compute(self, spot: Spot, wanted: Mapping[str, str], suitable: Sequence[KnownDevice]) -> None:
        whole = [device for device in suitable if device.shared and _takes_all(device, wanted)]
        if not any(device.nodes or not self._of_cluster for device in whole):
            return
        text = "on a shared GPU this takes all of the compute unless the policy sets a default: "
        text += "no other claim fits"
        if any(not device.shared for device in suitable):
            text += "; a GPU that is not shared is allocated as a whole"
        hint = f"also request {COMPUTE_PERCENT}, or add `# dra-lint: allow DRA042` if this is intended"
        self._reporter.add("DRA042", spot.get(MEMORY) or spot, text, hint=hint)

    # --- invalid uses of shares ---

    def _check_several_shares(self, devices: Spot, shares: Sequence[tuple[str, Spot, set[str]]]) -> None:
        """Count shares. One alternative of a request is selected: the fewest shares count."""
        counts: dict[str, tuple[int, bool]] = {}
        for name, part, strategies in shares:
            if "MPS" not in strategies:
                continue
            found = (part.number("count") or 1, strategies == {"MPS"})
            counts[request_of(name)] = min(counts.get(request_of(name), found), found)
        if sum(count for count, _ in counts.values()) < 2:
            return
        sure = all(only for _, only in counts.values())
        where = "under MPS" if sure else "if MPS shares the GPU"
        text = f"the claim requests several shares; the driver rejects this {where}"
        hint = "a container uses one MPS daemon: request one larger share, or use several pods"
        spot = devices.get("requests") or devices
        self._reporter.add("DRA043", spot, text, hint=hint, severity="error" if sure else "warning")

    def _check_sharing_of_share(self, config: Spot, shares: Sequence[tuple[str, Spot, set[str]]]) -> None:
        parameters = config.get("opaque", "parameters")
        try:
            decoded = decode(plain(parameters.node)) if parameters is not None else None
        except (InvalidParametersError, ValueError):
            return  # reported by DRA035
        sharing = decoded.sharing if isinstance(decoded, GpuConfig) else None
        if sharing is None or parameters is None:
            return
        strategies = set[str]().union(*(found for _, _, found in shares))
        strategy = str(sharing.strategy)
        severity: Severity = "error"
        if sharing.mps is not None and sharing.mps != MpsLimits():
            text = (
                f"a share is limited to its requested {MEMORY} and {COMPUTE_PERCENT}; the driver rejects other limits"
            )
        elif strategy not in strategies:
            text = f"a policy shares the GPU by {' or '.join(sorted(strategies))}; strategy {strategy} is rejected"
        elif len(strategies) > 1:
            text, severity = f"rejected for a share unless a policy shares the GPU by {strategy}", "warning"
        else:
            return
        hint = "remove the sharing section: the policy sets the sharing strategy"
        spot = parameters.get("sharing") or parameters
        self._reporter.add("DRA044", spot, text, hint=hint, severity=severity)


def _amounts(spot: Spot) -> dict[str, str]:
    """Return the valid requested amounts; DRA004 reports invalid ones."""
    return {key.text: value.node.text for key, value in spot.pairs() if quantity_in(value.node.text) is not None}


def _problem(device: KnownDevice, wanted: Mapping[str, str]) -> CapacityShort | None:
    """Return why the unused device does not satisfy the request. Capacities without a catalog value suffice."""
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
    """Return a sort key: insufficient capacity is nearer than none; then the largest is nearest."""
    device, problem = item
    own = (device.wire.get("capacity") or {}).get(problem.capacity) or {}
    most = Quantity.parse(own["value"]).nano if "value" in own else 0
    return ("undefined", "short", "policy").index(problem.why), most
