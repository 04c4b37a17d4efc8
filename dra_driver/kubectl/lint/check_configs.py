"""Rules DRA035 to DRA037 and DRA040 for opaque parameters: those that are refused or have no effect.

The parameters are decoded by the code that the driver runs (``config.parameters``).
"""

import json
import re
from collections.abc import Sequence
from typing import Final

from dra_driver.config.parameters import API_VERSION, decode
from dra_driver.config.policy import API_VERSION as POLICY_API
from dra_driver.config.policy import KIND, policy_problems
from dra_driver.config.schema import Step, path_text
from dra_driver.core.errors import InvalidParametersError
from dra_driver.kube.devices import attribute_text
from dra_driver.kube.published import names
from dra_driver.kubectl.lint.catalog_devices import DRIVER
from dra_driver.kubectl.lint.manifest import Manifest, Spot
from dra_driver.kubectl.lint.reading import plain
from dra_driver.kubectl.lint.reporter import Reporter
from dra_driver.kubectl.lint.scope import ClassInfo, Scope

MAX_BYTES: Final = 10 * 1024
_TYPE_OF_KIND: Final = {"GpuConfig": "gpu", "MigDeviceConfig": "mig"}
_PATH: Final = re.compile(r"([A-Za-z][\w.-]*): ")


class ConfigChecker:
    """Checks the configurations of claims and classes."""

    def __init__(self, reporter: Reporter, scope: Scope) -> None:
        self._reporter = reporter
        self._scope = scope

    def of_class(self, spec: Spot) -> None:
        """Checks the configurations of a DeviceClass, which apply to the devices that it selects."""
        classes = [found for found in [self._scope.class_info(spec.manifest.name)] if found is not None]
        for config in spec.each("config"):
            self._config(config, classes, named=False)

    def of_claim(self, devices: Spot) -> None:
        """Checks the configurations of a claim, which apply to the requests that they name, or to all."""
        for config in devices.each("config"):
            named = {str(spot.node.value) for spot in config.each("requests")}
            parts = [part for name, part in parts_of(devices) if not named or named & {name, request_of(name)}]
            if parts and all(part.flag("adminAccess") for part in parts):
                self._without_effect(config)
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

    def _without_effect(self, config: Spot) -> None:
        sharing = config.get("opaque", "parameters", "sharing")
        if sharing is not None and config.string("opaque", "driver") == DRIVER:
            message = "all requests of this configuration have admin access, which never changes how a device is shared"
            self._reporter.add("DRA040", sharing, message, hint="remove the section")

    def _driver_parameters(self, parameters: Spot, classes: list[ClassInfo], *, named: bool) -> None:
        try:
            decoded = decode(plain(parameters.node))
        except InvalidParametersError as error:
            for path, problem in _problems(str(error)):
                spot = _nearest(parameters, path.split("."))
                text = f"{path}: {problem}" if path else problem
                self._reporter.add("DRA035", spot, text, hint=_hint(problem, path))
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
    """Returns the content of a request: below ``exactly``, or (v1beta1) in the request itself."""
    if request.manifest.version == "v1beta1":
        return request if request.get("deviceClassName") is not None else None
    return request.get("exactly")


def request_of(name: str) -> str:
    """The request of ``request/subrequest``."""
    return name.partition("/")[0]


def parts_of(devices: Spot) -> list[tuple[str, Spot]]:
    """Returns the content of each request and subrequest with its name, ``request`` or ``request/subrequest``."""
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
    """Splits a decoding error, such as ``GpuConfig: sharing.strategy: expected ...; ...``, into paths and problems."""
    text = re.sub(r"^(GpuConfig|MigDeviceConfig): ", "", text)
    found = []
    for part in re.split(r"; (?=[A-Za-z][\w.-]*: )", text):
        match = _PATH.match(part)
        found.append((match[1], part[match.end() :]) if match else ("", part))
    return found


def _hint(problem: str, path: str) -> str:
    if path == "apiVersion":
        return f"write apiVersion: {API_VERSION}"
    return "check spelling and indentation; names are case-sensitive" if "unknown field" in problem else ""


# --- Rule DRA060 for GpuPolicy objects: policies that a node would refuse.
#
# Policies are checked by the code that the node process runs (``config.policy``). Whether two policies conflict depends
# on the GPUs; ``dra-driver policy check --gpus`` finds such conflicts.

_GROUP: Final = POLICY_API.partition("/")[0]


def check_policy(manifest: Manifest, reporter: Reporter) -> None:
    """Reports every invalid field; ignores objects of other kinds."""
    if manifest.group != _GROUP or manifest.kind != KIND:
        return
    try:
        written = plain(manifest.spot.node)
    except ValueError as error:
        reporter.add("DRA060", manifest.spot, f"the policy {error}")
        return
    for problem in policy_problems(written):
        text = f"{path_text(problem.path)}: {problem.text}" if problem.path else problem.text
        hint = "check spelling and indentation; names are case-sensitive" if problem.text == "unknown field" else ""
        reporter.add("DRA060", _nearest(manifest.spot, problem.path), text, hint=hint)


def _nearest(spot: Spot, path: Sequence[Step]) -> Spot:
    """Returns the value at a path, or its nearest existing parent."""
    for step in path:
        below = [value for key, value in spot.pairs() if key.text == step]
        found = spot.each()[step : step + 1] if isinstance(step, int) else below[-1:]
        if not found:
            break
        spot = found[0]
    return spot
