"""Compute the faults of one GPU from events, readings and time. No I/O.

A fault's severity never falls before recovery:

    cause               recovery
    lost, hang          the GPU answers
    recovery-action     the driver reports the action "none"
    row-remap           no row is pending and none has failed
    retired-pages       no page is pending
    nvlink, fabric      no link is down; the fabric is healthy
    xid, ecc            a reset or reboot, see below; for a partition also the end of its instance

An XID is an event, and no reading shows whether it still holds. The GPU was reset, or no longer needs a reset, when

- the recovery action changes to "none";
- the GPU answers after it was lost: NVML's GPU_IS_LOST lasts until a reset, a hot plug or a reboot (not for errors that
  may pass, `HealthReading.passing`);
- pending rows or pages are applied and no remap has failed; not for an XID that needs a reboot;
- the node's boot id changed; or
- the driver reports a recovery action for this XID if one is needed (`Xid.reported`), and reported "none" at least
  `SETTLE_S` after the last such XID.

An XID that needs no recovery of the GPU recovers immediately. Events of one moment may come in any order.
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
"""Seconds after an error until the driver's recovery action "none" counts. The driver sets it in a work item after the
event (open-gpu-kernel-modules, gpuRefreshRecoveryAction_KERNEL), and messages of GSP may be late."""

FAILED: Final = "failed"
PENDING: Final = "pending"


class Moment(Struct, frozen=True, kw_only=True):
    """``clock``: monotonic seconds; ``wall``: seconds of the epoch."""

    clock: float
    wall: float
    rules: HealthRules
    longest_calm_s: float | None = None


def after_events(faults: Faults, events: Iterable[HealthEvent], at: Moment) -> Faults:
    """The faults after the events of one moment, trimmed."""
    for event in events:
        faults = after_event(faults, event, at)
    return trimmed(faults)


def after_event(faults: Faults, event: HealthEvent, at: Moment) -> Faults:
    """The faults after an event. An XID that does not taint by the rules leaves none."""
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
    """The faults after a reading of the GPU. A field that is None is unknown."""
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
    """The faults after an administrator reported a reset or repair."""
    return _healed(dict(faults), "an administrator undrained it", at, only_reset=False)


def after_instances(faults: Faults, existing: Collection[int], at: Moment) -> Faults:
    """The faults when these GPU instances exist: faults of other instances end."""
    found = dict(faults)
    for key, fault in faults.items():
        if key.gi_id is not None and key.gi_id not in existing and fault.phase is not FaultPhase.OVER:
            found[key] = replace(_recovered(fault, "its GPU instance no longer exists", at), ended=at.clock)
    return found


def after_boot(faults: Faults, at: Moment) -> Faults:
    """The faults of an earlier boot, in this one: a reboot resets GPUs and removes MIG instances.

    A lost GPU and a failed remap stay until a reading shows recovery. Other readings recover and end after their
    stabilization period, because the next reading shows them again if they still hold.
    """
    found = {}
    for key, fault in faults.items():
        moved = replace(fault, opened=at.clock, seen=at.clock, ended=None if fault.ended is None else at.clock)
        moved = replace(moved, recovered=None if fault.recovered is None else at.clock)
        if key.gi_id is not None:
            moved = replace(_recovered(moved, "the node was rebooted", at), ended=at.clock)
        elif key.cause is not HealthCause.LOST and (key.cause, fault.detail) != (HealthCause.ROW_REMAP, FAILED):
            moved = _recovered(moved, "the node was rebooted", at)
        found[key] = moved
    return found


def after_time(faults: Faults, at: Moment) -> Faults:
    """The faults now: calm ones end, ended ones expire, and the rules of now apply."""
    found = {}
    for key, fault in faults.items():
        if fault.ended is not None and at.clock - fault.ended > FLAP_WINDOW_S:
            continue
        judged = _judged(key, fault, at)
        calm = calm_s(key.cause, fault.repeats, at.rules, at.longest_calm_s)
        if judged.phase is FaultPhase.RECOVERING and at.clock - (judged.recovered or 0.0) >= calm:
            judged = replace(judged, ended=at.clock)
        found[key] = judged
    return found


def _levels(faults: Faults, reading: HealthReading) -> Iterator[tuple[HealthCause, str, str]]:
    """For a GPU that answers: cause, problem ("" for none), evidence of recovery."""
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
"""Causes whose end shows a reset of the GPU, or that it needs none."""


def _remap(faults: Faults, reading: HealthReading) -> tuple[str, str]:
    """Problem and evidence of recovery of row remapping; "" for unknown. NVML does not report it while MIG instances
    exist; a failed remap ends only with the reading that none has failed."""
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
    """With ``evidence`` of a reset, XIDs and ECC errors recover; with ``only_reset``, only errors that need no
    reboot."""
    if evidence:
        for key, fault in faults.items():
            reboots = key.cause is HealthCause.XID and xid(key.xid).recovery is XidRecovery.NODE_REBOOT
            if key.cause in _EVENT_CAUSES and fault.phase is FaultPhase.OPEN and not (only_reset and reboots):
                faults[key] = _recovered(fault, evidence, at)
    return faults


_EVENT_CAUSES: Final = frozenset({HealthCause.XID, HealthCause.ECC})


def _settled(faults: dict[FaultKey, HealthFault], reading: HealthReading, at: Moment) -> Faults:
    """Errors for which the driver would report a recovery action recover when it reports none."""
    if reading.recovery_action is RecoveryAction.NONE:
        for key, fault in faults.items():
            reported = key.cause is HealthCause.ECC or (key.cause is HealthCause.XID and xid(key.xid).reported)
            if reported and fault.phase is FaultPhase.OPEN and at.clock - fault.seen >= SETTLE_S:
                faults[key] = _recovered(fault, "the driver reports that no recovery is needed", at)
    return faults


def _with(faults: Faults, key: FaultKey, detail: str, at: Moment) -> Faults:
    """With this fault open: new, detected again, or returned."""
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
    """Recovery now, which is later than the fault was detected."""
    recovered = max(at.clock, nextafter(fault.seen, float("inf")))
    return replace(fault, recovered=recovered, evidence=evidence)


def _judged(key: FaultKey, fault: HealthFault, at: Moment) -> HealthFault:
    """With the severity by the rules of now; ``since`` moves with it."""
    level = severity(key.cause, key.xid, at.rules)
    if level is fault.severity or fault.phase is FaultPhase.OVER:
        return fault
    return replace(fault, severity=level, since=at.wall)
