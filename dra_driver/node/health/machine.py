"""The state of one GPU's health: faults and what happened in, faults out. Pure.

A fault's severity never falls before recovery was seen. What counts as recovery:

    cause               recovery is seen when
    lost, hang          the GPU answers
    recovery-action     the driver reports the action "none"
    row-remap           no row is pending and none has failed
    retired-pages       no page is pending
    nvlink, fabric      no link is down; the fabric is healthy
    xid, ecc            the GPU was reset or the node rebooted, see below; the instance of a partition is destroyed

An XID is an event, and nothing reads whether it still holds. The GPU was reset, or needs no reset any more, when

- the recovery action goes back to "none" from another one;
- the GPU answers again after it was lost: NVML's GPU_IS_LOST lasts until a reset, a hot plug or a reboot (not for
  errors that may pass, `HealthReading.passing`);
- pending rows or pages are not pending any more, and no remap has failed: a reset or a reboot applied them. That is not
  enough for an XID that needs a reboot;
- the node's boot id changed; or
- the driver reports a recovery action after this XID if one is needed (`Xid.reported`), and has reported "none" at a
  look that is `SETTLE_S` or more after the last such XID.

An XID that needs no recovery of the GPU recovers when it is seen. Events of one moment may come in any order.
"""

from collections.abc import Collection, Iterable, Iterator
from math import nextafter
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.model.health import (
    HealthCause,
    HealthEvent,
    HealthEventKind,
    HealthReading,
    RecoveryAction,
    Severity,
)
from dra_driver.core.model.health_rules import HealthRules
from dra_driver.core.text import printable
from dra_driver.node.health.fault import (
    FLAP_WINDOW_S,
    MOST_DETAIL,
    MOST_DOUBLINGS,
    MOST_ID,
    FaultKey,
    FaultPhase,
    Faults,
    HealthFault,
    calm_s,
    severity,
    trimmed,
)
from dra_driver.node.health.xids import XidRecovery, xid

SETTLE_S: Final = 60.0
"""Seconds after an error until the driver's word "none" about a recovery counts. The driver decides it in a work item
after the event (open-gpu-kernel-modules, gpuRefreshRecoveryAction_KERNEL), and GSP's messages may be behind."""

FAILED: Final = "failed"
PENDING: Final = "pending"


class Moment(Struct, frozen=True, kw_only=True):
    """When and by which rules something is judged. ``clock``: monotonic seconds; ``wall``: seconds of the epoch."""

    clock: float
    wall: float
    rules: HealthRules
    longest_calm_s: float | None = None


def after_events(faults: Faults, events: Iterable[HealthEvent], at: Moment) -> Faults:
    """The faults after the events of one moment; of more different XIDs than are remembered, the strongest."""
    for event in events:
        faults = after_event(faults, event, at)
    return trimmed(faults)


def after_event(faults: Faults, event: HealthEvent, at: Moment) -> Faults:
    """The faults after an event of the hardware. An XID that does not taint by the rules leaves none."""
    gi_id = event.gi_id if event.gi_id is None or 0 <= event.gi_id <= MOST_ID else None
    if event.kind is HealthEventKind.DOUBLE_BIT_ECC:
        return _with(faults, FaultKey(gi_id, HealthCause.ECC), "", at)
    number = event.xid if event.xid is not None and 0 <= event.xid <= MOST_ID else 0
    key = FaultKey(gi_id, HealthCause.XID, number)
    if severity(key.cause, number, at.rules) is Severity.COUNTED:
        return faults
    before = faults.get(key)
    if xid(number).taints:
        return _with(faults, key, "", at)
    if before is None or before.phase is FaultPhase.OVER:
        faults = _with(faults, key, "", at)
    seen = replace(faults[key], seen=max(faults[key].seen, at.clock))
    return {**faults, key: _recovered(seen, "it needs no recovery of the GPU", at)}


