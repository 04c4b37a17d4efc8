"""All checks in the order in which they run. Those that disturb the driver come last."""

from typing import Final

from dra_driver.conformance.checks import (
    disturbed,
    health,
    large,
    parallel,
    prepare,
    registration,
    restart,
    shares,
    slices,
    unprepare,
)
from dra_driver.conformance.values import Check

CHECKS: Final[tuple[Check, ...]] = (
    *registration.CHECKS,
    *slices.CHECKS,
    *prepare.CHECKS,
    *unprepare.CHECKS,
    *shares.CHECKS,
    *parallel.CHECKS,
    *large.CHECKS,
    *health.CHECKS,
    *disturbed.CHECKS,
    *restart.CHECKS,
)
