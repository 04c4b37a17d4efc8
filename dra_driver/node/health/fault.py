"""Describe one cause of bad health on one GPU or GPU instance over its life, and its effect by the rules of a policy.

    open        it holds
    recovering  recovery was detected; it still taints during its stabilization period
    over        it does not taint; it is kept, because a cause that returns soon waits longer

Times are seconds of the monotonic clock, which all processes of a node share; ``since`` is of the wall clock.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct, field

from dra_driver.core.model.health import HealthCause, Severity
from dra_driver.core.model.health_rules import HealthRules
from dra_driver.core.model.ids import GpuUuid
from dra_driver.node.health.xids import xid

MOST_ID: Final = 65535
"""The largest XID or GPU instance; larger numbers come from a damaged event or file."""

MOST_XIDS: Final = 64
"""Different XIDs that are kept of one GPU or GPU instance."""

MOST_DETAIL: Final = 160
"""Characters of a detail, which comes from the hardware and is shown to users."""

MOST_GPUS: Final = 64
"""GPUs of a node; others are dropped."""

MOST_TIME: Final = 1e12
Time = Annotated[float, Meta(ge=0, lt=MOST_TIME)]
Id = Annotated[int, Meta(ge=0, le=MOST_ID)]
"""Bounds of values in a file; values that the process computes are not checked."""


class FaultPhase(IntEnum):
    """The lower of two phases is the worse."""

    OPEN = 0
    RECOVERING = 1
    OVER = 2


class FaultKey(NamedTuple):
    """Identity of a fault of one GPU. ``xid`` is 0 for other causes than `HealthCause.XID` and for an invalid
    number."""

    gi_id: int | None
    cause: HealthCause
    xid: int = 0


class HealthFault(Struct, frozen=True, kw_only=True):
    """``detail`` is the reading: a recovery action, link numbers, the reason why a GPU does not answer.

    ``since`` is when it reached ``severity``, ``opened`` when it began or returned, ``seen`` when it was last detected,
    ``recovered`` when recovery was detected (``evidence`` describes how), ``ended`` when it no longer
    tainted. ``repeats`` counts returns. ``passing``: its end would show no reset.
    """

    severity: Severity
    since: Time
    opened: Time
    seen: Time
    detail: str = ""
    recovered: Time | None = None
    evidence: str = ""
    ended: Time | None = None
    repeats: Id = 0
    passing: bool = False

    @property
    def phase(self) -> FaultPhase:
        if self.ended is not None:
            return FaultPhase.OVER
        return FaultPhase.OPEN if self.recovered is None else FaultPhase.RECOVERING


Faults = Mapping[FaultKey, HealthFault]
"""All faults of one GPU."""


class HealthRecord(Struct, frozen=True, kw_only=True):
    """The faults of a node. Times are of the boot ``boot_id``. ``forgotten`` has the times at which GPUs were dropped:
    earlier faults of theirs are ignored."""

    boot_id: str = ""
    gpus: Mapping[GpuUuid, Faults] = field(default_factory=dict)
    forgotten: Mapping[GpuUuid, float] = field(default_factory=dict)


RANK: Final = {Severity.COUNTED: 0, Severity.NO_NEW_CLAIMS: 1, Severity.EVICT: 2}
"""Severities from weak to strong."""


def trimmed(faults: Faults) -> Faults:
    """At most `MOST_XIDS` XIDs of each device: open ones first, then the stronger, then the older. The strongest stays,
    so that the effect of the taint does not change."""
    if len(faults) <= MOST_XIDS:
        return faults
    dropped = set()
    for gi_id in {key.gi_id for key in faults}:
        same = [key for key in faults if key.cause is HealthCause.XID and key.gi_id == gi_id]
        dropped.update(sorted(same, key=lambda key: _rank(key, faults[key]))[MOST_XIDS:])
    return {key: fault for key, fault in faults.items() if key not in dropped}


def _rank(key: FaultKey, fault: HealthFault) -> tuple[bool, int, int, float, int]:
    return (fault.phase is FaultPhase.OVER, -RANK[fault.severity], fault.phase, fault.opened, key.xid)


CALM_S: Final[Mapping[HealthCause, float]] = {
    HealthCause.XID: 120.0,
    HealthCause.ECC: 120.0,
    HealthCause.LOST: 300.0,  # a GPU that disappears repeatedly: a loose riser, a failing power supply
    HealthCause.HANG: 300.0,
    HealthCause.ROW_REMAP: 60.0,  # read from the driver, which knows
    HealthCause.RETIRED_PAGES: 60.0,
    HealthCause.RECOVERY_ACTION: 60.0,
    HealthCause.NVLINK: 300.0,  # links train again and again before they fail
    HealthCause.FABRIC: 300.0,
    HealthCause.UNMONITORED: 0.0,
}
"""Seconds from recovery to the end, by cause."""

MOST_DOUBLINGS: Final = 3
"""The maximum number of doublings of the stabilization period of a fault that returns."""

FLAP_WINDOW_S: Final = 3600.0
"""A fault that begins within this time after its end has returned; later it is a new one."""


def severity(cause: HealthCause, number: int, rules: HealthRules) -> Severity:
    """The effect of the fault. A rule that names the XID is stronger than one that names the cause."""
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
    """Seconds from recovery to the end; doubled at each return, up to eight times. ``longest_s`` limits the default of
    the cause, not the value of a rule."""
    doubled = float(2 ** min(repeats, MOST_DOUBLINGS))
    if rules.calm_s is not None:
        return rules.calm_s * doubled
    default = CALM_S[cause] * doubled
    return default if longest_s is None else min(default, longest_s)
