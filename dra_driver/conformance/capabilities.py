"""Which capabilities a driver has: looked at once per run, because most need its slices or a prepared claim."""

from collections.abc import Callable
from typing import Final

from dra_driver.conformance.bench import Bench
from dra_driver.conformance.checks.health import reports_something
from dra_driver.conformance.published import MANY, taints, together
from dra_driver.conformance.values import Capability, UnableError


class Capabilities:
    """Answers, and remembers them. A capability is looked at when the first check needs it."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._known: dict[Capability, str] = {}

    def missing(self, capability: Capability) -> str:
        """Why the driver does not have the capability, as a sentence; empty if it does. Raises what a check raises."""
        if capability not in self._known:
            self._known[capability] = _LOOK[capability](self._bench)
        return self._known[capability]


def _restart(bench: Bench) -> str:
    return "" if bench.subject.control else "no --restart-command and no command to start the driver was given"


def _shares(bench: Bench) -> str:
    found = any(device.is_shared for device in bench.scheduler.devices())
    return "" if found else "the driver publishes no device with allowMultipleAllocations"


def _partitions(bench: Bench) -> str:
    found = any(device.is_partition for device in bench.scheduler.devices())
    return "" if found else "the driver publishes no device that consumes counters"


def _taints(bench: Bench) -> str:
    return "" if any(taints(bench.slices())) else "the driver publishes no device with a taint"


def _two(bench: Bench) -> str:
    usable = [device for device in bench.scheduler.devices() if not device.is_blocked]
    enough = any(device.is_shared for device in usable) or len(together(bench.slices(), usable, 2)) > 1
    return "" if enough else "the driver publishes one device that can be used, or devices that exclude each other"


def _many(bench: Bench) -> str:
    usable = [device for device in bench.scheduler.devices() if not device.is_blocked]
    found = len(together(bench.slices(), usable, MANY))
    return "" if found == MANY else f"the driver publishes {found} devices that do not exclude each other"


def _admin_access(bench: Bench) -> str:
    try:
        claim = bench.claim(adminAccess=True)
    except UnableError as error:
        return f"no claim with admin access can be allocated: {error}"
    why = bench.refusal(claim.key)
    bench.clean()
    return f"the driver refuses claims with admin access: {why}" if why else ""


_LOOK: Final[dict[Capability, Callable[[Bench], str]]] = {
    "restart": _restart,
    "shares": _shares,
    "partitions": _partitions,
    "admin-access": _admin_access,
    "health": reports_something,
    "taints": _taints,
    "2-devices": _two,
    "32-devices": _many,
}
