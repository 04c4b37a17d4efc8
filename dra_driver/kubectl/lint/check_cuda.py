"""Compare a container's NVIDIA_REQUIRE_CUDA with the published devices that its claims select.

Grammar (NVIDIA container toolkit): alternatives are separated by spaces, conditions of an alternative by commas, as in
``cuda>=12.4 brand=tesla,driver>=535,driver<536``. With CDI, no component checks the variable when a container starts.
Images also set it; manifests do not contain images' variables, so these are not checked.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError
from dra_driver.core.semver import from_loose
from dra_driver.core.text import counted, cut, listed
from dra_driver.kube.devices import attribute_shown
from dra_driver.kube.published import names
from dra_driver.kubectl.lint.catalog_devices import DRIVER, KnownDevice
from dra_driver.kubectl.lint.check_configs import parts_of
from dra_driver.kubectl.lint.expressions import matching_devices
from dra_driver.kubectl.lint.finding import Reporter
from dra_driver.kubectl.lint.manifest import Spot
from dra_driver.kubectl.lint.scope import Scope, compiled
from dra_driver.scheduler.cel import compile_selector

VARIABLE: Final = "NVIDIA_REQUIRE_CUDA"
_SKIPPED: Final = "NVIDIA_DISABLE_REQUIRE"
_MAX_BYTES: Final = 4096
_MAX_ALTERNATIVES: Final = 64
_MAX_CONDITIONS: Final = 8
_CONDITION: Final = re.compile(r"(cuda|driver|arch|brand)(>=|<=|!=|=|>|<)([0-9A-Za-z.-]{1,32})")
_VERSIONS: Final[Mapping[str, str]] = {
    "cuda": names.CUDA_DRIVER_VERSION,
    "driver": names.DRIVER_VERSION,
    "arch": names.COMPUTE_CAPABILITY,
}
_SHOWN: Final = (names.CUDA_DRIVER_VERSION, names.DRIVER_VERSION)
_OPERATORS: Final = {"=": "=="}
_ATTRIBUTES: Final = f'device.attributes["{DRIVER}"]'


def alternatives_of(text: str) -> list[str] | None:
    """Return each alternative of a requirement as a CEL expression; None if the text is not a requirement."""
    parts = [part.split(",") for part in text.split()] if len(text) <= _MAX_BYTES else []
    if not 0 < len(parts) <= _MAX_ALTERNATIVES or any(len(part) > _MAX_CONDITIONS for part in parts):
        return None
    try:
        return list(dict.fromkeys(" && ".join(map(_condition, part)) for part in parts))
    except ValueError:
        return None


def _condition(text: str) -> str:
    """Raises ValueError for a text that is not a condition."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ValueError(text)
    name, operator, value = match.groups()
    operator = _OPERATORS.get(operator, operator)
    if name == "brand":
        if operator not in ("==", "!="):
            raise ValueError(text)
        return f'{_ATTRIBUTES}.{names.BRAND}.lowerAscii() {operator} "{value.lower()}"'
    version = from_loose(value)
    if version is None:
        raise ValueError(text)
    return f'{_ATTRIBUTES}.{_VERSIONS[name]}.compareTo(semver("{version}")) {operator} 0'


class CudaChecker:
    def __init__(self, reporter: Reporter, scope: Scope) -> None:
        self._reporter = reporter
        self._scope = scope

    def check(self, container: Spot, declared: Mapping[str, Spot | None]) -> None:
        """Report a requirement that some nodes with devices for the container do not meet. Needs published devices."""
        env = {entry.string("name"): entry for entry in container.each("env")}
        value = env[VARIABLE].get("value") if VARIABLE in env else None
        if value is None or not isinstance(value.node.value, str) or not value.node.value.strip():
            return
        if _SKIPPED in env and env[_SKIPPED].string("value").lower() in {"1", "true"}:
            return
        alternatives = alternatives_of(value.node.value)
        if alternatives is None:
            message = f"{VARIABLE} {cut(value.node.value, 80)!r} cannot be read, so nodes are not compared with it"
            hint = "write conditions such as cuda>=12.4; a comma means and, a space means or"
            self._reporter.add("DRA056", value, message, hint=hint)
            return
        self._compare(value, value.node.value, alternatives, self._devices(container, declared))

    def _devices(self, container: Spot, declared: Mapping[str, Spot | None]) -> list[KnownDevice]:
        """Return published devices of this driver that the claims of the container select."""
        claims = [declared.get(use.string("name")) for use in container.each("resources", "claims")]
        found: dict[int, KnownDevice] = {}
        for part in (part for devices in claims if devices is not None for _, part in parts_of(devices)):
            info, chain = self._scope.class_info(part.string("deviceClassName")), compiled(part.each("selectors"))
            if info is not None and info.selectors is not None and chain is not None:
                ours = [device for device in info.devices if device.driver == DRIVER and device.nodes]
                found |= {id(device): device for device in matching_devices(chain, ours)}
        return list(found.values())

    def _compare(self, value: Spot, text: str, alternatives: Sequence[str], devices: Sequence[KnownDevice]) -> None:
        useful = [each for each in alternatives if any(_meets(each, device) for device in devices)]
        failing = [device for device in devices if not any(_meets(each, device) for each in useful)]
        if not failing:
            return
        nodes = {node for device in devices for node in device.nodes}
        bad = {node for device in failing for node in device.nodes}
        met = f"no node meets {VARIABLE}" if not useful else f"{len(bad)} of {counted(len(nodes), 'node')} do not meet"
        message = f"{met} {cut(text, 60)!r}: {_seen(failing)} on {listed(sorted(bad), 3)}"
        wanted = f'device.driver == "{DRIVER}" && ({" || ".join(f"({each})" for each in useful or alternatives[:1])})'
        hint = f"add this selector to the request: {wanted}"
        if not useful:
            hint = f"use an image for an older CUDA, or upgrade the NVIDIA driver of the nodes; {hint}"
        self._reporter.add("DRA056", value, message, hint=hint)


def _meets(expression: str, device: KnownDevice) -> bool:
    """Return whether the device meets it. A device without the attribute does not."""
    try:
        return compile_selector(expression).evaluate(device.view)
    except (CelSyntaxError, CelEvaluationError):
        return False


def _seen(devices: Iterable[KnownDevice]) -> str:
    attributes = (device.wire.get("attributes") for device in devices)
    versions = {tuple(attribute_shown(each, DRIVER, name) or "unknown" for name in _SHOWN) for each in attributes}
    return listed([f"CUDA {cuda} with driver {driver}" for cuda, driver in sorted(versions)], 3)
