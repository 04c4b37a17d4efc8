"""All checks in the order in which they run. Those that disturb the driver come last."""

from typing import Final

from dra_driver.conformance.checks import prepare, registration, slices, unprepare
from dra_driver.conformance.values import Check

CHECKS: Final[tuple[Check, ...]] = (
    *registration.CHECKS,
    *slices.CHECKS,
    *prepare.CHECKS,
    *unprepare.CHECKS,
)
