"""What a fault does and how long a GPU has to be calm, by defaults and by a policy's rules. Pure."""

from collections.abc import Mapping
from typing import Final

from dra_driver.core.model.health import HealthCause, Severity
from dra_driver.core.model.health_rules import HealthRules
from dra_driver.node.health.xids import xid

CALM_S: Final[Mapping[HealthCause, float]] = {
    HealthCause.XID: 120.0,
    HealthCause.ECC: 120.0,
    HealthCause.LOST: 300.0,  # a GPU that comes and goes: a loose riser, a failing power supply
    HealthCause.HANG: 300.0,
    HealthCause.ROW_REMAP: 60.0,  # read from the driver, which knows
    HealthCause.RETIRED_PAGES: 60.0,
    HealthCause.RECOVERY_ACTION: 60.0,
    HealthCause.NVLINK: 300.0,  # links train again and again before they fail
    HealthCause.FABRIC: 300.0,
    HealthCause.UNMONITORED: 0.0,
}
"""Seconds from seen recovery to the end, by cause."""

MOST_DOUBLINGS: Final = 3
"""How often the calm time doubles when a fault comes back: at most to eight times."""

FLAP_WINDOW_S: Final = 3600.0
"""A fault that comes back within this time after its end has come back; later it is a new one."""


def severity(cause: HealthCause, number: int, rules: HealthRules) -> Severity:
    """What the fault does. What names its XID is stronger than what names its cause."""
    if cause is HealthCause.UNMONITORED:
        return Severity.COUNTED
    if cause is HealthCause.XID:
        if number in rules.evicting_xids:
            return Severity.EVICT
        if number in rules.ignored_xids:
            return Severity.COUNTED
        if number not in rules.taint_xids and (not xid(number).taints or cause in rules.ignored_causes):
            return Severity.COUNTED
    elif cause in rules.ignored_causes:
        return Severity.COUNTED
    return Severity.EVICT if cause in rules.evicting_causes else Severity.NO_NEW_CLAIMS


def calm_s(cause: HealthCause, repeats: int, rules: HealthRules, longest_s: float | None) -> float:
    """Seconds from seen recovery to the end; twice as long each time the fault has come back, up to eight times.

    ``longest_s`` limits what comes of the cause's default, not what rules say.
    """
    doubled = float(2 ** min(repeats, MOST_DOUBLINGS))
    if rules.calm_s is not None:
        return rules.calm_s * doubled
    default = CALM_S[cause] * doubled
    return default if longest_s is None else min(default, longest_s)
