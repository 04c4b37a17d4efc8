"""Which claims do not use their devices. Pure.

A claim is used while one of its processes computes, and not used while it has no process, or all of them stand still.
Where the driver does not tell (MIG without GPM, no rights), nothing is known, and unknown is never idle: the time
begins again.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec import Struct

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage_findings import MAX_IDLE, IdleClaim
from dra_driver.core.model.usage_rules import DEFAULT_USAGE, idle_after_min
from dra_driver.node.usage.values import DeviceUse, JoinedUsage, SeenProcess, began, step_s


class ClaimUse(Struct, frozen=True, kw_only=True):
    """Whether a claim used any of its devices since the last look; None: not known.

    ``after_min`` are minutes without use after which it counts as idle, None for never. Of several devices with
    different policies it is the longest, and None if one of them says never.
    """

    claim: ClaimRef
    used: bool | None
    after_min: int | None = None


class IdleWatched(Struct, frozen=True, kw_only=True):
    """For how long (s) a claim was seen without use, and since when that is told."""

    idle_s: float
    since: datetime | None = None


IdleState = Mapping[str, IdleWatched]
"""By claim UID; a claim whose use is not known is not in it."""


def is_used(processes: Iterable[SeenProcess] | None, device_percent: int | None = None) -> bool | None:
    """Whether a device is used by the claim that has it, whose ``processes`` are given; None where that is not known.

    ``device_percent`` is the SM utilisation of a device that the claim has alone (a partition, with GPM), None where it
    is not known or not the claim's alone.
    """
    if processes is None:
        return None
    percents = [each.sm_percent for each in processes]
    if not percents:
        return False
    if any(percents) or device_percent:
        return True
    return None if None in percents and device_percent is None else False


def used_any(devices: Iterable[bool | None]) -> bool | None:
    """Of several devices: True if one is used, None if that is not known of one, False if none is. None without any."""
    found = list(devices)
    if not found or (None in found and True not in found):
        return None
    return True in found


def device_used(use: DeviceUse) -> bool | None:
    """Whether the claim used the device since the last look; None where that is not known."""
    if use.shared_processes:
        return None
    alone = use.sm_percent if use.assigned.form is not Form.SHARE else None
    if use.processes is None:
        return True if alone else None
    return is_used(use.processes, alone)


def claim_uses(joined: JoinedUsage) -> list[ClaimUse]:
    """Each claim, and whether it used any of its devices. Claims with admin access alone watch and use nothing."""
    rules = joined.rules
    claims: dict[ClaimRef, list[DeviceUse]] = {}
    for use in joined.devices:
        if not use.assigned.admin_access:
            claims.setdefault(use.claim, []).append(use)
    return [
        ClaimUse(
            claim=claim,
            used=used_any(device_used(use) for use in uses),
            after_min=idle_after_min([rules.get(use.assigned.gpu_uuid, DEFAULT_USAGE) for use in uses]),
        )
        for claim, uses in claims.items()
    ]


def watch_idle(
    state: IdleState, uses: Iterable[ClaimUse], elapsed_s: float, now: datetime
) -> tuple[IdleState, tuple[IdleClaim, ...]]:
    """The next state, and the claims that count as idle, in the order of names.

    ``elapsed_s`` and ``now`` are as those of `watchdog.watch`. Claims that are not in ``uses`` have ended.
    """
    counted_s = step_s(elapsed_s)
    found: dict[str, IdleWatched] = {}
    idle: list[IdleClaim] = []
    for use in uses:
        if use.used is not False:
            continue  # used, or not known
        former = state.get(use.claim.uid)
        idle_s = former.idle_s + counted_s if former is not None else 0.0
        since = former.since if former is not None else None
        if use.after_min is not None and idle_s >= use.after_min * 60:
            since = since or began(now, idle_s)
            idle.append(IdleClaim(claim=use.claim, since=since))
        found[use.claim.uid] = IdleWatched(idle_s=idle_s, since=since)
    idle.sort(key=lambda each: (each.claim.namespace, each.claim.name))
    return found, tuple(idle[:MAX_IDLE])


def idle_s(state: IdleState, uid: str, used: bool | None) -> float | None:
    """Seconds without use for the metric; 0 while it is used, None while that is not known."""
    if used is None:
        return None
    watched = state.get(uid)
    return watched.idle_s if watched is not None else 0.0
