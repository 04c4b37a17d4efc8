"""All checks in the order in which they run. Those that disturb the driver come last."""

from typing import Final

from dra_driver.conformance.checks import disturbed, health, load, prepare, registration, shares, slices
from dra_driver.conformance.values import Check

_MODULES: Final = (registration, slices, prepare, shares, load, health, disturbed)
CHECKS: Final[tuple[Check, ...]] = tuple(
    found for module in _MODULES for found in vars(module).values() if isinstance(found, Check)
)
