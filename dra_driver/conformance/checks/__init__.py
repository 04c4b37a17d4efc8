"""All checks in the order of a run. Checks that disturb the driver come last."""

from typing import Final

from dra_driver.conformance.checks import disturbed, health, load, metadata, prepare, registration
from dra_driver.conformance.values import Check

_MODULES: Final = (registration, prepare, metadata, load, health, disturbed)
CHECKS: Final[tuple[Check, ...]] = tuple(
    found for module in _MODULES for found in vars(module).values() if isinstance(found, Check)
)