def after_reading(faults: Faults, reading: HealthReading, at: Moment) -> Faults:
    """The faults after a look at the GPU. A field that is None says nothing."""
    if reading.unreachable is not None:
        key = FaultKey(None, HealthCause.HANG if reading.hangs else HealthCause.LOST)
        before, found = faults.get(key), dict(_with(faults, key, reading.unreachable, at))
        passing = reading.passing and (before is None or before.phase is not FaultPhase.OPEN or before.passing)
        found[key] = replace(found[key], passing=passing)
        return found
    found, evidence = dict(faults), ""
    for cause, detail, ends in _levels(faults, reading):
        key = FaultKey(None, cause)
        if detail:
            found = dict(_with(found, key, detail, at))
        elif ends and key in found and found[key].phase is FaultPhase.OPEN:
            found[key] = _recovered(found[key], ends, at)
            shows_reset = cause in _RESET_CAUSES and not found[key].passing
            evidence = evidence or (ends if shows_reset else "")
    only_reset = evidence in {_REMAPPED, _RETIRED}
    return _settled(_healed(found, evidence, at, only_reset=only_reset), reading, at)


def after_repair(faults: Faults, at: Moment) -> Faults:
    """The faults after an administrator said that the GPU was reset or repaired."""
    return _healed(dict(faults), "a person gave it back after a drain", at, only_reset=False)


def after_instances(faults: Faults, existing: Collection[int], at: Moment) -> Faults:
    """The faults when these GPU instances exist: those of other instances are over with their instance."""
    gone = [
        key
        for key, fault in faults.items()
        if key.gi_id is not None and key.gi_id not in existing and fault.phase is not FaultPhase.OVER
    ]
    return {**faults, **{key: _over(_recovered(faults[key], "its GPU instance is gone", at), at) for key in gone}}


def after_boot(faults: Faults, at: Moment) -> Faults:
    """The faults of an earlier boot, in this one: a reboot resets GPUs and removes MIG instances.

    A lost GPU and a failed remap stay until a reading says otherwise; so do links, fabric and other readings, but only
    until the calm time is over, because the next reading shows them again if they still hold.
    """
    found = {}
    for key, fault in faults.items():
        moved = replace(fault, opened=at.clock, seen=at.clock, ended=None if fault.ended is None else at.clock)
        moved = replace(moved, recovered=None if fault.recovered is None else at.clock)
        if key.gi_id is not None:
            moved = _over(_recovered(moved, "the node was rebooted", at), at)
        elif key.cause is not HealthCause.LOST and (key.cause, fault.detail) != (HealthCause.ROW_REMAP, FAILED):
            moved = _recovered(moved, "the node was rebooted", at)
        found[key] = moved
    return found


def after_time(faults: Faults, at: Moment) -> Faults:
    """The faults now: what was calm for long enough is over, what is long over is forgotten, rules apply."""
    found = {}
    for key, fault in faults.items():
        if fault.ended is not None and at.clock - fault.ended > FLAP_WINDOW_S:
            continue
        judged = _judged(key, fault, at)
        calm = calm_s(key.cause, fault.repeats, at.rules, at.longest_calm_s)
        if judged.phase is FaultPhase.RECOVERING and at.clock - (judged.recovered or 0.0) >= calm:
            judged = _over(judged, at)
        found[key] = judged
    return found


def _levels(faults: Faults, reading: HealthReading) -> Iterator[tuple[HealthCause, str, str]]:
    """What a reading of a GPU that answers says: cause, what is wrong ("" for nothing), and how recovery is told."""
    yield HealthCause.LOST, "", "the GPU answers again"
    yield HealthCause.HANG, "", "the GPU answers again"
    action = reading.recovery_action
    if action is not None:
        wrong = "" if action is RecoveryAction.NONE else action.value
        yield HealthCause.RECOVERY_ACTION, wrong, "the driver reports that no recovery is needed any more"
    yield HealthCause.ROW_REMAP, *_remap(faults, reading)
    if reading.pages_pending is not None:
        yield HealthCause.RETIRED_PAGES, PENDING if reading.pages_pending else "", _RETIRED
    if reading.links_down is not None:
        yield HealthCause.NVLINK, ", ".join(map(str, reading.links_down)), "the NVLinks are up again"
    if reading.fabric_unhealthy is not None:
        yield HealthCause.FABRIC, reading.fabric_unhealthy, "the fabric is healthy again"


_REMAPPED: Final = "the memory rows are remapped"
_RETIRED: Final = "the memory pages are retired"
_RESET_CAUSES: Final = frozenset(
    {HealthCause.LOST, HealthCause.RECOVERY_ACTION, HealthCause.ROW_REMAP, HealthCause.RETIRED_PAGES}
)
"""Causes whose end shows that the GPU was reset, or that it needs no reset."""


def _remap(faults: Faults, reading: HealthReading) -> tuple[str, str]:
    """What is wrong with the remapping of rows, and how recovery is told; "" for unknown.

    NVML does not report it while MIG instances exist. A failed remap ends only when it is read that none has failed.
    """
    if reading.rows_failed:
        return FAILED, ""
    before = faults.get(FaultKey(None, HealthCause.ROW_REMAP))
    if (
        before is not None
        and before.phase is FaultPhase.OPEN
        and before.detail == FAILED
        and reading.rows_failed is None
    ):
        return "", ""
    if reading.rows_pending:
        return PENDING, ""
    return "", "" if reading.rows_pending is None else _REMAPPED


def _healed(
    faults: dict[FaultKey, HealthFault], evidence: str, at: Moment, *, only_reset: bool
) -> dict[FaultKey, HealthFault]:
    """With ``evidence`` of a reset, errors that a reset heals recover; with ``only_reset``, those that need no more."""
    if evidence:
        for key, fault in faults.items():
            reboots = key.cause is HealthCause.XID and xid(key.xid).recovery is XidRecovery.NODE_REBOOT
            if key.cause in _EVENT_CAUSES and fault.phase is FaultPhase.OPEN and not (only_reset and reboots):
                faults[key] = _recovered(fault, evidence, at)
    return faults


_EVENT_CAUSES: Final = frozenset({HealthCause.XID, HealthCause.ECC})


def _settled(faults: dict[FaultKey, HealthFault], reading: HealthReading, at: Moment) -> Faults:
    """Errors after which the driver would report a recovery action recover when it reports none."""
    if reading.recovery_action is RecoveryAction.NONE:
        for key, fault in faults.items():
            reported = key.cause is HealthCause.ECC or (key.cause is HealthCause.XID and xid(key.xid).reported)
            if reported and fault.phase is FaultPhase.OPEN and at.clock - fault.seen >= SETTLE_S:
                faults[key] = _recovered(fault, "the driver reports that no recovery is needed", at)
    return faults


def _with(faults: Faults, key: FaultKey, detail: str, at: Moment) -> Faults:
    """With this fault open: a new one, the same one seen again, or one that has come back."""
    detail, before = printable(detail[:MOST_DETAIL]), faults.get(key)
    if before is None:
        level = severity(key.cause, key.xid, at.rules)
        fault = HealthFault(severity=level, since=at.wall, opened=at.clock, seen=at.clock, detail=detail)
    elif before.phase is FaultPhase.OPEN:
        fault = replace(before, seen=max(before.seen, at.clock), detail=detail)
    else:
        since = before.since if before.phase is FaultPhase.RECOVERING else at.wall
        repeats = min(before.repeats + 1, MOST_DOUBLINGS)
        level = before.severity if before.phase is FaultPhase.RECOVERING else severity(key.cause, key.xid, at.rules)
        seen = max(at.clock, nextafter(before.recovered or 0.0, float("inf")))
        fault = HealthFault(severity=level, since=since, opened=seen, seen=seen, detail=detail, repeats=repeats)
    return {**faults, key: fault}


def _recovered(fault: HealthFault, evidence: str, at: Moment) -> HealthFault:
    """With recovery seen now, which is later than the fault was seen."""
    recovered = max(at.clock, nextafter(fault.seen, float("inf")))
    return replace(fault, recovered=recovered, evidence=evidence)


def _over(fault: HealthFault, at: Moment) -> HealthFault:
    return replace(fault, ended=at.clock)


def _judged(key: FaultKey, fault: HealthFault, at: Moment) -> HealthFault:
    """With the severity of the rules as they are now; ``since`` moves with it."""
    level = severity(key.cause, key.xid, at.rules)
    if level is fault.severity or fault.phase is FaultPhase.OVER:
        return fault
    return replace(fault, severity=level, since=at.wall)
